"""What must hold after everything that happens, whoever failed when."""

from collections.abc import Callable, Mapping, Sequence

from sim.book import Book
from sim.fold import Rows, fold
from sim.lanes import LaneTruths
from sim.line import SimStore
from sim.loop import VirtualLoop, at_once
from sim.place import Birth, SimHost
from sim.places import PlaceTruths
from sim.schedules import TickTruths
from sim.worker import WorkerTruths
from standby.core import work
from standby.core.model import (
    ENDED,
    OPEN,
    Event,
    EventKind,
    Level,
    Mode,
    Order,
    OrderState,
    Reason,
    Run,
    SlotState,
    Spec,
    Trigger,
)
from standby.core.model import run_id as id_of_run
from standby.core.sighting import Exit
from standby.store.contract import OrderFilter

K = EventKind
SKEW_MS = 200
"""The most by which an instance's clock is off."""
SLACK_MS = 1_000
POLL_MS = 1_000
NOTICED_WITHIN = 5
"""A leader notices within this time that somebody closed a pool."""
STOPPED_FOR = {Reason.CANCELLED, Reason.TIMEOUT, Reason.START_FAILED, Reason.DRAINED}


class Waited:
    """Since when an order is ready, and how much of the time nobody could have served it."""

    def __init__(self, at: int, unled: int, blocked: int) -> None:
        self.at, self.unled, self.blocked = at, unled, blocked


