"""One server of the simulated house: the real controller, whose steps are taken when the simulator says so."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sim.line import Line, SimStore
from sim.loop import VirtualLoop, at_once
from sim.place import Fates, SimDriver, SimHost
from standby.api.worker import Desk
from standby.config import Config
from standby.control.controller import SCHEDULES, Controller
from standby.control.host import HostStep
from standby.control.lease import Deposed, Hold
from standby.control.schedules import ScheduleStep
from standby.core.errors import Unreachable
from standby.drivers.contract import Driver
from standby.seal import Seal
from standby.store.contract import Store, StoreDown
from standby.world import Ids, World


class SkewedClock:
    """An instance's idea of the store's time: a little off, but steadily so."""

    def __init__(self, loop: VirtualLoop, offset_ms: int) -> None:
        self._loop, self.offset_ms, self.steady = loop, offset_ms, True

    def now(self) -> int:
        return self._loop.ms + self.offset_ms

    def monotonic(self) -> float:
        return self._loop.ms / 1000


@dataclass
class Leading:
    """An instance that leads a host, its step, and how that ends."""

    step: HostStep
    hold: Hold
    over: "asyncio.Future[None]"
    task: "asyncio.Task[None] | None" = None


@dataclass
class Trap:
    """What befalls a step at one of the points where it waits: stall, die, or down."""

    kind: str
    points: int
    seconds: int = 0


class Ground(Fates, Protocol):
    """What an instance stands on."""

    loop: VirtualLoop
    store: SimStore
    ids: Ids

    def broken(self, truth: str) -> None: ...
    def say(self, text: Callable[[], str]) -> None: ...
    def stepped(self, host: str, began_at: int) -> None: ...


class Instance(Controller):
    """A server that can freeze, stall inside a step, lose its lines, and die."""

    def __init__(self, name: str, ground: Ground, config: Config, hosts: Mapping[str, SimHost], offset_ms: int) -> None:
        self._ground = ground
        self.clock = SkewedClock(ground.loop, offset_ms)
        world = World(
            config=config,
            store=cast(Store, Line(ground.store, self)),
            clock=self.clock,
            seal=_SEAL,
            drivers={host.name: cast(Driver, SimDriver(host, self, ground)) for host in hosts.values()},
            ids=ground.ids,
            chance=lambda: ground.chance.random(),
        )
        super().__init__(world, name)
        self.world, self.desk = world, Desk()
        self.deafen = ground.store.listen(self.desk.hear)
        self.dead = False
        self.cut_until = 0
        self.parted: dict[str, int] = {}
        self.leading: dict[str, Leading] = {}
        self.trap: Trap | None = None
        self.stalled: asyncio.Event | None = None
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._thawed: asyncio.Event | None = None
        self._renew_later()

    # the two ends of its lines

    def now(self) -> int:
        return self.clock.now()

    def cut_off(self) -> bool:
        return self._ground.loop.ms < self.cut_until

    def parted_from(self, host: str) -> bool:
        return self._ground.loop.ms < self.parted.get(host, 0)

    async def pass_gate(self) -> None:
        """Wait while it is frozen; the dead do not come through."""
        while self._thawed is not None and not self.dead:
            await self._thawed.wait()
        if self.dead:
            raise asyncio.CancelledError

    async def dawdle(self) -> None:
        """Wait before a save reaches the store, if it is a slow one."""
        if self._ground.fault("slow save"):
            await asyncio.sleep(self._ground.chance.choice([0.001, 0.05, 0.4, 1.5, 3.0]))
            await self.pass_gate()

    async def suffer(self, *, store: bool) -> None:
        """Spring the trap, if this is its point."""
        trap = self.trap
        if trap is None:
            return
        trap.points -= 1
        if trap.points > 0 or (trap.kind == "down" and not store):
            return
        self.trap = None
        self._ground.say(lambda: f"    {self.instance} {trap.kind} here")
        match trap.kind:
            case "stall":
                self.stalled = self.stalled or asyncio.Event()
                self._ground.loop.call_later(trap.seconds, self.go_on)
                await self.stalled.wait()
                await self.pass_gate()
            case "die":
                self.crash()
                raise asyncio.CancelledError
            case _:
                raise StoreDown("the store went away inside a step")

    # what it does

    def lead(self, host: str) -> bool:
        """Try to lead a host; false when that is under way already."""
        if self.dead or host in self._rounds:
            return False
        task = self._ground.loop.create_task(self._round(host))
        self._rounds[host] = task
        task.add_done_callback(lambda _: self._rounds.pop(host, None))
        self._ground.loop.settle()
        return True

    def step(self, host: str) -> bool:
        """Take one step as the leader of a host; false when it is none, or still in the last one."""
        leading = self.leading.get(host)
        if leading is None or leading.task is not None or self.frozen:
            return False
        leading.task = self._ground.loop.create_task(self._one_step(leading))
        self._ground.loop.settle()
        return True

    def keep_schedules(self) -> None:
        """Make the orders of schedules whose ticks have come, if nobody else does."""
        if self.dead or self.frozen or SCHEDULES in self._rounds:
            return
        task = self._ground.loop.create_task(self._keep_once())
        self._rounds[SCHEDULES] = task
        task.add_done_callback(lambda _: self._rounds.pop(SCHEDULES, None))
        self._ground.loop.settle()

    async def _keep_once(self) -> None:
        try:
            hold = await self._held(SCHEDULES)
            if hold is not None:
                await ScheduleStep(self._world, hold, f"leader:{self.instance}").step()
        except (Deposed, StoreDown):
            pass
        except Exception as error:  # noqa: BLE001  the controller survives it; the simulator tells it
            self._ground.broken(f"keeping schedules failed: {error!r}")
        finally:
            self.trap = None

    def freeze(self) -> None:
        self._thawed = self._thawed or asyncio.Event()

    @property
    def frozen(self) -> bool:
        return self._thawed is not None

    def thaw(self) -> None:
        """Go on: with what it was doing, or first with its leases, as chance has it."""
        thawed, self._thawed = self._thawed, None
        if thawed is not None:
            thawed.set()

    def go_on(self) -> None:
        """Let a stalled step continue."""
        stalled, self.stalled = self.stalled, None
        if stalled is not None:
            stalled.set()

    def crash(self) -> None:
        """Gone, with its calls in flight and nothing said."""
        self.dead = True
        self.deafen()
        for leading in list(self.leading.values()):
            if leading.task is not None:
                leading.task.cancel()
        for task in list(self._rounds.values()):
            task.cancel()
        self.thaw_quietly()

    def thaw_quietly(self) -> None:
        """Let everything that waits notice that it is dead."""
        for event in (self._thawed, self.stalled):
            if event is not None:
                event.set()

    def resign(self, host: str) -> None:
        """Stop leading a host in good order."""
        leading = self.leading.get(host)
        if leading is not None and not leading.over.done():
            leading.over.set_result(None)
            self._ground.loop.settle()

    def renew(self) -> None:
        """Prolong its leases, as the task of its own does."""
        if self.frozen or self.cut_off() or not self._holds:
            return
        sent_at, config = self.clock.monotonic(), self._world.config
        held = at_once(self._ground.store.renew_leases(self.instance, list(self._holds), config.lease_ms))
        self.clock.steady = True
        if self._ground.fault("lost answer") is not None:
            return
        epochs = {lease.host: lease.epoch for lease in held}
        for name, hold in list(self._holds.items()):
            if epochs.get(name) == hold.epoch:
                hold.renewed(sent_at, config.lease_ms)
            else:
                hold.give_up()
        for leading in self.leading.values():
            if leading.hold.lost and leading.task is None and not leading.over.done():
                leading.over.set_result(None)

    def _renew_later(self) -> None:
        if not self.dead:
            self._ground.loop.call_later(3.0, self._renew_in_time)

    def _renew_in_time(self) -> None:
        self._renew_later()
        if not self.dead:
            self.renew()

    async def _round(self, host: str) -> None:
        """What the controller does in each of its rounds, once."""
        try:
            await self._lead_once(host, self._world.drivers[host])
        except Unreachable as error:
            await self._note_unreachable(host, str(error))
        except (Deposed, StoreDown):
            pass
        except Exception as error:  # noqa: BLE001  the controller survives it; the simulator tells it
            self._ground.broken(f"leading {host} failed: {error!r}")
        self.trap = None
        if not self.dead:
            await self._resign([host])

    async def _repeat(self, step: HostStep, hold: Hold, wake: asyncio.Event) -> None:
        leading = Leading(step, hold, self._ground.loop.create_future())
        self.leading[hold.host] = leading
        try:
            await leading.over
        finally:
            del self.leading[hold.host]
            if leading.task is not None:
                leading.task.cancel()

    async def _one_step(self, leading: Leading) -> None:
        ground, began_at = self._ground, self._ground.loop.ms
        end: Any = None
        try:
            await leading.step.step()
            ground.stepped(leading.hold.host, began_at)
        except StoreDown:
            pass
        except (Deposed, Unreachable) as error:
            end = error
        except Exception as error:  # noqa: BLE001  the controller survives it; the simulator tells it
            ground.broken(f"the step of {leading.hold.host} failed: {error!r}")
        finally:
            leading.task = self.trap = None
        if leading.over.done():
            return
        if end is not None:
            leading.over.set_exception(end)
        elif leading.hold.lost:
            leading.over.set_result(None)


_SEAL = Seal(b"k" * 32)
