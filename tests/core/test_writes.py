"""Every change of an order writes exactly the columns that it is about: an event holds no more and no less."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import lifecycle as life
from standby.core.model import (
    Change,
    EventKind,
    Guards,
    Idempotency,
    Order,
    OrderState,
    Reason,
    Retry,
    Run,
    SlotState,
    Spec,
    Trigger,
)
from standby.core.sighting import Exit
from tests.core.columns import changed
from tests.rows import NOW, cause, host, order, pool, slot, spec

S = OrderState
Make = Callable[[], Change | None]
LEADER = cause(Trigger.ADMIT, id="change-7", actor="server-1", lease=("local", 9))
OPEN_RUN = {"slot", "incarnation", "handle", "commanded_at", "command_until", "ready_at", "deadline", "stop_reason"}


def _no_run(row: Order, **columns: Any) -> dict[str, Any]:
    """The columns that closing this order's open run empties, and more."""
    return {**{name: None for name in OPEN_RUN if getattr(row, name) is not None}, "state_since": NOW, **columns}


def _finish(row: Order, ending: Exit, policy: Spec | None = None, **more: Any) -> Change:
    args: dict[str, Any] = {"handle": None, "seats": True, "chance": 0.5, **more}
    return life.finish(LEADER, row, policy or spec(), slot(), ending, **args)


def _submit(draft: Order, policy: Spec) -> Change:
    return life.submit(LEADER, draft, policy, pool(), b"sealed", None)


WAITING, QUEUED, RUNNING = order(S.WAITING_RETRY), order(), order(S.RUNNING)
LATER = order(rank=None, queue_due=None, due_at=NOW)
CANCELLING = order(S.STOPPING, stop_reason=Reason.CANCELLED)
RANKED = {"due_at": None, "rank": NOW + 100_000, "queue_due": NOW + 300_000}
CLAIMED = {
    "state": S.PREPARING,
    "state_since": NOW,
    "attempt": 1,
    "rank": None,
    "queue_due": None,
    "slot": slot().name,
    "incarnation": "i-1",
    "commanded_at": NOW,
    "command_until": NOW + 2_000,
    "deadline": NOW + 9_000,
}
OVER: dict[str, tuple[Make, dict[str, Any]]] = {
    "cancelled in the queue": (
        lambda: life.cancel(LEADER, order(dedupe_live="a/key"), spec()),
        {
            "state": S.CANCELLED,
            "state_since": NOW,
            "ended_at": NOW,
            "reason": Reason.CANCELLED,
            "rank": None,
            "queue_due": None,
            "dedupe_live": None,
        },
    ),
    "cancelled before its retry": (
        lambda: life.cancel(LEADER, replace(WAITING, exit_code=3), spec()),
        {
            "state": S.CANCELLED,
            "state_since": NOW,
            "ended_at": NOW,
            "reason": Reason.CANCELLED,
            "due_at": None,
            "exit_code": None,
        },
    ),
    "waited too long": (
        lambda: life.expire(LEADER, QUEUED),
        {
            "state": S.FAILED,
            "state_since": NOW,
            "ended_at": NOW,
            "reason": Reason.QUEUE_TIMEOUT,
            "rank": None,
            "queue_due": None,
        },
    ),
    "completed": (
        lambda: _finish(replace(RUNNING, reason=Reason.LOST), Exit(code=0)),
        _no_run(RUNNING, state=S.COMPLETED, ended_at=NOW, reason=None, exit_code=0),
    ),
    "failed": (
        lambda: _finish(RUNNING, Exit(code=3)),
        _no_run(RUNNING, state=S.FAILED, ended_at=NOW, reason=Reason.EXIT, exit_code=3),
    ),
    "cancelled at work": (
        lambda: _finish(CANCELLING, Exit(signal=15)),
        _no_run(CANCELLING, state=S.CANCELLED, ended_at=NOW, reason=Reason.CANCELLED, exit_code=143),
    ),
}
ON_THE_WAY: dict[str, tuple[Make, dict[str, Any]]] = {
    "queued again": (
        lambda: life.queue(LEADER, WAITING, spec(), pool()),
        {"state": S.PENDING, "state_since": NOW, **RANKED},
    ),
    "queued for the first time": (lambda: life.queue(LEADER, LATER, spec(), pool()), RANKED),
    "claimed": (
        lambda: life.claim(LEADER, QUEUED, spec(start_timeout_ms=9_000), slot(), pool(), host(), 2_000),
        CLAIMED,
    ),
    "recommanded": (lambda: life.recommand(LEADER, order(S.PREPARING), 2_000), {"command_until": NOW + 2_000}),
    "ready": (
        lambda: life.ready(LEADER, order(S.PREPARING), spec(run_timeout_ms=8_000), "h-2"),
        {"state": S.RUNNING, "state_since": NOW, "ready_at": NOW, "handle": "h-2", "deadline": NOW + 8_000},
    ),
    "ready without a limit": (
        lambda: life.ready(LEADER, order(S.PREPARING), spec(run_timeout_ms=None), "h-2"),
        {"state": S.RUNNING, "state_since": NOW, "ready_at": NOW, "handle": "h-2", "deadline": None},
    ),
    "stopping": (
        lambda: life.stop(LEADER, RUNNING, spec(stop_grace_ms=4_000), Reason.TIMEOUT),
        {"state": S.STOPPING, "state_since": NOW, "stop_reason": Reason.TIMEOUT, "deadline": NOW + 4_000},
    ),
    "cancelled while stopping": (
        lambda: life.cancel(LEADER, order(S.STOPPING), spec()),
        {"stop_reason": Reason.CANCELLED},
    ),
    "to be retried": (
        lambda: _finish(RUNNING, Exit(code=5), spec(retry=Retry(retry_on=(Reason.EXIT,)))),
        _no_run(RUNNING, state=S.WAITING_RETRY, reason=Reason.EXIT, exit_code=5, due_at=NOW + 5_000),
    ),
}


