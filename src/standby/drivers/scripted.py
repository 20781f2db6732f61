"""A platform that does what an order's payload says: for tests, simulation and trying Standby out.

    {"script": {"start_ms": 50, "run_ms": 100, "exit": 0, "log": ["hello"]}}

It has no timers: what a copy is doing is computed from the passed clock at each look.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from standby.core.errors import Refused, Unreachable
from standby.core.model import Slot
from standby.drivers.contract import CommandRefused, Exit, LogLine, LogPiece, Making, OpenRun, Seen, Sighting, Start

Ms = Annotated[int, Meta(ge=0)]
End = tuple[int, Exit | None]
_LINES_A_CALL: Final = 1000
_FORGOTTEN_MS: Final = 5_000
_ORDERS_KEPT: Final = 10_000


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shall happen. Lengths are counted from the command, or from ready where that is said."""

    create_ms: Ms = 0
    start_ms: Ms = 0
    """It is ready after create_ms + start_ms."""
    start_error: str | None = None
    """It never gets ready and ends then with this error."""
    run_ms: Ms | None = 0
    """From ready to its end; null: until it is stopped."""
    exit: Annotated[int, Meta(ge=0, le=255)] = 0
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    oom: bool = False
    vanish_after_ms: Ms | None = None
    """From then on nothing of it is there, and nobody knows how it ended."""
    unreachable_ms: Ms = 0
    """For so long nothing can be asked of the whole platform; the start takes effect, its answer is lost."""
    report_late_ms: Ms = 0
    """A look shows it as it was so long ago; honest as long as the driver's lag is not smaller."""
    lie: Seen | None = None
    """What a look says as long as it is alive."""
    ignore_stop: bool = False
    """Only force ends it."""
    stop_ms: Ms = 0
    """From the asking to its end."""
    log: tuple[str, ...] = ()
    """Its output, all of it when it is ready."""


def parse(payload: str) -> Script:
    """The script in a payload, or the default one if there is none; raises Refused with the place of the mistake."""
    try:
        value = msgspec.json.decode(payload)
        script = value.get("script", {}) if isinstance(value, dict) else {}
        return msgspec.convert(script, Script)
    except msgspec.ValidationError as error:
        raise Refused(f"payload.script: {error}") from error
    except msgspec.DecodeError as error:
        raise Refused(f"the payload is not JSON: {error}") from error


class Copy(Struct, kw_only=True):
    """One run on the platform."""

    run_id: str
    order_id: str
    incarnation: str
    script: Script
    commanded_at: int
    start_until: int
    """Until when its start may arrive once more."""
    planned: End | None
    """When and how it ends if nobody interferes."""
    asked_at: int | None = None
    forced_at: int | None = None
    removed_at: int | None = None

    @property
    def ready_at(self) -> int:
        return self.commanded_at + self.script.create_ms + self.script.start_ms

    def look(self, at: int) -> tuple[Seen, Exit | None]:
        """What is really the case at that time."""
        if at < self.commanded_at:
            return Seen.FRESH, None
        end = self.end
        if end is not None and end[0] <= at:
            return (Seen.ABSENT, None) if end[1] is None else (Seen.STOPPED, end[1])
        return (Seen.STARTING if at < self.ready_at else Seen.READY), None

    def alive(self, at: int) -> bool:
        return self.look(at)[0] in (Seen.STARTING, Seen.READY)

    def began(self, at: int) -> bool:
        """Whether it was ever ready."""
        end = self.end
        ever = self.script.start_error is None and (end is None or end[0] >= self.ready_at)
        return ever and at >= self.ready_at

    @property
    def end(self) -> End | None:
        """When and how it ends, as things stand; the earliest end counts. No exit means that nothing of it is left."""
        if self.removed_at is self.asked_at is self.forced_at is None:
            return self.planned
        ends = [] if self.planned is None else [self.planned]
        if self.removed_at is not None:
            ends.append((self.removed_at, None))
        if self.forced_at is not None:
            ends.append((self.forced_at, Exit(signal=9)))
        if self.asked_at is not None and not self.script.ignore_stop:
            ends.append((self.asked_at + self.script.stop_ms, Exit(signal=15)))
        return min(ends, key=lambda end: end[0], default=None)


