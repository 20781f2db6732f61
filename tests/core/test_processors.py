"""The budget of processors: counted for open runs of pools that declare some, and never exceeded."""

from typing import Any

from standby.core import admit, processors
from standby.core.admit import Room
from standby.core.model import Order, OrderState, Pool, PoolSettings, Template, Warmth
from tests.rows import NOW, host, order, pool, slot


def pool_of(cpus: float | None, name: str = "default") -> Pool:
    return pool(name, settings=PoolSettings(slots_max=20, memory_mb=1, template=Template(cpus=cpus)))


def room(*pools: Pool, cpus: float | None, **more: Any) -> Room:
    slots = [slot(n, name=f"{each.name}-{n}", pool=each.name) for each in pools for n in range(1, 9)]
    base: dict[str, Any] = {"opened": [], "project_open": {}, "project_max": {}, "now": NOW}
    by_name = {each.name: each for each in pools}
    return Room(**{"host": host(cpus=cpus), "pools": by_name, "slots": slots, **base, **more})


def waiting(*pools: str) -> list[Order]:
    return [order(id=f"o{n}", rank=n, pool=name, memory_mb=1) for n, name in enumerate(pools, 1)]


def admitted(at: Room, *pools: str) -> list[str]:
    return [each.order.id for each in admit.admit(at, waiting(*pools)).admissions]


def test_orders_are_taken_until_the_processors_are_and_tenths_add_up_exactly() -> None:
    assert admitted(room(pool_of(1.0), cpus=2.5), *["default"] * 4) == ["o1", "o2"]
    assert len(admitted(room(pool_of(0.1), cpus=0.8), *["default"] * 20)) == 8
    assert len(admitted(room(pool_of(1.0), cpus=None), *["default"] * 8)) == 8


def test_open_runs_and_those_whose_end_is_not_saved_hold_theirs() -> None:
    run = order(OrderState.RUNNING, id="r", slot="default-1")
    ending = order(OrderState.RUNNING, id="e", slot="default-2")
    assert len(admitted(room(pool_of(1.0), cpus=4, opened=[run]), *["default"] * 8)) == 3
    assert len(admitted(room(pool_of(1.0), cpus=4, opened=[run], ending=[ending]), *["default"] * 8)) == 2


def test_other_lanes_overtake_who_waits_for_processors_for_a_while_and_who_can_never_fit_for_ever() -> None:
    large, small = pool_of(3.0, "large"), pool_of(1.0, "small")
    run = order(OrderState.RUNNING, id="r", pool="small", slot="small-1")
    often = {"o1": admit.OVERTAKEN_MAX}
    assert admitted(room(large, small, cpus=3, opened=[run]), "large", "small") == ["o2"]
    assert admitted(room(large, small, cpus=3, opened=[run], overtaken=often), "large", "small") == []
    assert admitted(room(large, small, cpus=2, opened=[run], overtaken=often), "large", "small") == ["o2"]


def test_a_pool_that_declares_none_goes_on_when_the_processors_are_overdrawn() -> None:
    much, none = pool_of(2.0, "much"), pool_of(None, "none")
    runs = [order(OrderState.RUNNING, id=f"r{n}", pool="much", slot=f"much-{n}") for n in (1, 2)]
    assert admitted(room(much, none, cpus=3, opened=runs), "none") == ["o1"]


def test_an_order_takes_what_it_asks_for_and_else_what_its_pool_says() -> None:
    rows = [order(id=f"o{n}", rank=n, memory_mb=1, cpus=cpus) for n, cpus in enumerate((1.5, 0.25, None, 0.25), 1)]
    at = room(pool_of(1.0), cpus=2.75)
    assert [each.order.id for each in admit.admit(at, rows).admissions] == ["o1", "o2", "o3"]
    run = order(OrderState.RUNNING, id="r", slot="default-1", cpus=0.5)
    assert processors.used(at.pools, [run, order(OrderState.RUNNING, id="s", slot="default-2")], True) == 1.5


def test_an_order_in_a_live_place_takes_no_less_than_that_has() -> None:
    live = pool(settings=PoolSettings(template=Template(cpus=1.0, warmth=Warmth.RUNNING)))
    assert [processors.needed(live, cpus, False) for cpus in (None, 0.5, 2.0)] == [1.0, 1.0, 2.0]
    assert processors.needed(live, 0.5, True) == 0.5, "a seat is no place"


def test_who_asks_for_more_than_the_host_has_holds_nobody_up() -> None:
    rows = [order(id="o1", rank=1, memory_mb=1, cpus=9.0), order(id="o2", rank=2, memory_mb=1)]
    often = room(pool_of(1.0), cpus=2, overtaken={"o1": admit.OVERTAKEN_MAX})
    assert [each.order.id for each in admit.admit(often, rows).admissions] == ["o2"]
