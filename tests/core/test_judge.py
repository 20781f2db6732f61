import pytest
from msgspec.structs import replace

from standby.core import judge
from standby.core.model import (
    Change,
    EventKind,
    OrderState,
    PoolSettings,
    Reason,
    SlotState,
    Template,
    Warmth,
)
from standby.core.sighting import Exit, Seen, Sighting
from tests.rows import NOW, cause, host, order, pool, slot, spec

S = OrderState
RULES = judge.Rules(window_ms=2_000, lag_ms=1_000, seats=True, chance=0.5)
UNTIL = NOW - 8_000
LATE = UNTIL + 1_001
EARLY = UNTIL + 1_000


def _run(state: OrderState, **columns: object) -> judge.Open:
    return judge.Open(order(state, **columns), spec(), slot())


def _look(seen: Seen, asked_at: int = LATE, run_id: str = "order-1-1", incarnation: str = "i-1") -> Sighting:
    exit_ = Exit(code=0) if seen is Seen.STOPPED else None
    return Sighting(run_id=run_id, incarnation=incarnation, seen=seen, asked_at=asked_at, handle="h-1", exit=exit_)


def _judge(state: OrderState, look: Sighting) -> Change | None:
    return judge.judge(cause(), _run(state), look, RULES)


OUTCOMES: dict[tuple[OrderState, Seen], EventKind | None] = {
    (S.PREPARING, Seen.ABSENT): EventKind.ORDER_RETRY_WAITING,
    (S.PREPARING, Seen.FRESH): EventKind.ORDER_RECOMMANDED,
    (S.PREPARING, Seen.STARTING): None,
    (S.PREPARING, Seen.READY): EventKind.ORDER_READY,
    (S.PREPARING, Seen.STOPPED): EventKind.ORDER_COMPLETED,
    (S.PREPARING, Seen.UNKNOWN): None,
    (S.RUNNING, Seen.ABSENT): EventKind.ORDER_RETRY_WAITING,
    (S.RUNNING, Seen.FRESH): EventKind.ORDER_RETRY_WAITING,
    (S.RUNNING, Seen.STARTING): None,
    (S.RUNNING, Seen.READY): None,
    (S.RUNNING, Seen.STOPPED): EventKind.ORDER_COMPLETED,
    (S.RUNNING, Seen.UNKNOWN): None,
    (S.STOPPING, Seen.ABSENT): EventKind.ORDER_FAILED,
    (S.STOPPING, Seen.FRESH): EventKind.ORDER_FAILED,
    (S.STOPPING, Seen.STARTING): None,
    (S.STOPPING, Seen.READY): None,
    (S.STOPPING, Seen.STOPPED): EventKind.ORDER_FAILED,
    (S.STOPPING, Seen.UNKNOWN): None,
}


@pytest.mark.parametrize(("state", "seen"), OUTCOMES)
def test_each_sighting_of_each_open_state_has_one_meaning(state: OrderState, seen: Seen) -> None:
    change = _judge(state, _look(seen))
    assert (None if change is None else change.kind) == OUTCOMES[state, seen]


@pytest.mark.parametrize(("seats", "max_uses", "written"), [(True, None, False), (True, 9, True), (False, None, True)])
def test_only_uses_of_mere_seats_that_nobody_counts_are_not_all_written(
    seats: bool, max_uses: int | None, written: bool
) -> None:
    pools = {"default": pool(settings=PoolSettings(slots_max=2, max_uses=max_uses))}
    rules = judge.Rules(window_ms=2_000, lag_ms=1_000, seats=seats, pools=pools, chance=0.5)
    run = replace(_run(S.RUNNING), slot=slot(last_used_at=NOW - 1))
    change = judge.judge(cause(), run, _look(Seen.STOPPED), rules)
    assert change is not None and (change.slot is not None) is written


@pytest.mark.parametrize("seen", [Seen.ABSENT, Seen.FRESH])
@pytest.mark.parametrize("state", [S.PREPARING, S.RUNNING, S.STOPPING])
def test_absence_is_not_believed_from_a_look_asked_too_early(state: OrderState, seen: Seen) -> None:
    assert _judge(state, _look(seen, asked_at=EARLY)) is None


@pytest.mark.parametrize("seen", Seen)
def test_a_sighting_of_another_run_changes_nothing(seen: Seen) -> None:
    assert _judge(S.PREPARING, _look(seen, run_id="order-1-2")) is None


@pytest.mark.parametrize("seen", Seen)
def test_a_sighting_of_another_incarnation_changes_nothing(seen: Seen) -> None:
    assert _judge(S.RUNNING, _look(seen, incarnation="i-0")) is None


def test_a_run_seen_at_work_keeps_its_handle() -> None:
    change = _judge(S.PREPARING, _look(Seen.READY))
    assert change is not None and change.order is not None and change.order.handle == "h-1"


def test_the_end_of_a_run_that_was_never_seen_at_work_keeps_the_handle_of_that_look() -> None:
    change = _judge(S.PREPARING, _look(Seen.STOPPED))
    assert change is not None and change.run is not None and change.run.handle == "h-1"