def _planned(script: Script, commanded_at: int) -> End | None:
    """The end that the script itself brings."""
    ready_at = commanded_at + script.create_ms + script.start_ms
    ends: list[End] = []
    if script.vanish_after_ms is not None:
        ends.append((commanded_at + script.vanish_after_ms, None))
    if script.start_error is not None:
        ends.append((ready_at, Exit(start_error=script.start_error)))
    elif script.run_ms is not None:
        ends.append((ready_at + script.run_ms, _natural(script)))
    return min(ends, key=lambda end: end[0], default=None)


def _natural(script: Script) -> Exit:
    if script.oom:
        return Exit(signal=9, oom=True)
    return Exit(signal=script.signal) if script.signal is not None else Exit(code=script.exit)


class ScriptedPlatform:
    """The pretended outside world: outlives drivers, as a real one outlives servers, and fences as a keeper does."""

    def __init__(self, identity: str, *, seats: bool = True, name: str | None = None) -> None:
        self.identity = identity
        """Of this very platform: the incarnation of its seats. What it held is gone with it."""
        self.name = name or identity
        """What a host is known by: the next platform of the same name takes its place."""
        self.seats = seats
        self.refuses_creates = 0
        """How many of the next places cannot be made."""
        self.copies: dict[str, Copy] = {}
        self.forgotten: dict[str, int] = {}
        """Runs that are over, with the time when no start of them can arrive any more: then they are dropped."""
        self.most_copies: dict[str, int] = {}
        """Order id -> the most copies of it that were ever alive at once; of the last orders."""
        self.epoch = 0
        self.unreachable_until = 0
        self._places: dict[str, str] = {}
        self._used_by: dict[str, str] = {}
        self._copies_of: dict[str, list[Copy]] = {}
        self._forgotten: deque[str] = deque()
        self._made = 0

    def check_reachable(self, now: int) -> None:
        """Raises Unreachable while it cannot be asked."""
        if now < self.unreachable_until:
            raise Unreachable(f"the scripted platform cannot be asked for {self.unreachable_until - now} ms")

    def create(self, name: str) -> str:
        """Make the place unless it is there."""
        if self.seats:
            return self.identity
        if name not in self._places:
            if self.refuses_creates > 0:
                self.refuses_creates -= 1
                raise CommandRefused("the script says that this place cannot be made")
            self._made += 1
            self._places[name] = f"{self.identity}:{name}:{self._made}"
        return self._places[name]

    def remove(self, name: str, incarnation: str | None, now: int) -> None:
        """Take exactly this place away, and what runs in it."""
        if self._places.get(name) != incarnation or incarnation is None:
            return
        del self._places[name]
        copy = self.copies.get(self._used_by.pop(incarnation, ""))
        if copy is not None and copy.removed_at is None:
            copy.removed_at = now

    def start(self, start: Start, incarnation: str | None, until: int, now: int) -> Copy:
        """Begin the run once; whoever delivers a command late is refused."""
        self._fence(start.epoch)
        copy = self.copies.get(start.run_id)
        if copy is not None:
            return copy
        if start.run_id in self.forgotten:
            raise CommandRefused(f"run {start.run_id} is over and was forgotten")
        if now > until:
            raise CommandRefused(f"the start came {now - until} ms too late")
        if incarnation is None or not self.has(incarnation):
            raise CommandRefused(f"there is no place {incarnation}")
        if not self.seats and incarnation in self._used_by:
            raise CommandRefused(f"{incarnation} was used before")
        return self._begin(start, incarnation, until, now)

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
        return incarnation == self.identity if self.seats else incarnation in self._places.values()

    def alive(self, now: int) -> list[Copy]:
        """All copies that are really alive."""
        return [copy for copy in self.copies.values() if copy.alive(now)]

    def forget(self, run_id: str, now: int) -> None:
        """Drop an ended copy. Its id is refused for as long as a start of it could still be on its way."""
        copy = self.copies.pop(run_id)
        mine = self._copies_of[copy.order_id]
        mine.remove(copy)
        if not mine:
            del self._copies_of[copy.order_id]
        self.forgotten[run_id] = max(now, copy.start_until) + _FORGOTTEN_MS
        self._forgotten.append(run_id)
        while self.forgotten[self._forgotten[0]] < now:
            del self.forgotten[self._forgotten.popleft()]

    def _fence(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise CommandRefused(f"epoch {epoch} is not the newest leader's ({self.epoch})")
        self.epoch = epoch

    def _begin(self, start: Start, incarnation: str, until: int, now: int) -> Copy:
        try:
            script = parse(start.spec.payload)
        except Refused as mistake:
            script = Script(start_error=str(mistake))
        order_id = start.order.id
        copy = Copy(
            run_id=start.run_id,
            order_id=order_id,
            incarnation=incarnation,
            script=script,
            commanded_at=now,
            start_until=until,
            planned=_planned(script, now),
        )
        self.copies[start.run_id] = copy
        self._used_by[incarnation] = start.run_id
        self.unreachable_until = max(self.unreachable_until, now + script.unreachable_ms)
        mine = self._copies_of.setdefault(order_id, [])
        mine.append(copy)
        self.most_copies[order_id] = max(sum(each.alive(now) for each in mine), self.most_copies.get(order_id, 0))
        if len(self.most_copies) > _ORDERS_KEPT:
            self.most_copies = dict(islice(self.most_copies.items(), _ORDERS_KEPT // 2, None))
        return copy


class ScriptedDriver:
    """Driver and Logs for a scripted platform."""

    def __init__(self, platform: ScriptedPlatform, *, now: Callable[[], int], lag_ms: int = 0) -> None:
        self.platform = platform
        self.lag_ms = lag_ms
        self.seats = platform.seats
        self._now = now

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """The platform stays as it is."""

    async def identity(self) -> str:
        """The platform's name."""
        self.platform.check_reachable(self._now())
        return self.platform.name

    async def create(self, slot: Slot, making: Making) -> str:
        """Make the place, or nothing where places are seats."""
        self.platform.check_reachable(self._now())
        return self.platform.create(slot.name)

    async def start(self, slot: Slot, start: Start) -> Sighting:
        """Begin what the payload says."""
        now = self._now()
        self.platform.check_reachable(now)
        incarnation = start.order.incarnation or slot.incarnation
        copy = self.platform.start(start, incarnation, now + start.valid_for_ms, now)
        self.platform.check_reachable(now)
        return self._sighting(copy, now)

    async def stop(self, slot: Slot, run_id: str, incarnation: str, *, force: bool, epoch: int) -> None:
        """Ask or force; a run of another incarnation is left alone."""
        now = self._now()
        self.platform.check_reachable(now)
        copy = self.platform.copies.get(run_id)
        if copy is None or copy.incarnation == incarnation:
            self.platform.stop(run_id, force=force, epoch=epoch, now=now)

    async def remove(self, slot: Slot) -> None:
        """Take the place away; a seat is nothing."""
        now = self._now()
        self.platform.check_reachable(now)
        self.platform.remove(slot.name, slot.incarnation, now)

    async def observe(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        """One sighting for each run, as late or untrue as its script says."""
        now = self._now()
        self.platform.check_reachable(now)
        return [self._observe(run, now) for run in runs]

    async def logs(self, cursors: Mapping[str, str]) -> Sequence[LogPiece]:
        """The script's lines from the cursor (a number of lines) on, once it is ready."""
        now = self._now()
        self.platform.check_reachable(now)
        return [self._log(run_id, cursor, now) for run_id, cursor in cursors.items()]

    async def unstored(self) -> Sequence[str]:
        """All copies that were not forgotten."""
        self.platform.check_reachable(self._now())
        return list(self.platform.copies)

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop ended copies; raises CommandRefused, naming them, if some are alive."""
        now = self._now()
        self.platform.check_reachable(now)
        copies = self.platform.copies
        live = [run_id for run_id in run_ids if run_id in copies and copies[run_id].alive(now)]
        for run_id in run_ids:
            if run_id in copies and run_id not in live:
                self.platform.forget(run_id, now)
        if live:
            raise CommandRefused(f"still alive: {', '.join(live)}")

    def _observe(self, run: OpenRun, now: int) -> Sighting:
        copy = self.platform.copies.get(run.run_id)
        if copy is not None and copy.incarnation == run.incarnation:
            return self._sighting(copy, now)
        fresh = self.platform.has(run.incarnation) and run.run_id not in self.platform.forgotten
        seen = Seen.FRESH if fresh else Seen.ABSENT
        return Sighting(run_id=run.run_id, incarnation=run.incarnation, seen=seen, asked_at=now)

    def _sighting(self, copy: Copy, now: int) -> Sighting:
        seen, exit_ = copy.look(now - copy.script.report_late_ms)
        if copy.script.lie is not None and copy.alive(now):
            seen, exit_ = copy.script.lie, Exit(lost=True) if copy.script.lie is Seen.STOPPED else None
        handle = None if seen in (Seen.FRESH, Seen.ABSENT) else f"scripted:{copy.run_id}"
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
