"""One host's step: look, judge, admit, size, act. It may be repeated, skipped or killed anywhere."""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from standby.control.act import Hands, Made
from standby.control.ahead import PAGE
from standby.control.book import RELOAD_GAP_S, Book
from standby.control.lease import Deposed, Hold
from standby.control.looks import NUL, best
from standby.control.mirror import Mirror
from standby.control.workers import Workers
from standby.core import admit, judge, lifecycle, places, size, slots, work
from standby.core.errors import Unreachable
from standby.core.lifecycle import Cause
from standby.core.model import Change, EventKind, Host, OrderState, Slot, SlotState, Spec, Trigger, run_id
from standby.core.sighting import Seen, Sighting
from standby.drivers.contract import Driver, Making, OpenRun, Watch
from standby.seal import SealBroken
from standby.store.contract import Heard, Work
from standby.world import World

log = structlog.get_logger()

LEAD_TRIES = 20
IDLE_POLLS = 3
"""A host with nothing to do is polled so much more rarely, as long as there are hints."""
LOOK_GAP_S = 0.02
"""A platform that cannot say when something changed is looked at, at most, this often."""
WAVE = 50
"""So many ends (or a quarter of the open runs) are judged in a step: they are being saved while the rest is judged."""

_NEWS: Final = (Seen.READY, Seen.STOPPED)
"""What says something about a run whenever it is heard."""
_BEFORE_EFFECT: Final = frozenset({EventKind.ORDER_RECOMMANDED, EventKind.ORDER_STOPPING, EventKind.ORDER_STOP_CHANGED})
"""Intents: something is sent to the platform because of them."""