def test_a_run_seen_stopped_with_no_word_of_its_end_is_lost() -> None:
    change = _judge(S.RUNNING, replace(_look(Seen.STOPPED), exit=None))
    assert change is not None and change.order is not None and change.order.reason is Reason.LOST


def test_a_run_that_was_never_commanded_is_not_ended_by_absence_nor_by_an_operators_word() -> None:
    run = _run(S.PREPARING, command_until=None)
    assert judge.judge(cause(), run, _look(Seen.ABSENT), RULES) is None
    assert judge.declared_dead(cause(), run, None, host(dead_at=NOW), RULES) is None


def test_a_run_is_not_ended_by_a_word_that_nobody_gave() -> None:
    assert judge.declared_dead(cause(), _run(S.RUNNING), None, host(dead_at=None), RULES) is None


def test_a_look_at_another_incarnation_does_not_keep_a_declared_dead_run_alive() -> None:
    look = _look(Seen.READY, incarnation="i-0")
    assert judge.declared_dead(cause(), _run(S.RUNNING), look, host(dead_at=NOW), RULES) is not None


def test_the_rules_reach_the_change() -> None:
    rules = judge.Rules(window_ms=3_000, lag_ms=1_000, seats=False, chance=0.0)
    again = judge.judge(cause(), _run(S.PREPARING), _look(Seen.FRESH), rules)
    over = judge.judge(cause(), _run(S.RUNNING), _look(Seen.ABSENT), rules)
    done = judge.judge(cause(), _run(S.RUNNING), _look(Seen.STOPPED), rules)
    assert again is not None and again.order is not None and again.order.command_until == NOW + 3_000
    assert over is not None and over.order is not None and over.order.due_at == NOW + 4_500
    seat = _judge(S.RUNNING, _look(Seen.STOPPED))
    assert done is not None and done.slot is not None and done.slot.state is SlotState.CLEANING
    assert seat is not None and seat.slot is not None and seat.slot.state is SlotState.IDLE


def test_a_place_that_serves_again_as_it_is_does_so_unless_the_end_of_its_run_was_forced() -> None:
    pools = {"default": pool(settings=PoolSettings(slots_max=2, template=Template(warmth=Warmth.COLD)))}
    rules = judge.Rules(window_ms=2_000, lag_ms=1_000, seats=False, pools=pools, chance=0.5)

    def left(run: judge.Open, at: int = NOW) -> SlotState:
        change = judge.judge(cause(at=at), run, _look(Seen.STOPPED), rules)
        assert change is not None and change.slot is not None
        return change.slot.state

    asked = _run(S.STOPPING, deadline=NOW)
    assert left(_run(S.RUNNING)) is left(_run(S.RUNNING, deadline=NOW - 1)) is SlotState.IDLE
    assert left(asked, NOW - 1) is left(_run(S.STOPPING, deadline=None)) is SlotState.IDLE
    assert left(asked, NOW) is left(asked, NOW + 1) is SlotState.CLEANING


def test_a_run_that_is_not_ready_in_time_is_stopped_as_a_failed_start() -> None:
    change = judge.overdue(cause(at=NOW + 60_000), _run(S.PREPARING))
    assert change is not None and change.order is not None and change.order.stop_reason is Reason.START_FAILED


def test_a_run_that_takes_too_long_is_stopped() -> None:
    change = judge.overdue(cause(at=NOW + 60_000), _run(S.RUNNING))
    assert change is not None and change.order is not None
    assert change.order.stop_reason is Reason.TIMEOUT and change.order.deadline == NOW + 90_000


def test_no_deadline_is_passed_before_its_time_and_none_counts_while_stopping() -> None:
    assert judge.overdue(cause(at=NOW + 59_999), _run(S.RUNNING)) is None
    assert judge.overdue(cause(at=NOW + 60_000), _run(S.STOPPING)) is None
    assert judge.overdue(cause(at=NOW + 60_000), _run(S.RUNNING, deadline=None)) is None


def test_an_operators_word_ends_what_was_commanded_before_it_and_nothing_later() -> None:
    before, after = host(dead_at=UNTIL + 1), host(dead_at=UNTIL)
    change = judge.declared_dead(cause(), _run(S.RUNNING), None, before, RULES)
    assert change is not None and change.kind is EventKind.ORDER_RETRY_WAITING
    assert judge.declared_dead(cause(), _run(S.RUNNING), None, after, RULES) is None


@pytest.mark.parametrize("seen", Seen)
def test_what_a_look_sees_alive_is_alive_whatever_was_declared(seen: Seen) -> None:
    change = judge.declared_dead(cause(), _run(S.RUNNING), _look(seen), host(dead_at=NOW), RULES)
    assert (change is None) is (seen in (Seen.STARTING, Seen.READY))


def test_draining_at_once_stops_what_runs_from_its_time_on() -> None:
    for state in (S.PREPARING, S.RUNNING):
        change = judge.drained(cause(), _run(state), NOW)
        assert change is not None and change.order is not None
        assert (change.order.state, change.order.stop_reason) == (S.STOPPING, Reason.DRAINED)
    assert judge.drained(cause(), _run(S.RUNNING), NOW + 1) is None
    assert judge.drained(cause(), _run(S.RUNNING), None) is None
    assert judge.drained(cause(), _run(S.STOPPING), NOW) is None
