"""A whole installation under the simulator's hands, from its opening to its end."""

from random import Random

from sim.deeds import Deeds
from sim.grounds import START_MS
from sim.loop import at_once
from sim.place import SimHost
from sim.plan import Action
from sim.readings import CALM
from sim.schedules import schedule_of
from standby.core import ticks

ROUNDS_MOST = 4_000


class House(Deeds):
    """One seed's installation."""

    def open(self) -> None:
        """Apply the configuration and start the instances."""
        self.apply()
        for number in range(self.shape.instances):
            self.instances.append(self._instance(f"i{number + 1}.1"))
        if self.shape.scheduled:
            self._schedule()

    def _schedule(self) -> None:
        row = schedule_of(self.shape, self.loop.ms)
        assert row.next_at is not None
        self.truths.ticks.first[row.name] = row.next_at
        at_once(self.store.save([ticks.add(self._cause(), row, None)], together=True))

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
        self.workers.living()
        while self.loop.faults:
            self.truths.broken(self.loop.faults.pop())

    def _bury(self) -> None:
        """The dead are followed by new ones."""
        for place, instance in enumerate(self.instances):
            if instance.dead:
                name, _, life = instance.instance.partition(".")
                self.instances[place] = self._instance(f"{name}.{int(life) + 1}")

    # the end

    def finale(self) -> None:
        """Faults stop; within bounded time every order ends."""
        self.say(lambda: f"{(self.loop.ms - START_MS) / 1000:9.3f} the faults stop")
        self._mend()
        self._last_ticks()
        wait_ms, seq = 1_000, -1
        for _ in range(ROUNDS_MOST):
            over = not self.truths.book.unfinished and not self.truths.alive and not self.workers.at_work()
            if self.violations or (over and self.truths.places.unsettled() is None):
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
        for worker in self.workers.all:
            worker.parted_until = 0
        for instance in self.instances:
            instance.cut_until, instance.trap, instance.clock.steady = 0, None, True
            instance.parted.clear()
            instance.thaw()
            instance.go_on()
        self.slots_max = {pool.name: pool.slots_max for pool in self.shape.pools}
        self.limits = dict(self.shape.projects)
        self.running_max.clear()
        self.apply()
        for host in self.hosts.values():
            host.reading = CALM if host.shape.measured else host.reading
            platform = host.driver.platform
            platform.unreachable_until = platform.yard.refuses_creates = platform.yard.pulls_fail = 0

    def _last_ticks(self) -> None:
        """Whatever was left undone is made up for; then nobody keeps the schedules any more."""
        for _ in range(ROUNDS_MOST):
            if self.violations or not at_once(self.store.due_schedules(self.loop.ms, 1)):
                break
            for instance in self.instances:
                instance.keep_schedules()
            self.pass_time(500)
            self.check()

    def _serve(self, host: str) -> None:
        """What a healthy installation does, its operator included."""
        self.declare_dead(self.hosts[host])
        self._clear_up(self.hosts[host])
        leaders = [instance for instance in self.instances if host in instance.leading]
        for instance in leaders:
            instance.step(host)
        if not leaders:
            for instance in self.instances:
                instance.lead(host)

    def _clear_up(self, host: SimHost) -> None:
        """What an operator does about an alarm: so many strays that they are left to a person."""
        if "belong to no slot" in (self.truths.book.hosts[host.name].error or ""):
            known = {slot.incarnation for slot in self.truths.book.slots.values()}
            for incarnation in set(host.driver.platform.yard.made) - known:
                host.driver.platform.remove(incarnation, self.loop.ms)

    def _close(self) -> None:
        for worker in self.workers.all:
            worker.dead = True
        for instance in self.instances:
            instance.crash()
        self.pass_time(100_000)
        at_once(self.store.close())
