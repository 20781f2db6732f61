"""One host's step: look, judge, admit, size, act. It may be repeated, skipped or killed anywhere."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from standby.control.act import Hands
from standby.control.ahead import PAGE
from standby.control.book import RELOAD_GAP_S, Book, Ends
from standby.control.gate import StartGate, grant_note
from standby.control.gauging import Gauging
from standby.control.lease import Deposed, Hold
from standby.control.looks import NEWS, NUL, another_platform, best, ended
from standby.control.mirror import Mirror
from standby.control.tending import Tending
from standby.control.times import Times
from standby.control.workers import Workers
from standby.core import admit, judge, lifecycle, places, pressure, slots, warm, work
from standby.core.errors import Unreachable
from standby.core.lifecycle import Cause
from standby.core.model import Change, EventKind, Slot, SlotState, Trigger, order_of, run_id
from standby.core.sighting import Sighting
from standby.drivers.contract import Driver, Making, Watch
from standby.seal import SealBroken
from standby.store.contract import Heard, Work
from standby.world import World

log = structlog.get_logger()

LEAD_TRIES = 20
IDLE_POLLS = 4
"""A host with nothing to do is polled so much more rarely, as long as there are hints."""
LOOK_GAP_S = 0.02
"""A platform that cannot say when something changed is looked at, at most, this often."""
WAVE = 50
"""So many ends (or half of the open runs) are judged in a step: they are being saved while the rest is judged."""

_LOOK, _ADMIT, _CLAIMED = Trigger.LOOK, Trigger.ADMIT, EventKind.ORDER_CLAIMED
_BEFORE_EFFECT: Final = frozenset({EventKind.ORDER_RECOMMANDED, EventKind.ORDER_STOPPING, EventKind.ORDER_STOP_CHANGED})
"""Intents: something is sent to the platform because of them."""


class HostStep:
    """A leader's step with its picture of the host; a new epoch starts with a new one."""

    def __init__(self, world: World, driver: Driver, hold: Hold, actor: str, wake: Callable[[], None]) -> None:
        self._world, self._driver, self._hold, self._actor = world, driver, hold, actor
        self._hands = Hands(driver, hold, world.clock, wake)
        self._book = Book(world, hold, wake)
        self._workers = Workers(world)
        self._tending = Tending(world, driver, hold, self._book, self._hands, self._cause)
        self._gauging = Gauging(world, driver, self._book, self._hands, self._cause)
        self._times = Times(world, self._book, self._cause)
        self._gate = StartGate(self._book, self._cause)
        self._watches = isinstance(driver, Watch)  # asked once: such a question is slow
        self._wake = wake
        self._sightings: list[Sighting] = []
        self._polled_at = self._looked_at = float("-inf")
        self._stirred = True
        self._stale_steps = 0
        self._stepping = False

    def hint(self, heard: Heard) -> None:
        """Something was committed by somebody."""
        said = bool(heard.reported) and self._workers.hint(heard, self._book.opened)
        if self._book.hint(heard) or said:
            self._wake()

    def tell_ends(self, hear: Callable[[Ends], None]) -> None:
        """From now on, tell of every run whose end is saved."""
        self._book.tell_ends = hear

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
                await self._gauging.begin(mirror.host)
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
        self._stepping = True
        try:
            return await self._step()
        finally:
            self._stepping = False

    async def _step(self) -> float:
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
        wait_s = max(0.0, self._polled_at + poll_s * (IDLE_POLLS if self._idle(mirror) else 1) - clock.monotonic())
        soon = [at for at in (self._gate.opens_at, self._book.due_at) if at is not None]
        return min([wait_s, *(max(0.001, (at - clock.now()) / 1000) for at in soon)])

    async def _decide(self, mirror: Mirror, looked: Sequence[Sighting] | None, *, poll: bool) -> tuple[bool, bool]:
        """Judge, admit and size. Returns whether there is more to judge, and whether there are more deadlines."""
        timed = self._book.take_due(self._world.clock.now()) or poll
        try:
            sightings, made = self._hands.reports()
            seen = await self._workers.weigh(mirror, best([*self._sightings, *sightings, *(looked or ())]), poll=poll)
            more = await self._judge(mirror, seen, looked=looked is not None)
            unsaved = self._book.unsaved
            self._sightings = [each for each in seen.values() if more or order_of(each.run_id) in unsaved]
            await self._tending.settle(mirror, self._workers.settled(mirror, made))
            if mirror.host.unreachable_since is not None:
                return more, False
            await self._gauging.weigh(mirror)
            await self._tending.sweep(mirror)
            await self._times.open_gates(mirror)
            await self._admit(mirror, poll=poll)
        finally:
            self._book.post(self._start_claimed)  # whatever went wrong: it is laid over the rows
        if not timed or not self._book.waiting:
            return more, False
        timely = poll and self._may_judge_by_age()
        return more, await self._times.deadlines(mirror, self._tending.room(mirror), timely=timely)

    def _idle(self, mirror: Mirror) -> bool:
        """Whether only a hint, or another instance, can bring anything to do."""
        busy = mirror.opened or self._book.waiting or not self._world.config.hints
        return not busy and not mirror.stock.others

    async def close(self, grace_s: float) -> None:
        """Stop waiting for saves and calls under way; the work itself goes on."""
        await self._book.close(grace_s)
        await self._hands.close(grace_s)
        await self._tending.close()

    # reading

    def _should_look(self) -> bool:
        if self._watches:
            return self._stirred
        return self._world.clock.monotonic() - self._looked_at >= LOOK_GAP_S

    async def _look(self, mirror: Mirror) -> Sequence[Sighting] | None:
        """Ask the platform; null when it could not be asked, or is not the one this host is known to be."""
        self._stirred = False
        asked_at, self._looked_at = self._world.clock.now(), self._world.clock.monotonic()
        try:
            identity = await self._driver.identity()
            if mirror.host.identity not in (None, identity):
                raise Unreachable(another_platform(mirror.host, identity))
            over = ended(self._sightings, self._hands.heard)
            seen = await self._driver.observe(mirror.to_look_at(self._book.unsaved, over))
        except Unreachable as error:
            self._tending.reached(reached=False)
            await self._away(mirror, str(error).replace(NUL, ""), asked_at)
            return None
        self._tending.reached(reached=True)
        if mirror.host.identity is None:
            lead = places.lead_host(self._cause(Trigger.LEASE), mirror.host, identity)
            await self._book.save([lead, *await self._outdated_seats(mirror)])
        elif mirror.host.unreachable_since is not None:
            await self._book.save([places.host_reachable(self._cause(Trigger.LOOK), mirror.host)])
        return seen

    async def _away(self, mirror: Mirror, error: str, asked_at: int) -> None:
        """Note since when nobody could look, and stop the clocks of the orders that wait for it: the answer may have
        been waited for in vain for long."""
        host, changes = mirror.host, list[Change]()
        if host.unreachable_since is None or host.error != error:
            changes.append(places.host_unreachable(self._cause(Trigger.LOOK), host, error))
        since = host.unreachable_since or asked_at
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
            pools=mirror.pools,
            chance=self._world.chance(),
        )
        by_age, now = self._may_judge_by_age(), self._world.clock.now()
        timely, stops = looked and by_age, mirror.stops
        most, found = max(WAVE, len(mirror.opened) // 2), list[Change]()
        looks, unsaved = self._world.causes(_LOOK, self._actor, self._hold.key, now), self._book.unsaved
        # without a look there is nothing new but of those that were heard of
        walk = looked or mirror.host.dead_at is not None or self._workers.counting or stops
        for ident, run in mirror.open_runs(None if walk else list(seen)):
            if len(found) == most:
                break
            if run.order.id in unsaved:
                later = seen.get(ident)
                self._book.awaited = self._book.awaited or (later is not None and later.seen in NEWS)
                continue
            sighting = seen.pop(ident, None)
            change = None if sighting is None else judge.judge(looks(), run, sighting, rules)
            if change is not None:
                found.append(change)
                continue
            if mirror.host.dead_at is not None:
                change = judge.declared_dead(self._cause(Trigger.REQUEST, now), run, sighting, mirror.host, rules)
            heard_at = self._workers.silent_since(mirror, run) if change is None and by_age else None
            if heard_at is not None:
                change = judge.unheard(self._cause(Trigger.DEADLINE, now), run, sighting, heard_at, rules)
            if change is None and stops:
                change = judge.drained(self._cause(Trigger.REQUEST, now), run, mirror.stop_at(run.order))
            if change is None and timely and run.order.deadline is not None:
                change = judge.overdue(self._cause(Trigger.DEADLINE, now), run)
            if change is not None:
                found.append(change)
        await self._save_judged(mirror, found)
        await self._tending.judged(mirror, found)
        return len(found) == most and (walk or bool(seen))

    async def _save_judged(self, mirror: Mirror, changes: Sequence[Change]) -> None:
        # what has an effect outside is saved before anybody acts on it; the rest may be built upon meanwhile
        others = [change for change in changes if change.kind not in _BEFORE_EFFECT]
        for change in others:
            mirror.send(change)
        self._book.send(others)
        before = await self._book.save([change for change in changes if change.kind in _BEFORE_EFFECT])
        again = [change.order.id for change in before if change.kind is EventKind.ORDER_RECOMMANDED and change.order]
        await self._start([mirror.opened[order_id] for order_id in again if order_id in mirror.opened], mirror)

    async def _admit(self, mirror: Mirror, *, poll: bool) -> None:
        tended = poll or not self._driver.seats or mirror.restless  # what else is to be done about seats can wait
        if not tended and not self._book.seek:
            return
        room = self._tending.room(mirror)
        plan = admit.nobody(room)
        if poll or self._book.seek:
            most = {name: admit.takes(room, pool) for name, pool in mirror.pools.items()}
            ahead, starts = self._book.ahead, {name: self._tending.pace.starts(name) for name in most}
            if any(ahead.reads(name, min(count, PAGE), starts[name]) for name, count in most.items() if count > 0):
                self._book.post(self._start_claimed)  # that takes a while
            self._book.seek = False  # before the question: what comes meanwhile sets it again
            opened, unsaved = mirror.opened, self._book.unsaved
            waiting = {
                order_id: work
                for name, count in most.items()
                if count > 0
                for work in await ahead.heads(name, min(count, PAGE), mirror.host, starts[name])
                if (order_id := work.order.id) not in opened and order_id not in unsaved
            }
            plan = admit.admit(room, [work.order for work in waiting.values()])
            self._tending.pace.passed(plan)
            if self._book.key_freed and len(plan.admissions) < sum(most.values()):
                self._book.ahead.forget()  # whoever waits for a key was not read, and there is room
                self._book.key_freed = False
                self._wake()
            # nobody waits in a pool that was asked and had nobody; of a full one nothing is known
            self._book.seek = self._book.seek or bool(waiting) or 0 in most.values()
            await self._gate.tell(room, plan, waiting)
            self._claim(mirror, plan, waiting)
        if tended or plan.wanted:
            self._book.post(self._start_claimed)  # nobody waits for slots that are made for others
            await self._tending.size(mirror, plan)

    def take_in(self, work: Work) -> bool:
        """Claim an order that is about to be saved, by the commit that takes it in. Returns whether that is tried: it
        could start now, nobody else waits for what is free, and no step is under way that gives the same away."""
        mirror, order = self._book.current, work.order
        if mirror is None or self._stepping or order.pool not in mirror.pools or order.concurrency_key is not None:
            return False
        if mirror.host.unreachable_since is not None or not self._hold.outlives(self._world.config.command_window_ms):
            return False
        room, ahead = self._tending.room(mirror), self._book.ahead
        if any(not ahead.nobody(name) and admit.takes(room, pool) for name, pool in mirror.pools.items()):
            return False
        plan = admit.admit(room, [order])
        if plan.admissions:
            self._claim(mirror, plan, {order.id: work})
            self._book.awaited = True  # a step follows, for what else is to be done about its slot
            self._book.post(self._start_claimed)
        return bool(plan.admissions)

    def _claim(self, mirror: Mirror, plan: admit.Plan, waiting: Mapping[str, Work]) -> None:
        window_ms, now = self._world.config.command_window_ms, self._world.clock.now()
        if not plan.admissions or not self._hold.outlives(window_ms):
            return
        claims, causes = list[Change](), self._world.causes(_ADMIT, self._actor, self._hold.key, now)
        host, starts_max = mirror.host, pressure.starts_max(mirror.host)
        for admission in plan.admissions:
            order, pool = admission.order, mirror.pools[admission.order.pool]
            cause, spec = causes(), waiting[order.id].spec
            note = {} if admission.nth is None else grant_note(cause, admission, spec, starts_max, len(plan.held))
            claims.append(lifecycle.claim(cause, order, spec, admission.slot, pool, host, window_ms, note))
            mirror.claimed(claims[-1], spec)
        if any(admission.nth is not None for admission in plan.admissions):
            self._tending.started()
        self._book.ahead.drop(admission.order for admission in plan.admissions)
        self._tending.pace.took(plan, mirror.weights, now)
        self._book.send(claims)

    # acting

    async def _start_claimed(self, saved: Sequence[Change], mirror: Mirror) -> None:
        """Send the starts of the claims that were just saved."""
        claims = [change.subject for change in saved if change.kind is _CLAIMED]
        await self._start([mirror.opened[order_id] for order_id in claims if order_id in mirror.opened], mirror)

    async def _start(self, works: Sequence[Work], mirror: Mirror) -> None:
        """Send the starts that were just saved."""
        secret = [each.order.id for each in works if each.spec.env_names]
        sealed = await self._world.store.sealed_env(secret) if secret else {}
        for each in works:
            order, settings = each.order, mirror.pools[each.order.pool].settings
            if (slot := mirror.slots.get(order.slot or "")) is None or work.handed_over(settings.template):
                continue  # nothing is sent: its worker fetches it
            try:
                env = self._world.seal.open(order.id, sealed[order.id]) if order.id in sealed else {}
            except SealBroken as error:
                self._hands.cannot_start(order, str(error))
            else:
                run, making = run_id(order), self._workers.making(slot, settings)
                self._hands.start(run, each, slot, self._workers.run_env(run, env), making)

    def _act(self, mirror: Mirror) -> None:
        now = self._world.clock.now()
        for order in mirror.stopping:
            if order.slot in mirror.slots:
                forced = order.deadline is not None and now >= order.deadline
                resident = work.handed_over(mirror.pools[order.pool].settings.template)
                self._hands.stop(order, mirror.slots[order.slot], force=forced, resident=resident)
        # what runs in a place is its only witness until its end is saved
        unsaved = {order.slot for order in mirror.ending.values()}
        for slot in mirror.stock.others:
            if slot.state is SlotState.ERROR:
                continue
            if slot.name in unsaved:
                self._book.awaited = True
            elif slot.state is SlotState.REMOVING:
                self._hands.remove(slot)
            elif warm.may_make(mirror.pools[slot.pool], slot, self._driver.seats) and not self._workers.waits(slot):
                limit_ms = mirror.pools[slot.pool].settings.start_timeout_ms
                self._hands.make(slot, self._making(mirror, slot), limit_ms)
        self._tending.caption(mirror)
        self._hands.tidy(mirror.opened)

    def _making(self, mirror: Mirror, slot: Slot) -> Making:
        """What the slot's place is made from."""
        return self._workers.making(slot, mirror.pools[slot.pool].settings)

    def _cause(self, trigger: Trigger, at: int | None = None) -> Cause:
        return self._world.cause(trigger, self._actor, self._hold.key, at)
