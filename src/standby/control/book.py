"""A leader's book: its picture of the host's rows, and every change that it has written into them.

A leader goes on deciding while what it decided is being saved: such changes are laid over the rows at once. Only claims
of slots that ends set free are built on them, and a claim is refused unless its slot is idle, unheld and of the version
that was thought. Nothing else is: no order is decided about while a change of it is under way (versions only count, so
another's change could be taken for one's own), memory and places in a limit are not given away, and nothing goes out to
the platform.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence

from standby.control.ahead import Ahead
from standby.control.lease import Deposed, Hold
from standby.control.mirror import Mirror
from standby.core.model import Change, run_id
from standby.store.contract import SAVED, Answer, Heard, Verdict
from standby.world import World

RELOAD_GAP_S = 0.05
"""Hints make a leader read its rows again at most this often."""
SURE_S = 30.0
"""That nobody waits is believed so long without another look, as long as nothing was committed."""
DUE_GAP_MS = 50
"""Those whose time has come are looked for, between two polls, at most this often."""
UNDER_WAY = 8
"""So many saves are under way at once."""

Then = Callable[[Sequence[Change], Mirror], Awaitable[None]]
Ends = Sequence[tuple[str, bool]]
"""The ids of runs, and whether they were silent."""


class Book:
    """The rows of one host in the hands of its leader."""

    def __init__(self, world: World, hold: Hold, wake: Callable[[], None]) -> None:
        self._world, self._hold, self._wake = world, hold, wake
        self.ahead = Ahead(world.store)
        self.reload = self.seek = self.waiting = True
        """Rows may have changed; somebody may be waiting for a slot; somebody may be waiting for a time."""
        self._mirror: Mirror | None = None
        self._seq = -1
        self._own_seqs: set[int] = set()
        self._read_at = self._sure_at = float("-inf")
        self.due_at: int | None = None
        """When somebody's time comes next, as far as that is known; the poll finds whoever is not."""
        self._due_asked_at = 0
        self.unsaved: set[str] = set()
        """Orders with changes under way: at most one each."""
        self._sent: list[Change] = []
        self.awaited = False
        """Somebody waits for one of those."""
        self.key_freed = False
        """A concurrency key came free: somebody may wait for it who was not read."""
        self.tell_ends: Callable[[Ends], None] = lambda _: None
        """Hears of every run whose end is saved."""
        self._under_way: set[asyncio.Task[None]] = set()
        self._trouble: Exception | None = None

    @property
    def mirror(self) -> Mirror:
        """The rows as last read, with everything that was written since."""
        assert self._mirror is not None
        return self._mirror

    @property
    def opened(self) -> Container[str]:
        """Orders with an open run, as far as is known."""
        return () if self._mirror is None else self._mirror.opened

    def hint(self, heard: Heard) -> bool:
        """Something was asked of some pools, orders were taken in. Returns whether that matters here."""
        if self._mirror is None:
            return True
        pools = self._mirror.pools
        opened = self._mirror.opened  # those that were claimed as they came
        added = [work for work in heard.added if work.order.pool in pools and work.order.id not in opened]
        if not pools.keys().isdisjoint(heard.pools):
            self.reload = True
            self.ahead.forget()
        elif not added:
            return False
        for work in added:
            self.ahead.add(work)
            self.expect(work.order.due_at)
        self.seek = self.waiting = True
        return True

    async def refresh(self, *, poll: bool) -> Mirror:
        """The rows, read again when somebody else may have written; raises what went wrong with a save under way."""
        clock, store = self._world.clock, self._world.store
        while len(self._under_way) >= UNDER_WAY:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        self._raise()
        stale = self._mirror is None or not self._mirror.fresh
        if self.reload and clock.monotonic() - self._read_at >= RELOAD_GAP_S:
            stale = True
        if poll and (self.ahead.anybody or clock.monotonic() - self._sure_at >= SURE_S):
            self.ahead.forget()
            self._sure_at = clock.monotonic()
        self.seek = self.seek or self.ahead.unread
        if stale or poll:
            await self.settle()
            seq = await store.last_seq()
            if stale or not self.mirror.fresh or seq != self._seq:
                self.reload = False
                self._mirror = await Mirror.read(store, self._hold.host)
                self._seq, self._read_at, self.waiting, self.seek = seq, clock.monotonic(), True, True
                self._own_seqs.clear()
                self.ahead.forget()
        return self.mirror

    @property
    def current(self) -> Mirror | None:
        """The rows, if what is decided on them now is as good as what a step decides."""
        mirror = self._mirror
        ready = mirror is not None and mirror.fresh and not self.reload and len(self._under_way) < UNDER_WAY
        return mirror if ready else None

    async def ask_who_waits(self) -> None:
        """Note whether anybody waits for a time."""
        self.waiting = False  # before the question: what is saved meanwhile sets it again
        try:
            found = await self._world.store.waiting(list(self.mirror.pools))
        except BaseException:
            self.waiting = True  # nobody knows
            raise
        self.waiting = self.waiting or found

    def expect(self, at: int | None) -> None:
        """Somebody's time comes then."""
        if at is not None:
            at = max(at, self._due_asked_at + DUE_GAP_MS)
            self.due_at = at if self.due_at is None else min(self.due_at, at)

    def take_due(self, now: int) -> bool:
        """Whether somebody's time has come: from now on, only what is expected anew counts."""
        if self.due_at is None or self.due_at > now:
            return False
        self.due_at = None
        return True

    def ask_who_is_due(self, now: int) -> None:
        """Whoever is due is looked for now."""
        self.due_at, self._due_asked_at = None, now

    async def settle(self) -> None:
        """Wait for every save under way; raises what went wrong."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        self._raise()

    async def close(self, grace_s: float) -> None:
        """Wait a moment for the saves under way, then no longer: whoever leads next reads what became of them."""
        self.ahead.close()
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=grace_s)
            for save in late:
                save.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def save(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Save, and lay what was saved over the rows. Returns what was saved."""
        if not changes:
            return []
        mirror = self.mirror
        try:
            verdicts = await self._world.store.save(changes)
        except BaseException:
            mirror.fresh = False
            raise
        saved = self._saved(mirror, changes, verdicts)
        for change in saved:
            mirror.apply(change)
        return saved

    def send(self, changes: Sequence[Change]) -> None:
        """Have these saved, which are laid over the rows already: with the next `post`."""
        self.unsaved.update(_orders(changes))
        self._sent += changes

    def post(self, then: Then) -> None:
        """Save in one go what was sent, without waiting; `then` gets what was saved. So a slot that an end lets go is
        claimed by the same commit."""
        changes, self._sent = self._sent, []
        if changes:
            task = asyncio.create_task(self._post(self.mirror, changes, then))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _post(self, mirror: Mirror, changes: Sequence[Change], then: Then) -> None:
        try:
            saved = self._saved(mirror, changes, await self._world.store.save(changes))
            ends = [(was, each.note) for each in saved if each.run is not None and (was := each.order_was) is not None]
            if ends:
                mirror.settled([was for was, _ in ends])
                self.tell_ends([(run_id(was), "silent" in note) for was, note in ends])
            await then(saved, mirror)
        except Exception as error:  # noqa: BLE001  it is the step's to hear, not this task's
            mirror.fresh = False
            self._trouble = self._trouble or error
        finally:
            self.unsaved.difference_update(_orders(changes))
        if self.awaited or mirror.limited or not mirror.fresh:
            self.awaited = False
            self._wake()

    def _raise(self) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _saved(self, mirror: Mirror, changes: Sequence[Change], verdicts: Sequence[Verdict]) -> Sequence[Change]:
        saved = [change for change, verdict in zip(changes, verdicts, strict=True) if verdict.answer is SAVED]
        if len(saved) < len(changes) and any(verdict.answer is Answer.DEPOSED for verdict in verdicts):
            self._hold.give_up()
            raise Deposed(f"host {self._hold.host} is led by somebody else")
        self._count([verdict.seq for verdict in verdicts if verdict.seq is not None])
        for change in saved:
            order = change.order
            if order is None:
                continue
            if order.due_at is not None:
                self.waiting = self.awaited = True  # the step may be resting already, for too long
                self.expect(order.due_at)
            if order.concurrency_key is not None and order.slot is None:
                self.key_freed = self.seek = self.awaited = True
        if len(saved) < len(changes):
            mirror.fresh = False  # somebody else was first
        return saved

    def _count(self, seqs: Sequence[int]) -> None:
        """Follow the event numbers as long as they are all this leader's own."""
        if seqs and not self._own_seqs and min(seqs) == self._seq + 1 and max(seqs) == self._seq + len(seqs):
            self._seq += len(seqs)
            return
        self._own_seqs.update(seqs)
        while self._seq + 1 in self._own_seqs:
            self._seq += 1
            self._own_seqs.discard(self._seq)


def _orders(changes: Sequence[Change]) -> list[str]:
    """The ids of the orders that these changes are about."""
    return [change.order.id for change in changes if change.order is not None]
