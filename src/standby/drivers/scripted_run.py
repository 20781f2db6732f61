"""What an order's payload may script, and a run that does it: what it is doing is computed from the time of a look."""

from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from standby.core.errors import Refused
from standby.drivers.contract import Exit, Seen

Ms = Annotated[int, Meta(ge=0)]
End = tuple[int, Exit | None]

FRESH: Final = Seen.FRESH
ABSENT: Final = Seen.ABSENT
STOPPED: Final = Seen.STOPPED


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, cache_hash=True):
    """What shall happen. Lengths are counted from the command, or from ready where that is said."""

    create_ms: Ms = 0
    start_ms: Ms = 0
    """It is ready after create_ms + start_ms."""
    start_error: str | None = None
    """It never gets ready and ends then with this error."""
    place_failed: bool = False
    """With start_error: its place is to blame."""
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
    lie_after_ms: Ms = 0
    """How long after its start was sent that begins."""
    ignore_stop: bool = False
    """Only force ends it."""
    stop_ms: Ms = 0
    """From the asking to its end."""
    log: tuple[str, ...] = ()
    """Its output, all of it when it is ready."""


@lru_cache(1_000)
def script_of(payload: str) -> Script:
    """What the payload says; one with a mistake never gets ready."""
    try:
        return parse(payload)
    except Refused as mistake:
        return Script(start_error=str(mistake))


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


class Copy(Struct, gc=False, kw_only=True):
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
            return FRESH, None
        end = self.end
        if end is not None and end[0] <= at:
            return (ABSENT, None) if end[1] is None else (STOPPED, end[1])
        return (Seen.STARTING if at < self.ready_at else Seen.READY), None

    def alive(self, at: int) -> bool:
        end = self.end
        return at >= self.commanded_at and (end is None or at < end[0])

    def lies(self, at: int) -> bool:
        """Whether a look says what the script tells it to."""
        return self.alive(at) and at >= self.commanded_at + self.script.lie_after_ms

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


def planned(script: Script, commanded_at: int) -> End | None:
    """The end that the script itself brings."""
    plan = _plan(script)
    return None if plan is None else (commanded_at + plan[0], plan[1])


@lru_cache(1_000)
def _plan(script: Script) -> End | None:
    """The end that the script itself brings, counted from the command."""
    ready_ms = script.create_ms + script.start_ms
    ends: list[End] = []
    if script.vanish_after_ms is not None:
        ends.append((script.vanish_after_ms, None))
    if script.start_error is not None:
        ends.append((ready_ms, Exit(start_error=script.start_error, place_failed=script.place_failed)))
    elif script.run_ms is not None:
        ends.append((ready_ms + script.run_ms, _natural(script)))
    return min(ends, key=lambda end: end[0], default=None)


def _natural(script: Script) -> Exit:
    if script.oom:
        return Exit(signal=9, oom=True)
    code = script.exit if script.signal is None else None
    return Exit(code=code, signal=script.signal, silent=not script.log)
