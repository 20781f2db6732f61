import pytest

from standby.core import judge
from standby.core.model import Change, EventKind, OrderState, Reason
from standby.core.sighting import Exit, Seen, Sighting
from tests.rows import NOW, cause, host, order, slot, spec

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
