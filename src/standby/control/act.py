"""The hands: driver calls, launched and never awaited by the step. At most one a slot is in flight."""

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator, Mapping

import structlog
from msgspec.structs import replace

from standby.control.lease import Hold
from standby.control.looks import NUL
from standby.core.errors import Unreachable
from standby.core.model import Order, Slot, order_of, run_id
from standby.core.sighting import Exit, Seen, Sighting
from standby.drivers.contract import CommandRefused, Driver, Making, Resets, Start
from standby.store.contract import Work
from standby.world import Clock

log = structlog.get_logger()

CALL_TIMEOUT_S = 60.0
"""How long an answer is waited for; making a place may take as long as its pool says, and this more."""
READY_POLL_S = 0.1
"""How often a place that was made is asked whether it is ready."""
ASK_AGAIN_S = 5.0
"""A stop that was asked (or forced) is repeated after this, in case it was lost."""
STUCK_S = 10
"""A place that could not be taken away for so long tells why, and not more often than that if the reason changes."""


class Made:
    """What became of creating, cleaning or removing a slot: an incarnation, an error (it goes on being removed, if it
    was), or neither (it is gone)."""

    def __init__(self, slot: Slot, incarnation: str | None, error: str | None) -> None:
        self.slot, self.incarnation, self.error = slot, incarnation, error and error.replace(NUL, "")


