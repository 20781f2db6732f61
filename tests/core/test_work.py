"""Who has a run, what a worker is told, and what its reports and its silence mean."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import judge, lifecycle, slots, work
from standby.core.errors import IllegalMove
from standby.core.model import EventKind, OrderState, Pool, PoolSettings, Reason, SlotState, Template, Warmth
from standby.core.sighting import Exit, Seen, Sighting
from standby.core.work import Offer, Report, Word
from tests.core.columns import changed
from tests.rows import NOW, cause, host, order, pool, slot, spec

S = OrderState
RESIDENT = Template(worker=True, warmth=Warmth.RUNNING)
AT_BOOT = Template(worker=True, warmth=Warmth.CREATED, ready="heartbeat")
EXEC = Template(warmth=Warmth.RUNNING)
RULES = judge.Rules(window_ms=2_000, lag_ms=0, seats=False, chance=0.5)


def of(template: Template, **settings: Any) -> Pool:
    return pool(settings=PoolSettings(template=template, **settings))


def report(**columns: Any) -> Report:
    return Report(**{"run_id": "order-1-1", "boot": "b-1", "heartbeat_at": NOW - 1_000, "begun_at": NOW, **columns})


def look(seen: Seen, **columns: Any) -> Sighting:
    return Sighting(**{"run_id": "order-1-1", "incarnation": "i-1", "seen": seen, "asked_at": NOW, **columns})


def test_work_is_handed_over_to_resident_workers_only() -> None:
    assert [work.handed_over(template) for template in (RESIDENT, AT_BOOT, EXEC, Template())] == [
        True,
        False,
        False,
        False,
    ]
    assert work.awaits_boot(of(RESIDENT), slot())
    assert not work.awaits_boot(of(RESIDENT), slot(boot="b-1"))
    assert not work.awaits_boot(of(AT_BOOT), slot())


# booting


@pytest.mark.parametrize("state", [SlotState.CREATING, SlotState.IDLE])
def test_a_resident_worker_that_boots_lives_in_its_slot_from_then_on(state: SlotState) -> None:
    change = work.boot(cause(), slot(state=state, boot="old"), of(RESIDENT), None, "new")
    assert change is not None and change.kind is EventKind.SLOT_BOOTED
    assert changed(change.slot_was, change.slot) == {"boot": "new"}


@pytest.mark.parametrize("state", [SlotState.CLEANING, SlotState.ERROR, SlotState.REMOVING])
def test_whoever_boots_in_a_slot_that_is_used_up_or_given_up_lives_nowhere_and_may_leave(state: SlotState) -> None:
    given_up = slot(state=state)
    assert work.boot(cause(), given_up, of(RESIDENT), None, "new") is None
    assert work.offer(given_up, of(RESIDENT), None, "new", None, NOW) is Offer.LEAVE


def test_the_same_boot_again_changes_nothing() -> None:
    assert work.boot(cause(), slot(boot="same"), of(RESIDENT), None, "same") is None


def test_a_second_boot_leaves_the_open_run_to_the_first_and_gets_those_to_come() -> None:
    change = work.boot(cause(), slot(boot="first"), of(RESIDENT), order(S.RUNNING, boot="first"), "second")
    assert change is not None and (change.kind, change.order) == (EventKind.SLOT_BOOTED, None)
    assert change.slot is not None and change.slot.boot == "second"


@pytest.mark.parametrize("state", [S.PREPARING, S.RUNNING])
@pytest.mark.parametrize("template", [AT_BOOT, RESIDENT])
def test_a_run_that_nobody_has_is_the_first_boots(state: OrderState, template: Template) -> None:
    change = work.boot(cause(), slot(), of(template), order(state), "first")
    assert change is not None and change.kind is EventKind.ORDER_BOUND
    assert changed(change.order_was, change.order) == {"boot": "first"}
    assert change.slot is None


def test_where_each_run_starts_its_worker_a_boot_is_nothing_to_the_slot() -> None:
    assert work.boot(cause(), slot(), of(AT_BOOT), None, "early") is None
    assert work.boot(cause(), slot(), of(AT_BOOT), order(S.RUNNING, boot="other"), "late") is None
    assert work.boot(cause(), slot(), of(AT_BOOT), order(S.STOPPING), "late") is None


# asking for work


@pytest.mark.parametrize("state", [S.PREPARING, S.RUNNING])
def test_the_boot_that_has_the_run_gets_it_as_often_as_it_asks(state: OrderState) -> None:
    mine = order(state, boot="b-1")
    for template in (RESIDENT, AT_BOOT):
        assert work.offer(slot(boot="b-1"), of(template), mine, "b-1", None, NOW) is Offer.TAKE
        # also when another one booted meanwhile
        assert work.offer(slot(boot="b-2"), of(template), mine, "b-1", None, NOW) is Offer.TAKE


@pytest.mark.parametrize("state", [S.PREPARING, S.RUNNING, S.STOPPING])
def test_a_run_whose_result_was_told_is_not_handed_out_again(state: OrderState) -> None:
    mine, said = order(state, boot="b-1"), report(ended_at=NOW, exit_code=0)
    assert work.offer(slot(boot="b-1"), of(RESIDENT), mine, "b-1", said, NOW) is Offer.WAIT
    assert work.offer(slot(), of(AT_BOOT), mine, "b-1", said, NOW) is Offer.LEAVE


def test_another_boot_waits_until_no_run_is_open() -> None:
    theirs = order(S.RUNNING, boot="b-1")
    assert work.offer(slot(boot="b-2"), of(RESIDENT), theirs, "b-2", None, NOW) is Offer.WAIT
    assert work.offer(slot(), of(AT_BOOT), theirs, "b-2", None, NOW) is Offer.WAIT
    assert work.offer(slot(), of(AT_BOOT), None, "b-2", None, NOW) is Offer.LEAVE
    assert work.offer(slot(), of(AT_BOOT), order(S.PREPARING), "b-0", None, NOW) is Offer.WAIT
    assert work.offer(slot(boot="b-2"), of(RESIDENT), None, "b-2", None, NOW) is Offer.WAIT


def test_a_resident_worker_whose_slot_is_anothers_leaves() -> None:
    assert work.offer(slot(boot="b-2"), of(RESIDENT), None, "b-1", None, NOW) is Offer.LEAVE
    theirs = order(S.RUNNING, boot="b-2")
    assert work.offer(slot(boot="b-2"), of(RESIDENT), theirs, "b-1", None, NOW) is Offer.LEAVE


def test_a_run_that_is_being_stopped_is_not_begun() -> None:
    mine = order(S.STOPPING, boot="b-1")
    assert work.offer(slot(boot="b-1"), of(RESIDENT), mine, "b-1", None, NOW) is Offer.GIVE_BACK
    assert work.offer(slot(boot="b-1"), of(RESIDENT), mine, "b-1", report(begun_at=None), NOW) is Offer.GIVE_BACK
    assert work.offer(slot(boot="b-1"), of(RESIDENT), mine, "b-1", report(), NOW) is Offer.WAIT


def test_a_worker_that_should_have_ended_gets_nothing() -> None:
    mine = order(S.RUNNING, boot="b-1")
    late = report(heartbeat_at=NOW - 10_000)
    assert work.offer(slot(boot="b-1"), of(RESIDENT, silence_ms=10_000), mine, "b-1", late, NOW) is Offer.LEAVE
    assert work.offer(slot(boot="b-1"), of(RESIDENT, silence_ms=10_001), mine, "b-1", late, NOW) is Offer.TAKE
    assert work.word(mine, "order-1-1", "b-1", fenced=True) is Word.EXIT


def test_a_worker_is_fenced_when_its_time_is_over_and_only_where_silence_counts() -> None:
    assert not work.fenced(report(heartbeat_at=NOW - 9_999), 10_000, NOW)
    assert work.fenced(report(heartbeat_at=NOW - 10_000), 10_000, NOW)
    assert not work.fenced(report(heartbeat_at=0), None, NOW)
    assert not work.fenced(None, 10_000, NOW)


# heartbeats


@pytest.mark.parametrize(
    ("state", "answer"),
    [(S.PREPARING, Word.GO_ON), (S.RUNNING, Word.GO_ON), (S.STOPPING, Word.STOP), (S.COMPLETED, Word.EXIT)],
)
def test_a_heartbeat_is_answered_with_what_is_wanted_of_the_run(state: OrderState, answer: Word) -> None:
    assert work.word(order(state, boot="b-1", attempt=1), "order-1-1", "b-1", fenced=False) is answer
    assert work.word(order(state, attempt=1), "order-1-1", None, fenced=False) is answer


def test_whoever_has_not_the_run_is_told_to_exit() -> None:
    mine = order(S.RUNNING, boot="b-1")
    assert work.word(mine, "order-1-1", "b-2", fenced=False) is Word.EXIT
    assert work.word(replace(mine, boot=None), "order-1-1", "b-2", fenced=False) is Word.EXIT
    assert work.word(replace(mine, attempt=2), "order-1-1", "b-1", fenced=False) is Word.EXIT


def test_a_run_that_speaks_for_itself_is_noted_once_and_not_after_its_end() -> None:
    for state in (S.PREPARING, S.RUNNING):
        change = work.speaks(cause(), order(state, boot=None))
        assert change is not None and change.order is not None
        assert (change.kind, change.order.boot) == (EventKind.ORDER_BOUND, work.ITSELF)
        assert work.speaks(cause(), order(state, boot=work.ITSELF)) is None
    for state in (S.STOPPING, S.COMPLETED, S.PENDING):
        assert work.speaks(cause(), order(state, boot=None)) is None


# what is seen


def seen(template: Template, at: Sighting | None, said: Report | None, **columns: Any) -> Sighting | None:
    return work.sighting(order(S.PREPARING, boot="b-1", **columns), template, at, said, None)


def test_of_work_that_is_handed_over_the_platform_knows_only_the_place() -> None:
    for word in (Seen.FRESH, Seen.READY, Seen.STARTING):
        assert seen(RESIDENT, look(word), None) == look(Seen.STARTING)
    for word in (Seen.ABSENT, Seen.UNKNOWN):
        assert seen(RESIDENT, look(word), None) == look(word)
    assert seen(RESIDENT, None, None) is None


def test_a_pool_that_waits_for_a_heartbeat_is_not_ready_because_the_platform_says_so() -> None:
    assert seen(AT_BOOT, look(Seen.READY), None) == look(Seen.STARTING)
    assert seen(AT_BOOT, look(Seen.FRESH), None) == look(Seen.FRESH)
    assert seen(replace(AT_BOOT, ready="running"), look(Seen.READY), None) == look(Seen.READY)


@pytest.mark.parametrize("template", [RESIDENT, AT_BOOT])
def test_the_first_heartbeat_says_that_the_work_is_at_work(template: Template) -> None:
    ready = look(Seen.READY, asked_at=NOW - 1_000)
    assert seen(template, look(Seen.STARTING), report()) == ready
    assert seen(template, None, report()) == ready
    assert seen(template, None, report(begun_at=None)) is None


@pytest.mark.parametrize("word", [Seen.STARTING, Seen.ABSENT, Seen.UNKNOWN])
def test_of_work_that_is_known_to_have_begun_a_look_says_more_than_an_old_heartbeat(word: Seen) -> None:
    mine, old = order(S.RUNNING, boot="b-1"), report(heartbeat_at=NOW - work.HEARD_MS)
    assert work.sighting(mine, RESIDENT, look(word), old, None) == look(word)


def test_what_a_worker_says_leaves_the_handle_that_the_platform_gave() -> None:
    for said in (report(), report(ended_at=NOW, exit_code=0)):
        found = seen(AT_BOOT, look(Seen.STARTING, handle="deployment-1"), said)
        assert found is not None and found.handle == "deployment-1"


@pytest.mark.parametrize("concluded", [Exit(lost=True), Exit(start_error="failed", place_failed=True), None])
def test_a_worker_that_was_just_heard_is_alive_although_its_platform_concludes_that_it_is_over(
    concluded: Exit | None,
) -> None:
    at = look(Seen.STOPPED, exit=concluded)
    fresh, old = report(heartbeat_at=NOW - work.HEARD_MS + 1), report(heartbeat_at=NOW - work.HEARD_MS)
    found, later, never = seen(AT_BOOT, at, fresh), seen(AT_BOOT, at, old), seen(AT_BOOT, at, report(begun_at=None))
    assert found is not None and found.seen is Seen.READY
    assert later is not None and later.seen is Seen.STOPPED
    assert never is not None and never.seen is Seen.STOPPED


def test_a_worker_that_was_just_heard_is_alive_although_its_place_is_not_where_it_was_looked_for() -> None:
    gone = look(Seen.ABSENT)
    fresh, old = report(heartbeat_at=NOW - work.HEARD_MS + 1), report(heartbeat_at=NOW - work.HEARD_MS)
    found = seen(AT_BOOT, gone, fresh)
    assert found is not None and found.seen is Seen.READY
    assert seen(AT_BOOT, gone, old) == gone
    assert seen(AT_BOOT, gone, report(begun_at=None)) == gone


@pytest.mark.parametrize("ending", [Exit(code=1), Exit(signal=9), Exit(oom=True)])
def test_an_exit_that_was_seen_outweighs_the_last_heartbeat(ending: Exit) -> None:
    at = look(Seen.STOPPED, exit=ending)
    assert seen(AT_BOOT, at, report(heartbeat_at=NOW)) == at


def test_a_heartbeat_after_an_operators_word_says_that_it_lives_and_one_before_it_says_nothing() -> None:
    mine = order(S.RUNNING, boot="b-1")
    said = report(heartbeat_at=NOW)
    assert work.sighting(mine, RESIDENT, None, said, NOW - 1) == look(Seen.READY)
    assert work.sighting(mine, RESIDENT, None, said, NOW) is None


def test_the_result_of_a_worker_is_the_end_of_its_run() -> None:
    well = report(ended_at=NOW, exit_code=0)
    for template in (RESIDENT, AT_BOOT):
        for at in (None, look(Seen.STARTING), look(Seen.ABSENT), look(Seen.STOPPED, exit=Exit(signal=9))):
            found = seen(template, at, well)
            assert found is not None
            assert (found.seen, found.exit) == (Seen.STOPPED, Exit(code=0))
    badly = report(ended_at=NOW, error_name="NoRoom", error="full", retryable=True)
    found = seen(RESIDENT, None, badly)
    assert found is not None and found.exit == Exit(error_name="NoRoom", error="full", retryable=True)
    given_back = seen(RESIDENT, None, report(ended_at=NOW))
    assert given_back is not None and given_back.exit == Exit(lost=True)


def test_without_a_worker_the_exit_code_decides_unless_an_error_was_named() -> None:
    stopped = look(Seen.STOPPED, exit=Exit(code=3, cpu_ms=7))
    assert seen(EXEC, look(Seen.READY), report(ended_at=NOW, exit_code=0)) == look(Seen.READY)
    assert seen(EXEC, stopped, report(ended_at=NOW, exit_code=0)) == stopped
    assert seen(EXEC, stopped, report()) == stopped
    named = seen(EXEC, stopped, report(ended_at=NOW, error_name="E", error="text", retryable=False))
    assert named is not None
    assert named.exit == Exit(code=3, cpu_ms=7, error_name="E", error="text", retryable=False)
    lost = look(Seen.STOPPED, exit=Exit(lost=True))
    found = seen(EXEC, lost, report(ended_at=NOW, exit_code=4))
    assert found is not None and found.exit == Exit(code=4)
    assert seen(EXEC, lost, report()) == lost
    unsaid = seen(EXEC, look(Seen.STOPPED), report())
    assert unsaid is not None and unsaid.exit == Exit(lost=True)


# silence


def test_silence_counts_after_its_time_the_grace_and_a_margin_and_only_of_workers_that_fence_themselves() -> None:
    run = judge.Open(order(S.RUNNING, boot="b-1"), spec(stop_grace_ms=3_000), slot())
    heard = report(heartbeat_at=NOW)
    limit = NOW + 10_000 + 3_000 + work.MARGIN_MS
    assert not work.silent(run, heard, 10_000, limit)
    assert work.silent(run, heard, 10_000, limit + 1)
    assert not work.silent(run, heard, None, limit + 1)
    assert not work.silent(run, None, 10_000, limit + 1)
    assert not work.silent(run, replace(heard, ended_at=NOW), 10_000, limit + 1)


@pytest.mark.parametrize("at", [None, look(Seen.READY, asked_at=NOW - 1), look(Seen.UNKNOWN)])
@pytest.mark.parametrize("state", [S.RUNNING, S.PREPARING])
def test_a_silent_run_that_nobody_can_look_at_is_lost(at: Sighting | None, state: OrderState) -> None:
    run = judge.Open(order(state, boot="b-1"), spec(), slot())
    change = judge.unheard(cause(), run, at, NOW - 1, RULES)
    assert change is not None and change.run is not None
    assert change.run.reason is Reason.LOST


@pytest.mark.parametrize("word", [Seen.READY, Seen.STARTING])
def test_a_silent_run_that_a_look_sees_alive_is_stopped_and_lost_when_it_is_gone(word: Seen) -> None:
    run = judge.Open(order(S.RUNNING, boot="b-1"), spec(), slot())
    change = judge.unheard(cause(), run, look(word), NOW - 1, RULES)
    assert change is not None and change.order is not None
    assert (change.order.state, change.order.stop_reason) == (S.STOPPING, Reason.LOST)
    stopping = replace(run, order=change.order)
    assert judge.unheard(cause(), stopping, look(word), NOW - 1, RULES) is None
    for ending, reason in ((Exit(signal=9), Reason.LOST), (Exit(code=1), Reason.LOST), (Exit(code=0), None)):
        end = judge.judge(cause(), stopping, look(Seen.STOPPED, exit=ending), RULES)
        assert end is not None and end.run is not None and end.run.reason is reason


@pytest.mark.parametrize("word", [Seen.ABSENT, Seen.STOPPED, Seen.FRESH])
def test_what_a_look_says_of_an_end_is_not_for_silence_to_settle(word: Seen) -> None:
    run = judge.Open(order(S.RUNNING, boot="b-1"), spec(), slot())
    assert judge.unheard(cause(), run, look(word), NOW - 1, RULES) is None


# what changes keep of it


def test_a_run_that_somebody_has_is_given_to_nobody_else() -> None:
    with pytest.raises(IllegalMove, match="cannot bind order order-1: it is bound to boot b-1"):
        lifecycle.bind(cause(), order(S.PREPARING, boot="b-1"), "b-2")


def test_a_worker_does_not_live_on_in_a_slot_that_is_made_anew() -> None:
    lived_in = slot(boot="b-1")
    for seats, boot in ((False, None), (True, "b-1")):
        end = lifecycle.finish(
            cause(), order(S.RUNNING), spec(), lived_in, Exit(code=0), handle=None, seats=seats, chance=0.5
        )
        assert end.slot is not None and end.slot.boot == boot
    broken = slots.failed(cause(), slot(state=SlotState.CREATING, boot="b-1"), "no room").slot
    assert broken is not None and broken.boot is None


def test_the_record_of_a_run_says_who_had_it_and_what_it_was_told_of_its_end() -> None:
    said = Exit(error_name="Busy", error="try later", retryable=True)
    end = lifecycle.finish(
        cause(), order(S.RUNNING, boot="b-1"), spec(), slot(), said, handle=None, seats=True, chance=0.5
    )
    assert end.run is not None and end.order is not None
    assert (end.run.boot, end.run.error_name, end.run.error) == ("b-1", "Busy", "try later")
    assert (end.run.reason, end.order.state, end.order.boot) == (Reason.ERROR, S.WAITING_RETRY, None)


def test_a_claim_gives_the_run_to_the_worker_that_lives_in_the_slot() -> None:
    for boot in ("b-1", None):
        claim = lifecycle.claim(cause(), order(), spec(), slot(boot=boot), of(RESIDENT), host(), 2_000)
        assert claim.order is not None and claim.order.boot == boot
