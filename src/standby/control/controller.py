"""Leads the hosts this instance can reach: takes their leases, repeats their steps, and resigns when it stops."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import structlog

from standby.control.apply import apply_config
from standby.control.host import HostStep
from standby.control.housekeeping import Housekeeping
from standby.control.lease import Deposed, Hold
from standby.control.logs import LogStep
from standby.control.looks import another_platform
from standby.control.schedules import REST_S, ScheduleStep
from standby.core import places
from standby.core.errors import Unreachable
from standby.core.model import Trigger
from standby.drivers.contract import Driver, Logs, Watch
from standby.store.contract import StoreDown
from standby.world import StoreClock, World, within

log = structlog.get_logger()

GLOBAL = "*"
"""The lease of the steps that belong to no host."""
SCHEDULES = "*schedules"
"""The lease of the step that makes the orders of schedules."""
BACKOFF_MAX_S = 5.0
CALLS_GRACE_S = 3.0
ANCHOR_S = 60.0
"""How often the store is asked for the time, because two clocks drift apart."""


class Controller:
    """All background work of one instance."""

    def __init__(self, world: World, instance: str) -> None:
        self._world = world
        self.instance = instance
        self._holds: dict[str, Hold] = {}
        self._stopping = asyncio.Event()
        self._wakes: set[asyncio.Event] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then stop claiming, finish the step, resign, and leave the work running."""
        stopped = asyncio.create_task(self._stop_with(stop))
        try:
            if await self._anchor() and await self._patiently(lambda: apply_config(self._world)):
                await self._work(stopped)
        finally:
            stopped.cancel()

    async def _stop_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping.set()
        for wake in self._wakes:
            wake.set()

    async def _work(self, stopped: asyncio.Task[None]) -> None:
        tasks = [
            asyncio.create_task(self._renew(), name="renew"),
            asyncio.create_task(self._keep_house(), name="housekeeping"),
            asyncio.create_task(self._keep_schedules(), name="schedules"),
            *(asyncio.create_task(self._lead(name, driver), name=name) for name, driver in self._world.drivers.items()),
        ]
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        for wake in self._wakes:
            wake.set()
        _, late = await asyncio.wait(tasks, timeout=self._world.config.shutdown_grace_ms / 1000)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self._resign([GLOBAL, SCHEDULES, *self._world.drivers])
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    # leases

    async def _renew(self) -> None:
        """Prolong every lease, undisturbed by slow steps; what is no longer ours is given up."""
        clock, config = self._world.clock, self._world.config
        anchored_at = clock.monotonic()
        while not await self._pause(config.renew_ms / 1000):
            sent_at = clock.monotonic()
            try:
                held = await self._world.store.renew_leases(self.instance, list(self._holds), config.lease_ms)
                if not clock.steady or sent_at - anchored_at > ANCHOR_S:
                    await self._anchor()
                    anchored_at = sent_at
            except StoreDown as error:
                log.warning("leases could not be renewed", error=str(error))
                continue
            renewed = {lease.host: lease for lease in held}
            for name, hold in list(self._holds.items()):
                lease = renewed.get(name)
                if lease is not None and lease.epoch == hold.epoch:
                    hold.renewed(sent_at, config.lease_ms)
                else:
                    hold.give_up()

    async def _renew_now(self, hold: Hold) -> None:
        sent_at = self._world.clock.monotonic()
        ttl_ms = self._world.config.lease_ms
        if not await self._world.store.renew_leases(self.instance, [hold.host], ttl_ms):
            raise Deposed(f"the lease of host {hold.host} ended before it was led")
        hold.renewed(sent_at, ttl_ms)

    async def _take(self, name: str) -> tuple[Hold, int | None] | None:
        """Try to lead; with since when nobody did (null: it was never led, or never lost)."""
        sent_at = self._world.clock.monotonic()
        ttl_ms = self._world.config.lease_ms
        taken = await self._world.store.take_lease(name, self.instance, ttl_ms)
        if taken is None:
            return None
        lease, before = taken
        hold = Hold(self._world.clock, lease, sent_at, ttl_ms)
        return hold, None if before is None else before.renewed_at

    async def _resign(self, names: list[str]) -> None:
        """Let others lead at once; a store that is down lets them when the leases end."""
        for name in names:
            self._holds.pop(name, None)
        with contextlib.suppress(StoreDown):
            await self._world.store.resign_leases(self.instance, names)

    # hosts

    async def _lead(self, name: str, driver: Driver) -> None:
        """Lead this host whenever it can be reached and nobody else does."""
        try:
            while not self._stopping.is_set():
                try:
                    await self._lead_once(name, driver)
                except Deposed as error:
                    log.warning("deposed", host=name, reason=str(error))
                except Unreachable as error:
                    log.warning("host cannot be reached", host=name, error=str(error))
                    await self._note_unreachable(name, str(error))
                except StoreDown as error:
                    log.warning("store is down", host=name, error=str(error))
                except Exception:
                    # one host's fault must not end the others: it is led anew, from what the rows and a look say
                    log.exception("leading a host failed", host=name)
                    await self._resign([name])
                    await self._pause(self._jittered(BACKOFF_MAX_S))
                await self._resign([name])
                await self._pause(self._jittered(self._world.config.poll_ms / 1000))
        finally:
            await driver.close()

    async def _lead_once(self, name: str, driver: Driver) -> None:
        host = await self._world.store.host(name)
        assert host is not None, f"host {name} was never applied"
        await driver.open()
        identity = await driver.identity()
        if host.identity not in (None, identity):
            raise Unreachable(another_platform(host, identity))
        taken = await self._take(name)
        if taken is None:
            return
        hold, blocked_since = taken
        wake = asyncio.Event()
        step = HostStep(self._world, driver, hold, f"leader:{self.instance}", wake.set)
        log.info("leads host", host=name, epoch=hold.epoch)
        async with contextlib.AsyncExitStack() as stack:
            self._wakes.add(wake)
            stack.callback(self._wakes.discard, wake)
            stack.callback(self._world.store.listen(step.hint))
            if isinstance(driver, Watch) and self._world.config.hints:
                stack.push_async_callback(_ended, asyncio.create_task(_watch(driver, step.stirred)))
            if isinstance(driver, Logs):
                stack.push_async_callback(_ended, asyncio.create_task(self._carry_logs(driver, hold, step)))
            stack.push_async_callback(step.close, CALLS_GRACE_S)
            stack.callback(self._world.arrivals.join(step.take_in))
            await step.lead(identity, blocked_since)
            # renewed only from here on: until now nobody led, and the next leader must be able to see that
            self._holds[name] = hold
            await self._renew_now(hold)
            await self._repeat(step, hold, wake)

    async def _repeat(self, step: HostStep, hold: Hold, wake: asyncio.Event) -> None:
        backoff_s = 0.0
        while not self._stopping.is_set() and not hold.lost:
            wake.clear()
            try:
                wait_s = await step.step()
                backoff_s = 0.0
            except StoreDown as error:
                backoff_s = min(max(0.1, backoff_s * 2), BACKOFF_MAX_S)
                log.warning("step without a store", host=hold.host, error=str(error), again_in_s=backoff_s)
                await self._pause(self._jittered(backoff_s))
                continue
            if wait_s > 0:
                rest = asyncio.get_running_loop().call_later(self._jittered(wait_s), wake.set)
                await wake.wait()
                rest.cancel()
            else:
                await asyncio.sleep(0)

    async def _carry_logs(self, driver: Logs, hold: Hold, leader: HostStep) -> None:
        config = self._world.config
        step = LogStep(self._world.store, driver, config.log_cap_mb * 2**20)
        leader.tell_ends(step.ended)
        try:
            while not hold.lost:
                try:
                    if await step.step():
                        continue
                except (Unreachable, StoreDown) as error:
                    log.info("logs wait", host=hold.host, error=str(error))
                    step = LogStep(self._world.store, driver, config.log_cap_mb * 2**20)
                    leader.tell_ends(step.ended)
                except Exception:
                    # a log that cannot be read must not end the run it belongs to; nothing is forgotten meanwhile
                    log.exception("log step failed", host=hold.host)
                await asyncio.sleep(config.log_poll_ms / 1000)
        except asyncio.CancelledError:
            await self._close_logs(step, hold)
            raise

    async def _close_logs(self, step: LogStep, hold: Hold) -> None:
        try:
            async with asyncio.timeout(CALLS_GRACE_S):
                await step.close()
        except (Unreachable, TimeoutError) as error:
            log.info("logs are left to the next leader", host=hold.host, error=str(error))
        except Exception:
            log.exception("log step failed", host=hold.host)

    async def _note_unreachable(self, name: str, error: str) -> None:
        """Say on the host's row why nobody leads it, unless somebody does."""
        try:
            leases = {lease.host: lease for lease in await self._world.store.leases()}
            lease = leases.get(name)
            host = await self._world.store.host(name)
            led = lease is not None and lease.until > self._world.clock.now() and lease.owner != self.instance
            if host is None or led or host.error == error:
                return
            cause = self._world.cause(Trigger.LOOK, f"instance:{self.instance}")
            await self._world.store.save([places.host_unreachable(cause, host, error)])
        except StoreDown:
            pass

    # the rest

    async def _keep_house(self) -> None:
        """Global steps, done by whichever instance holds their lease."""
        house = Housekeeping(self._world)
        while not await self._pause(self._jittered(house.every_s)):
            try:
                if await self._held(GLOBAL) is not None:
                    await house.step()
            except StoreDown as error:
                log.warning("housekeeping without a store", error=str(error))
            except Exception:
                # what is pruned too late harms nobody
                log.exception("keeping house failed")

    async def _keep_schedules(self) -> None:
        """Make the orders of schedules when their ticks come."""
        wait_s = 0.0
        while not await self._pause(wait_s):
            wait_s = self._jittered(REST_S)
            try:
                hold = await self._held(SCHEDULES)
                if hold is not None:
                    wait_s = await ScheduleStep(self._world, hold, f"leader:{self.instance}").step()
            except (Deposed, StoreDown) as error:
                log.warning("schedules wait", error=str(error))
            except Exception:
                # one schedule's fault must not end the hosts' work; it is looked at again, from what the rows say
                log.exception("keeping schedules failed")

    async def _held(self, name: str) -> Hold | None:
        """The lease of a global step, taken if it is free; null when another instance has it."""
        hold = self._holds.get(name)
        if hold is None or hold.lost:
            taken = await self._take(name)
            if taken is None:
                return None
            hold = self._holds[name] = taken[0]
        return hold

    async def _anchor(self) -> bool:
        clock = self._world.clock
        return not isinstance(clock, StoreClock) or await self._patiently(lambda: clock.anchor(self._world.store))

    async def _patiently(self, attempt: Callable[[], Awaitable[None]]) -> bool:
        """Repeat until the store answers; false when this instance stops before."""
        backoff_s = 0.1
        while True:
            try:
                await attempt()
                return True
            except StoreDown as error:
                log.warning("store is down", error=str(error))
                if await self._pause(self._jittered(backoff_s)):
                    return False
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _pause(self, seconds: float) -> bool:
        """Wait, but not longer than until this instance stops; returns whether it does."""
        return await within(self._stopping, seconds)

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.9 + 0.2 * self._world.chance())


async def _watch(driver: Watch, stirred: Callable[[], None]) -> None:
    """Pass the platform's hints on; without them the poll is enough."""
    while True:
        try:
            async for _ in driver.changes():
                stirred()
        except Unreachable:
            pass
        await asyncio.sleep(0.2 + random.random() * 0.1)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
