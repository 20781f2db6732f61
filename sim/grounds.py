"""What everything in a simulated house stands on: its rows, its hosts, its time, and who watches."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, cast

from sim.coverage import Coverage
from sim.instance import Ground, Instance
from sim.line import SimStore
from sim.loop import VirtualLoop, at_once
from sim.place import SimHost
from sim.plan import PoolShape, Shape
from sim.schedules import TickTruths
from sim.truths import SKEW_MS, Truths
from sim.worker import SimWorker, WorkerTruths
from standby.config import Config
from standby.control.apply import apply_config
from standby.core import places, work
from standby.core.lifecycle import Cause
from standby.core.model import Change, Trigger, run_id
from standby.core.sighting import Place, Sighting
from standby.drivers.scripted_places import Made
from standby.seal import Seal
from standby.store.contract import StoreDown
from standby.world import Ids, World

START_MS = 1_700_000_000_000


class Grounds:
    """Instances, hosts, store and truths of one seed. `lines` is its history, when it is told."""

    def __init__(self, shape: Shape, seed: int, *, telling: bool) -> None:
        self.shape, self.chance = shape, Random(seed)
        self.lines: list[str] = []
        self.coverage = Coverage()
        self.loop = VirtualLoop(START_MS)  # type: ignore[abstract]
        self.ids = Numbers()
        self.hosts = {host.name: SimHost(host, self.loop) for host in shape.hosts}
        self.truths = Truths(self.loop, self.hosts, self.say)
        self.workers = self.truths.workers = WorkerTruths(self)
        self.store = SimStore.made(lambda: self.loop.ms, self.truths, hints=shape.hints)
        self.truths.store = self.store
        self.truths.ticks = TickTruths(self.store, self.truths.broken)
        self.instances: list[Instance] = []
        self.slots_max = {pool.name: pool.slots_max for pool in shape.pools}
        self.limits = dict(shape.projects)
        self.weights = dict(shape.weights)
        self.running_max: dict[str, int] = {}
        """Pool -> its running limit, where somebody changed it."""
        self.templates: dict[str, int] = {}
        """Pool -> which image its slots are made of."""
        self._telling, self._calm = telling, False
        self._housed: set[str] = set()
        """Places that got their worker."""

    @property
    def violations(self) -> Sequence[str]:
        return self.truths.violations

    # what instances stand on

    def say(self, text: Callable[[], str]) -> None:
        if self._telling:
            self.lines.append(text())

    def fault(self, *names: str) -> str | None:
        """One of these faults, as likely as the seed says."""
        if self._calm or not self.shape.faults:
            return None
        for name in names:
            if self.chance.random() < self.shape.faults.get(name, 0.0):
                self.say(partial(str, f"    ({name})"))
                self.met(name)
                return name
        return None

    def met(self, what: str) -> None:
        book = self.truths.book
        self.coverage.met((book.orders[order_id].state for order_id in book.unfinished), what)

    def sent(self, verb: str, host: SimHost, caller: Instance, run: str | None) -> None:
        self.say(lambda: f"    {caller.instance} sends {verb} {self._run(run)} to {host.name}")
        self.truths.sent(verb, host, caller.instance, run)

    def seen(self, sightings: Sequence[Sighting]) -> None:
        book = self.truths.book
        for sighting in sightings:
            order = book.orders[sighting.run_id.rpartition("-")[0]]
            if run_id(order) == sighting.run_id:
                self.coverage.met([order.state], f"seen {sighting.seen}")
            self.say(lambda sighting=sighting: f"    {self._run(sighting.run_id)} is seen {sighting.seen}")  # type: ignore[misc]

    def began(self, host: SimHost) -> None:
        self.truths.began(host)

    def sweeps(self, host: SimHost, place: Place) -> None:
        self.say(lambda: f"    {place.incarnation} is swept from {host.name}")
        self.truths.places.swept(host, place)

    def made(self, host: SimHost) -> None:
        """Something may have been made: who lives by a worker gets one when it is ready."""
        for place in host.driver.platform.yard.made.values():
            if place.incarnation not in self._housed and work.handed_over(place.making.template):
                self._housed.add(place.incarnation)
                self.loop.call_at(place.ready_at / 1000, self.settle_in, host, place)

    # what workers stand on

    def settle_in(self, host: SimHost, place: Made) -> None:
        """One more worker begins to live in a place, if that is there."""
        if work.SLOT_TOKEN in place.making.env:
            worker = SimWorker(self, host, place, f"nonce-{len(self.workers.all) + 1}")
            if worker.alive:
                self.workers.all.append(worker)
                self.loop.create_task(worker.live())

    def worker_got(self, worker: SimWorker, run: str) -> None:
        self.say(lambda: f"    {worker.nonce} gets {self._run(run)}")
        self.workers.got(worker, run)

    def worker_begins(self, worker: SimWorker, run: str) -> None:
        self.say(lambda: f"    {worker.nonce} begins {self._run(run)}")
        self.workers.begins(worker, run)

    def worker_told(self, run: str) -> None:
        self.workers.told(run)

    def stepped(self, host: str, began_at: int) -> None:
        self.truths.stepped(host, began_at)

    def broken(self, truth: str) -> None:
        self.truths.broken(truth)

    # rows and time

    def apply(self) -> None:
        """Make the rows what the configuration says."""
        world = World(config=self._config(), store=self.store, clock=_TrueClock(self.loop), seal=_SEAL, ids=self.ids)
        at_once(apply_config(world))

    def _save(self, change: Change) -> bool | None:
        """Whether it was saved; null when nobody knows."""
        try:
            (verdict,) = at_once(self.store.save([change]))
        except StoreDown:
            return None
        return verdict.saved

    def pass_time(self, ms: int) -> None:
        self.loop.advance_to(self.loop.ms + ms)

    def declare_dead(self, host: SimHost) -> None:
        """An operator's word, given only where the house asks for it: another platform answers than the known one."""
        row = self.truths.book.hosts[host.name]
        if row.identity in (None, host.driver.platform.name):
            return
        if not self._save(places.declare_dead(self._cause(), row, "it burnt")):
            self.loop.call_later(1, self.declare_dead, host)

    # small things

    def _cause(self) -> Cause:
        return Cause(id=self.ids.short(), at=self.loop.ms, trigger=Trigger.REQUEST, actor="sim")

    def _host(self) -> SimHost:
        return self.hosts[self.chance.choice(self.shape.hosts).name]

    def _someone(self) -> Instance | None:
        awake = [instance for instance in self.instances if not instance.frozen]
        return self.chance.choice(awake) if awake else None

    def _instance(self, name: str) -> Instance:
        offset_ms = self.chance.randrange(-SKEW_MS // 2, SKEW_MS // 2 + 1)
        return Instance(name, cast(Ground, self), self._config(), self.hosts, offset_ms)

    def _config(self) -> Config:
        hosts = {
            host.name: {
                "driver": "scripted",
                "memory_mb": host.memory_mb,
                "starts_max": host.starts_max,
                "start_gap": host.start_gap_ms / 1000,
                "cpus": host.cpus,
            }
            for host in self.shape.hosts
        }
        pools: dict[str, Any] = {pool.name: self._pool(pool) for pool in self.shape.pools}
        projects = {
            name: {"running_max": most, "weight": self.weights.get(name, 1)} for name, most in self.limits.items()
        }
        return Config.of(hosts=hosts, pools=pools, projects=projects, hints=self.shape.hints)

    def _pool(self, pool: PoolShape) -> dict[str, Any]:
        most = self.slots_max[pool.name]
        told = {**pool.more, "host": pool.host, "slots_max": most, "memory_mb": pool.memory_mb}
        if pool.name in self.running_max:
            told["running_max"] = self.running_max[pool.name]
        if "slots_warm" in told:
            told["slots_warm"] = min(most, told["slots_warm"])
        if self._calm:
            told.pop("max_age", None)  # slots that are replaced for ever never come to rest
        if "warmth" in told:
            told["image"] = f"app:{self.templates.get(pool.name, 1)}"
        return told

    def _run(self, run: str | None) -> str:
        order_id, _, number = (run or "").rpartition("-")
        return f"{self.truths.book.name(order_id)}-{number}" if order_id else ""


class Numbers(Ids):
    """Ids that can be told again: one number after the other."""

    _last = 0

    def order(self, now: int) -> str:
        return f"{now}{self.short()}"

    def short(self) -> str:
        self._last += 1
        return f"{self._last:08}"


class _TrueClock:
    """The store's own time."""

    steady = True

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return self._loop.ms

    def monotonic(self) -> float:
        return self._loop.ms / 1000


_SEAL = Seal(b"k" * 32)
