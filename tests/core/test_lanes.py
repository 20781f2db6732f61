"""Whose turn it is: shares between lanes, and what nobody has to wait for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from standby.core import admit
from standby.core.admit import OVERTAKEN_MAX, Room
from standby.core.lanes import KEPT, Lane, Line, Pass, Turns
from standby.core.model import Order, OrderState, PoolSettings, Template
from standby.core.rank import URGENT_MS
from tests.rows import NOW, host, order, pool, slot


def _waiting(number: int, project: str = "a", **columns: Any) -> Order:
    return order(**{"id": f"order-{number:04}", "rank": NOW + number, "project": project, "memory_mb": 0, **columns})


def _room(**parts: Any) -> Room:
    settings = parts.pop("settings", {})
    base: dict[str, Any] = {
        "host": host(),
        "pools": {"default": pool(settings=PoolSettings(slots_max=99, **settings))},
        "slots": [slot(n) for n in range(1, 5)],
        "opened": [],
        "project_open": {},
        "project_max": {},
        "now": NOW,
    }
    return Room(**{**base, **parts})


def _projects(plan: admit.Plan) -> str:
    return "".join(admission.order.project for admission in plan.admissions)


def _taken(count: int, lanes: Mapping[str, Sequence[Order]], weights: Mapping[str, int], turns: Turns) -> str:
    """Whom a leader with one slot serves, one after the other; `lanes` are used up."""
    served = ""
    rest = {project: list(orders) for project, orders in lanes.items()}
    for _ in range(count):
        room = _room(slots=[slot(1)], weights=weights, turns=turns)
        (admission,) = admit.admit(room, [order for orders in rest.values() for order in orders[:3]]).admissions
        turns.take([admission.order], weights)
        rest[admission.order.project].remove(admission.order)
        served += admission.order.project
    return served


def test_lanes_take_turns_however_long_one_of_them_waits_already() -> None:
    waiting = [*(_waiting(n, "a") for n in range(50)), *(_waiting(n, "b") for n in range(90, 99))]
    assert _projects(admit.admit(_room(), waiting)) == "abab"


def test_the_only_lane_is_taken_in_one_go_up_to_what_is_free_and_to_the_first_order_with_a_key() -> None:
    waiting = [_waiting(n, concurrency_key="k" if n == 3 else None) for n in range(5)]
    line = Line(waiting, Turns(), {})
    taken = [[order.id for order in line.run(most)] for most in (1, 9)]
    assert taken == [["order-0000"], ["order-0001", "order-0002"]]
    assert line.next() == waiting[3]
    line.served()
    assert (line.run(9), line.next()) == ([waiting[4]], None)


def test_of_several_lanes_only_the_order_whose_turn_it_is_is_taken() -> None:
    waiting = [_waiting(n, project) for project in "ab" for n in range(2)]
    line = Line(waiting, Turns(), {})
    taken = [[(order.project, order.id) for order in line.run(9)] for _ in range(3)]
    assert taken == [[("a", "order-0000")], [("b", "order-0000")], [("a", "order-0001")]]
    assert (line.run(9), line.next()) == ([waiting[3]], None)


def test_a_heavier_project_has_its_turn_more_often() -> None:
    lanes = {project: [_waiting(n, project) for n in range(99)] for project in "ab"}
    served = _taken(40, lanes, {"b": 3}, Turns())
    assert Counter(served) == {"a": 10, "b": 30}
    assert "bbbb" not in served and "aa" not in served
    at_once = admit.admit(_room(weights={"b": 3}), [_waiting(n, project) for project in "ab" for n in range(9)])
    assert _projects(at_once) == "abbb", "also within one plan"


def test_a_lane_that_slept_saved_up_no_turns() -> None:
    turns = Turns()
    _taken(60, {"a": [_waiting(n) for n in range(60)]}, {}, turns)
    lanes = {project: [_waiting(n, project) for n in range(9)] for project in "ab"}
    assert _taken(6, lanes, {}, turns) == "bababa"


def test_a_lane_at_its_limit_is_skipped_whole_and_saves_no_turns_up() -> None:
    turns = Turns()
    for number in range(50):
        turns.take([_waiting(number, "b")], {})
    room = _room(turns=turns, project_max={"a": 0})
    waiting = [_waiting(n, project) for project in "ab" for n in range(9)]
    assert _projects(admit.admit(room, waiting)) == "bbbb"
    assert _projects(admit.admit(replace(room, project_max={}), waiting)) == "abab"


def test_lanes_of_several_pools_share_what_the_host_has() -> None:
    pools = {"default": pool(slots_max=9), "other": pool("other", slots_max=9)}
    slots = [*(slot(n) for n in (1, 2, 3)), *(slot(n, pool="other") for n in (4, 5, 6))]
    waiting = [
        *(_waiting(n, memory_mb=10) for n in range(9)),
        *(_waiting(n, "b", pool="other", memory_mb=10) for n in range(20, 29)),
    ]
    room = _room(pools=pools, slots=slots, host=host(memory_mb=40))
    assert _projects(admit.admit(room, waiting)) == "abab"


def test_a_faster_pool_does_not_take_the_turns_of_a_slower_ones_lanes_away() -> None:
    """Between two starts in the slow pool the fast one has many: what is left decides within the slow pool alone."""
    pools = {"default": pool(slots_max=9), "fast": pool("fast", slots_max=9)}
    turns, served = Turns(), ""
    old = [_waiting(n, "b") for n in range(20)]
    new = [_waiting(n, "a") for n in range(500, 520)]
    for step in range(10):
        for number in range(7):
            turns.take([_waiting(number, "c", pool="fast")], {})
        room = _room(pools=pools, slots=[slot(1)], turns=turns)
        (admission,) = admit.admit(room, [*old, *new]).admissions
        turns.take([admission.order], {})
        served += admission.order.project
        (old if admission.order.project == "b" else new).remove(admission.order)
        assert abs(served.count("a") - served.count("b")) <= 1, step


def test_an_urgent_order_goes_before_all_lanes_and_costs_no_turn() -> None:
    turns = Turns()
    urgent = _waiting(99, "b", rank=NOW - URGENT_MS)
    waiting = [*(_waiting(n, "a") for n in range(9)), urgent, _waiting(98, "b")]
    first = admit.admit(_room(turns=turns), waiting).admissions[0]
    assert first.order == urgent
    turns.take([urgent], {})
    assert turns.start(("default", "b")) == (0, 0)
    assert _projects(admit.admit(_room(turns=turns), [*waiting, _waiting(97, "b")])) == "baba", "nor within one plan"
    soon = [urgent, _waiting(1, "b"), _waiting(2, "a")]
    assert _projects(admit.admit(_room(), soon)) == "bba", "its lane is as near to its turn as before"
    turns.take([_waiting(96, "b")], {})
    assert _projects(admit.admit(_room(turns=turns), waiting)) == "baab", "also when it is not its lane's turn"


def test_of_lanes_whose_turn_it_is_the_one_goes_first_whose_order_ranks_first() -> None:
    waiting = [_waiting(2, "a", rank=NOW), _waiting(1, "b", rank=NOW + 1)]
    assert _projects(admit.admit(_room(), waiting)) == "ab"


def test_passes_that_mean_nothing_any_more_are_forgotten() -> None:
    turns, often = Turns(), _waiting(0, "often")
    for number in range(KEPT):
        turns.take([_waiting(number, f"p{number}")], {})
        turns.take([often], {})
    assert len(turns._passes) == 2
    turns.take([often], {})
    assert turns.start(("default", "often"))[0] > turns.at


def test_passes_that_are_ahead_on_the_host_or_in_their_pool_are_kept() -> None:
    def played(fast: int) -> Turns:
        turns = Turns()
        turns.take([_waiting(1, "a")], {})
        for number in range(10):
            turns.take([_waiting(number, "often", pool="fast")], {})
        turns.take([_waiting(1, "b")], {})
        turns.take([_waiting(2, "a")], {})
        for number in range(fast):
            turns.take([_waiting(number, "often", pool="fast")], {})
        return turns

    for fast in (0, 5):
        turns = played(fast)
        before = [turns.start(("default", project)) for project in "ab"]
        for number in range(KEPT):
            turns.take([_waiting(number, f"p{number}", pool="fast")], {})
        assert [turns.start(("default", project)) for project in "ab"] == before


def test_passes_are_not_looked_through_at_every_claim_although_all_of_them_count() -> None:
    turns, looked = Turns(), 0

    def counts(lane: Lane, value: Pass) -> bool:
        nonlocal looked
        looked += 1
        return True

    turns._counts = counts  # type: ignore[method-assign]
    for number in range(KEPT + 100):
        turns.take([_waiting(number, f"p{number}")], {})
    assert (looked, len(turns._passes)) == (KEPT + 1, KEPT + 100)


# limits


def test_a_pool_is_counted_up_to_its_running_limit_and_makes_no_slots_beyond_it() -> None:
    open_runs = [order(OrderState.RUNNING, id="x", slot=slot(1).name)]
    ending = [order(OrderState.RUNNING, id="y", slot=slot(2).name)]
    room = _room(settings={"running_max": 3}, opened=open_runs, ending=ending)
    plan = admit.admit(room, [_waiting(n) for n in range(9)])
    assert (len(plan.admissions), plan.wanted, admit.takes(room, room.pools["default"])) == (1, {}, 1)
    assert not admit.admit(_room(settings={"running_max": 0}), [_waiting(1)]).admissions


def test_of_one_concurrency_key_one_runs_and_others_pass_who_waits_for_it() -> None:
    waiting = [
        _waiting(1, concurrency_key="k"),
        _waiting(2, concurrency_key="k"),
        _waiting(3),
        _waiting(4, "b", concurrency_key="k"),
    ]
    held = [order(OrderState.RUNNING, id="x", slot="away", project="a", concurrency_key="k")]
    free = [a.order.id for a in admit.admit(_room(), waiting).admissions]
    assert sorted(free) == ["order-0001", "order-0003", "order-0004"]
    for room in (_room(opened=held), _room(ending=held)):
        assert sorted(a.order.id for a in admit.admit(room, waiting).admissions) == ["order-0003", "order-0004"]


def test_a_start_rate_lets_one_through_at_a_time_and_says_when_the_next_may_go() -> None:
    settings = {"starts_per_minute": 7}
    early = admit.admit(_room(settings=settings, pool_started={"default": NOW - 8_571}), [_waiting(1)])
    assert (early.admissions, early.opens_at) == ([], NOW + 1)
    due = admit.admit(_room(settings=settings, pool_started={"default": NOW - 8_572}), [_waiting(1), _waiting(2)])
    assert (len(due.admissions), due.opens_at) == (1, None)
    never = admit.admit(_room(settings={"starts_per_minute": 0}), [_waiting(1)])
    assert (never.admissions, never.opens_at) == ([], None)


# memory


def test_others_overtake_an_order_that_waits_for_memory_so_often_and_not_more() -> None:
    big = _waiting(1, "a", memory_mb=90)
    running = order(OrderState.RUNNING, id="x", slot="away", memory_mb=20)
    small = [_waiting(n, "b", memory_mb=1) for n in range(10, 30)]
    room = _room(host=host(memory_mb=100), opened=[running], slots=[slot(n) for n in range(1, 30)])
    plan = admit.admit(room, [big, _waiting(2, "a"), *small])
    assert _projects(plan) == "b" * OVERTAKEN_MAX and plan.overtaken == {big.id: OVERTAKEN_MAX}
    reserved = admit.admit(replace(room, overtaken=plan.overtaken), [big, *small])
    assert (list(reserved.admissions), reserved.overtaken) == ([], plan.overtaken)


def test_who_got_its_memory_was_overtaken_by_nobody_any_more() -> None:
    big = _waiting(1, "a", memory_mb=90)
    room = _room(host=host(memory_mb=100), overtaken={big.id: OVERTAKEN_MAX})
    plan = admit.admit(room, [big, _waiting(2, "b", memory_mb=10)])
    assert (_projects(plan), plan.overtaken) == ("ab", {})


# properties

_weights = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 9), min_size=2)


@given(_weights, st.integers(1, 300))
def test_the_share_of_a_waiting_lane_is_off_by_less_than_one_turn_of_each_lane(
    weights: dict[str, int], count: int
) -> None:
    """Start-time fair queueing: between any two lanes that wait all the time, what each got divided by its weight
    differs by no more than one turn of each."""
    line_turns, served = Turns(), Counter[str]()
    lanes = {project: _waiting(n, project) for n, project in enumerate(weights)}
    for _ in range(count):
        first = Line(lanes.values(), line_turns, weights).next()
        assert first is not None
        line_turns.take([first], weights)
        served[first.project] += 1
    for one, other in ((a, b) for a in weights for b in weights if a < b):
        apart = abs(served[one] / weights[one] - served[other] / weights[other])
        assert apart <= 1 / weights[one] + 1 / weights[other] + 0.01


@given(_weights, st.data())
def test_every_lane_that_can_be_served_is_served_within_a_bound(weights: dict[str, int], data: st.DataObject) -> None:
    """Lanes come and go as they like: one that waits sees no other more often than the weights allow."""
    turns, waited = Turns(), Counter[str]()
    bound = {
        lane: sum(-(-weights[other] // weights[lane]) + 1 for other in weights if other != lane) for lane in weights
    }
    for step in range(60):
        there = data.draw(st.sets(st.sampled_from(sorted(weights)), min_size=1))
        for gone in weights.keys() - there:
            waited.pop(gone, None)
        first = Line([_waiting(step, project) for project in there], turns, weights).next()
        assert first is not None
        turns.take([first], weights)
        for project in there - {first.project}:
            waited[project] += 1
            assert waited[project] <= bound[project]
        waited.pop(first.project, None)


def _tenths(count: int) -> float:
    return count / 10


_cpus = st.none() | st.integers(1, 20).map(_tenths)
_orders = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["default", "other"]),
        st.sampled_from([None, None, "k", "l"]),
        st.integers(0, 300),
        _cpus,
        st.integers(-5, 50),
    ),
    max_size=25,
)


@st.composite
def _situations(draw: st.DrawFn) -> tuple[Room, list[Order]]:
    def some(most: int) -> Any:
        return draw(st.none() | st.integers(0, most))

    names = ("default", "other")
    slots = [slot(n, pool=draw(st.sampled_from(names))) for n in range(1, draw(st.integers(1, 12)))]
    busy = draw(st.integers(0, len(slots)))
    keys = iter([("a", "k"), ("b", "l")])
    opened = [
        order(
            OrderState.RUNNING,
            id=f"open-{n}",
            slot=each.name,
            pool=each.pool,
            memory_mb=draw(st.integers(0, 100)),
            cpus=draw(_cpus),
            **dict(zip(("project", "concurrency_key"), next(keys, ("c", None)), strict=True)),
        )
        for n, each in enumerate(slots[:busy])
    ]
    pools = {
        name: pool(
            name,
            settings=PoolSettings(
                slots_max=12,
                running_max=some(8),
                starts_per_minute=some(60),
                template=Template(cpus=draw(_cpus)),
            ),
        )
        for name in names
    }
    room = Room(
        host=host(memory_mb=some(600), starts_max=some(4), cpus=draw(st.none() | st.integers(1, 40).map(_tenths))),
        pools=pools,
        slots=slots,
        opened=opened,
        project_open=Counter(each.project for each in opened),
        project_max={project: some(5) for project in "abc"},
        now=NOW,
        weights={project: draw(st.integers(1, 5)) for project in "abc"},
        pool_started={name: NOW - draw(st.integers(0, 70_000)) for name in names},
    )
    waiting = [
        _waiting(n, project, pool=name, concurrency_key=key, memory_mb=memory, cpus=cpus, rank=NOW + rank * 1_000)
        for n, (project, name, key, memory, cpus, rank) in enumerate(draw(_orders))
    ]
    return room, waiting


def _runs_over(room: Room, opened: Sequence[Order]) -> list[str]:
    """Which limits these open runs exceed, where they did not before."""
    over = []
    for project, most in room.project_max.items():
        before = sum(each.project == project for each in room.opened)
        count = sum(each.project == project for each in opened)
        if most is not None and count > max(most, before):
            over.append(f"project {project}")
    for name, place in room.pools.items():
        before, count = (sum(each.pool == name for each in runs) for runs in (room.opened, opened))
        most = place.settings.running_max
        if most is not None and count > max(most, before):
            over.append(f"pool {name}")
        rate, started = place.settings.starts_per_minute, room.pool_started[name]
        if rate is not None and count - before > (rate > 0 and (NOW - started) * rate >= 60_000):
            over.append(f"rate of {name}")
    keys = Counter((each.project, each.concurrency_key) for each in opened if each.concurrency_key)
    over += [f"key {key}" for key, count in keys.items() if count > 1]
    memory = room.host.memory_mb
    if memory is not None and sum(each.memory_mb for each in opened) > max(
        memory, sum(r.memory_mb for r in room.opened)
    ):
        over.append("memory")
    tenths, before = (sum(_tenths_of(room, each) for each in runs) for runs in (opened, room.opened))
    if room.host.cpus is not None and tenths > max(round(room.host.cpus * 10), before):
        over.append("processors")
    return over


def _tenths_of(room: Room, run: Order) -> int:
    return round(10 * (room.pools[run.pool].settings.template.cpus or 0 if run.cpus is None else run.cpus))


@given(_situations())
def test_no_limit_of_any_kind_is_ever_exceeded(situation: tuple[Room, list[Order]]) -> None:
    room, waiting = situation
    admitted = [admission.order for admission in admit.admit(room, waiting).admissions]
    assert _runs_over(room, [*room.opened, *admitted]) == []


@given(_situations())
def test_within_a_lane_nobody_is_admitted_before_an_order_of_smaller_rank_but_for_keys(
    situation: tuple[Room, list[Order]],
) -> None:
    room, waiting = situation
    memory = room.host.memory_mb
    most_tenths = 10**9 if room.host.cpus is None else round(room.host.cpus * 10)
    admitted = {admission.order.id for admission in admit.admit(room, waiting).admissions}
    for one in waiting:
        fits = (memory is None or one.memory_mb <= memory) and _tenths_of(room, one) <= most_tenths
        if one.id in admitted or one.concurrency_key is not None or not fits:
            continue
        behind = [each for each in waiting if (each.pool, each.project) == (one.pool, one.project)]
        assert not [each.id for each in behind if (each.rank, each.id) > (one.rank, one.id) and each.id in admitted]


@pytest.mark.parametrize("lanes", [1, 3, 50])
@given(data=st.data())
def test_whoever_is_behind_another_of_its_lane_is_not_passed_by_its_turn(lanes: int, data: st.DataObject) -> None:
    waiting = [_waiting(n, f"p{data.draw(st.integers(1, lanes))}") for n in range(30)]
    room = _room(slots=[slot(n) for n in range(1, 31)])
    served = [admission.order for admission in admit.admit(room, waiting).admissions]
    assert {each.id for each in served} == {each.id for each in waiting}
    for project in {each.project for each in waiting}:
        ranks = [each.rank or 0 for each in served if each.project == project]
        assert ranks == sorted(ranks)


def test_orders_that_are_taken_at_once_cost_the_turns_of_orders_taken_one_after_the_other() -> None:
    lanes = ["a", "a", "b", "a", "b", "b", "b", "a", "a"]
    taken = [_waiting(number, lane, pool="slow" if number % 4 else "fast") for number, lane in enumerate(lanes)]
    places = [(one.pool, one.project) for one in taken]
    for count in range(len(taken) + 1):
        at_once, each = Turns(), Turns()
        at_once.take(taken[:count], {"b": 3})
        for one in taken[:count]:
            each.take([one], {"b": 3})
        assert at_once.at == each.at
        assert [at_once.start(lane) for lane in places] == [each.start(lane) for lane in places]
