"""What a platform must be able to do: five idempotent verbs and one honest number.

A driver never decides and never retries: it asks the platform once and tells the truth. Everything it is given is
named by run id and incarnation, so that a late or repeated call cannot touch another run.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from standby.core.model import Order, Slot, Spec, Template
from standby.core.sighting import Exit as Exit
from standby.core.sighting import Place as Place
from standby.core.sighting import Reading as Reading
from standby.core.sighting import Seen as Seen
from standby.core.sighting import Sighting as Sighting


class Making(Struct, gc=False, frozen=True, kw_only=True):
    """What a place is made from."""

    template: Template = Template()
    memory_mb: int = 256
    env: Mapping[str, str] = {}
    """What is needed there to report: addresses, and for a worker that lives there its slot's token; nothing of any
    order."""


class Start(Struct, gc=False, frozen=True, kw_only=True):
    """Everything a platform needs to start one run."""

    run_id: str
    order: Order
    spec: Spec
    env: Mapping[str, str]
    epoch: int
    """The leader's epoch; a platform that remembers a higher one refuses."""
    valid_for_ms: int
    """How long from now this command may still take effect (from `order.command_until`)."""
    making: Making = Making()
    """What its place is made from."""


class OpenRun(Struct, gc=False, frozen=True, kw_only=True):
    """A run the leader believes to be open, named in a look."""

    run_id: str
    slot: str
    incarnation: str
    payload: str
    """The order's payload as JSON text; only the scripted driver reads it."""


class LogLine(Struct, frozen=True, kw_only=True, array_like=True):
    """One line of output."""

    at: int
    stream: str
    """stdout, stderr, or system (said by Standby itself)."""
    text: str


class LogPiece(Struct, gc=False, frozen=True, kw_only=True):
    """New output of one run since a cursor."""

    run_id: str
    lines: Sequence[LogLine]
    cursor: str
    """Where the next read starts; opaque, stored in the same transaction as the lines."""
    closed: bool
    """Nothing will follow."""


class CommandRefused(Exception):
    """The platform understood and refused (lower epoch, too late, a place that was used before): no effect, ever."""


class Driver(Protocol):
    """One host's platform. `Unreachable` may be raised by any verb: the outcome is then unknown."""

    lag_ms: int
    """A look asked this long after a command's last moment shows its effect."""
    seats: bool
    """Slots are mere seats: creating makes nothing, an ended run leaves nothing to clean, idle ones need no memory."""

    async def open(self) -> None:
        """Get ready to be asked (connect, start what must run beside the server). Safe to repeat."""

    async def close(self) -> None:
        """Let go of the platform without touching any work."""

    async def identity(self) -> str:
        """What this platform is, so that another one under the same name is noticed."""

    async def create(self, slot: Slot, making: Making) -> str | None:
        """Make the place and return its incarnation; the same name and generation twice is one place. Null: it is there
        and not ready yet, ask again. Raises CommandRefused when the platform says that it cannot be made."""

    async def start(self, slot: Slot, start: Start) -> Sighting:
        """Start the run; the same run id twice is one copy. Raises CommandRefused when it certainly has no effect."""

    async def stop(self, slot: Slot, run_id: str, incarnation: str, *, force: bool, epoch: int) -> None:
        """Ask the run to end, or force it; returns at once, absence is success."""

    async def remove(self, slot: Slot) -> None:
        """Take the place (this incarnation; where it is not known: this generation) away; absence is success."""

    async def observe(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        """Look: one sighting for each run that was named; STOPPED only when its whole tree is gone."""


@runtime_checkable
class Logs(Protocol):
    """A driver whose runs have output."""

    async def logs(self, cursors: Mapping[str, str]) -> Sequence[LogPiece]:
        """New output of the named runs (run id -> cursor, "" from the beginning), bounded in bytes each call."""

    async def unstored(self) -> Sequence[str]:
        """Run ids whose output the platform still keeps, live ones included."""

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Their outcome is saved and their log stored to its end: drop what is kept of them. Live ones are refused;
        what the platform fails to drop stays among the unstored ones, and keeps the others from nothing."""


@runtime_checkable
class Places(Protocol):
    """A driver whose slots are things that can vanish, or stay behind."""

    async def places(self) -> Sequence[Place]:
        """Everything that carries the labels of this installation and this host; half a list is Unreachable."""

    async def remove_stray(self, place: Place) -> None:
        """Take exactly this away; absence is success."""


@runtime_checkable
class Resets(Protocol):
    """A driver that can make a used place ready again more cheaply than by removing it and making another."""

    async def reset(self, slot: Slot, making: Making) -> str | None:
        """Nothing of what ran there (`slot.incarnation`) is left; returns the incarnation of `slot.generation`, also
        where the place itself was gone. Null: not yet, ask again. Raises CommandRefused when it cannot be done."""


@runtime_checkable
class Images(Protocol):
    """A driver that must have an image before it can make anything from it."""

    async def has_image(self, image: str) -> bool:
        """Whether it is there, under exactly this name."""

    def pull(self, image: str) -> AsyncIterator[str]:
        """Get it; yields how far it is, in words, and ends when it is there. Raises CommandRefused or Unreachable."""


@runtime_checkable
class Caption(Protocol):
    """A driver whose platform shows a line of text beside each slot. Best effort, never read back."""

    async def caption(self, slot: Slot, text: str) -> None:
        """Show it."""


@runtime_checkable
class Watch(Protocol):
    """A driver that can say that something changed. Only a hint."""

    def changes(self) -> AsyncIterator[None]:
        """Yields whenever a look would show something new."""


@runtime_checkable
class Gauge(Protocol):
    """A driver that can say how full its machine is. Nothing depends on it."""

    async def measure(self) -> Reading:
        """One cheap reading."""
