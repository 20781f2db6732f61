"""When the places of a pool come free, out of rows and what was measured."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import outlook
from standby.core.estimate import EXACT, Line, measured
from standby.core.explain import House
from standby.core.model import Lease, Mode, Order, OrderState, Pool, PoolSettings, SlotState, Warmth
from standby.core.outlook import Took
from standby.core.sighting import ImageState
from standby.core.telling import ByLabel, Known
from tests.core.test_gate import place, pool_of
from tests.rows import NOW, host, order, pool, slot

LEASE = Lease(host="local", owner="a", epoch=1, until=NOW + 1, renewed_at=NOW)
TOOK = {"default": Took([100_000] * 60, [4_000] * 3, [9_000] * 3), "other": Took([50_000] * 60)}


SEATS = {"default": Took([100_000] * 60)}


def run(number: int, taken_ms: int = 0, **columns: Any) -> Order:
    """An open run in the slot of this number."""
    row = {"id": f"run-{number}", "slot": slot(number).name, "commanded_at": NOW - taken_ms, "memory_mb": 100}
    return order(OrderState.RUNNING, **{**row, **columns})


def house(*opened: Order, of: Pool | None = None, **parts: Any) -> House:
    """A process host with one pool of two seats, unless said."""
    seats = of is None or of.settings == pool(slots_max=of.settings.slots_max).settings
    of = of or pool(slots_max=2)
    base: dict[str, Any] = {
        "pool": of,
        "host": host(),
        "lease": LEASE,
        "slots": [slot(1), slot(2)],
        "holders": {each.slot: each for each in opened},
        "project_open": 0,
        "project_max": None,
        "now": NOW,
        "pools": {of.name: of},
        "seats": seats,
    }
    return House(**{**base, "host_slots": parts.get("slots", base["slots"]), **parts})


def waits(found: Line | str | None, most: int = 4) -> list[int]:
    assert isinstance(found, Line), found
    return [found.wait(ahead).usual_ms for ahead in range(most)]


def test_idle_slots_and_those_that_may_still_be_made_are_places() -> None:
    assert waits(outlook.line(house(), 100, SEATS)) == [0, 0, 100_000, 100_000]
    assert waits(outlook.line(house(slots=[]), 100, SEATS)) == [0, 0, 100_000, 100_000]
    of = pool_of(slots_max=2)
    assert waits(outlook.line(house(of=of, slots=[]), 100, TOOK)) == [9_000, 9_000, 118_000, 118_000]


def test_places_of_open_runs_come_free_when_these_end() -> None:
    cold = {"default": Took([100_000] * 60)}
    assert waits(outlook.line(house(run(1, 30_000)), 100, cold)) == [0, 70_000, 100_000, 170_000]
    assert waits(outlook.line(house(run(1, 30_000), run(2, 90_000)), 100, cold)) == [10_000, 70_000, 110_000, 170_000]


def test_two_open_runs_of_the_same_age_are_not_thought_to_end_together() -> None:
    lengths = measured(list(range(1_000, 101_000, 1_000)))
    assert lengths is not None
    spread, both = {"default": Took(lengths.ordered)}, [run(1), run(2)]
    expected = Line([lengths.left(0, 0), lengths.left(0, 1)], 2, lengths).wait(1)
    for found in (
        outlook.line(house(*both), 100, spread),
        outlook.of_project(house(project_max=2, project_holders=both), spread),
    ):
        assert isinstance(found, Line) and found.wait(1) == expected


def test_while_few_have_ended_open_runs_tell_how_long_runs_take() -> None:
    found = outlook.line(house(run(1, 200_000), run(2, 200_000)), 100, {"default": Took([10_000])})
    assert isinstance(found, Line) and found.rate_ms > 50_000


def test_of_a_pool_that_may_have_fewer_runs_than_slots_no_more_places_are_used() -> None:
    for most, expected in ((1, [70_000, 170_000]), (2, [0, 70_000]), (3, [0, 70_000])):
        of = pool(settings=PoolSettings(slots_max=2, running_max=most))
        found = outlook.line(house(run(1, 30_000), of=of, seats=True), 100, SEATS)
        assert waits(found, 2) == expected
    of = pool(settings=PoolSettings(slots_max=2, running_max=1))
    made = pool_of(slots_max=2, running_max=1)
    assert waits(outlook.line(house(of=made, slots=[place(1, made)]), 100, TOOK), 1) == [0], "none is made for it"
    both = house(run(1, 30_000), run(2, 90_000), of=of, seats=True)
    assert waits(outlook.line(both, 100, SEATS), 2) == [70_000, 170_000], "it was lowered meanwhile: both have to end"


def test_a_slot_in_error_is_no_place() -> None:
    broken = [slot(1), slot(2, state=SlotState.ERROR)]
    cold = {"default": Took([100_000] * 60)}
    assert waits(outlook.line(house(slots=broken), 100, cold)) == [0, 100_000, 200_000, 300_000]


def test_a_place_that_is_made_anew_after_each_run_costs_that_time_too() -> None:
    of = pool_of(slots_max=2)
    idle, making = place(1, of), place(2, of, SlotState.CREATING, state_since=NOW - 2_000)
    found = outlook.line(house(of=of, slots=[idle, making]), 100, TOOK)
    assert waits(found) == [0, 7_000, 109_000, 116_000]
    busy = outlook.line(house(run(1, 30_000), of=of, slots=[place(1, of)]), 100, TOOK)
    assert waits(busy, 2) == [9_000, 79_000], "the second slot is made, the first one after its run"
    late = place(2, of, SlotState.CLEANING, state_since=NOW - 60_000)
    assert waits(outlook.line(house(of=of, slots=[idle, late]), 100, TOOK), 2) == [0, 0]


def test_permits_are_counted_where_each_run_is_a_start() -> None:
    of = pool_of(slots_max=4)
    idle = [place(number, of) for number in (1, 2, 3)]
    busy = run(4, 1_000, ready_at=None)
    slots = [*idle, place(4, of)]
    found = outlook.line(house(busy, of=of, slots=slots, host=host(starts_max=1)), 100, TOOK)
    assert waits(found, 3) == [3_000, 7_000, 11_000]
    free = outlook.line(house(of=of, slots=slots, host=host(starts_max=2)), 100, TOOK)
    assert waits(free, 4) == [0, 0, 4_000, 4_000]
    gap = outlook.line(house(of=of, slots=slots, host=host(start_gap_ms=500)), 100, TOOK)
    assert waits(gap, 3) == [0, 500, 1_000]
    flying = outlook.line(house(busy, of=of, slots=slots, host=host(start_gap_ms=500)), 100, TOOK)
    assert waits(flying, 3) == [0, 500, 1_000], "a gap limits no starts in flight"
    late = run(4, 60_000, ready_at=None)
    stuck = outlook.line(house(late, of=of, slots=slots, host=host(starts_max=1)), 100, TOOK)
    assert waits(stuck, 2) == [0, 4_000], "what takes long already may come through at any moment"
    live = pool_of(slots_max=2, warmth=Warmth.RUNNING)
    handed = house(of=live, slots=[place(1, live), place(2, live)], host=host(starts_max=1))
    assert waits(outlook.line(handed, 100, TOOK), 2) == [0, 0], "handing work over is no start"


def test_a_start_rate_lets_one_start_after_the_other() -> None:
    of = pool_of(slots_max=4, starts_per_minute=6)
    slots = [place(number, of) for number in (1, 2, 3)]
    rested, begun = house(of=of, slots=slots), house(of=of, slots=slots, last_start=NOW - 4_000)
    assert waits(outlook.line(rested, 100, TOOK), 3) == [0, 10_000, 20_000]
    assert waits(outlook.line(begun, 100, TOOK), 3) == [6_000, 16_000, 26_000]
    rare = house(of=of, slots=slots, host=host(start_gap_ms=500), last_start=NOW - 4_000)
    assert waits(outlook.line(rare, 100, TOOK), 2) == [6_000, 16_000], "the longer gap counts"


def test_more_starts_in_flight_than_allowed_hold_all_permits() -> None:
    of = pool_of(slots_max=4)
    flying = [run(number, taken, ready_at=None) for number, taken in ((1, 3_000), (2, 1_000))]
    slots = [place(number, of) for number in (1, 2, 3)]
    found = outlook.line(house(*flying, of=of, slots=slots, host=host(starts_max=1)), 100, TOOK)
    assert waits(found, 1) == [3_000]


def test_memory_lets_fewer_run_at_once_than_there_are_slots() -> None:
    cold = {"default": Took([100_000] * 60)}
    tight = house(run(1, 30_000), host=host(memory_mb=150))
    assert waits(outlook.line(tight, 100, cold)) == [70_000, 170_000, 270_000, 370_000]
    wide = house(run(1, 30_000), host=host(memory_mb=200))
    assert waits(outlook.line(wide, 100, cold), 2) == [0, 70_000]
    assert waits(outlook.line(tight, 0, cold), 2) == [0, 70_000]
    over = house(run(1, 30_000), run(2, 90_000), host=host(memory_mb=150))
    assert waits(outlook.line(over, 100, cold), 1) == [70_000], "both must end before one may begin"
    assert waits(outlook.line(house(host=host(memory_mb=900)), 100, cold), 3) == [0, 0, 100_000]


def test_where_memory_lets_one_run_at_once_its_place_is_made_anew_and_its_kind_counts_too() -> None:
    of, alone = pool_of(slots_max=4), host(memory_mb=150)
    assert waits(outlook.line(house(of=of, slots=[], host=alone), 100, TOOK), 3) == [9_000, 109_000, 218_000]
    long = measured([200_000] * 30)
    assert long is not None
    took = {"default": Took([10_000] * 30 + [200_000] * 30, by_label=ByLabel("kind", {"long": long}))}
    known = Known({}, [{"kind": "long"}])
    assert waits(outlook.line(house(host=alone), 100, took, known=known), 2) == [0, 200_000]


def test_the_budget_with_the_least_room_counts() -> None:
    of, slots = pool(slots_max=4), [slot(number) for number in (1, 2, 3, 4)]

    def told(memory_mb: int, cpus: float, *, used_mb: int = 0, used_cpus: float = 0.0) -> list[int]:
        busy = [run(1, 30_000, memory_mb=used_mb, cpus=used_cpus)] if used_mb else []
        on = host(memory_mb=memory_mb, cpus=cpus)
        return waits(outlook.line(house(*busy, of=of, slots=slots, host=on), 100, SEATS, 1.0))

    assert told(100, 3.0) == [0, 100_000, 200_000, 300_000]
    assert told(300, 1.0) == [0, 100_000, 200_000, 300_000]
    assert told(200, 3.0, used_mb=100, used_cpus=2.0) == [0, 70_000, 100_000, 170_000]
    assert told(300, 2.0, used_mb=200, used_cpus=1.0) == [0, 70_000, 100_000, 170_000]


def test_processors_count_only_where_the_host_and_the_order_name_some() -> None:
    assert waits(outlook.line(house(), 100, SEATS, 1.0), 3) == [0, 0, 100_000]
    assert waits(outlook.line(house(host=host(cpus=1.0)), 100, SEATS), 3) == [0, 0, 100_000]


def test_who_waits_for_processors_of_other_pools_waits_until_enough_of_their_runs_ended() -> None:
    pools = {"default": pool(slots_max=2), "other": pool("other")}
    theirs = [run(n, taken, pool="other", slot=f"other-{n}", cpus=1.0) for n, taken in ((7, 10_000), (8, 20_000))]
    full = house(*theirs, pools=pools, host=host(cpus=2.0))
    assert waits(outlook.line(full, 100, TOOK, 1.0), 1) == [30_000]
    assert waits(outlook.line(full, 100, TOOK, 2.0), 1) == [40_000]


def test_a_run_that_takes_a_little_more_room_than_one_like_this_gives_it_back_as_one() -> None:
    of, slots = pool(slots_max=3), [slot(number) for number in (1, 2, 3)]
    wider = [run(1, 30_000, memory_mb=110), run(2, 60_000, memory_mb=110)]
    found = outlook.line(house(*wider, of=of, slots=slots, host=host(memory_mb=320)), 100, SEATS)
    assert waits(found, 3) == [0, 40_000, 70_000]


def test_the_end_of_a_small_run_is_not_enough_for_a_larger_one_beside_another_that_is_large() -> None:
    small, large = run(1, 90_000, memory_mb=10), run(2, 60_000, memory_mb=300)
    full = house(small, large, host=host(memory_mb=320))
    assert waits(outlook.line(full, 150, SEATS), 2) == [40_000, 40_000]
    lowered = pool(settings=PoolSettings(slots_max=3, running_max=2))
    more = run(3, 80_000, memory_mb=10)
    found = outlook.line(house(small, large, more, of=lowered, host=host(memory_mb=320), seats=True), 150, SEATS)
    assert waits(found, 1) == [40_000]


def test_of_runs_that_hold_more_room_than_there_is_the_last_to_end_is_waited_for() -> None:
    mixed, even = measured([1_000] * 20 + [500_000] * 40), measured([100_000] * 60)
    assert mixed is not None and even is not None
    took = {"default": Took([100_000] * 60, by_label=ByLabel("kind", {"mixed": mixed, "even": even}))}
    large = [run(1, memory_mb=800), run(2, memory_mb=800)]
    known = Known({"run-1": {"kind": "mixed"}, "run-2": {"kind": "even"}})
    full = house(*large, of=pool(slots_max=4), host=host(memory_mb=1_600))
    assert waits(outlook.line(full, 900, took, known=known), 1) == [500_000]


def test_who_waits_for_memory_of_other_pools_waits_until_enough_of_their_runs_ended() -> None:
    others = [run(n, taken, pool="other", slot=f"other-{n}") for n, taken in ((7, 10_000), (8, 20_000), (9, 30_000))]
    full = house(*others, host=host(memory_mb=300))
    assert waits(outlook.line(full, 100, TOOK), 1) == [20_000], "the first of them to end makes room"
    assert waits(outlook.line(full, 150, TOOK), 1) == [30_000], "two must end"
    assert waits(outlook.line(full, 300, TOOK), 1) == [40_000]
    nearly = house(*others, host=host(memory_mb=350))
    assert waits(outlook.line(nearly, 150, TOOK), 1) == [20_000], "what is left counts too"
    of = pool_of(slots_max=2)
    made = house(*others, of=of, slots=[place(1, of)], host=host(memory_mb=300))
    assert waits(outlook.line(made, 100, TOOK), 1) == [20_000], "also of pools that nobody knows any more"
    unknown = {"default": TOOK["default"]}
    assert waits(outlook.line(full, 100, unknown), 1) == [70_000], "as long as our own, where nothing is known"


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"lease": None}, "no server leads host local: start one that reaches it"),
        ({"now": NOW + 1}, "no server leads host local: start one that reaches it"),
        ({"host": host(unreachable_since=NOW, error="gone")}, "host local cannot be asked since 0 s: gone"),
        ({"host": host(mode=Mode.DRAINING)}, "host local is draining by config for 99 s: resume it to go on"),
        ({"of": pool(mode=Mode.PAUSED)}, "pool default is paused by config for 99 s: resume it to go on"),
        ({"of": pool(slots_max=0)}, "pool default has slots_max = 0 (set by the configuration): nothing starts"),
        (
            {"of": pool(slots_max=0), "slots": [slot(1, state=SlotState.CREATING)]},
            "pool default has slots_max = 0 (set by the configuration): nothing starts",
        ),
        ({"host": host(starts_max=0)}, "host local has starts_max = 0: nothing starts"),
        ({"of": pool_of(running_max=0)}, "pool default has 0 open runs and may have 0"),
        ({"of": pool_of(starts_per_minute=0)}, "pool default may begin 0 runs a minute"),
        (
            {"host": host(memory_mb=99)},
            "needs 100 MB, more than the 99 MB that host local has in all: it can never start",
        ),
        (
            {"slots": [slot(n, state=SlotState.ERROR) for n in (1, 2)]},
            "all slots of pool default are in error: standby slots shows why",
        ),
        ({"took": {}}, "nothing is measured yet: no run of pool default has ended lately"),
        ({"took": {"other": TOOK["other"]}}, "nothing is measured yet: no run of pool default has ended lately"),
    ],
)
def test_where_nobody_can_say_it_says_why(parts: dict[str, Any], why: str) -> None:
    took = parts.get("took", TOOK)
    assert outlook.line(house(**{name: part for name, part in parts.items() if name != "took"}), 100, took) == why


def test_nobody_can_say_how_long_a_pull_or_an_open_breaker_takes() -> None:
    image = ImageState(host="local", image="a:1", at=NOW, present=False, pulling_since=NOW)
    of = pool_of(slots_max=2, image="a:1")
    assert outlook.line(house(of=of, slots=[], image=image), 100, TOOK) == "image a:1 is being pulled to host local"
    assert waits(outlook.line(house(of=of, slots=[place(1, of)], image=image), 100, TOOK), 1) == [0]
    broken = pool_of(slots_max=2, failures=5, broken_at=NOW)
    assert "makes no slots since 5 of them failed" in str(outlook.line(house(of=broken, slots=[]), 100, TOOK))


def test_a_project_waits_for_its_own_places() -> None:
    assert outlook.of_project(house(), TOOK) is None
    assert outlook.of_project(house(project_max=0), TOOK) == "its project may have no open runs"
    mine = [run(1, 30_000), run(9, 20_000, pool="other", slot="other-9")]
    found = outlook.of_project(house(project_max=2, project_holders=mine), TOOK)
    assert waits(found, 3) == [30_000, 70_000, 130_000]
    assert waits(outlook.of_project(house(project_max=3, project_holders=mine), TOOK), 2) == [0, 30_000]
    assert waits(outlook.of_project(house(project_max=1, project_holders=mine), TOOK), 1) == [70_000]
    none = outlook.of_project(house(project_max=1, project_holders=mine), {})
    assert none == "nothing is measured yet: no run of pool default has ended lately"
    own = {"default": TOOK["default"]}
    assert waits(outlook.of_project(house(project_max=2, project_holders=mine), own), 2) == [70_000, 80_000]


def test_where_a_label_tells_how_long_runs_take_each_counts_with_its_own_kind() -> None:
    kinds = {"short": measured([10_000] * 30), "long": measured([200_000] * 30)}
    by = ByLabel("kind", {value: lengths for value, lengths in kinds.items() if lengths is not None})
    took = {"default": Took([10_000] * 30 + [200_000] * 30, by_label=by)}
    both = house(run(1), run(2))
    short, long = {"kind": "short"}, {"kind": "long"}

    def told(first: dict[str, str], second: dict[str, str], *ahead: dict[str, str]) -> list[int]:
        known = Known({"run-1": first, "run-2": second}, ahead)
        return waits(outlook.line(both, 100, took, known=known), 2)

    assert told(short, short, short) == [10_000, 10_000]
    assert told(short, long, short) == [10_000, 20_000]
    assert told(long, short, long) == [10_000, 200_000]
    assert told(long, long, short) == [200_000, 200_000]
    assert told(short, short, {}) == [10_000, 10_000], "one of no kind counts with all"
    assert took["default"].usual_ms == 200_000 and Took().usual_ms == 0


def test_beyond_those_who_were_looked_at_the_next_ones_are_like_them() -> None:
    long, short = measured([200_000] * 60), measured([10_000] * 60)
    assert long is not None and short is not None
    by = ByLabel("kind", {"long": long, "short": short})
    took = {"default": Took([10_000] * 57 + [200_000] * 3, by_label=by)}
    known = Known({}, [{"kind": "long"}] * EXACT)
    found = outlook.line(house(), 100, took, known=known)
    assert isinstance(found, Line)
    assert found.rate_ms == 100_000
    few = outlook.line(house(), 100, took, known=Known({}, [{"kind": "long"}]))
    assert isinstance(few, Line)
    assert few.rate_ms == 9_750


@pytest.mark.parametrize(("memory_mb", "cpus"), [(300, None), (100, 3.0)])
def test_nobody_can_say_how_long_an_order_waits_that_never_fits_also_while_its_pool_is_full(
    memory_mb: int, cpus: float | None
) -> None:
    full = house(run(1), run(2), host=host(memory_mb=200, cpus=2.0))
    found = outlook.line(full, memory_mb, SEATS, cpus)
    assert isinstance(found, str) and found.endswith("it can never start")


def test_runs_of_a_live_pool_take_what_their_places_do() -> None:
    live = pool_of(slots_max=4, warmth=Warmth.RUNNING, memory_mb=600)
    at = host(memory_mb=1_200)
    mine = house(run(1), run(2), of=live, slots=[place(1, live), place(2, live)], host=at)
    assert waits(outlook.line(mine, 0, SEATS), 1) == [100_000], "two of four places fit"
    other = replace(live, name="other")
    theirs = [run(1, pool="other"), run(2, 60_000, pool="other")]
    pools = {"default": live, "other": other}
    found = outlook.line(house(*theirs, of=live, slots=[], pools=pools, host=at), 0, SEATS)
    assert waits(found, 1) == [40_000]


def test_a_run_holds_as_much_room_as_it_takes() -> None:
    large = [run(1, 30_000, memory_mb=800), run(2, 60_000, memory_mb=800)]
    of, slots = pool(slots_max=10), [slot(number) for number in range(1, 11)]
    full = house(*large, of=of, slots=slots, host=host(memory_mb=1_600))
    assert waits(outlook.line(full, 100, SEATS), 9) == [40_000] * 8 + [70_000], "eight small ones after one large one"
    small = [run(number, 30_000, memory_mb=100) for number in (1, 2, 3, 4)]
    half = house(*small, of=of, slots=slots, host=host(memory_mb=1_600))
    assert waits(outlook.line(half, 800, SEATS), 3) == [0, 70_000, 100_000], (
        "there is room for one large one beside small ones"
    )
    cores = [run(1, 30_000, cpus=2.0), run(2, 60_000, cpus=2.0)]
    busy = house(*cores, of=of, slots=slots, host=host(cpus=4.0))
    assert waits(outlook.line(busy, 100, SEATS, 0.5), 5) == [40_000] * 4 + [70_000]