class Truths:
    """Follows every commit, every command and every copy; the first broken truth ends the run."""

    def __init__(
        self, loop: VirtualLoop, hosts: Mapping[str, SimHost], say: Callable[[Callable[[], str]], None]
    ) -> None:
        self.loop, self.hosts, self.say = loop, hosts, say
        self.store: SimStore
        self.ticks: TickTruths
        self.workers: WorkerTruths
        self.book = Book()
        self.violations: list[str] = []
        self.places = PlaceTruths(self.book, hosts, self.broken)
        self.lanes = LaneTruths(self.book, lambda order_id: self._waited[order_id].at, self.broken)
        self.specs: dict[str, Spec] = {}
        self.acknowledged: set[str] = set()
        """Orders whose submit was acknowledged."""
        self.cancels: set[str] = set()
        """Orders whose cancel was acknowledged while they were unfinished."""
        self.killed: set[str] = set()
        """Runs that the world itself ended."""
        self.seq = 0
        self._claims: dict[str, int] = {}
        self._waited: dict[str, Waited] = {}
        self._led_until: dict[str, int] = {}
        self._unled: dict[str, int] = {}
        self._blocked: dict[str, int] = {}
        self._blocked_at: dict[str, int] = {}
        self._unnoticed: dict[str, int] = {}
        self._stopped_runs: set[str] = set()
        self._alive: dict[str, Birth] = {}
        self._drains: set[str] = set()

    def broken(self, truth: str) -> None:
        """A truth does not hold."""
        self.violations.append(truth)
        self.say(lambda: f"  VIOLATION {truth}")

    # what the store says

    def committed(self) -> None:
        """Take in the events of a commit, each checked against the rows before it."""
        for event in at_once(self.store.events(self.seq, 10_000)):
            if event.seq != self.seq + 1:
                self.broken(f"event {event.seq} follows {self.seq}")
            self.seq = event.seq
            before = self.book.enter(event)
            self.lanes.event(event)
            self.say(lambda event=event: _told(self.book, event))  # type: ignore[misc]
            if event.kind in (K.POOL_MODE, K.HOST_MODE, K.PROJECT_MODE) and event.to_state == Mode.DRAINING:
                self._drains.add(event.subject)
            if event.kind.startswith("order."):
                self._order(event, before, self.book.orders[event.subject])
            elif event.kind.startswith("slot."):
                self._slot(event)
            elif event.kind.startswith("pool."):
                self._pool(event)

    def _order(self, event: Event, before: Order | None, order: Order) -> None:
        name = self.book.name(order.id)
        if before is not None and before.state in ENDED:
            self.broken(f"{name} changed after its end: {event.kind}")
        match event.kind:
            case K.ORDER_SUBMITTED | K.ORDER_QUEUED:
                self._learn(order.id)
                self._waited[order.id] = Waited(min(event.at, self.loop.ms), *self._lost_time(order.pool))
            case K.ORDER_CLAIMED:
                self._claim(name, order)
                self.lanes.claimed(name, order, event)
            case K.ORDER_RECOMMANDED:
                if self.birth(id_of_run(order)) is not None:
                    self.broken(f"{name} shall be started again although it began")
            case K.ORDER_STOPPING if order.stop_reason is Reason.DRAINED:
                self._drained(name, order)
            case K.ORDER_STOPPING if order.stop_reason is Reason.LOST:
                self.workers.unheard(order)
            case K.ORDER_STOPPING if event.trigger is Trigger.DEADLINE:
                assert before is not None
                if before.deadline is None or self.loop.ms + SKEW_MS < before.deadline:
                    self.broken(f"{name} is stopped for a deadline that has not come")
            case _:
                pass
        if order.state is OrderState.STOPPING:
            self._stopped_runs.add(id_of_run(order))
        if before is not None and before.state in OPEN and order.state not in OPEN:
            self._end(name, before, order, event)
        elif order.state in ENDED:
            self._unrun_end(name, before, order)

    def _learn(self, order_id: str) -> None:
        """What a schedule's order is, which the simulator did not make itself."""
        if order_id not in self.specs:
            work = at_once(self.store.order(order_id))
            assert work is not None
            self.specs[order_id] = work.spec

    def _claim(self, name: str, order: Order) -> None:
        book = self.book
        self._claims[order.id] = self._claims.get(order.id, 0) + 1
        if order.attempt != self._claims[order.id]:
            self.broken(f"{name} was claimed {self._claims[order.id]} times but counts {order.attempt} attempts")
        if self._claims[order.id] > self.specs[order.id].retry.retries + 1:
            self.broken(f"{name} was claimed more often than its retries allow")
        slot = book.slots.get(order.slot or "")
        if slot is None or slot.state is not SlotState.IDLE or slot.pool != order.pool:
            self.broken(f"{name} was claimed for slot {order.slot}, which is {slot and slot.state}")
            return
        if order.incarnation != slot.incarnation:
            self.broken(f"{name} was claimed for another incarnation than that of {slot.name}")
        holders = [other for other in book.orders.values() if other.slot == slot.name]
        if len(holders) != 1:
            self.broken(f"{slot.name} is held by {[book.name(other.id) for other in holders]}")
        host, pool = book.hosts[slot.host], book.pools[slot.pool]
        if host.mode is not Mode.OPEN or pool.mode is not Mode.OPEN:
            self.broken(f"{name} was claimed although {pool.name} is {pool.mode} and {host.name} {host.mode}")
        if host.pressure is Level.CRITICAL:
            self.broken(f"{name} was claimed although {host.name} is critical: {host.pressure_cause}")
        self.places.claimed(name, order, slot, pool)
        limit = book.projects.get(order.project)
        if limit is not None and limit.running_max is not None and book.open_of(order.project) > limit.running_max:
            self.broken(f"{name} brings project {order.project} over its {limit.running_max}")

    def _drained(self, name: str, order: Order) -> None:
        """Somebody wanted it stopped, though perhaps no longer: a leader that read that may come late."""
        if self._drains.isdisjoint({order.pool, self.book.pools[order.pool].host, order.project}):
            self.broken(f"{name} is stopped although nobody drained its pool, host or project at once")

    def _slot(self, event: Event) -> None:
        slot, book = self.book.slots.get(event.subject), self.book
        if event.subject in book.holder and event.kind is not K.SLOT_BOOTED:
            self.broken(f"{event.kind} of {event.subject}, held by {book.name(book.holder[event.subject])}")
        if slot is None:
            return
        if event.kind is K.SLOT_CREATING and event.from_state is None:
            mine = sum(other.pool == slot.pool for other in book.slots.values())
            if mine > book.pools[slot.pool].settings.slots_max:
                self.broken(f"{slot.name} is one slot too many: {mine}")
        if event.kind is K.SLOT_CREATING:
            self.places.making(slot)
        self._idle_is_clean(slot.name)

    def _idle_is_clean(self, name: str) -> None:
        slot = self.book.slots.get(name)
        if slot is None or slot.state is not SlotState.IDLE or name in self.book.holder:
            return
        self.places.fresh(name, slot, self.book.pools[slot.pool])

    def _end(self, name: str, before: Order, order: Order, event: Event) -> None:
        """A run was settled: it must be over, and its record what really happened."""
        run = next((run for run in self.book.runs.get(order.id, []) if run.number == before.attempt), None)
        if run is None:
            self.broken(f"{name} ended without a record of its run")
            return
        if run.reason is Reason.LOST or self.book.slots[run.slot].state is SlotState.ERROR:
            self.places.tainted.add(run.incarnation)
        really = self._really(id_of_run(before))
        if work.handed_over(self.book.pools[order.pool].settings.template):
            really = self._by_word(before)
        if really == "alive":
            self.broken(f"{name} was settled as {event.to_state} ({run.reason}) while it is alive")
            return
        assert not isinstance(really, str)
        recorded = Exit(code=run.exit_code if run.signal is None else None, signal=run.signal, start_error=run.error)
        recorded = Exit(lost=True) if recorded == Exit() else recorded
        told = [
            Exit(code=end.code, signal=end.signal, start_error=end.start_error or end.error, lost=end.lost)
            for end in really
        ]
        if recorded not in told:
            self.broken(f"{name} is recorded as {recorded} but was {told}")
        elif run.reason is not (reason := _reason(before, really[told.index(recorded)])):
            self.broken(f"{name} is recorded as {run.reason} but was {reason}")
        elif order.state is not (state := self._state_after(order, run)):
            self.broken(f"{name} is {order.state} after {run.reason}, not {state}")
        self._idle_is_clean(run.slot)

    def _really(self, run: str) -> "Sequence[Exit] | str":
        """How a run may be recorded."""
        lost, birth = Exit(lost=True), self.birth(run)
        if birth is None:
            return [lost]
        if birth.copy.alive(self.loop.ms):
            return "alive"
        end = birth.copy.look(self.loop.ms)[1]
        if end is None:
            return [lost]
        return [end, lost] if run in self.hosts[birth.host].no_evidence else [end]

    def _by_word(self, before: Order) -> "Sequence[Exit] | str":
        """How a run that was handed to a worker may be recorded."""
        run = id_of_run(before)
        if any(worker.at_work == run for worker in self.workers.at_work()):
            return "alive"
        report = at_once(self.store.reports([run])).get(run)
        silence_ms = self.book.pools[before.pool].settings.silence_ms
        return self.workers.ends(run, before.incarnation or "", report, silence_ms)

    def _state_after(self, order: Order, run: Run) -> OrderState:
        if run.reason is None:
            return OrderState.COMPLETED
        if run.reason is Reason.CANCELLED:
            return OrderState.CANCELLED
        retry = self.specs[order.id].retry
        retried = run.reason in {Reason.LOST, Reason.START_FAILED, Reason.DRAINED, *retry.retry_on} - set(
            retry.no_retry_on
        )
        return OrderState.WAITING_RETRY if retried and run.number <= retry.retries else OrderState.FAILED

    def _unrun_end(self, name: str, before: Order | None, order: Order) -> None:
        """An end without a run: a cancel, or a queue timeout that was really waited for."""
        if order.reason is Reason.CANCELLED:
            return
        spec, waited = self.specs[order.id], self._waited[order.id]
        if order.reason not in (Reason.QUEUE_TIMEOUT, Reason.DEPLOY_TIMEOUT) or spec.queue_timeout_ms is None:
            self.broken(f"{name} ended without a run because of {order.reason}")
            return
        if (order.reason is Reason.DEPLOY_TIMEOUT) is not (before is not None and before.deploy_since is not None):
            self.broken(f"{name} ended with {order.reason}, but its time was {'' if before else 'not '}extended")
        timeout_ms = spec.queue_timeout_ms
        if order.reason is Reason.DEPLOY_TIMEOUT:
            timeout_ms = self.book.pools[order.pool].settings.deploy_timeout_ms
        unled, blocked = self._lost_time(order.pool)
        served = self.loop.ms - waited.at - max(unled - waited.unled, blocked - waited.blocked)
        # an unblock counts as of when it was decided: what was submitted until its commit reckoned with more
        early = max(0, waited.blocked - blocked)
        if served < timeout_ms - SLACK_MS - early:
            self.broken(
                f"{name} gave up waiting after {timeout_ms} ms, but was served only {served} of "
                f"{self.loop.ms - waited.at} ms (unled {unled - waited.unled}, blocked {blocked - waited.blocked})"
            )

    # leases and blocked pools

    def led_until(self, host: str, until: int) -> None:
        """Somebody leads this host until then."""
        before = self._led_until.get(host, self.loop.ms)
        self._unled[host] = self._unled.get(host, 0) + max(0, self.loop.ms - before)
        self._led_until[host] = max(before, until)

    def stepped(self, host: str, began_at: int) -> None:
        """A leader's step came to its end: what was closed long before must be noted as such within a few of them."""
        for pool in self.book.pools.values():
            if pool.host != host:
                continue
            closed = [row.mode_since for row in (pool, self.book.hosts[host]) if row.mode is not Mode.OPEN]
            if pool.blocked_since is not None or not closed or min(closed) + POLL_MS + SKEW_MS > began_at:
                self._unnoticed[pool.name] = 0
                continue
            self._unnoticed[pool.name] = self._unnoticed.get(pool.name, 0) + 1
            if self._unnoticed[pool.name] > NOTICED_WITHIN:
                self.broken(f"{pool.name} is closed, but its orders' time runs on")

    def _pool(self, event: Event) -> None:
        """Keep count of how long a pool was noted as blocked."""
        name, pool = event.subject, self.book.pools[event.subject]
        if pool.blocked_since is not None:
            self._blocked_at.setdefault(name, self.loop.ms)
        elif name in self._blocked_at:
            since = self._blocked_at.pop(name)
            self._blocked[name] = self._blocked.get(name, 0) + max(0, min(event.at, self.loop.ms) - since)

    def _lost_time(self, name: str) -> tuple[int, int]:
        """How long the pool was not led, and how long it was noted as blocked: each all in all."""
        host = self.book.pools[name].host
        unled = self._unled.get(host, 0) + max(0, self.loop.ms - self._led_until.get(host, 0))
        return unled, self._blocked.get(name, 0) + self.loop.ms - self._blocked_at.get(name, self.loop.ms)

    # what is sent, and what lives

    def birth(self, run: str) -> Birth | None:
        return next((host.births[run] for host in self.hosts.values() if run in host.births), None)

    def sent(self, verb: str, host: SimHost, owner: str, run: str | None) -> None:
        """A command leaves its sender: who sends it must lead, and a start must be what the rows say."""
        lease = next((lease for lease in at_once(self.store.leases()) if lease.host == host.name), None)
        if lease is None or lease.owner != owner or lease.until <= self.loop.ms:
            self.broken(f"{owner} sends {verb} to {host.name} without a lease")
        if run is None or verb != "start":
            return
        order = self.book.orders[run.rpartition("-")[0]]
        if order.state not in OPEN or id_of_run(order) != run:
            self.broken(f"{self.book.name(order.id)} is started as {run[-2:]} although no such run is open")
        if self.birth(run) is not None:
            self.broken(f"{self.book.name(order.id)} is started again although it began")

    def began(self, host: SimHost) -> None:
        """Something may have been started."""
        for run, birth in host.births.items():
            if run not in self._alive and birth.copy.alive(self.loop.ms):
                self._alive[run] = birth
        self.living()

    def living(self) -> None:
        """Every live copy is that of an open run, so no order has two; nobody was stopped who should not be."""
        for run, birth in list(self._alive.items()):
            copy, order = birth.copy, self.book.orders[birth.copy.order_id]
            touched = copy.asked_at is not None or copy.forced_at is not None
            if touched and run not in self._stopped_runs and run not in self.killed:
                self.broken(f"{self.book.name(order.id)} was stopped although nobody asked for it")
                self.killed.add(run)
            if not copy.alive(self.loop.ms):
                del self._alive[run]
            elif order.state not in OPEN or id_of_run(order) != run:
                self.broken(f"a copy of {self.book.name(order.id)} (run {run[-2:]}) is alive, but the run is over")
                del self._alive[run]

    @property
    def alive(self) -> Mapping[str, Birth]:
        """Copies that are alive, by run."""
        self.living()
        return self._alive

    # the whole

    def compare(self) -> None:
        """The events fold back to the rows."""
        store = self.store
        listed = at_once(store.orders(OrderFilter(), None, 10_000)).orders
        rows = Rows(
            orders={one.order.id: one.order for one in listed},
            slots={slot.name: slot for slot in at_once(store.slots())},
            pools={pool.name: pool for pool in at_once(store.pools())},
            hosts={host.name: host for host in at_once(store.hosts())},
            projects={project.name: project for project in at_once(store.projects())},
            runs={(run.order_id, run.number): run for one in listed for run in at_once(store.runs(one.order.id))},
            schedules={schedule.name: schedule for schedule in at_once(store.schedules())},
        )
        if fold(at_once(store.events(0, 100_000))) != rows:
            self.broken("the events do not fold back to the rows")

    def at_the_end(self) -> None:
        """Everything is over, and as it was asked for."""
        self.compare()
        self.ticks.check()
        for order in self.book.orders.values():
            name = self.book.name(order.id)
            if order.state not in ENDED:
                self.broken(f"{name} is still {order.state} long after the faults stopped")
            elif order.id in self.cancels and order.state is not OrderState.CANCELLED:
                self.broken(f"{name} was cancelled, which was acknowledged, but is {order.state}")
            if len(self.book.runs.get(order.id, [])) != order.attempt and order.state in ENDED:
                self.broken(f"{name} has {len(self.book.runs.get(order.id, []))} runs in {order.attempt} attempts")
        if (left := self.places.unsettled()) is not None:
            self.broken(f"long after the last order {left}")
        for run in self.alive:
            self.broken(f"run {run[-2:]} of {self.book.name(run.rpartition('-')[0])} is still alive")
        missing = self.acknowledged - set(self.book.orders)
        if missing:
            self.broken(f"{len(missing)} acknowledged orders are missing")


def _reason(before: Order, end: Exit) -> Reason | None:
    """Why a run did not end well, from what was asked and what happened."""
    if before.stop_reason in STOPPED_FOR:
        return before.stop_reason
    if end.start_error is not None:
        return Reason.START_FAILED
    if end.lost or (before.stop_reason is Reason.LOST and (end.code != 0 or end.signal is not None)):
        return Reason.LOST
    if end.oom:
        return Reason.OOM
    if end.error_name is not None:
        return Reason.ERROR
    return None if end.code == 0 and end.signal is None else Reason.EXIT


def _told(book: Book, event: Event) -> str:
    """An event in one line."""
    order = event.data.get("order") or {}
    told = {
        key: order[key]
        for key in ("slot", "attempt", "stop_reason", "reason", "exit_code")
        if order.get(key) is not None
    }
    more = " ".join(f"{key}={value}" for key, value in told.items())
    states = f"{event.from_state or '-'} -> {event.to_state or '-'}"
    return f"    {event.seq:4} {event.kind} {book.name(event.subject)} {states} by {event.actor} {more}".rstrip()
