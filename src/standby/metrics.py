"""Numbers for Prometheus. Labels are pools, states and outcomes, never ids.

Totals and durations are counted from the event feed since this server started, over the whole installation: with
several servers on one database each reports all of it, so take one of them, not their sum.
"""

import asyncio
from collections import Counter as Count
from collections import OrderedDict
from functools import partial
from typing import Final

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from standby.core.model import Event, EventKind, Level, slot_word
from standby.core.pressure import STALE_MS, starts_max, used
from standby.core.sighting import Reading
from standby.estimates import Error
from standby.starts import in_flight, read_floor, read_waiters
from standby.store.contract import Store, StoreDown
from standby.world import World, within

QUIET_S: Final = 15.0
"""How long nothing is read as long as nothing is heard."""
BATCH: Final = 1_000
REMEMBERED: Final = 100_000
"""Unfinished orders whose times are kept; beyond that the oldest are not measured."""
_WAIT_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600)
_RUN_BUCKETS: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 14_400)
_ENDS: Final = frozenset({EventKind.ORDER_COMPLETED, EventKind.ORDER_FAILED, EventKind.ORDER_CANCELLED})
_QUEUED: Final = frozenset({EventKind.ORDER_SUBMITTED, EventKind.ORDER_QUEUED})

log = structlog.get_logger()


class _Seen(Struct, frozen=True):
    """What the feed said of one unfinished order."""

    pool: str
    queued_at: int | None = None
    ready_at: int | None = None


