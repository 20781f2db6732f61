"""Bugs that somebody could write, planted into the product for as long as a test lasts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from standby.control import host as host_module
from standby.control import looks
from standby.control import schedules as keeping
from standby.control.host import HostStep
from standby.control.lease import Hold
from standby.control.mirror import Mirror
from standby.core import admit, judge, lanes, lifecycle, pressure, size, slots, strays, ticks, wear
from standby.core.errors import Unreachable
from standby.core.lifecycle import Cause
from standby.core.model import Change, Guards, Order, OrderState, Schedule, Slot, Spec, Trigger, run_id
from standby.core.sighting import Exit, Seen, Sighting
from standby.drivers.contract import OpenRun
from standby.drivers.scripted import ScriptedDriver
from standby.store import sqlite, sqlite_commit
from standby.store.contract import Work
from standby.store.entry import Entry
from standby.store.sqlite import SqliteStore
from standby.store.sqlite_commit import Batch
from standby.ticking import Made
from standby.world import World

Plant = Callable[[pytest.MonkeyPatch], None]


def _in_no_hot_way(patch: pytest.MonkeyPatch) -> None:
    """Every change is checked by itself: the statement for hot ones leaves a part of that to the schema."""
    patch.setattr(sqlite, "by_kind", lambda batch: ({}, batch))


def settle_without_having_seen_it_ended(patch: pytest.MonkeyPatch) -> None:
    real = judge.overdue

    def overdue(cause: Cause, run: judge.Open) -> Change | None:
        order = run.order
        if order.state is OrderState.STOPPING and order.deadline is not None and cause.at >= order.deadline:
            return lifecycle.finish(
                cause, order, run.spec, run.slot, Exit(lost=True), handle=None, seats=False, chance=0.5
            )
        return real(cause, run)

    patch.setattr(judge, "overdue", overdue)


def unreachable_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    real = ScriptedDriver.observe

    async def observe(self: ScriptedDriver, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        try:
            return await real(self, runs)
        except Unreachable:
            return [
                Sighting(run_id=run.run_id, incarnation=run.incarnation, seen=Seen.ABSENT, asked_at=0) for run in runs
            ]

    async def identity(self: ScriptedDriver) -> str:
        return self.platform.name

    patch.setattr(ScriptedDriver, "observe", observe)
    patch.setattr(ScriptedDriver, "identity", identity)


class _ByOrder(dict[str, Sighting]):
    def pop(self, key: str, default: Any = None) -> Any:
        return super().pop(key.rpartition("-")[0], default)


def run_ids_ignored_in_sightings(patch: pytest.MonkeyPatch) -> None:
    real_best, real_judge = looks.best, judge.judge

    def best(sightings: Sequence[Sighting]) -> _ByOrder:
        return _ByOrder(real_best([replace(one, run_id=one.run_id.rpartition("-")[0]) for one in sightings]))

    def believe(cause: Cause, run: judge.Open, look: Sighting, rules: judge.Rules) -> Change | None:
        return real_judge(cause, run, replace(look, run_id=run_id(run.order)), rules)

    patch.setattr(host_module, "best", best)
    patch.setattr(judge, "judge", believe)


def incarnation_ignored_in_stop(patch: pytest.MonkeyPatch) -> None:
    """A stop that names less than the very place: it hits whatever was last started in the pool."""
    real = ScriptedDriver.stop

    async def stop(self: ScriptedDriver, slot: Slot, run: str, incarnation: str, *, force: bool, epoch: int) -> None:
        pool = f":{slot.name.rpartition('-')[0]}-"
        latest = [copy for copy in self.platform.copies.values() if pool in copy.incarnation]
        copy = latest[-1] if latest else self.platform.copies.get(run)
        if copy is not None:
            run, incarnation = copy.run_id, copy.incarnation
        await real(self, slot, run, incarnation, force=force, epoch=epoch)

    patch.setattr(ScriptedDriver, "stop", stop)


def no_intent_before_a_start(patch: pytest.MonkeyPatch) -> None:
    real = HostStep._claim

    def claim(self: HostStep, mirror: Any, plan: admit.Plan, waiting: Mapping[str, Work]) -> None:
        window_ms = self._world.config.command_window_ms
        for admission in plan.admissions:
            order, slot, spec = admission.order, admission.slot, waiting[admission.order.id].spec
            cause = self._cause(Trigger.ADMIT)
            change = lifecycle.claim(cause, order, spec, slot, mirror.pools[order.pool], mirror.host, window_ms)
            assert change.order is not None
            self._hands.start(run_id(change.order), Work(change.order, spec), slot, {}, self._making(mirror, slot))
        real(self, mirror, plan, waiting)

    patch.setattr(HostStep, "_claim", claim)


def absence_believed_from_a_look_asked_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judge, "_late_enough", lambda order, look, lag_ms: True)


def start_repeated_on_something_that_ran(patch: pytest.MonkeyPatch) -> None:
    real = judge.judge

    def believe(cause: Cause, run: judge.Open, look: Sighting, rules: judge.Rules) -> Change | None:
        mine = look.run_id == run_id(run.order)
        if mine and run.order.state is OrderState.PREPARING and look.exit is not None and look.exit.start_error:
            return lifecycle.recommand(cause, run.order, rules.window_ms)
        return real(cause, run, look, rules)

    patch.setattr(judge, "judge", believe)


def no_fence_before_a_driver_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hold, "outlives", lambda self, ms: True)


def slot_idle_before_it_was_cleaned(patch: pytest.MonkeyPatch) -> None:
    real = lifecycle.finish

    def finish(*args: Any, **keys: Any) -> Change:
        return real(*args, **{**keys, "seats": True})

    patch.setattr(lifecycle, "finish", finish)


def counter_instead_of_count(patch: pytest.MonkeyPatch) -> None:
    """A stop gives the place back, and so does the end."""
    counters: Counter[str] = Counter()
    real_write = Batch._write

    def write(self: Batch, one: Entry) -> Any:
        verdict, was, now = real_write(self, one), one.change.order_was, one.order
        if self._seq <= 1:
            counters.clear()
        if verdict.saved and now is not None:
            counters[now.project] += one.opens is not None
            ended = was is not None and was.slot is not None and now.slot is None
            stopped = now.state is OrderState.STOPPING and was is not None and was.state is not OrderState.STOPPING
            counters[now.project] -= ended + stopped
        return verdict

    def has_room(self: Batch, one: Entry) -> bool:
        assert one.order is not None
        most: Any = self._get("select running_max from projects where name = ?", one.order.project)
        return most is None or counters[one.order.project] < most

    real_room = Mirror.room

    def room(self: Mirror, **known: Any) -> admit.Room:
        return replace(real_room(self, **known), project_open=counters)

    _in_no_hot_way(patch)
    patch.setattr(Batch, "_write", write)
    patch.setattr(Batch, "_has_room", has_room)
    patch.setattr(Mirror, "room", room)


def wake_hint_needed(patch: pytest.MonkeyPatch) -> None:
    real = HostStep.__init__

    def begin(self: HostStep, *args: Any) -> None:
        real(self, *args)
        self._polled_at = float("inf")

    patch.setattr(HostStep, "__init__", begin)


def attempt_not_counted_at_claim(patch: pytest.MonkeyPatch) -> None:
    def uncounted(change: Change) -> Change:
        assert change.order is not None and change.order_was is not None
        return replace(change, order=replace(change.order, attempt=max(1, change.order_was.attempt)), told=None)

    _change_claims(patch, uncounted)


def lost_cancel(patch: pytest.MonkeyPatch) -> None:
    real = lifecycle.cancel

    def cancel(cause: Cause, order: Order, spec: Spec) -> Change | None:
        return None if order.state is OrderState.STOPPING else real(cause, order, spec)

    patch.setattr(lifecycle, "cancel", cancel)


def claim_and_removal_of_one_slot_at_once(patch: pytest.MonkeyPatch) -> None:
    real_size, real_remove = size.size, slots.remove

    def sized(cause: Any, room: admit.Room, plan: admit.Plan, installation: str) -> Sequence[Change]:
        return real_size(cause, replace(room, opened=()), plan, installation)

    def remove(cause: Cause, slot: Slot, why: str | None = None) -> Change:
        return replace(real_remove(cause, slot, why), guards=Guards(lease=cause.lease))

    patch.setattr(size, "size", sized)
    patch.setattr(slots, "remove", remove)


def limit_checked_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    _change_claims(patch, lambda change: replace(change, guards=replace(change.guards, project_limit=False)))


def queue_time_counted_while_nobody_led(patch: pytest.MonkeyPatch) -> None:
    real = HostStep.lead

    async def lead(self: HostStep, identity: str, blocked_since: int | None) -> None:
        await real(self, identity, None)

    patch.setattr(HostStep, "lead", lead)


def _change_claims(patch: pytest.MonkeyPatch, other: Callable[[Change], Change]) -> None:
    real = lifecycle.claim

    def claim(*args: Any) -> Change:
        return other(real(*args))

    patch.setattr(lifecycle, "claim", claim)


def refill_ungated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(size._Budget, "take", lambda self, memory_mb: True)


def stray_removed_at_first_sight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(strays, "STRAY_GAP_MS", 0)


def handle_ignored(patch: pytest.MonkeyPatch) -> None:
    """A look at a live place tells of whatever was in it last."""
    real = ScriptedDriver._observe

    def observe(self: ScriptedDriver, run: OpenRun, now: int) -> Sighting:
        there = [copy for copy in self.platform.copies.values() if copy.incarnation == run.incarnation]
        if self.seats or not there:
            return real(self, run, now)
        return replace(self._sighting(there[-1], now), run_id=run.run_id)

    patch.setattr(ScriptedDriver, "_observe", observe)


def error_slot_serves(patch: pytest.MonkeyPatch) -> None:
    """A place that failed a run goes on as if nothing had been."""
    real = wear.used

    def used(slot: Slot, ending: Exit, at: int, *, seats: bool, **keys: Any) -> dict[str, Any] | None:
        return real(slot, replace(ending, place_failed=False), at, seats=seats or ending.place_failed, **keys)

    patch.setattr(wear, "used", used)


def template_ignored_in_a_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admit.Room, "serves", lambda self, slot: True)


def slots_in_the_making_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Permits are counted for orders only."""
    real = admit.Room.starting.func  # type: ignore[attr-defined]

    def starting(self: admit.Room) -> int:
        return int(real(replace(self, slots=())))

    patch.setattr(admit.Room, "starting", property(starting))