@pytest.mark.parametrize(("make", "columns"), (OVER | ON_THE_WAY).values(), ids=OVER | ON_THE_WAY)
def test_a_change_writes_its_columns_and_carries_its_cause(make: Make, columns: dict[str, Any]) -> None:
    change = make()
    assert change is not None and change.subject == "order-1"
    assert changed(change.order_was, change.order) == columns
    assert (change.id, change.at, change.trigger, change.actor) == ("change-7", NOW, Trigger.ADMIT, "server-1")
    assert change.guards.lease == ("local", 9)


def test_a_submitted_order_is_written_with_its_spec_its_sealed_env_and_the_answer_to_repeat() -> None:
    draft, wish = order(rank=None, queue_due=None), spec(queue_timeout_ms=None)
    answer = Idempotency(project="default", key="k", fingerprint="f", order_id="order-1", answer="{}", at=NOW)
    change = life.submit(LEADER, draft, wish, pool(), b"sealed", answer)
    assert (change.kind, change.order_was) == (EventKind.ORDER_SUBMITTED, None)
    assert changed(draft, change.order) == {"rank": NOW + 100_000}
    assert (change.spec, change.sealed_env, change.idempotency) == (wish, b"sealed", answer)


def test_an_order_for_a_time_that_has_come_is_ready_at_once() -> None:
    draft = order(rank=None, queue_due=None)
    for not_before, columns in ((NOW, {"rank", "queue_due"}), (NOW + 1, {"due_at"})):
        change = _submit(draft, spec(not_before=not_before))
        assert set(changed(draft, change.order)) == columns


def test_a_stop_says_why() -> None:
    assert life.stop(LEADER, RUNNING, spec(), Reason.TIMEOUT).note == {"reason": Reason.TIMEOUT}


def test_every_end_of_a_run_is_written_as_history() -> None:
    stopping = replace(order(S.STOPPING, handle="h-1", attempt=3), state_since=NOW - 700)
    ending = Exit(signal=9, peak_memory_kb=2_048, cpu_ms=1_500)
    assert _finish(stopping, ending).run == Run(
        order_id="order-1",
        number=3,
        slot=slot().name,
        incarnation="i-1",
        handle="h-1",
        commanded_at=NOW - 10_000,
        ready_at=NOW - 9_000,
        stop_asked_at=NOW - 700,
        ended_at=NOW,
        reason=Reason.TIMEOUT,
        exit_code=137,
        signal=9,
        peak_memory_kb=2_048,
        cpu_ms=1_500,
    )


