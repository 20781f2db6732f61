"""Everything that an action can do to a house."""

import msgspec

from sim import plan
from sim.grounds import Grounds
from sim.instance import Instance, Trap
from sim.place import SimHost
from sim.readings import CALM, READINGS
from sim.worker import SimWorker
from standby.core import lifecycle, places
from standby.core.model import Mode, Order, OrderState, Slot, SlotState, Spec, Warmth
from standby.core.sighting import Exit, Reading
from standby.core.size import slot_name
from standby.drivers.contract import Making
from standby.store.contract import StoreDown, Work

ORDERS_MOST = 20


class Deeds(Grounds):
    """What people, time and bad luck do. Each method that begins with `do_` is an action."""

    # requests

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
        key = chance.choice(["k", "l"]) if chance.random() < 0.3 else None
        cpus = None if host.cpus is None else chance.choice([None, None, 0.25, 1.0, 1.25])
        order = Order(
            id=self.ids.order(now),
            project=shape.project or chance.choice(["a", "a", "b", "c"]),
            pool=pool.name,
            memory_mb=memory_mb,
            submitted_at=now,
            state=OrderState.PENDING,
            state_since=now,
            concurrency_key=key,
            cpus=cpus,
        )
        payload = msgspec.json.encode({"script": told}).decode()
        later = now + chance.choice([300, 5_000]) if chance.random() < 0.1 else None
        spec = Spec(order_id=order.id, payload=payload, not_before=later, concurrency_key=key, cpus=cpus, **wishes)
        self.say(lambda: f"    script {told} {wishes}")
        self.truths.specs[order.id] = spec
        change = lifecycle.submit(self._cause(), order, spec, pool, None, None)
        door = self._door(shape.host)
        if door is not None and change.order is not None and change.order.rank is not None:
            door.world.arrivals.offer(Work(change.order, spec))
        if self._save(change):
            self.truths.acknowledged.add(order.id)

    def _door(self, host: str) -> Instance | None:
        """The server that is asked: often the one that leads the host, which has just looked after it."""
        leaders = [instance for instance in self.instances if host in instance.leading and not instance.frozen]
        if not leaders or self.chance.random() < 0.5:
            return self._someone()
        leaders[0].step(host)
        return leaders[0]

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
        """An operator closes a pool, a host or a project, perhaps stops what runs there, and opens it again some time
        later."""
        mode = self.chance.choice([Mode.PAUSED, Mode.DRAINING])
        name = self.chance.choice([pool.name for pool in self.shape.pools] + [host.name for host in self.shape.hosts])
        later = self.chance.choice([1, 4, 20])
        if self.chance.random() < 0.25:
            name = self.chance.choice(list(self.limits))
        self._set_mode(name, mode, stop=mode is Mode.DRAINING and self.chance.random() < 0.4)
        self.loop.call_later(later, self._set_mode, name, Mode.OPEN)

    def _set_mode(self, name: str, mode: Mode, *, stop: bool = False) -> None:
        book = self.truths.book
        if name in book.pools:
            change = places.set_pool_mode(self._cause(), book.pools[name], mode, "sim", stop=stop)
        elif name in book.hosts:
            change = places.set_host_mode(self._cause(), book.hosts[name], mode, "sim", stop=stop)
        else:
            change = places.set_project_mode(self._cause(), book.projects.get(name), name, mode, "sim", stop=stop)
        if change is not None and not self._save(change) and mode is Mode.OPEN:
            self.loop.call_later(1, self._set_mode, name, mode)

    def do_limits(self) -> None:
        self.slots_max[self.chance.choice(self.shape.pools).name] = self.chance.choice([0, 1, 2, 3])
        self.limits[self.chance.choice(list(self.limits))] = self.chance.choice([None, 0, 1, 2])
        self.weights["b"] = self.chance.choice([1, 3])
        self.running_max[self.chance.choice(self.shape.pools).name] = self.chance.choice([0, 1, 2])
        try:
            self.apply()
        except StoreDown:
            pass

    def do_template(self) -> None:
        """Somebody builds another image for a pool."""
        name = self.chance.choice(self.shape.pools).name
        self.templates[name] = self.templates.get(name, 1) + 1
        try:
            self.apply()
        except StoreDown:
            pass

    def do_reset_breakers(self) -> None:
        for pool in list(self.truths.book.pools.values()):
            change = places.reset_breaker(self._cause(), pool)
            if change is not None:
                self._save(change)

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

    # faults of instances

    def do_crash(self) -> None:
        if self.instances:
            self._crash(self.chance.choice(self.instances))

    def _crash(self, instance: Instance) -> None:
        self.say(lambda: f"    {instance.instance} dies")
        instance.crash()

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

    def do_keep_schedules(self) -> None:
        """Somebody keeps the schedules, perhaps not to the end, perhaps beside another one."""
        self.pass_time(self.chance.choice([0, 1_000, 11_000, 61_000]))
        able = [one for one in self.instances if one.stalled is None and not one.frozen]
        for instance in self.chance.sample(able, min(len(able), self.chance.choice([1, 1, 2]))):
            if self.chance.random() < 0.5:
                kind = self.chance.choice(["stall", "die", "down"])
                instance.trap = Trap(kind, self.chance.randrange(1, 14), self.chance.choice([1, 12, 40]))
            instance.keep_schedules()

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
        self._host().driver.platform.yard.refuses_creates = self.chance.choice([1, 4])

    def do_rebirth(self) -> None:
        self._host().reborn()

    def do_burn(self) -> None:
        """A platform is replaced by another one; an operator notices later."""
        host = self._host()
        host.reborn(f"{host.name}-{self.loop.ms}")
        self.loop.call_later(self.chance.choice([2, 6, 15]), self.declare_dead, host)

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

    # faults of places and images

    def do_lose_a_place(self) -> None:
        """Somebody removes one behind our back."""
        platform = self._host().driver.platform
        if platform.yard.made:
            incarnation = self.chance.choice(list(platform.yard.made))
            self.say(lambda: f"    {incarnation} is gone")
            platform.remove(incarnation, self.loop.ms)

    def do_leave_a_stray(self) -> None:
        """Something of ours is there that no row knows: it came late, or a database was restored."""
        host = self._host()
        pools = [pool for pool in self.shape.pools if pool.host == host.name]
        if host.shape.seats or not pools:
            return
        pool = self.truths.book.pools[self.chance.choice(pools).name]
        name = slot_name("standby", pool.name, self.chance.choice([1, 2, 9]))
        at = self.loop.ms - self.chance.choice([0, 1_000_000])
        row = Slot(
            name=name,
            host=host.name,
            pool=pool.name,
            state=SlotState.CREATING,
            state_since=at,
            created_at=at,
            generation=self.chance.randrange(100),
        )
        making = Making(template=pool.settings.template, memory_mb=pool.settings.memory_mb)
        if making.template.warmth is not Warmth.COLD:
            host.driver.platform.yard.put(row, making, at)

    def do_lose_the_images(self) -> None:
        images = self._host().driver.platform.yard.images
        if images is not None:
            images.clear()

    def do_refuse_pulls(self) -> None:
        self._host().driver.platform.yard.pulls_fail = self.chance.choice([1, 3])

    # what is measured

    def do_reading(self) -> None:
        """It jumps, or goes missing."""
        self._measure(self._host(), self.chance.choice(READINGS))

    def do_flap(self) -> None:
        """It goes up and down for a while."""
        host, high = self._host(), self.chance.choice(READINGS[1:])
        for second in range(0, self.chance.choice([4, 40]), self.chance.choice([1, 2, 7])):
            self.loop.call_later(second, self._measure, host, high if second % 2 else CALM)

    def do_long_calm(self) -> None:
        """Long enough for a host to come back."""
        host = self._host()
        self._measure(host, CALM)
        for _ in range(self.chance.choice([35, 70])):
            self.pass_time(1_000)
            self._step(host.name)

    def _measure(self, host: SimHost, reading: Reading) -> None:
        if host.shape.measured and not self._calm:
            self.say(lambda: f"    {host.name} is measured: {reading}")
            host.reading = reading

    # faults of workers

    def do_worker_dies(self) -> None:
        """The platform may start another in its place."""
        if (worker := self._worker()) is not None:
            self.say(lambda: f"    {worker.nonce} dies")
            worker.die(again=self.chance.random() < 0.6)

    def do_place_ends(self) -> None:
        """A platform sees a worker's place end."""
        if (worker := self._worker()) is not None:
            self.say(lambda: f"    {worker.place.incarnation} ends")
            worker.host.end_place(worker.place, Exit(code=self.chance.choice([1, 137])))

    def do_second_worker(self) -> None:
        """Another one begins to live where one lives, with the same token."""
        if (worker := self._worker()) is not None:
            self.say(lambda: f"    a second worker in {worker.place.incarnation}")
            self.settle_in(worker.host, worker.place)

    def do_part_workers(self) -> None:
        """Workers cannot reach any server for a while; the platform can."""
        until = self.loop.ms + self.chance.choice([1_000, 6_000, 30_000])
        for worker in self.workers.all:
            if worker.alive and self.chance.random() < 0.7:
                worker.parted_until = until

    def _worker(self) -> SimWorker | None:
        """A live one, most often one that is at work."""
        if not self.workers.at_work():
            self.do_work()
        busy, alive = self.workers.at_work(), [worker for worker in self.workers.all if worker.alive]
        among = busy if busy and self.chance.random() < 0.7 else alive
        return self.chance.choice(among) if among else None
