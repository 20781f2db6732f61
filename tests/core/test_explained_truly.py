"""What is said to hold an order is what holds it: in many made-up houses the explanation agrees with the decision."""

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import admit, explain
from standby.core.explain import GateName, House
from standby.core.model import Lease, Mode, Order, OrderState, Slot, SlotState, Warmth
from standby.core.sighting import ImageState
from standby.core.warm import made_of
from tests.core.test_gate import place, pool_of
from tests.rows import NOW, host, order, pool, slot

LEASE = Lease(host="local", owner="a", epoch=1, until=NOW + 60_000, renewed_at=NOW)
WAITS = order(id="the-one", memory_mb=100)


def made_up(chance: Random) -> House:
    """A host with one pool, of seats or of containers, more or less full."""
    warmth = chance.choice([None, *Warmth])
    most, mode = chance.choice([0, 1, 2, 3]), chance.choice([Mode.OPEN, Mode.OPEN, Mode.OPEN, Mode.PAUSED])
    broken: dict[str, Any] = {"failures": 5, "broken_at": NOW - 1} if chance.random() < 0.1 else {}
    if warmth is None:
        of = replace(pool(slots_max=most), mode=mode)
    else:
        of = replace(pool_of(slots_max=most, warmth=warmth, image="a:1", **broken), mode=mode)
    count = chance.randrange(4)
    slots = [_slot(chance, number, of, warmth) for number in range(1, count + 1)]
    runs = [(each.name, _run(chance, each)) for each in slots]
    holders = {name: each for name, each in runs if each is not None}
    place_ = host(
        memory_mb=chance.choice([None, 90, 250, 400]),
        starts_max=chance.choice([None, None, 0, 1, 2]),
        start_gap_ms=chance.choice([0, 0, 5_000]),
    )
    image = ImageState(host="local", image="a:1", at=NOW, present=chance.random() < 0.5)
    return House(
        pool=of,
        host=place_,
        lease=LEASE,
        slots=slots,
        holders=holders,
        project_open=chance.randrange(3),
        project_max=chance.choice([None, None, 0, 2]),
        now=NOW,
        pools={of.name: of},
        host_slots=slots,
        image=image if warmth is not None and chance.random() < 0.3 else None,
        seats=warmth is None,
    )


def _slot(chance: Random, number: int, of: Any, warmth: Warmth | None) -> Slot:
    state = chance.choice([SlotState.IDLE, SlotState.IDLE, SlotState.IDLE, SlotState.CREATING, SlotState.ERROR])
    if warmth is None:
        return slot(number, state=state)
    return replace(place(number, of, state), template=made_of(of, seats=False), retry_at=NOW + 1)


def _run(chance: Random, place_: Slot) -> Order | None:
    if place_.state is not SlotState.IDLE or chance.random() < 0.5:
        return None
    begun: dict[str, Any] = {"commanded_at": NOW - chance.randrange(10_000), "memory_mb": 100}
    if chance.random() < 0.5:
        begun["ready_at"] = None
    return order(OrderState.RUNNING, id=f"in-{place_.name}", slot=place_.name, **begun)


def decided(house: House) -> str:
    """What the leader does with the order."""
    room = admit.Room(
        host=house.host,
        pools=house.pools,
        slots=house.host_slots,
        opened=list(house.holders.values()),
        project_open={"default": house.project_open},
        project_max={"default": house.project_max},
        seats=house.seats,
        now=NOW,
        missing=frozenset({"a:1"} if house.image is not None and not house.image.present else ()),
    )
    plan = admit.admit(room, [WAITS])
    if plan.admissions:
        return "claimed"
    if plan.spoken:
        return "a slot is made"
    return "held" if plan.held else "waits"


TRUE = {
    GateName.TURN: {"claimed"},
    GateName.SLOTS: {"a slot is made", "waits"},
    GateName.STARTS: {"held"},
}
"""What may be decided about an order that is said to be held by this gate; any other gate: it waits."""


@pytest.mark.parametrize("seed", range(40))
def test_an_order_is_held_by_the_gate_that_is_named_and_by_none_when_it_is_claimed(seed: int) -> None:
    chance = Random(seed)
    for _ in range(50):
        house = made_up(chance)
        gate = explain.gate(WAITS, house)
        assert gate is not None
        assert decided(house) in TRUE.get(gate.name, {"waits"}), (gate, house)
