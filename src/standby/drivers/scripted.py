"""A platform that does what an order's payload says: for tests, simulation and trying Standby out.

    {"script": {"start_ms": 50, "run_ms": 100, "exit": 0, "log": ["hello"]}}

It has no timers: what a copy is doing is computed from the passed clock at each look.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from standby.core.errors import Unreachable
from standby.core.model import Slot, Warmth
from standby.drivers.contract import (
    CommandRefused,
    Exit,
    LogLine,
    LogPiece,
    Making,
    OpenRun,
    Place,
    Reading,
    Sighting,
    Start,
)
from standby.drivers.scripted_places import Yard
from standby.drivers.scripted_run import ABSENT, FRESH, STOPPED, Copy, planned, script_of

_LINES_A_CALL: Final = 1000
_FORGOTTEN_MS: Final = 5_000


class Forgotten:
    """Runs that are over, kept until no start of them can arrive any more: in two parts, of which the older one is
    dropped as a whole."""

    def __init__(self) -> None:
        self.old: set[str] = set()
        self.new: set[str] = set()
        self._old_until = self._new_until = 0

    def __contains__(self, run_id: str) -> bool:
        return run_id in self.new or run_id in self.old

    def __len__(self) -> int:
        return len(self.new) + len(self.old)

    def add(self, run_ids: Iterable[str], until: int, now: int) -> None:
        """Keep these until then, at least."""
        if now > self._old_until:
            self.old, self._old_until = self.new, self._new_until
            self.new, self._new_until = set(), 0
            if now > self._old_until:
                self.old = set()
        self.new.update(run_ids)
        self._new_until = max(self._new_until, until)


class ScriptedPlatform:
    """The pretended outside world: outlives drivers, as a real one outlives servers, and fences as a keeper does."""

    def __init__(self, identity: str, *, seats: bool = True, name: str | None = None) -> None:
        self.identity = identity
        """Of this very platform: the incarnation of its seats. What it held is gone with it."""
        self.name = name or identity
        """What a host is known by: the next platform of the same name takes its place."""
        self.seats = seats
        self.yard = Yard(identity)
        self.copies: dict[str, Copy] = {}
        self.forgotten = Forgotten()
        self.epoch = 0
        self.unreachable_until = 0
        self.reading: Reading | None = None
        """What is measured on it; null: nothing."""

    def check_reachable(self, now: int) -> None:
        """Raises Unreachable while it cannot be asked."""
        if now < self.unreachable_until:
            raise Unreachable(f"the scripted platform cannot be asked for {self.unreachable_until - now} ms")

    def create(self, slot: Slot, making: Making, now: int) -> str | None:
        """Make the place unless it is there; a seat is nothing, and there at once."""
        if self.seats or making.template.warmth is Warmth.COLD:
            return self.identity
        return self.yard.create(slot, making, now)

    def remove(self, incarnation: str, now: int) -> None:
        """Take exactly this place away, and what runs in it."""
        if self.yard.made.pop(incarnation, None) is None:
            return
        for copy in self.copies.values():
            if copy.incarnation == incarnation and copy.removed_at is None:
                copy.removed_at = now

    def start(self, start: Start, incarnation: str | None, until: int, now: int) -> Copy:
        """Begin the run once; whoever delivers a command late is refused."""
        if start.epoch != self.epoch:
            self._fence(start.epoch)
        copy = self.copies.get(start.run_id)
        if copy is not None:
            return copy
        if start.run_id in self.forgotten.new or start.run_id in self.forgotten.old:
            raise CommandRefused(f"run {start.run_id} is over and was forgotten")
        if now > until:
            raise CommandRefused(f"the start came {now - until} ms too late")
        if incarnation != self.identity:
            if incarnation is None or not self.has(incarnation):
                raise CommandRefused(f"there is no place {incarnation}")
            self.yard.begin(incarnation)
        script = script_of(start.spec.payload)
        copy = self.copies[start.run_id] = Copy(
            run_id=start.run_id,
            order_id=start.order.id,
            incarnation=incarnation,
            script=script,
            commanded_at=now,
            start_until=until,
            planned=planned(script, now),
        )
        if script.unreachable_ms:
            self.unreachable_until = max(self.unreachable_until, now + script.unreachable_ms)
        return copy

    def stop(self, run_id: str, *, force: bool, epoch: int, now: int) -> None:
        """Ask the run to end, or end it; absence is success."""
        self._fence(epoch)
        copy = self.copies.get(run_id)
        if copy is None:
            return
        if force:
            copy.forced_at = now if copy.forced_at is None else copy.forced_at
        else:
            copy.asked_at = now if copy.asked_at is None else copy.asked_at

    def has(self, incarnation: str) -> bool:
        """Whether this place is there."""
        return incarnation == self.identity or incarnation in self.yard.made

    def alive(self, now: int) -> list[Copy]:
        """All copies that are really alive."""
        return [copy for copy in self.copies.values() if copy.alive(now)]

    def forget(self, run_ids: Sequence[str], now: int) -> list[str]:
        """Drop ended copies: their ids are refused for as long as a start of them could still be on its way. Returns
        those that are alive, and stay."""
        live, over, until = list[str](), list[str](), now
        for run_id in run_ids:
            copy = self.copies.get(run_id)
            if copy is None:
                continue
            if copy.alive(now):
                live.append(run_id)
                continue
            del self.copies[run_id]
            over.append(run_id)
            if copy.start_until > until:
                until = copy.start_until
        self.forgotten.add(over, until + _FORGOTTEN_MS, now)
        return live

    def _fence(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise CommandRefused(f"epoch {epoch} is not the newest leader's ({self.epoch})")
        self.epoch = epoch


async def _pause() -> None:
    await asyncio.sleep(0.05)


class ScriptedDriver:
    """Driver, Logs, Gauge, Places, Images and Caption for a scripted platform."""

    def __init__(
        self,
        platform: ScriptedPlatform,
        *,
        now: Callable[[], int],
        lag_ms: int = 0,
        pause: Callable[[], Awaitable[None]] = _pause,
        reading_file: Path | None = None,
    ) -> None:
        self.platform, self._pause, self._reading_file = platform, pause, reading_file
        self.lag_ms = lag_ms
        self.seats = platform.seats
        self._now = now

    def _reached(self) -> int:
        """The time; raises Unreachable while the platform cannot be asked."""
        now = self._now()
        self.platform.check_reachable(now)
        return now

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """The platform stays as it is."""

    async def identity(self) -> str:
        """The platform's name."""
        self._reached()
        return self.platform.name

    async def create(self, slot: Slot, making: Making) -> str | None:
        """Make the place, or nothing where places are seats."""
        return self.platform.create(slot, making, self._reached())

    async def start(self, slot: Slot, start: Start) -> Sighting:
        """Begin what the payload says."""
        now = self._now()
        if now < self.platform.unreachable_until:
            self.platform.check_reachable(now)
        incarnation = start.order.incarnation or slot.incarnation
        copy = self.platform.start(start, incarnation, now + start.valid_for_ms, now)
        if copy.script.unreachable_ms:
            self.platform.check_reachable(now)
        return self._sighting(copy, now)

    async def stop(self, slot: Slot, run_id: str, incarnation: str, *, force: bool, epoch: int) -> None:
        """Ask or force; a run of another incarnation is left alone."""
        now = self._reached()
        copy = self.platform.copies.get(run_id)
        if copy is None or copy.incarnation == incarnation:
            self.platform.stop(run_id, force=force, epoch=epoch, now=now)

    async def remove(self, slot: Slot) -> None:
        """Take the place away; a seat is nothing."""
        now = self._reached()
        place = self.platform.yard.named(slot)
        if place is not None:
            self.platform.remove(place.incarnation, now)

    async def places(self) -> Sequence[Place]:
        """All places there are."""
        return list(self.platform.yard.listed(self._reached()))

    async def remove_stray(self, place: Place) -> None:
        """Take exactly this one away."""
        self.platform.remove(place.incarnation, self._reached())

    async def has_image(self, image: str) -> bool:
        """Whether it is there."""
        self._reached()
        return self.platform.yard.images is None or image in self.platform.yard.images

    def pull(self, image: str) -> AsyncIterator[str]:
        """Get it, in the time that the platform says."""
        self._reached()
        return self.platform.yard.pull(image, self._now, self._pause)

    async def measure(self) -> Reading:
        """What the platform, or the file that stands for it, says."""
        self._reached()
        if self.platform.reading is not None or self._reading_file is None:
            return self.platform.reading or Reading()
        try:
            return msgspec.json.decode(self._reading_file.read_bytes(), type=Reading)
        except (OSError, msgspec.MsgspecError):
            return Reading()

    async def caption(self, slot: Slot, text: str) -> None:
        """Keep it for whoever looks."""
        self._reached()
        self.platform.yard.captions[slot.name] = text

    async def observe(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        """One sighting for each run, as late or untrue as its script says."""
        now = self._reached()
        return [self._observe(run, now) for run in runs]

    async def logs(self, cursors: Mapping[str, str]) -> Sequence[LogPiece]:
        """The script's lines from the cursor (a number of lines) on, once it is ready."""
        now = self._reached()
        return [self._log(run_id, cursor, now) for run_id, cursor in cursors.items()]

    async def unstored(self) -> Sequence[str]:
        """All copies that were not forgotten."""
        self._reached()
        return list(self.platform.copies)

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop ended copies; raises CommandRefused, naming them, if some are alive."""
        live = self.platform.forget(run_ids, self._reached())
        if live:
            raise CommandRefused(f"still alive: {', '.join(live)}")

    def _observe(self, run: OpenRun, now: int) -> Sighting:
        copy = self.platform.copies.get(run.run_id)
        if copy is not None and copy.incarnation == run.incarnation:
            return self._sighting(copy, now)
        fresh = self.platform.has(run.incarnation) and run.run_id not in self.platform.forgotten
        seen = FRESH if fresh else ABSENT
        return Sighting(run_id=run.run_id, incarnation=run.incarnation, seen=seen, asked_at=now)

    def _sighting(self, copy: Copy, now: int) -> Sighting:
        seen, exit_ = copy.look(now - copy.script.report_late_ms)
        if (lie := copy.script.lie) is not None and copy.lies(now):
            seen, exit_ = lie, Exit(lost=True) if lie is STOPPED else None
        handle = None if seen is FRESH or seen is ABSENT else f"scripted:{copy.run_id}"
        return Sighting(
            run_id=copy.run_id, incarnation=copy.incarnation, seen=seen, asked_at=now, handle=handle, exit=exit_
        )

    def _log(self, run_id: str, cursor: str, now: int) -> LogPiece:
        copy = self.platform.copies.get(run_id)
        if copy is None:
            return LogPiece(run_id=run_id, lines=(), cursor=cursor, closed=True)
        first = int(cursor or 0)
        began = copy.began(now)
        texts = copy.script.log[first : first + _LINES_A_CALL] if began else ()
        lines = [LogLine(at=copy.ready_at, stream="stdout", text=text) for text in texts]
        rest = len(copy.script.log) - first - len(lines) if began else 0
        return LogPiece(
            run_id=run_id, lines=lines, cursor=str(first + len(lines)), closed=rest == 0 and not copy.alive(now)
        )
