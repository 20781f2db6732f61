"""On a host whose slots are mere seats nothing lives and nothing is made, whatever a pool says of its places."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import admit, outlook
from standby.core.estimate import Line
from standby.core.explain import GateName, House, gate
from standby.core.model import Lease, Order, OrderState, Pool, PoolSettings, Slot, Template, Warmth
from standby.core.outlook import Took
from standby.core.room import Room
from tests.rows import NOW, host, order, pool, slot

LEASE = Lease(host="local", owner="a", epoch=1, until=NOW + 1, renewed_at=NOW)
TOOK = {"default": Took([100_000] * 60, [4_000] * 3, [9_000] * 3)}

pytestmark = pytest.mark.parametrize("warmth", Warmth)


def seats(warmth: Warmth) -> Pool:
    """Places of it would have more memory and processors than the host."""
    template = Template(warmth=warmth, cpus=3.0, image="a:1")
    return pool(settings=PoolSettings(slots_max=3, memory_mb=900, template=template))


def run(state: OrderState = OrderState.RUNNING, **columns: Any) -> Order:
    row = {"id": "r", "slot": slot(1).name, "commanded_at": NOW - 30_000, "memory_mb": 450, "cpus": 1.5}
    return order(state, **{**row, **columns})


def house(of: Pool, *opened: Order, **columns: Any) -> House:
    slots = [slot(number) for number in (1, 2, 3)]
    return House(
        pool=of,
        pools={of.name: of},
        host=host(**{"memory_mb": 500, "cpus": 2.0, **columns}),
        lease=LEASE,
        slots=slots,
        host_slots=slots,
        holders={each.slot or "": each for each in opened},
        project_open=0,
        project_max=None,
        now=NOW,
        seats=True,
    )


def room(of: Pool, *slots: Slot, opened: Order | None = None, missing: frozenset[str] = frozenset(), **on: Any) -> Room:
    base: dict[str, Any] = {"project_open": {}, "project_max": {}, "now": NOW, "seats": True}
    held = [] if opened is None else [opened]
    return Room(host=host(**on), pools={of.name: of}, slots=slots, opened=held, missing=missing, **base)


def waiting(**columns: Any) -> Order:
    return order(**{"id": "mine", "memory_mb": 100, "cpus": 0.25, **columns})


def test_an_order_takes_what_it_asks_for(warmth: Warmth) -> None:
    at = house(seats(warmth), run())

    def said(row: Order) -> tuple[GateName, str] | None:
        found = gate(row, at)
        return None if found is None else (found.name, found.text)

    assert said(waiting()) == (GateName.MEMORY, "needs 100 MB; 50 of 500 MB on host local are free")
    small = waiting(memory_mb=10, cpus=1.0)
    assert said(small) == (GateName.CPUS, "needs 1 processors; 0.5 of 2 on host local are free")
    assert said(waiting(memory_mb=10, cpus=0.5)) == (GateName.TURN, "it is served as soon as its turn comes")


def test_an_estimate_counts_what_it_asks_for_and_no_time_to_make_places(warmth: Warmth) -> None:
    of = seats(warmth)

    def waits(at: House, memory_mb: int, cpus: float) -> list[int]:
        found = outlook.line(at, memory_mb, TOOK, cpus)
        assert isinstance(found, Line), found
        return [found.wait(ahead).usual_ms for ahead in range(3)]

    assert waits(house(of, run(), cpus=None), 250, 0.25) == [70_000, 70_000, 170_000]
    assert waits(house(of, run(), memory_mb=None), 1, 1.0) == [70_000, 70_000, 170_000]
    assert waits(house(of, run(), memory_mb=None, cpus=4.0), 1, 1.0) == [0, 0, 70_000]
    begun = run(OrderState.PREPARING, commanded_at=NOW - 1_000)
    limited = house(of, begun, memory_mb=None, cpus=None, starts_max=1)
    assert waits(limited, 1, 0.25) == [3_000, 7_000, 99_000], "each run is a start"


def test_an_estimate_counts_what_runs_of_other_pools_ask_for(warmth: Warmth) -> None:
    of = seats(warmth)
    elsewhere = run(pool="other", slot="other-1")
    for on in ({"memory_mb": 1_000, "cpus": None}, {"memory_mb": None, "cpus": 4.0}):
        at = replace(house(of, elsewhere, **on), pools={"default": of, "other": replace(of, name="other")})
        found = outlook.line(at, 250, TOOK, 1.0)
        assert isinstance(found, Line) and [found.wait(ahead).usual_ms for ahead in range(3)] == [0, 0, 100_000]


def test_a_claim_is_a_start_and_needs_its_image(warmth: Warmth) -> None:
    of, free = seats(warmth), slot(2)
    begun = run(OrderState.PREPARING)
    assert admit.admit(room(of, slot(1), free, opened=begun, starts_max=1), [waiting()]).held == [waiting()]
    pulled = admit.admit(room(of, slot(1), free, missing=frozenset({"a:1"})), [waiting()])
    assert (pulled.pulls, pulled.admissions) == ({"a:1"}, [])


def test_a_new_seat_is_no_start_and_is_wanted_while_another_order_waits_for_memory(warmth: Warmth) -> None:
    of = seats(warmth)
    new = admit.admit(room(of, starts_max=0), [waiting()])
    assert (new.wanted, new.held) == ({"default": 1}, [])
    full = room(of, slot(1), opened=run(), memory_mb=500, cpus=2.0)
    large = waiting(id="large", project="b", rank=NOW)
    assert admit.admit(full, [large, waiting(memory_mb=10)]).wanted == {"default": 1}
