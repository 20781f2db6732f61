from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import lifecycle as life
from standby.core import places, slots
from standby.core.errors import IllegalMove
from standby.core.model import (
    ENDED,
    OPEN,
    Change,
    EventKind,
    Mode,
    Order,
    OrderState,
    Reason,
    Retry,
    Slot,
    SlotState,
    Spec,
)
from standby.core.sighting import Exit
from tests.rows import NOW, cause, host, order, pool, slot, spec

S = OrderState
OK = Exit(code=0)


def _finish(row: Order, ending: Exit, policy: Spec | None = None, *, seats: bool = True) -> Change:
    return life.finish(cause(), row, policy or spec(), slot(), ending, handle=None, seats=seats, chance=0.5)


ORDER_VERBS: dict[str, tuple[Callable[[Order], Change | None], dict[OrderState, OrderState]]] = {
    "queue": (
        lambda row: life.queue(cause(), row, spec(), pool()),
        {S.WAITING_RETRY: S.PENDING},
    ),
    "claim": (
        lambda row: life.claim(cause(), row, spec(), slot(), pool(), host(), 2_000),
        {S.PENDING: S.PREPARING},
    ),
    "recommand": (lambda row: life.recommand(cause(), row, 2_000), {S.PREPARING: S.PREPARING}),
    "bind": (lambda row: life.bind(cause(), row, "b-1"), {S.PREPARING: S.PREPARING, S.RUNNING: S.RUNNING}),
    "ready": (lambda row: life.ready(cause(), row, spec(), "h"), {S.PREPARING: S.RUNNING}),
    "stop": (
        lambda row: life.stop(cause(), row, spec(), Reason.TIMEOUT),
        {S.PREPARING: S.STOPPING, S.RUNNING: S.STOPPING},
    ),
    "cancel": (
        lambda row: life.cancel(cause(), row, spec()),
        {
            S.PENDING: S.CANCELLED,
            S.WAITING_RETRY: S.CANCELLED,
            S.PREPARING: S.STOPPING,
            S.RUNNING: S.STOPPING,
            S.STOPPING: S.STOPPING,
        },
    ),
    "expire": (lambda row: life.expire(cause(), row), {S.PENDING: S.FAILED}),
    "finish well": (
        lambda row: _finish(row, OK),
        {S.PREPARING: S.COMPLETED, S.RUNNING: S.COMPLETED, S.STOPPING: S.FAILED},
    ),
    "finish badly": (
        lambda row: _finish(row, Exit(code=3)),
        {S.PREPARING: S.FAILED, S.RUNNING: S.FAILED, S.STOPPING: S.FAILED},
    ),
    "lose": (
        lambda row: _finish(row, Exit(lost=True)),
        {S.PREPARING: S.WAITING_RETRY, S.RUNNING: S.WAITING_RETRY, S.STOPPING: S.FAILED},
    ),
}


@pytest.mark.parametrize("verb", ORDER_VERBS)
@pytest.mark.parametrize("state", OrderState)
def test_every_verb_in_every_state_moves_the_order_or_is_refused(verb: str, state: OrderState) -> None:
    apply, allowed = ORDER_VERBS[verb]
    if state in allowed:
        change = apply(order(state))
        assert change is not None and change.order is not None
        assert change.order.state is allowed[state]
        assert change.states == (state, allowed[state])
    elif verb == "cancel" and state in ENDED:
        assert apply(order(state)) is None
    else:
        with pytest.raises(IllegalMove):
            apply(order(state))


@pytest.mark.parametrize("state", sorted(set(OrderState) - ENDED))
def test_every_unfinished_state_can_be_cancelled(state: OrderState) -> None:
    change = life.cancel(cause(), order(state), spec())
    assert change is not None and change.order is not None
    assert change.order.state is S.CANCELLED or change.order.stop_reason is Reason.CANCELLED


SLOT_VERBS: dict[str, tuple[Callable[[Slot], Change], dict[SlotState, SlotState | None]]] = {
    "recreate": (
        lambda row: slots.recreate(cause(), row),
        {SlotState.CLEANING: SlotState.CREATING, SlotState.ERROR: SlotState.CREATING},
    ),
    "clean": (lambda row: slots.clean(cause(), row, "gone"), {SlotState.IDLE: SlotState.CLEANING}),
    "booted": (
        lambda row: slots.booted(cause(), row, "b-1"),
        {state: state for state in (SlotState.CREATING, SlotState.IDLE)},
    ),
    "made": (
        lambda row: slots.made(cause(), row, "i-2"),
        {SlotState.CREATING: SlotState.IDLE, SlotState.CLEANING: SlotState.IDLE},
    ),
    "failed": (
        lambda row: slots.failed(cause(), row, "no room"),
        {SlotState.CREATING: SlotState.ERROR, SlotState.CLEANING: SlotState.ERROR},
    ),
    "remove": (
        lambda row: slots.remove(cause(), row),
        {state: SlotState.REMOVING for state in SlotState if state is not SlotState.REMOVING},
    ),
    "gone": (lambda row: slots.gone(cause(), row), {SlotState.REMOVING: None}),
}