def pressure_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pressure, "takes_work", lambda host: True)
    patch.setattr(pressure, "starts_max", lambda host: host.starts_max)


def concurrency_key_ignored(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether another run has the key: neither who reads, nor who decides, nor who saves."""
    reads = SqliteStore.dialect
    anybody = {
        name: getattr(reads, name).replace("k.slot is not null", "1 = 0") for name in ("candidates", "candidates_after")
    }
    patch.setattr(SqliteStore, "dialect", replace(reads, **anybody))
    patch.setattr(admit.Room, "keys_held", property(lambda self: frozenset()))
    _in_no_hot_way(patch)
    patch.setattr(sqlite_commit, "KEY_HELD", "select version, 0 from orders where id = ?")


def lane_starved(patch: pytest.MonkeyPatch) -> None:
    """The same project is always first."""
    patch.setattr(lanes.Turns, "start", lambda self, lane: (ord(lane[1]), 0))


def an_order_saved_before_its_tick(patch: pytest.MonkeyPatch) -> None:
    async def make_tick(world: World, cause: Cause, schedule: Schedule, due: ticks.Due) -> Made:
        pool = await world.store.pool(schedule.pool)
        assert pool is not None and due.tick is not None
        order_id = world.ids.order(cause.at)
        await world.store.save([ticks.order(cause, schedule, pool, due.tick, order_id, None)])
        tick = ticks.tick(replace(cause, id=world.ids.short()), schedule, due.tick, order_id, due.next_at)
        return Made((await world.store.save([tick], together=True))[0].answer, order_id)

    patch.setattr(keeping, "make_tick", make_tick)


PLANTS: Mapping[Plant, str] = {
    settle_without_having_seen_it_ended: r"was settled as .* while it is alive",
    unreachable_taken_for_absent: r"while it is alive|is recorded as Exit.*lost=True",
    run_ids_ignored_in_sightings: r"while it is alive|is recorded as|run is over",
    incarnation_ignored_in_stop: r"was stopped although nobody asked",
    no_intent_before_a_start: r"although no such run is open",
    absence_believed_from_a_look_asked_too_early: r"run is over|while it is alive|is recorded as|although it began",
    start_repeated_on_something_that_ran: r"started again although it began",
    no_fence_before_a_driver_call: r"without a lease",
    slot_idle_before_it_was_cleaned: r"where something ran before|after a run that was lost",
    counter_instead_of_count: r"brings project . over",
    wake_hint_needed: r"long after the faults stopped",
    attempt_not_counted_at_claim: r"but counts",
    lost_cancel: r"was cancelled, which was acknowledged",
    claim_and_removal_of_one_slot_at_once: r"slot\.removing of .* held by",
    limit_checked_outside_the_transaction: r"brings project . over",
    queue_time_counted_while_nobody_led: r"gave up waiting",
    refill_ungated: r"starts in flight of",
    stray_removed_at_first_sight: r"is swept at first sight",
    handle_ignored: r"while it is alive|is recorded as|run is over",
    error_slot_serves: r"serves again",
    template_ignored_in_a_claim: r"of another template",
    slots_in_the_making_not_counted: r"starts in flight of",
    pressure_ignored: r"although .* is critical",
    concurrency_key_ignored: r"second run of concurrency key|had to refuse a change: UNIQUE",
    lane_starved: r"was passed . times: starved",
    an_order_saved_before_its_tick: r"the tick at .* made [2-9] orders",
}
"""Each bug with what the simulator must say of it."""
