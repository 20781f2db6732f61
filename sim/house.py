"""A whole installation under the simulator's hands: what each action does to it."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import msgspec

from sim import plan
from sim.coverage import Coverage
from sim.instance import Ground, Instance, Trap
from sim.line import SimStore
from sim.loop import VirtualLoop, at_once
from sim.place import SimHost
from sim.plan import Action, Shape
from sim.truths import SKEW_MS, Truths
from standby.config import Config
from standby.control.apply import apply_config
from standby.core import lifecycle, places
from standby.core.lifecycle import Cause
from standby.core.model import Change, Mode, Order, OrderState, Spec, Trigger, run_id
from standby.core.sighting import Sighting
from standby.seal import Seal
from standby.store.contract import StoreDown
from standby.world import Ids, World

START_MS = 1_700_000_000_000
ROUNDS_MOST = 4_000
ORDERS_MOST = 20


class House:
    """Instances, hosts, store and truths of one seed. `lines` is its history, when it is told."""

    def __init__(self, shape: Shape, seed: int, *, telling: bool) -> None:
        self.shape, self.chance = shape, Random(seed)
        self.lines: list[str] = []
        self.coverage = Coverage()
        self.loop = VirtualLoop(START_MS)  # type: ignore[abstract]
        self.ids = Numbers()
        self.hosts = {host.name: SimHost(host, self.loop) for host in shape.hosts}
        self.truths = Truths(self.loop, self.hosts, self.say)
        self.store = SimStore.made(lambda: self.loop.ms, self.truths, hints=shape.hints)
        self.truths.store = self.store
        self.instances: list[Instance] = []
        self.slots_max = {pool.name: pool.slots_max for pool in shape.pools}
        self.limits = dict(shape.projects)
        self._telling, self._calm = telling, False

    def open(self) -> None:
        """Apply the configuration and start the instances."""
        self.apply()
        for number in range(self.shape.instances):
            self.instances.append(self._instance(f"i{number + 1}.1"))

    def do(self, action: Action) -> None:
        """Let one thing happen, then look at everything."""
        self.chance = Random(action.salt)
        self.say(lambda: f"{(self.loop.ms - START_MS) / 1000:9.3f} {action.kind}")
        self.met(action.kind)
        getattr(self, "do_" + action.kind.replace(" ", "_"))()
        self.loop.settle()
        self.check()

    def check(self) -> None:
        """What must hold now."""
        self._bury()
        self.truths.living()
        while self.loop.faults:
            self.truths.broken(self.loop.faults.pop())

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

    def stepped(self, host: str, began_at: int) -> None:
        self.truths.stepped(host, began_at)

    def broken(self, truth: str) -> None:
        self.truths.broken(truth)

    # requests

    def apply(self) -> None:
        """Make the rows what the configuration says."""
        world = World(config=self._config(), store=self.store, clock=_TrueClock(self.loop), seal=_SEAL, ids=self.ids)
        at_once(apply_config(world))

    def do_submit(self) -> None:
        if len(self.truths.book.orders) < ORDERS_MOST:
            self._submit()

    def do_burst(self) -> None:
        for _ in range(self.chance.choice([3, 5])):
            self.do_submit()

    def _submit(self) -> None:
        chance, now = self.chance, self.loop.ms
        shape = chance.choice(self.shape.pools)
        host = self.hosts[shape.host].shape
        pool = self.truths.book.pools[shape.name]
        told, wishes = plan.script(chance, host.lag_ms), plan.wishes(chance)
        memory_mb = chance.choice([shape.memory_mb, 50, 100])
        if host.memory_mb is not None and wishes["queue_timeout_ms"] is not None and chance.random() < 0.05:
            memory_mb = host.memory_mb + 1
        order = Order(
            id=self.ids.order(now),
            project=chance.choice(["a", "a", "b", "c"]),
            pool=pool.name,
            memory_mb=memory_mb,
            submitted_at=now,
            state=OrderState.PENDING,
            state_since=now,
        )
        payload = msgspec.json.encode({"script": told}).decode()
        later = now + chance.choice([300, 5_000]) if chance.random() < 0.1 else None
        spec = Spec(order_id=order.id, payload=payload, not_before=later, **wishes)
        self.say(lambda: f"    script {told} {wishes}")
        self.truths.specs[order.id] = spec
        change = lifecycle.submit(self._cause(), order, spec, pool, None, None)
        if self._save(change):
            self.truths.acknowledged.add(order.id)

    def do_cancel(self) -> None:
        book = self.truths.book
        if not book.orders:
            return
        among = [list(book.holder.values()), sorted(book.unfinished), list(book.orders)]
        order_id = self.chance.choice(next(ids for ids in among[self.chance.choice([0, 0, 1, 2]) :] if ids))
        order, spec = book.orders[order_id], self.truths.specs[order_id]
        self.say(lambda: f"    cancel {book.name(order_id)}")
        unfinished = order_id in book.unfinished
        change = lifecycle.cancel(self._cause(), order, spec)
        if unfinished and (change is None or self._save(change)):
            self.truths.cancels.add(order_id)

    def do_mode(self) -> None:
        """An operator closes a pool or a host, and opens it again some time later."""
        mode = self.chance.choice([Mode.PAUSED, Mode.DRAINING])
        name = self.chance.choice([pool.name for pool in self.shape.pools] + [host.name for host in self.shape.hosts])
        self._set_mode(name, mode)
        self.loop.call_later(self.chance.choice([1, 4, 20]), self._set_mode, name, Mode.OPEN)

    def _set_mode(self, name: str, mode: Mode) -> None:
        book = self.truths.book
        if name in book.pools:
            change = places.set_pool_mode(self._cause(), book.pools[name], mode, "sim")
        else:
            change = places.set_host_mode(self._cause(), book.hosts[name], mode, "sim")
        if change is not None and not self._save(change) and mode is Mode.OPEN:
            self.loop.call_later(1, self._set_mode, name, mode)

    def do_limits(self) -> None:
        self.slots_max[self.chance.choice(self.shape.pools).name] = self.chance.choice([0, 1, 2, 3])
        self.limits[self.chance.choice(list(self.limits))] = self.chance.choice([None, 0, 1, 2])
        try:
            self.apply()
        except StoreDown:
            pass

    def _save(self, change: Change) -> bool | None:
        """Whether it was saved; null when nobody knows."""
        try:
            (verdict,) = at_once(self.store.save([change]))
        except StoreDown:
            return None
        return verdict.saved

    # time and steps

    def do_tick(self) -> None:
        self.pass_time(self.chance.choice([10, 50, 200, 500, 1_000, 1_000, 1_500, 2_500]))
        self.do_step()

    def do_work(self) -> None:
        """Some rounds as they should be."""
        for _ in range(self.chance.choice([2, 3])):
            self.pass_time(self.chance.choice([50, 300, 1_000]))
            for name in self.hosts:
                self._step(name)

    def do_step(self) -> None:
        self._step(self._host().name)

    def _step(self, host: str) -> None:
        """A leader of a host takes a step; where nobody leads, somebody may begin to."""
        leaders = [instance for instance in self.instances if host in instance.leading]
        if leaders and self.chance.random() < 0.95:
            self.chance.choice(leaders).step(host)
        elif (instance := self._someone()) is not None and self.chance.random() < 0.7:
            instance.lead(host)

    def do_lead(self) -> None:
        instance = self._someone()
        if instance is not None:
            host = self._host().name
            self.say(lambda: f"    {instance.instance} tries to lead {host}")
            instance.lead(host)

    def do_jump(self) -> None:
        self.pass_time(self.chance.choice([3_000, 6_000, 15_000, 40_000]))

    def do_leap(self) -> None:
        """Everybody sleeps for a while."""
        sleepers = [instance for instance in self.instances if not instance.frozen]
        for instance in sleepers:
            instance.freeze()
        self.pass_time(self.chance.choice([9_000, 12_000, 60_000, 200_000]))
        for instance in sleepers:
            instance.thaw()

    def pass_time(self, ms: int) -> None:
        self.loop.advance_to(self.loop.ms + ms)

    # faults of instances

    def do_crash(self) -> None:
        if self.instances:
            self._crash(self.chance.choice(self.instances))

    def _crash(self, instance: Instance) -> None:
        self.say(lambda: f"    {instance.instance} dies")
        instance.crash()

    def _bury(self) -> None:
        """The dead are followed by new ones."""
        for place, instance in enumerate(self.instances):
            if instance.dead:
                name, _, life = instance.instance.partition(".")
                self.instances[place] = self._instance(f"{name}.{int(life) + 1}")

    def do_freeze(self) -> None:
        """Freeze somebody, or let them go on."""
        instance = self.chance.choice(self.instances)
        self.say(lambda: f"    {instance.instance} {'goes on' if instance.frozen else 'is frozen'}")
        if instance.frozen:
            instance.thaw()
        else:
            instance.freeze()
            self.loop.call_later(self.chance.choice([1, 5, 12, 40]), instance.thaw)

    def do_stall(self) -> None:
        """Let a stalled step go on, or stall one inside."""
        stalled = [instance for instance in self.instances if instance.stalled is not None]
        if stalled and self.chance.random() < 0.6:
            self.chance.choice(stalled).go_on()
        else:
            self._trapped("stall", self.chance.choice([1, 5, 12, 40]))

    def do_die_inside(self) -> None:
        self._trapped("die")

    def do_down_inside(self) -> None:
        self._trapped("down")

    def _trapped(self, kind: str, seconds: int = 0) -> None:
        """A step, or an attempt to lead, in which something happens at one of its points."""
        able = [one for one in self.instances if one.stalled is None and not one.frozen]
        if not able:
            return
        instance, host = self.chance.choice(able), self._host().name
        if self.chance.random() < 0.5:
            self.pass_time(self.chance.choice([200, 1_000]))
        instance.trap = Trap(kind, self.chance.randrange(1, 40), seconds)
        self.say(lambda: f"    {instance.instance} will {kind} in {host}")
        if not instance.step(host) and not instance.lead(host):
            instance.trap = None

    def do_resign(self) -> None:
        self.chance.choice(self.instances).resign(self._host().name)

    def do_unsteady(self) -> None:
        self.chance.choice(self.instances).clock.steady = False

    # faults of the store

    def do_unsure(self) -> None:
        """The next commits have an unknown outcome, and may not be found out about."""
        self.store.unsure += self.chance.choice(
            [["before"], ["after"], ["before", "find"], ["after", "find"], ["before", "after", "find"], ["before"] * 2]
        )

    def do_outage(self) -> None:
        until = self.loop.ms + self.chance.choice([500, 4_000, 15_000])
        cut = self.instances if self.chance.random() < 0.5 else [self.chance.choice(self.instances)]
        for instance in cut:
            instance.cut_until = until

    # faults of platforms

    def do_unreachable(self) -> None:
        self._host().unreachable(self.chance.choice([500, 3_000, 20_000]))

    def do_partition(self) -> None:
        until = self.loop.ms + self.chance.choice([500, 5_000, 20_000])
        self.chance.choice(self.instances).parted[self._host().name] = until

    def do_refuse_creates(self) -> None:
        self._host().driver.platform.refuses_creates = self.chance.choice([1, 4])

    def do_rebirth(self) -> None:
        self._host().reborn()

    def do_burn(self) -> None:
        """A platform is replaced by another one; an operator notices later."""
        host = self._host()
        host.reborn(f"{host.name}-{self.loop.ms}")
        self.loop.call_later(self.chance.choice([2, 6, 15]), self.declare_dead, host)

    def declare_dead(self, host: SimHost) -> None:
        """An operator's word, given only where the house asks for it: another platform answers than the known one."""
        row = self.truths.book.hosts[host.name]
        if row.identity in (None, host.driver.platform.name):
            return
        if not self._save(places.declare_dead(self._cause(), row, "it burnt")):
            self.loop.call_later(1, self.declare_dead, host)

    def do_kill(self) -> None:
        self._strike("forced_at")

    def do_vanish(self) -> None:
        self._strike("removed_at")

    def _strike(self, how: str) -> None:
        alive = self.truths.alive
        if alive:
            run = self.chance.choice(list(alive))
            self.say(lambda: f"    the world ends {self._run(run)} ({how})")
            self.truths.killed.add(run)
            setattr(alive[run].copy, how, self.loop.ms)

    # the end

    def finale(self) -> None:
        """Faults stop; within bounded time every order ends."""
        self.say(lambda: f"{(self.loop.ms - START_MS) / 1000:9.3f} the faults stop")
        self._mend()
        wait_ms, seq = 1_000, -1
        for _ in range(ROUNDS_MOST):
            if (not self.truths.book.unfinished and not self.truths.alive) or self.violations:
                break
            self.pass_time(wait_ms)
            for name in self.hosts:
                self._serve(name)
            wait_ms = 1_000 if self.truths.seq != seq else min(wait_ms * 2, 8_000)
            seq = self.truths.seq
            self.check()
        if not self.violations:
            self.truths.at_the_end()
        self._close()

    def _mend(self) -> None:
        self._calm = True
        self.store.unsure.clear()
        for instance in self.instances:
            instance.cut_until, instance.trap, instance.clock.steady = 0, None, True
            instance.parted.clear()
            instance.thaw()
            instance.go_on()
        self.slots_max = {pool.name: pool.slots_max for pool in self.shape.pools}
        self.limits = dict(self.shape.projects)
        self.apply()
        for host in self.hosts.values():
            platform = host.driver.platform
            platform.unreachable_until = platform.refuses_creates = 0

    def _serve(self, host: str) -> None:
        """What a healthy installation does, its operator included."""
        self.declare_dead(self.hosts[host])
        leaders = [instance for instance in self.instances if host in instance.leading]
        for instance in leaders:
            instance.step(host)
        if not leaders:
            for instance in self.instances:
                instance.lead(host)

    def _close(self) -> None:
        for instance in self.instances:
            instance.crash()
        self.pass_time(100_000)
        at_once(self.store.close())

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
        hosts = {host.name: {"driver": "scripted", "memory_mb": host.memory_mb} for host in self.shape.hosts}
        pools: dict[str, Any] = {
            pool.name: {"host": pool.host, "slots_max": self.slots_max[pool.name], "memory_mb": pool.memory_mb}
            for pool in self.shape.pools
        }
        projects = {name: {"running_max": most} for name, most in self.limits.items()}
        return Config.of(hosts=hosts, pools=pools, projects=projects, hints=self.shape.hints)

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