@pytest.mark.parametrize("verb", SLOT_VERBS)
@pytest.mark.parametrize("state", SlotState)
def test_every_verb_in_every_state_moves_the_slot_or_is_refused(verb: str, state: SlotState) -> None:
    apply, allowed = SLOT_VERBS[verb]
    if state in allowed:
        assert apply(slot(state=state)).states == (state, allowed[state])
    else:
        with pytest.raises(IllegalMove):
            apply(slot(state=state))


def test_a_submitted_order_is_ranked_by_time_and_priority() -> None:
    draft = order(rank=None, queue_due=None)
    change = life.submit(cause(), draft, spec(priority=7), pool(), None, None)
    assert change.order is not None
    assert change.order.rank == NOW + 7_000
    assert change.order.queue_due == NOW + 300_000


def test_an_order_for_later_has_no_rank_until_its_time_comes() -> None:
    later = spec(not_before=NOW + 60_000)
    draft = order(rank=None, queue_due=None)
    waiting = life.submit(cause(), draft, later, pool(), None, None).order
    assert waiting is not None and (waiting.rank, waiting.due_at) == (None, NOW + 60_000)
    queued = life.queue(cause(at=NOW + 60_001), waiting, later, pool()).order
    assert queued is not None and queued.rank == NOW + 60_001 + 100_000 and queued.due_at is None
    assert queued.state_since == waiting.state_since


def test_queue_time_does_not_run_while_the_pool_is_blocked() -> None:
    blocked = pool(blocked_ms=1_000, blocked_since=NOW - 500)
    draft = order(rank=None, queue_due=None)
    ordered = life.submit(cause(), draft, spec(queue_timeout_ms=10_000), blocked, None, None).order
    assert ordered is not None and ordered.queue_due is not None
    opened = places.unblock(cause(at=NOW + 60_000), blocked).pool
    assert opened is not None
    assert ordered.queue_due > NOW + 60_000 + 9_999 - opened.blocked_ms
    assert ordered.queue_due <= NOW + 60_000 + 10_000 - opened.blocked_ms


def test_a_claim_counts_as_an_attempt_and_names_what_it_was_decided_on() -> None:
    change = life.claim(
        cause(lease=("local", 9)), order(), spec(), slot(version=4), pool(version=5), host(version=6), 2_000
    )
    assert change.order is not None and change.order.attempt == 1 and change.order.command_until == NOW + 2_000
    guards = change.guards
    assert (guards.lease, guards.pool_version, guards.host_version) == (("local", 9), 5, 6)
    assert (guards.slot_free, guards.slot_version, guards.project_limit) == (slot().name, 4, True)


@pytest.mark.parametrize("state", sorted(OPEN))
def test_a_requested_cancel_ends_cancelled_and_the_run_keeps_its_exit_code(state: OrderState) -> None:
    stopping = life.cancel(cause(), order(state), spec())
    assert stopping is not None and stopping.order is not None
    change = _finish(stopping.order, Exit(code=7))
    assert change.order is not None and change.run is not None
    assert (change.order.state, change.order.reason) == (S.CANCELLED, Reason.CANCELLED)
    assert (change.run.exit_code, change.run.reason) == (7, Reason.CANCELLED)


def test_a_deadline_ends_failed_even_if_the_run_then_exits_with_zero() -> None:
    change = _finish(order(S.STOPPING, stop_reason=Reason.TIMEOUT), OK)
    assert change.order is not None and change.run is not None
    assert (change.order.state, change.order.reason, change.run.exit_code) == (S.FAILED, Reason.TIMEOUT, 0)


def test_a_stop_for_a_lost_run_that_is_then_seen_with_zero_completes() -> None:
    change = _finish(order(S.STOPPING, stop_reason=Reason.LOST), OK)
    assert change.order is not None and change.order.state is S.COMPLETED


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (Exit(code=0), None),
        (Exit(code=1), Reason.EXIT),
        (Exit(signal=9), Reason.EXIT),
        (Exit(code=137, oom=True), Reason.OOM),
        (Exit(start_error="no such command"), Reason.START_FAILED),
        (Exit(lost=True), Reason.LOST),
    ],
)
def test_the_exit_code_decides(ending: Exit, reason: Reason | None) -> None:
    assert life.outcome(order(S.RUNNING), ending) is reason