def test_a_run_that_never_began_keeps_what_the_platform_said_and_no_stop_was_asked() -> None:
    run = _finish(order(S.PREPARING), Exit(start_error="no such command"), handle="h-9").run
    assert run is not None and (run.error, run.reason) == ("no such command", Reason.START_FAILED)
    assert (run.handle, run.ready_at, run.stop_asked_at) == ("h-9", None, None)


def test_the_slot_counts_its_use_and_is_cleaned_from_this_moment() -> None:
    used = {"uses": 1, "last_used_at": NOW}
    seat, place = _finish(RUNNING, Exit(code=0)), _finish(RUNNING, Exit(code=0), seats=False)
    assert changed(seat.slot_was, seat.slot) == used
    cleaned = {"state": SlotState.CLEANING, "state_since": NOW}
    assert changed(place.slot_was, place.slot) == {**used, **cleaned}


def test_an_order_without_a_place_has_no_run_to_end() -> None:
    for column in ("slot", "incarnation", "commanded_at"):
        with pytest.raises(AssertionError):
            _finish(replace(RUNNING, **{column: None}), Exit(code=0))


def test_a_change_that_no_leader_makes_is_guarded_by_no_lease() -> None:
    assert life.recommand(cause(), order(S.PREPARING), 2_000).guards == Guards()


@pytest.mark.parametrize("name", ["claimed", "ready", "completed", "failed", "cancelled at work"])
def test_the_changes_on_the_hot_path_bring_their_next_versions_along(name: str) -> None:
    change = (OVER | ON_THE_WAY)[name][0]()
    assert change is not None and change.order_was is not None and change.order is not None
    assert change.order.version == change.order_was.version + 1
    if change.slot_was is not None:
        assert change.slot is not None and change.slot.version == change.slot_was.version + 1


FOLLOWS = {
    "claimed": {"state", "state_since", "rank", "queue_due", "commanded_at"},
    "ready": {"state", "state_since", "ready_at"},
    "to be retried": {"state", "state_since", *OPEN_RUN},
    **{key: {"state", "state_since", "ended_at", *OPEN_RUN} for key in ("completed", "failed", "cancelled at work")},
}


@pytest.mark.parametrize("name", list(FOLLOWS))
def test_the_changes_on_the_hot_path_tell_what_they_write_but_for_what_follows(name: str) -> None:
    change = (OVER | ON_THE_WAY)[name][0]()
    assert change is not None and change.order is not None and change.order_was is not None
    written = {"version": change.order.version, **changed(change.order_was, change.order)}
    assert change.told == {column: value for column, value in written.items() if column not in FOLLOWS[name]}
    if change.slot is not None:
        assert change.slot_columns == {"version": change.slot.version, **changed(change.slot_was, change.slot)}


def test_what_is_seldom_written_by_a_change_on_the_hot_path_is_told_too() -> None:
    late, lived_in = replace(QUEUED, deploy_since=NOW - 1), replace(slot(), boot="nonce")
    claim = life.claim(LEADER, late, spec(), lived_in, pool(), host(), 2_000)
    end = _finish(replace(RUNNING, boot="nonce", dedupe_live="a/key"), Exit(code=0))
    assert claim.told is not None and end.told is not None
    assert {name: claim.told[name] for name in ("deploy_since", "boot")} == {"deploy_since": None, "boot": "nonce"}
    assert {name: end.told[name] for name in ("dedupe_live", "boot")} == {"dedupe_live": None, "boot": None}
    assert claim.order is not None and (claim.order.deploy_since, claim.order.boot) == (None, "nonce")
    assert end.order is not None and (end.order.dedupe_live, end.order.boot) == (None, None)


@pytest.mark.parametrize("silent", [True, False])
def test_the_end_of_a_silent_run_says_so(silent: bool) -> None:
    assert _finish(RUNNING, Exit(code=0, silent=silent)).note == ({"silent": True} if silent else {})


@pytest.mark.parametrize(("said", "note"), [("as asked by mail", {"said": "as asked by mail"}), (None, {})])
def test_a_purged_order_leaves_no_row_and_keeps_what_was_said(said: str | None, note: dict[str, str]) -> None:
    over = order(S.FAILED)
    change = life.purge(LEADER, over, said)
    assert (change.kind, change.order_was, change.order) == (EventKind.ORDER_PURGED, over, None)
    assert (change.subject, change.states, change.note) == ("order-1", (S.FAILED, None), note)
    assert change.guards == Guards(lease=("local", 9))