class Metrics:
    """One registry of its own, fed by the events and by a reading of the store when it is asked."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, labelnames=["pool"], registry=self.registry)
        self.submitted = counter("standby_orders_submitted", "Orders taken in.", ["pool"])
        self.ended = counter("standby_orders_ended", "Orders that ended.", ["pool", "outcome"])
        self.retried = counter("standby_runs_retried", "Runs that are followed by another one.", ["pool"])
        self.ticks = counter("standby_ticks_made", "Ticks of schedules that made an order.", ["pool"])
        self.missed = counter("standby_ticks_missed", "Ticks that were given up.", ["pool"])
        self.queue_wait = histogram("standby_queue_wait_seconds", "From ready to claimed.", buckets=_WAIT_BUCKETS)
        self.run_time = histogram("standby_run_duration_seconds", "From at work to over.", buckets=_RUN_BUCKETS)
        self.estimate_error = histogram(
            "standby_wait_estimate_error_seconds",
            "How far the wait estimated at submit was off, either way.",
            buckets=_WAIT_BUCKETS,
        )
        self.estimate_held = counter(
            "standby_wait_estimates", "Orders that started, by whether their estimated range held.", ["pool", "held"]
        )
        self.orders = gauge("standby_orders_unfinished", "Unfinished orders.", ["pool", "state"])
        self.slots = gauge("standby_slots", "Slots by state.", ["pool", "state"])
        self.leases = gauge("standby_host_led", "1 when some server leads the host.", ["host"])
        self.epochs = gauge("standby_host_epoch", "Grows when leadership of the host is taken.", ["host"])
        self.starts = gauge("standby_starts_in_flight", "Platform starts in flight.", ["host"])
        self.starts_max = gauge("standby_starts_max", "Platform starts allowed at once.", ["host"])
        self.held = gauge("standby_starts_waiting", "Orders that wait for nothing but a start.", ["host"])
        self.broken = gauge("standby_pool_broken", "1 while the pool's breaker is open.", ["pool"])
        self.pressure = gauge(
            "standby_host_pressure", "0 none, 1 warning, 2 critical: nothing new is started.", ["host"]
        )
        self.memory_used = gauge(
            "standby_host_memory_used_ratio", "Memory in use where it is measured, 0 to 1.", ["host"]
        )
        self.disk_free = gauge("standby_host_disk_free_bytes", "Free disk where it is measured.", ["host"])
        self.above = gauge(
            "standby_pool_runs_above_memory", "Of the last runs, those that took more than declared.", ["pool"]
        )
        self.backpressure = counter(
            "standby_backpressure", "Minutes in which a server refused orders of a full queue.", ["of", "name"]
        )
        self.events = gauge("standby_last_event_seq", "Number of the last event.")
        self.oldest = gauge("standby_oldest_event_age_seconds", "How far back the events go.")
        self.pruned = counter("standby_history_pruned", "Removed because of their age, ever.", ["what"])
        self._pruned = {"orders": 0, "events": 0}
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._after: int | None = None
        """The last event that was counted."""

    async def text(self, world: World) -> bytes:
        """Everything in the text format of Prometheus."""
        store = world.store
        self.orders.clear()
        for (pool, state), count in (await store.counts()).items():
            self.orders.labels(pool, state.value).set(count)
        holders = await store.holders()
        words = Count((slot.pool, slot_word(slot, holders.get(slot.name))) for slot in await store.slots())
        self.slots.clear()
        for (pool, word), count in words.items():
            self.slots.labels(pool, str(word)).set(count)
        now = world.clock.now()
        leases = {lease.host: lease for lease in await store.leases()}
        for host in await store.hosts():
            lease = leases.get(host.name)
            self.leases.labels(host.name).set(1 if lease is not None and lease.until > now else 0)
            self.epochs.labels(host.name).set(0 if lease is None else lease.epoch)
        await self._read_starts(world)
        await self._read_pressure(world)
        history = await store.history()
        self.events.set(history.last_seq)
        self.oldest.set(0 if history.oldest_at is None else max(0, now - history.oldest_at) / 1000)
        for what, count in (("orders", history.orders_pruned), ("events", history.events_pruned)):
            self.pruned.labels(what).inc(max(0, count - self._pruned[what]))
            self._pruned[what] = count
        return generate_latest(self.registry)

    async def _read_starts(self, world: World) -> None:
        for pool in await world.store.pools():
            self.broken.labels(pool.name).set(0 if pool.broken_at is None else 1)
        self.starts_max.clear()
        self.held.clear()
        for host in await world.store.hosts():
            floor = await read_floor(world, host)
            self.starts.labels(host.name).set(len(in_flight(floor, world.clock.now())))
            most = starts_max(host)
            if most is not None:
                self.starts_max.labels(host.name).set(most)
                self.held.labels(host.name).set(len(await read_waiters(world, floor)))

    async def _read_pressure(self, world: World) -> None:
        self.above.clear()
        for pool, peaks in (await world.store.peaks()).items():
            self.above.labels(pool).set(peaks.above)
        self.memory_used.clear()
        self.disk_free.clear()
        for host in await world.store.hosts():
            self.pressure.labels(host.name).set(list(Level).index(host.pressure))
            found = await world.store.reading(host.name)
            if found is None or world.clock.now() - found[0] > STALE_MS:
                continue
            reading = msgspec.json.decode(found[1], type=Reading)
            if (share := used(reading)) is not None:
                self.memory_used.labels(host.name).set(round(share, 4))
            if reading.disk_free_mb is not None:
                self.disk_free.labels(host.name).set(reading.disk_free_mb << 20)

    async def follow(self, world: World, stopping: asyncio.Event) -> None:
        """Count events until the server stops; what cannot be read now is read later."""
        heard = asyncio.Event()
        end = world.store.listen(lambda _: heard.set())
        try:
            while not stopping.is_set():
                heard.clear()
                try:
                    await self._catch_up(world)
                except StoreDown:
                    log.warning("metrics_wait", why="the store does not answer")
                    heard.set()
                await within(stopping, world.config.poll_ms / 1000)
                if world.config.hints:
                    await within(heard, QUIET_S)
        finally:
            end()

    async def _catch_up(self, world: World) -> None:
        if self._after is None:
            self._after = await world.store.last_seq()
            return
        while True:
            events = await world.store.events(self._after, BATCH)
            for event in events:
                await self._count(world, event)
                self._after = event.seq  # one by one: the store may go away between two of them
            if len(events) < BATCH:
                return

    async def _count(self, world: World, event: Event) -> None:
        if event.kind in (EventKind.POOL_BACKPRESSURE, EventKind.PROJECT_BACKPRESSURE):
            self.backpressure.labels(event.kind.partition(".")[0], event.subject).inc()
        if not event.kind.startswith("order."):
            self._count_ticks(event)
            return
        seen = await self._remember(world.store, event)
        if seen is None:
            return
        if event.kind is EventKind.ORDER_SUBMITTED:
            self.submitted.labels(seen.pool).inc()
        if event.kind in _QUEUED:
            # An order that waits for its time is not in the queue yet.
            queued = event.kind is EventKind.ORDER_QUEUED or event.data["order"].get("due_at") is None
            seen = replace(seen, queued_at=event.at if queued else None)
        elif event.kind is EventKind.ORDER_CLAIMED and seen.queued_at is not None:
            self.queue_wait.labels(seen.pool).observe((event.at - seen.queued_at) / 1000)
            self._judge(world.estimates.settle(event.subject, seen.pool, event.at), seen.pool)
        elif event.kind is EventKind.ORDER_READY:
            seen = replace(seen, ready_at=event.at)
        elif event.kind in _ENDS or event.kind is EventKind.ORDER_RETRY_WAITING:
            if seen.ready_at is not None:
                self.run_time.labels(seen.pool).observe((event.at - seen.ready_at) / 1000)
            seen = _Seen(seen.pool)
            world.estimates.forget(event.subject)
        self._settle(event, seen)

    def _judge(self, error: Error | None, pool: str) -> None:
        if error is not None:
            self.estimate_error.labels(pool).observe(abs(error.off_ms) / 1000)
            self.estimate_held.labels(pool, "yes" if error.held else "no").inc()

    def _count_ticks(self, event: Event) -> None:
        if event.kind not in (EventKind.SCHEDULE_TICKED, EventKind.SCHEDULE_MISSED):
            return
        note = event.data["note"]
        self.ticks.labels(note["pool"]).inc(event.kind is EventKind.SCHEDULE_TICKED)
        self.missed.labels(note["pool"]).inc(note.get("missed", 0))

    def _settle(self, event: Event, seen: _Seen) -> None:
        if event.kind in _ENDS:
            self.ended.labels(seen.pool, event.to_state or "unknown").inc()
            self._seen.pop(event.subject, None)
            return
        if event.kind is EventKind.ORDER_RETRY_WAITING:
            self.retried.labels(seen.pool).inc()
        self._seen[event.subject] = seen
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    async def _remember(self, store: Store, event: Event) -> _Seen | None:
        """What is known of the event's order; one that was there before us is read once."""
        found = self._seen.get(event.subject)
        if found is None and event.kind is EventKind.ORDER_SUBMITTED:
            found = _Seen(event.data["order"]["pool"])
        elif found is None:
            work = await store.order(event.subject)
            found = None if work is None else _Seen(work.order.pool)
        return found