@pytest.mark.parametrize("boot", [None, "b-1"])
@pytest.mark.parametrize("name", [None, "TooLate"])
def test_a_run_keeps_who_had_it_and_what_its_worker_called_the_error(boot: str | None, name: str | None) -> None:
    change = _finish(replace(order(S.RUNNING), boot=boot), Exit(code=1, error_name=name))
    assert change.run is not None
    assert (change.run.boot, change.run.error_name) == (boot, name)


def test_a_signal_shows_as_the_exit_code_a_shell_would_give() -> None:
    change = _finish(order(S.RUNNING), Exit(signal=15))
    assert change.order is not None and change.order.exit_code == 143


def test_an_end_gives_the_slot_back_and_writes_the_run() -> None:
    change = _finish(order(S.RUNNING), OK)
    assert change.order is not None and change.run is not None and change.slot is not None
    assert (change.order.slot, change.order.handle, change.order.deadline) == (None, None, None)
    assert (change.slot.state, change.slot.uses, change.slot.last_used_at) == (SlotState.IDLE, 1, NOW)
    assert (change.run.number, change.run.slot, change.run.handle) == (1, slot().name, "h-1")


@pytest.mark.parametrize(
    ("used_ago", "columns", "ending", "keys", "written"),
    [
        (499, {}, OK, {}, False),
        (0, {}, OK, {}, False),
        (500, {}, OK, {}, True),
        (-1, {}, OK, {}, True),  # a clock that went back
        (None, {}, OK, {}, True),
        (499, {}, OK, {"counts": True}, True),
        (499, {"failures": 1}, OK, {}, True),
        (499, {}, Exit(lost=True), {}, True),
        (499, {}, Exit(start_error="no device", place_failed=True), {}, True),
        (499, {}, Exit(code=3), {}, False),
    ],
)
def test_a_seat_that_was_just_noted_as_used_is_not_written_again_unless_more_of_it_changes(
    used_ago: int | None, columns: dict[str, Any], ending: Exit, keys: dict[str, bool], written: bool
) -> None:
    seat = slot(last_used_at=None if used_ago is None else NOW - used_ago, **columns)
    keys = {"counts": False, **keys}
    change = life.finish(cause(), order(S.RUNNING), spec(), seat, ending, handle=None, seats=True, chance=0.5, **keys)
    assert (change.slot_was is seat, change.slot is not None) == (written, written)
    assert (change.slot_columns is not None) is written
    assert change.order is not None and change.order.slot is None and change.run is not None


def test_every_use_counts_unless_it_is_said_that_it_need_not() -> None:
    seat = slot(last_used_at=NOW - 1)
    change = life.finish(cause(), order(S.RUNNING), spec(), seat, OK, handle=None, seats=True, chance=0.5)
    assert change.slot is not None and change.slot.uses == 1


def test_a_slot_that_is_no_seat_is_cleaned_after_each_run() -> None:
    change = _finish(order(S.RUNNING), OK, seats=False)
    assert change.slot is not None and change.slot.state is SlotState.CLEANING


def test_a_seat_whose_run_was_lost_is_made_anew() -> None:
    change = _finish(order(S.RUNNING), Exit(lost=True))
    assert change.slot is not None and change.slot.state is SlotState.CLEANING


def test_a_seat_whose_run_was_stopped_as_lost_is_made_anew_however_its_end_was_seen() -> None:
    change = _finish(order(S.STOPPING, stop_reason=Reason.LOST), Exit(code=137))
    assert change.run is not None and change.run.reason is Reason.LOST
    assert change.slot is not None and change.slot.state is SlotState.CLEANING
    change = _finish(order(S.STOPPING, stop_reason=Reason.LOST), OK)
    assert change.slot is not None and change.slot.state is SlotState.IDLE, "it did end well"


def test_a_retry_keeps_the_dedupe_key_and_an_end_frees_it() -> None:
    row = order(S.RUNNING, dedupe_live="default/key")
    again = _finish(row, Exit(lost=True)).order
    over = _finish(row, OK).order
    assert again is not None and again.dedupe_live == "default/key"
    assert over is not None and over.dedupe_live is None


def test_a_failed_slot_is_tried_again_ever_more_rarely() -> None:
    row = slot(state=SlotState.CREATING)
    waits = []
    for _ in range(9):
        failed = slots.failed(cause(), row, "no").slot
        assert failed is not None and failed.retry_at is not None
        waits.append(failed.retry_at - NOW)
        row = replace(failed, state=SlotState.CREATING)
    assert waits[:4] == [5_000, 10_000, 20_000, 40_000]
    assert waits[-1] == 300_000