class HostStep:
    """A leader's step with its picture of the host; a new epoch starts with a new one."""

    def __init__(self, world: World, driver: Driver, hold: Hold, actor: str, wake: Callable[[], None]) -> None:
        self._world, self._driver, self._hold, self._actor = world, driver, hold, actor
        self._hands = Hands(driver, hold, world.clock, wake)
        self._book = Book(world, hold, wake)
        self._workers = Workers(world)
        self._watches = isinstance(driver, Watch)  # asked once: such a question is slow
        self._wake = wake
        self._sightings: list[Sighting] = []
        self._polled_at = self._looked_at = float("-inf")
        self._stirred = True
        self._stale_steps = 0

    def hint(self, heard: Heard) -> None:
        """Something was committed by somebody."""
        said = bool(heard.reported) and self._workers.hint(heard, self._book.opened)
        if self._book.hint(heard) or said:
            self._wake()

    def stirred(self) -> None:
        """The platform says that a look would show something new."""
        self._stirred = True
        self._wake()

    async def lead(self, identity: str, blocked_since: int | None) -> None:
        """The first thing in an epoch: say who leads, and since when nobody did. Nothing is judged before a look."""
        said = False
        for _ in range(LEAD_TRIES):
            mirror = await self._book.refresh(poll=True)
            changes = [] if said else [places.lead_host(self._cause(Trigger.LEASE), mirror.host, identity)]
            # the last leader may have noted a blockade when nobody could be served any more for a while
            if blocked_since is not None:
                late = mirror.open_at(blocked_since)
                changes += [places.block(self._cause(Trigger.LEASE), pool, blocked_since) for pool in late]
            saved = await self._book.save([*changes, *await self._outdated_seats(mirror)])
            said = said or any(change.kind is EventKind.HOST_LED for change in saved)
            if mirror.fresh:
                return  # somebody who was first must not hide a pool's time without a leader
        raise Deposed(f"the rows of host {self._hold.host} kept changing before it was led")

    async def _outdated_seats(self, mirror: Mirror) -> list[Change]:
        """Give up free seats of an earlier platform: a run sent there would only be found absent."""
        if not self._driver.seats:
            return []
        held = {work.order.slot for work in mirror.opened.values()}
        idle = [slot for slot in mirror.slots.values() if slot.state is SlotState.IDLE and slot.name not in held]
        return [
            slots.remove(self._cause(Trigger.LEASE), slot)
            for slot in idle
            if await self._driver.create(slot, self._making(mirror, slot)) != slot.incarnation
        ]

    async def step(self) -> float:
        """Look, judge, admit, size, act. Returns how many seconds it can wait for the next one."""
        if not self._hold.outlives(0):
            # nobody led since its end: it has to be taken anew, so that this time does not count for those who wait
            self._hold.give_up()
            raise Deposed(f"the lease of host {self._hold.host} ran out")
        clock, poll_s = self._world.clock, self._world.config.poll_ms / 1000
        began = clock.monotonic()
        poll = began - self._polled_at >= poll_s
        mirror = await self._book.refresh(poll=poll)
        if poll:
            self._polled_at = began  # not before: a poll that the store did not answer is due at once
        looked = await self._look(mirror) if poll or self._should_look() else None
        more = again = False
        if mirror.fresh:
            more, again = await self._decide(mirror, looked, poll=poll)
        else:
            self._stirred = True  # nothing is decided on rows of which some were refused; it is looked at again
        self._act(mirror)
        if not mirror.fresh:
            # somebody else was first: at once, but ever more slowly if that goes on
            self._stale_steps += 1
            return min(0.01 * 2 ** min(self._stale_steps, 16), poll_s) if self._stale_steps > 1 else 0.0
        self._stale_steps = 0
        if again or more:
            return 0.0
        if self._book.reload:
            return RELOAD_GAP_S
        rest_s = poll_s * (IDLE_POLLS if self._idle(mirror) else 1)
        return max(0.0, self._polled_at + rest_s - clock.monotonic())

    async def _decide(self, mirror: Mirror, looked: Sequence[Sighting] | None, *, poll: bool) -> tuple[bool, bool]:
        """Judge, admit and size. Returns whether there is more to judge, and whether there are more deadlines."""
        sightings, made = self._hands.reports()
        seen = await self._workers.weigh(mirror, best([*self._sightings, *sightings, *(looked or ())]), poll=poll)
        more = await self._judge(mirror, seen, looked=looked is not None)
        unsaved = self._book.unsaved
        self._sightings = [each for each in seen.values() if more or each.run_id.rpartition("-")[0] in unsaved]
        await self._settle_slots(mirror, self._workers.settled(mirror, made))
        if mirror.host.unreachable_since is not None:
            return more, False
        await self._open_gates(mirror)
        await self._admit(mirror, poll=poll)
        return more, await self._deadlines(mirror) if poll and self._book.waiting else False

    def _idle(self, mirror: Mirror) -> bool:
        """Whether only a hint, or another instance, can bring anything to do."""
        busy = mirror.opened or self._book.waiting or not self._world.config.hints
        return not busy and all(slot.state is SlotState.IDLE for slot in mirror.slots.values())

    async def close(self, grace_s: float) -> None:
        """Stop waiting for saves and calls under way; the work itself goes on."""
        await self._book.close(grace_s)
        await self._hands.close(grace_s)

    # reading

    def _should_look(self) -> bool:
        if self._watches:
            return self._stirred
        return self._world.clock.monotonic() - self._looked_at >= LOOK_GAP_S

    async def _look(self, mirror: Mirror) -> Sequence[Sighting] | None:
        """Ask the platform; null when it could not be asked, or is not the one this host is known to be."""
        self._stirred = False
        self._looked_at = self._world.clock.monotonic()
        runs = [
            OpenRun(
                run_id=run_id(run.order),
                slot=run.slot.name,
                incarnation=run.order.incarnation or "",
                payload=run.spec.payload,
            )
            for run in mirror.open_runs()
        ]
        try:
            identity = await self._driver.identity()
            if mirror.host.identity not in (None, identity):
                raise Unreachable(another_platform(mirror.host, identity))
            seen = await self._driver.observe(runs)
        except Unreachable as error:
            await self._away(mirror, str(error).replace(NUL, ""))
            return None
        if mirror.host.identity is None:
            lead = places.lead_host(self._cause(Trigger.LEASE), mirror.host, identity)
            await self._book.save([lead, *await self._outdated_seats(mirror)])
        elif mirror.host.unreachable_since is not None:
            await self._book.save([places.host_reachable(self._cause(Trigger.LOOK), mirror.host)])
        return seen

    async def _away(self, mirror: Mirror, error: str) -> None:
        """Note since when nobody could look, and stop the clocks of the orders that wait for it."""
        host = mirror.host
        changes: list[Change] = []
        if host.unreachable_since is None or host.error != error:
            changes.append(places.host_unreachable(self._cause(Trigger.LOOK), host, error))
        since = host.unreachable_since or self._world.clock.now()
        pools = [pool for pool in mirror.pools.values() if pool.blocked_since is None]
        changes += [places.block(self._cause(Trigger.LOOK), pool, since) for pool in pools]
        await self._book.save(changes)

    # deciding

    def _may_judge_by_age(self) -> bool:
        """Only by a clock that did not jump, and while this leader certainly leads: its absence is nobody's fault."""
        return self._world.clock.steady and self._hold.outlives(0)

    async def _judge(self, mirror: Mirror, seen: dict[str, Sighting], *, looked: bool) -> bool:
        """What the sightings and the time call for; sightings that were judged are taken out. Returns whether there is
        more to judge at once. An order with a change under way is judged when that is settled."""
        rules = judge.Rules(
            window_ms=self._world.config.command_window_ms,
            lag_ms=self._driver.lag_ms,
            seats=self._driver.seats,
            chance=self._world.chance(),
        )
        by_age = self._may_judge_by_age()
        timely = looked and by_age
        most = max(WAVE, len(mirror.opened) // 4)
        found: list[Change] = []
        for run in mirror.open_runs():
            if len(found) == most:
                break
            if run.order.id in self._book.unsaved:
                later = seen.get(run_id(run.order))
                self._book.awaited = self._book.awaited or (later is not None and later.seen in _NEWS)
                continue
            sighting = seen.pop(run_id(run.order), None)
            change = None
            if sighting is not None:
                change = judge.judge(self._cause(Trigger.LOOK), run, sighting, rules)
            if change is None and mirror.host.dead_at is not None:
                change = judge.declared_dead(self._cause(Trigger.REQUEST), run, sighting, mirror.host, rules)
            heard_at = self._workers.silent_since(mirror, run) if change is None and by_age else None
            if heard_at is not None:
                change = judge.unheard(self._cause(Trigger.DEADLINE), run, sighting, heard_at, rules)
            if change is None and timely and run.order.deadline is not None:
                change = judge.overdue(self._cause(Trigger.DEADLINE), run)
            if change is not None:
                found.append(change)
        await self._save_judged(mirror, found)
        return len(found) == most

    async def _save_judged(self, mirror: Mirror, changes: Sequence[Change]) -> None:
        # what has an effect outside is saved before anybody acts on it; the rest may be built upon meanwhile
        others = [change for change in changes if change.kind not in _BEFORE_EFFECT]
        for change in others:
            mirror.send(change)
        self._book.send(others)
        before = await self._book.save([change for change in changes if change.kind in _BEFORE_EFFECT])
        again = [change.order.id for change in before if change.kind is EventKind.ORDER_RECOMMANDED and change.order]
        await self._start([mirror.opened[order_id] for order_id in again if order_id in mirror.opened], mirror)

    async def _settle_slots(self, mirror: Mirror, reports: Sequence[Made]) -> None:
        changes: list[Change] = []
        for made in reports:
            slot = mirror.slots.get(made.slot.name)
            if slot is None or slot.version != made.slot.version:
                continue
            cause = self._cause(Trigger.SIZE)
            if made.error is not None:
                changes.append(slots.failed(cause, slot, made.error.replace(NUL, "")))
            elif made.incarnation is not None:
                changes.append(slots.made(cause, slot, made.incarnation))
            else:
                changes.append(slots.gone(cause, slot))
        await self._book.save(changes)

    async def _open_gates(self, mirror: Mirror) -> None:
        """Start or stop the clocks of waiting orders: they run only while the pool could serve them."""
        changes: list[Change] = []
        for pool in mirror.pools.values():
            serves = admit.serves(mirror.host, pool)
            if serves and pool.blocked_since is not None:
                changes.append(places.unblock(self._cause(Trigger.LOOK), pool))
            elif not serves and pool.blocked_since is None:
                changes.append(places.block(self._cause(Trigger.REQUEST), pool, mirror.closed_since(pool)))
        await self._book.save(changes)

    async def _deadlines(self, mirror: Mirror) -> bool:
        """Queue what is due, expire what waited too long. Returns whether a page was full."""
        store, now, timely = self._world.store, self._world.clock.now(), self._may_judge_by_age()
        changes: list[Change] = []
        full = False
        for pool in mirror.pools.values():
            due = await store.due(pool.name, now, PAGE)
            changes += [lifecycle.queue(self._cause(Trigger.DUE), work.order, work.spec, pool) for work in due]
            full = full or len(due) == PAGE
            if pool.blocked_since is None and timely:
                expired = await store.expired(pool.name, now - pool.blocked_ms, PAGE)
                changes += [lifecycle.expire(self._cause(Trigger.DEADLINE), order) for order in expired]
                full = full or len(expired) == PAGE
        queued = await self._book.save(changes)
        if queued:
            self._book.ahead.forget()
            self._book.seek = True
        await self._book.ask_who_waits()
        return full or bool(queued)

    async def _admit(self, mirror: Mirror, *, poll: bool) -> None:
        wanted: dict[str, int] = {}
        if poll or self._book.seek:
            room = mirror.room()
            most = {name: admit.takes(room, pool) for name, pool in mirror.pools.items()}
            self._book.seek = False  # before the question: what comes meanwhile sets it again
            waiting = {
                work.order.id: work
                for name, count in most.items()
                if count > 0
                for work in await self._book.ahead.heads(name, min(count, PAGE), mirror.host.memory_mb)
                if work.order.id not in mirror.opened and work.order.id not in self._book.unsaved
            }
            plan = admit.admit(room, [work.order for work in waiting.values()])
            wanted = dict(plan.wanted)
            # nobody waits in a pool that was asked and had nobody; of a full one nothing is known
            self._book.seek = self._book.seek or bool(waiting) or 0 in most.values()
            self._claim(mirror, [(admission, waiting[admission.order.id].spec) for admission in plan.admissions])
        installation = self._world.config.installation
        await self._book.save(size.size(lambda: self._cause(Trigger.SIZE), mirror.room(), wanted, installation))

    def _claim(self, mirror: Mirror, admissions: Sequence[tuple[admit.Admission, Spec]]) -> None:
        window_ms = self._world.config.command_window_ms
        if not admissions or not self._hold.outlives(window_ms):
            return
        claims: list[Change] = []
        for admission, spec in admissions:
            order, pool = admission.order, mirror.pools[admission.order.pool]
            cause = self._cause(Trigger.ADMIT)
            claims.append(lifecycle.claim(cause, order, spec, admission.slot, pool, mirror.host, window_ms))
        works = {claim.id: mirror.claimed(claim, spec) for claim, (_, spec) in zip(claims, admissions, strict=True)}
        self._book.ahead.drop(admission.order for admission, _ in admissions)

        async def start(saved: Sequence[Change]) -> None:
            await self._start([works[change.id] for change in saved], mirror)

        self._book.send(claims, start)

    # acting

    async def _start(self, works: Sequence[Work], mirror: Mirror) -> None:
        """Send the starts that were just saved."""
        secret = [each.order.id for each in works if each.spec.env_names]
        sealed = await self._world.store.sealed_env(secret) if secret else {}
        for each in works:
            slot, settings = mirror.slots.get(each.order.slot or ""), mirror.pools[each.order.pool].settings
            if slot is None or work.handed_over(settings.template):
                continue  # nothing is sent: its worker fetches it
            try:
                env = self._world.seal.open(each.order.id, sealed.get(each.order.id))
            except SealBroken as error:
                self._hands.cannot_start(each.order, str(error))
            else:
                env = {**env, **self._workers.run_env(run_id(each.order))}
                self._hands.start(each, slot, env, self._making(mirror, slot))

    def _act(self, mirror: Mirror) -> None:
        now = self._world.clock.now()
        for each in mirror.opened.values():
            order = each.order
            if order.state is OrderState.STOPPING and order.slot in mirror.slots:
                forced = order.deadline is not None and now >= order.deadline
                resident = work.handed_over(mirror.pools[order.pool].settings.template)
                self._hands.stop(order, mirror.slots[order.slot], force=forced, resident=resident)
        # what runs in a place is its only witness until its end is saved
        unsaved = {order.slot for order in mirror.ending.values()}
        for slot in mirror.slots.values():
            match slot.state:
                case SlotState.IDLE | SlotState.ERROR:
                    pass
                case _ if slot.name in unsaved:
                    self._book.awaited = True
                case SlotState.CREATING | SlotState.CLEANING:
                    if not self._workers.waits(slot):
                        self._hands.make(slot, self._making(mirror, slot), clean=slot.state is SlotState.CLEANING)
                case SlotState.REMOVING:
                    self._hands.remove(slot)
        self._hands.tidy(mirror.opened)

    def _making(self, mirror: Mirror, slot: Slot) -> Making:
        """What the slot's place is made from."""
        return self._workers.making(slot, mirror.pools[slot.pool].settings)

    def _cause(self, trigger: Trigger) -> Cause:
        return self._world.cause(trigger, self._actor, self._hold.key)


def another_platform(host: Host, identity: str) -> str:
    """What to do about a platform that is not the one this host is known to be."""
    return (
        f"host {host.name} is known as {host.identity}, but {identity} answers: give this machine's host a name of its "
        f"own, or say `standby hosts declare-dead {host.name}` if nothing of the other one can be alive"
    )
