"""Clocks of those who wait: they run while a pool could serve, and end in the queue, a longer wait, or a failure."""

from collections.abc import Callable, Mapping, Sequence

from standby.control.ahead import PAGE
from standby.control.book import Book
from standby.control.mirror import Mirror
from standby.core import admit, lifecycle, places, pressure
from standby.core.admit import Room
from standby.core.lifecycle import Cause
from standby.core.model import Change, Order, Pool, Trigger
from standby.store.contract import Work
from standby.world import World


class Times:
    """Due times and queue timeouts of one host's orders, kept by its leader."""

    def __init__(self, world: World, book: Book, cause: Callable[[Trigger], Cause]) -> None:
        self._world, self._book, self._cause = world, book, cause

    async def open_gates(self, mirror: Mirror) -> None:
        """Start or stop the clocks of waiting orders: they run only while the pool could serve them."""
        changes: list[Change] = []
        for pool in mirror.pools.values():
            serves = admit.serves(mirror.host, pool)
            if serves and pool.blocked_since is not None:
                changes.append(places.unblock(self._cause(Trigger.LOOK), pool))
            elif not serves and pool.blocked_since is None:
                changes.append(places.block(self._cause(Trigger.REQUEST), pool, mirror.closed_since(pool)))
        await self._book.save(changes)

    async def deadlines(self, mirror: Mirror, room: Room, *, timely: bool) -> bool:
        """Queue what is due, expire what waited too long; note who is due before the next poll. Returns whether there
        is more to do at once."""
        store, now, book = self._world.store, self._world.clock.now(), self._book
        book.ask_who_is_due(now)  # before the question: what is saved meanwhile is expected again
        changes: list[Change] = []
        full = False
        for pool in mirror.pools.values():
            found = await store.due(pool.name, now + self._world.config.poll_ms, PAGE)
            due = [work for work in found if work.order.due_at is not None and work.order.due_at <= now]
            book.expect(found[len(due)].order.due_at if len(due) < len(found) else None)
            changes += [lifecycle.queue(self._cause(Trigger.DUE), work.order, work.spec, pool) for work in due]
            full = full or len(due) == PAGE
            if pool.blocked_since is None and timely:
                expired = await store.expired(pool.name, now - pool.blocked_ms, PAGE, mirror.spared(pool, now))
                changes += await self._expire(room, pool, expired)
                full = full or len(expired) == PAGE
        queued = await book.save(changes)
        if queued:
            book.ahead.forget()
            book.seek = True
        await book.ask_who_waits()
        return full or bool(queued)

    async def _expire(self, room: Room, pool: Pool, expired: Sequence[Order]) -> list[Change]:
        """Those that only wait for a start get longer, once; the others have waited enough."""
        starting: Mapping[str, Work] = {}
        if expired and (pressure.starts_max(room.host) is not None or not room.is_seat(pool.name)):
            starting = await self._only_wait_for_a_start(room)
        changes: list[Change] = []
        for order in expired:
            work = starting.get(order.id)
            longer = None
            if work is not None and work.order.version == order.version:
                timeout_ms = pool.settings.deploy_timeout_ms
                longer = lifecycle.extend(self._cause(Trigger.DEADLINE), order, work.spec, timeout_ms)
            changes.append(longer or lifecycle.expire(self._cause(Trigger.DEADLINE), order))
        return changes

    async def _only_wait_for_a_start(self, room: Room) -> Mapping[str, Work]:
        heads: dict[str, Work] = {}
        for name, pool in room.pools.items():
            count = min(admit.takes(room, pool), PAGE)
            if count > 0:
                found = await self._book.ahead.heads(name, count, room.host)
                heads.update((work.order.id, work) for work in found)
        starting = admit.only_wait_for_a_start(room, [work.order for work in heads.values()])
        return {order_id: heads[order_id] for order_id in starting}