class Hands:
    """Launches driver calls for one leader and collects what they report until the next step asks."""

    def __init__(self, driver: Driver, hold: Hold, clock: Clock, wake: Callable[[], None]) -> None:
        self._driver, self._hold, self._clock, self.wake = driver, hold, clock, wake
        self._resets = driver if isinstance(driver, Resets) else None
        self._calls: dict[str, tuple[asyncio.Task[None], float, float]] = {}
        """By slot: the call, since when, and how long it may take."""
        self._not_ready: dict[str, float] = {}
        """Places that were made and were not ready then, and when that was."""
        self._stuck: dict[str, float] = {}
        """Slots whose place could not be taken away, and since when nothing was told of that."""
        self._stops_sent: dict[tuple[str, bool], float] = {}
        self._loop = asyncio.get_running_loop()  # to ask for it each time is a call of the kernel
        self.heard: list[Sighting] = []
        """What answers said of runs since the last report."""
        self._made: list[Made] = []
        self._unanswered: dict[str, str] = {}
        """Calls without an answer, and what was said about them last."""

    def reports(self) -> tuple[list[Sighting], list[Made]]:
        """What came back since the last time."""
        sightings, made = self.heard, self._made
        self.heard, self._made = [], []
        return sightings, made

    def start(self, run: str, work: Work, slot: Slot, env: Mapping[str, str], making: Making) -> None:
        """Send a saved command, if there is still time and the lease outlives it."""
        self._launch(slot.name, self._start(run, work, slot, env, making), guarded=True)

    def cannot_start(self, order: Order, why: str) -> None:
        """Report a start that was never sent, because what it needs cannot be had."""
        assert order.incarnation is not None
        never = Exit(start_error=why)
        now = self._clock.now()
        self.heard.append(
            Sighting(run_id=run_id(order), incarnation=order.incarnation, seen=Seen.STOPPED, asked_at=now, exit=never)
        )
        self.wake()

    def stop(self, order: Order, slot: Slot, *, force: bool, resident: bool = False) -> None:
        """Ask or force, again only after a while. A resident worker is asked by the answer to its heartbeat, and forced
        by taking its place away, or ending what is in it where a used place is made clean again."""
        if resident and not force:
            return
        key = (run_id(order), force)
        if self._stops_sent.get(key, float("-inf")) + ASK_AGAIN_S > self._clock.monotonic():
            return
        away = resident and self._resets is None
        if self._launch(slot.name, self._take_away(slot) if away else self._stop(order, slot, force)):
            self._stops_sent[key] = self._clock.monotonic()

    def make(self, slot: Slot, making: Making, limit_ms: int) -> None:
        """Create the place; what was there before (`slot.incarnation`) is taken away first, or reset."""
        if (
            not self._told(slot)
            and self._not_ready.get(slot.name, float("-inf")) + READY_POLL_S <= self._clock.monotonic()
        ):
            self._launch(slot.name, self._make(slot, making), limit_ms / 1000 + CALL_TIMEOUT_S)

    def remove(self, slot: Slot) -> None:
        """Take the place away; a call that still makes it is waited for no longer than any other."""
        if self._told(slot):
            return
        call = self._calls.get(slot.name)
        if call is not None and call[1] <= self._clock.monotonic() - CALL_TIMEOUT_S:
            call[0].cancel()
        self._launch(slot.name, self._remove(slot))

    def _told(self, slot: Slot) -> bool:
        """Whether the answer is there and only waits for the next step: asking again would be in the way of a start."""
        return any(made.slot.name == slot.name for made in self._made)

    def beside(self, key: str, call: Coroutine[None, None, None]) -> bool:
        """A call that belongs to no slot, one for each key at a time; false when one is under way."""
        if not self._hold.outlives(0):
            call.close()
            return False
        return self._launch(f"({key})", call)

    def tidy(self, opened: Container[str]) -> None:
        """Drop what is remembered of orders that are over, and stop waiting for calls that take too long."""
        if self._stops_sent:
            self._stops_sent = {key: at for key, at in self._stops_sent.items() if order_of(key[0]) in opened}
        now = self._clock.monotonic()
        if self._not_ready:
            self._not_ready = {slot: at for slot, at in self._not_ready.items() if at > now - CALL_TIMEOUT_S}
        # they stand in the order in which they were launched, and none may take less than the shortest time
        if not self._calls or next(iter(self._calls.values()))[1] > now - CALL_TIMEOUT_S:
            return
        for slot, (call, since, limit_s) in self._calls.items():
            if since <= now - limit_s:
                log.info("driver call without an answer", slot=slot, error=f"nothing for {limit_s:.0f} s")
                call.cancel()

    async def close(self, grace_s: float) -> None:
        """Let calls under way finish for a moment, then stop waiting for their answers."""
        calls = [call for call, _, _ in self._calls.values()]
        if calls:
            _, late = await asyncio.wait(calls, timeout=grace_s)
            for call in late:
                call.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _launch(
        self, slot: str, call: Coroutine[None, None, None], limit_s: float = CALL_TIMEOUT_S, *, guarded: bool = False
    ) -> bool:
        """Have it made; one that is not `guarded` does not tell how it went by itself."""
        if slot in self._calls:
            call.close()
            return False
        # made directly, with a name: the loop would have it make one up each time
        task = asyncio.Task(call if guarded else self._guarded(slot, call), loop=self._loop, name=slot)
        self._calls[slot] = task, self._clock.monotonic(), limit_s
        return True

    async def _guarded(self, slot: str, call: Awaitable[None]) -> None:
        try:
            await call
            self._answered(slot)
        except Exception as error:  # noqa: BLE001  it is told
            self._failed(slot, error)
        finally:
            self._over(slot)

    async def _start(self, run: str, work: Work, slot: Slot, env: Mapping[str, str], making: Making) -> None:
        """Guarded in itself: one call in another takes its time, and each run has one."""
        try:
            order = work.order
            assert order.command_until is not None
            left_ms = order.command_until - self._clock.now()
            if left_ms <= 0 or not self._hold.outlives(left_ms):
                return
            command = Start(
                run_id=run,
                order=order,
                spec=work.spec,
                env=env,
                epoch=self._hold.epoch,
                valid_for_ms=left_ms,
                making=making,
            )
            sighting = await self._driver.start(slot, command)
            self.heard.append(sighting)  # to the list that is there now: a step may have taken the one before
            if self._unanswered:
                self._answered(slot.name)
        except Exception as error:  # noqa: BLE001  it is told
            self._failed(slot.name, error)
        finally:
            self._over(slot.name)

    def _answered(self, slot: str) -> None:
        self._unanswered.pop(slot, None)

    def _failed(self, slot: str, error: Exception) -> None:
        """Tell of a call that went wrong: a fault in a driver must not take the host's step with it, the look will
        tell what is true."""
        match error:
            case Unreachable() | TimeoutError():
                if self._unanswered.get(slot) != str(error):  # once: it is asked again in each step
                    log.info("driver call without an answer", slot=slot, error=str(error))
                self._unanswered[slot] = str(error)
            case CommandRefused():
                log.info("driver refused a command", slot=slot, refusal=str(error))
            case _:
                log.error("driver call failed", slot=slot, exc_info=error)

    def _over(self, slot: str) -> None:
        del self._calls[slot]
        if self.heard or self._made:
            self.wake()

    async def _stop(self, order: Order, slot: Slot, force: bool) -> None:
        assert order.incarnation is not None
        if self._hold.outlives(0):
            await self._driver.stop(slot, run_id(order), order.incarnation, force=force, epoch=self._hold.epoch)

    async def _take_away(self, slot: Slot) -> None:
        # the place, and then whatever was made under its name: a create that came late may have made another one
        for each in (slot, replace(slot, incarnation=None)):
            if self._hold.outlives(0):
                await self._driver.remove(each)

    async def _make(self, slot: Slot, making: Making) -> None:
        if not self._hold.outlives(0):
            return
        try:
            if slot.incarnation is not None and self._resets is not None:
                incarnation = await self._resets.reset(slot, making)
            else:
                for old in _before(slot) if self._resets is None else ():
                    await self._driver.remove(old)
                    if not self._hold.outlives(0):  # the answer may have taken long
                        return
                incarnation = await self._driver.create(slot, making)
            if incarnation is None:
                self._not_ready[slot.name] = self._clock.monotonic()
            else:
                self._made.append(Made(slot, incarnation, None))
        except CommandRefused as refusal:
            self._made.append(Made(slot, None, str(refusal)))

    async def _remove(self, slot: Slot) -> None:
        if not self._hold.outlives(0):
            return
        try:
            await self._driver.remove(slot)
        except (Unreachable, CommandRefused) as error:
            self._fails_to_go(slot, str(error))
            raise
        self._stuck.pop(slot.name, None)
        self._made.append(Made(slot, None, None))

    def _fails_to_go(self, slot: Slot, why: str) -> None:
        now, told = self._clock.monotonic(), Made(slot, None, why)
        if self._stuck.setdefault(slot.name, now) + STUCK_S <= now and told.error != slot.error:
            self._stuck[slot.name] = now
            self._made.append(told)


def _before(slot: Slot) -> Iterator[Slot]:
    """What may be there of a slot that is made anew: one that failed had perhaps a place that nobody noted."""
    if slot.incarnation is not None:
        yield slot
    if slot.failures > 0:
        yield replace(slot, incarnation=None, generation=slot.generation - 1)