def test_setting_what_is_so_already_changes_nothing() -> None:
    assert places.set_pool_mode(cause(), pool(), Mode.OPEN, None) is None
    assert places.set_host_mode(cause(), host(), Mode.OPEN, None) is None
    assert places.apply_pool(cause(), pool(), "default", "local", pool().settings) is None
    assert places.apply_host(cause(), host(), "local", places.HostSaid(driver="process")) is None


def test_every_order_and_slot_kind_has_its_moves() -> None:
    moving = {kind for kind in EventKind if kind.startswith(("order.", "slot."))}
    assert moving == set(life.ORDER_MOVES) | set(slots.SLOT_MOVES)


def test_no_change_leads_out_of_an_ended_state_but_to_nothing() -> None:
    for kind, moves in life.ORDER_MOVES.items():
        assert kind is EventKind.ORDER_PURGED or not ENDED & set(moves)


@pytest.mark.parametrize("state", OrderState)
def test_only_what_has_ended_can_be_purged(state: OrderState) -> None:
    if state in ENDED:
        assert life.purge(cause(), order(state), "why").states == (state, None)
    else:
        with pytest.raises(IllegalMove):
            life.purge(cause(), order(state), None)


def test_a_retry_policy_can_name_more_reasons_and_fewer() -> None:
    more = spec(retry=Retry(retry_on=(Reason.EXIT,)))
    less = spec(retry=Retry(no_retry_on=(Reason.LOST,)))
    retried, final = _finish(order(S.RUNNING), Exit(code=3), more), _finish(order(S.RUNNING), Exit(lost=True), less)
    assert retried.order is not None and retried.order.state is S.WAITING_RETRY
    assert final.order is not None and final.order.state is S.FAILED


def test_a_place_that_failed_its_run_is_broken_and_a_run_that_got_anywhere_proves_it() -> None:
    failed = _finish(order(S.PREPARING), Exit(start_error="no device", place_failed=True), seats=True).slot
    assert failed is not None
    assert (failed.state, failed.error, failed.failures, failed.retry_at) == (
        SlotState.ERROR,
        "no device",
        1,
        NOW + 5_000,
    )
    assert failed.uses == 1
    for ending in (Exit(start_error="no such command"), Exit(place_failed=True, code=1)):
        usual = _finish(order(S.PREPARING), ending).slot
        assert usual is not None and (usual.state, usual.failures) == (SlotState.IDLE, 0)


def test_failures_of_a_slot_are_forgotten_only_after_a_run_in_it() -> None:
    for ending, failures in ((OK, 0), (Exit(lost=True), 2)):
        end = life.finish(
            cause(), order(S.RUNNING), spec(), slot(failures=2), ending, handle=None, seats=False, chance=0.5
        )
        assert end.slot is not None and end.slot.failures == failures


def test_an_order_that_only_waits_for_a_start_is_extended_once_to_its_deploy_timeout_in_all() -> None:
    waits, asked = order(queue_due=NOW), spec(queue_timeout_ms=300_000)
    change = life.extend(cause(), waits, asked, 1_800_000)
    assert change is not None and change.order is not None
    assert (change.order.deploy_since, change.order.queue_due) == (NOW, NOW + 1_500_000)
    assert life.extend(cause(), change.order, asked, 1_800_000) is None
    assert life.extend(cause(), waits, asked, 300_000) is None
    assert life.extend(cause(), waits, asked, 300_001) is not None
    assert life.extend(cause(), waits, spec(queue_timeout_ms=None), 1_800_000) is None
    assert life.extend(cause(), order(queue_due=None), asked, 1_800_000) is None


def test_an_extended_order_fails_with_deploy_timeout_and_forgets_it_when_it_is_claimed() -> None:
    extended = order(deploy_since=NOW - 1)
    over = life.expire(cause(), extended).order
    assert over is not None and (over.reason, over.deploy_since) == (Reason.DEPLOY_TIMEOUT, None)
    claimed = life.claim(cause(), extended, spec(), slot(), pool(), host(), 2_000, {"starts": 1})
    assert claimed.order is not None and claimed.order.deploy_since is None and claimed.note == {"starts": 1}


def test_an_order_that_is_held_keeps_everything() -> None:
    waits = order()
    change = life.hold(cause(), waits, {"starts": {"n": 4}})
    assert (change.order, change.order_was, change.note) == (waits, waits, {"starts": {"n": 4}})
