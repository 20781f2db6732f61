"""What everything above the core is given: a clock, ids, chance, the store, the drivers, the configuration."""

import asyncio
import gc
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from standby.config import Config
from standby.core.lifecycle import Cause
from standby.core.model import Trigger
from standby.drivers.contract import Driver
from standby.estimates import Estimates
from standby.seal import Seal
from standby.store.contract import Store, Work

T = TypeVar("T")

JUMP_MS = 5_000
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_SHORT_AT_ONCE = 64
_TIME_LETTERS = 10
_CHANCE = (1 << 80) - 1
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


class Clock(Protocol):
    """Store time for rows, monotonic time for waiting; never mixed."""

    def now(self) -> int:
        """The store's clock as this process knows it, in milliseconds."""

    def monotonic(self) -> float:
        """Seconds that only ever go forward."""

    @property
    def steady(self) -> bool:
        """False after a jump, until the clock is anchored again: no deadline is judged then."""


class StoreClock:
    """Follows the store's clock: an offset, moved on by this machine's monotonic clock."""

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - _monotonic_ms()
        self._wall_gap_ms = self._gap()
        self._anchored = False

    def now(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._offset_ms

    monotonic = staticmethod(time.monotonic)

    @property
    def steady(self) -> bool:
        return self._anchored and abs(self._gap() - self._wall_gap_ms) <= JUMP_MS

    async def anchor(self, store: Store) -> None:
        """Measure the offset again; a slow answer is not believed, the next one will be."""
        before = _monotonic_ms()
        there = await store.now()
        after = _monotonic_ms()
        if self._anchored and after - before > JUMP_MS:
            return
        self._offset_ms = there - (before + after) // 2
        self._wall_gap_ms = self._gap()
        self._anchored = True

    def _gap(self) -> int:
        """Wall minus monotonic: it moves when somebody sets the clock or the machine sleeps."""
        return time.time_ns() // 1_000_000 - _monotonic_ms()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Chance:
    """Unguessable bytes, fetched from the system many at a time."""

    def __init__(self) -> None:
        self._bytes, self._at = b"", 0

    def __call__(self, count: int) -> bytes:
        if self._at + count > len(self._bytes):
            self._bytes, self._at = os.urandom(4096), 0
        self._at += count
        return self._bytes[self._at - count : self._at]


class Ids:
    """Sortable ids that cannot be guessed: 48 bits of time, 80 of chance, 26 letters and digits."""

    def __init__(self, chance: Callable[[int], bytes] | None = None) -> None:
        self._chance = chance or Chance()
        self._last = 0
        self._time = 0, "0" * _TIME_LETTERS
        """The time of the last order, and how it is written."""
        self._short: list[str] = []

    def order(self, now: int) -> str:
        """A new id, larger than every earlier one of this process: equal ranks stay in the order they came in."""
        value = (now << 80) | int.from_bytes(self._chance(10), "big") >> 1
        value = max(value, self._last + 1)
        self._last = value
        time, began = value >> 80, self._time
        if time != began[0]:
            began = self._time = time, _letters(time, _TIME_LETTERS)
        return began[1] + _letters(value & _CHANCE, 16)

    def short(self) -> str:
        """A new id for a change or an instance."""
        if self._short:
            return self._short.pop()
        text = self._chance(8 * _SHORT_AT_ONCE).hex()
        self._short = [text[at : at + 16] for at in range(0, len(text), 16)]
        return self._short.pop()


def _letters(value: int, length: int) -> str:
    """The lowest bits, five a letter; `length` is even."""
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(5 * length - 10, -1, -10)])


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most so long; returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class Shared:
    """One question, one answer for all who ask it while it is under way, or shortly after."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, asyncio.Future[Any]] = {}
        self._kept: dict[Hashable, Any] = {}
        """Answers that are kept a while."""

    async def ask(self, key: Hashable, question: Callable[[], Awaitable[T]], *, keep_s: float = 0.0) -> T:
        """The answer. Only for what may be as old as the oldest question that is still open, and `keep_s` more: never
        for a look at what the asker itself has just written."""
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = asyncio.ensure_future(question())
            asked.add_done_callback(lambda done: self._answered(key, done, keep_s))
        elif asked.done() and not asked.cancelled():
            return cast(T, asked.result())
        found: T = await asyncio.shield(asked)  # one asker who goes away must not take the answer from the others
        return found

    def at_hand(self, key: Hashable) -> Any | None:
        """The answer, where it is kept: for those whom a question would cost more than the answer."""
        return self._kept.get(key)

    def forget(self, key: Hashable) -> None:
        """Ask anew from now on."""
        self._asked.pop(key, None)
        self._kept.pop(key, None)

    def _answered(self, key: Hashable, done: "asyncio.Future[Any]", keep_s: float) -> None:
        failed = done.cancelled() or done.exception() is not None
        if keep_s > 0 and not failed and self._asked.get(key) is done:
            self._kept[key] = done.result()
            done.get_loop().call_later(keep_s, self._expire, key, done)
        else:
            self._expire(key, done)

    def _expire(self, key: Hashable, done: "asyncio.Future[Any]") -> None:
        if self._asked.get(key) is done:
            del self._asked[key]
            self._kept.pop(key, None)


class Arrivals:
    """Orders on their way into the store, offered to the leaders in this process."""

    def __init__(self) -> None:
        self._leaders: list[Callable[[Work], bool]] = []

    def join(self, take: Callable[[Work], bool]) -> Callable[[], None]:
        """From now on, offer them to this leader; returns what ends that."""
        self._leaders.append(take)
        return lambda: self._leaders.remove(take)

    def offer(self, work: Work) -> bool:
        """Whether somebody claims it, right behind the change that takes it in: to be saved without waiting for
        anything before. Saved later or not at all, it is only claimed later or not at all."""
        return bool(self._leaders) and any(take(work) for take in self._leaders)


@dataclass(frozen=True, kw_only=True)
class World:
    """Passed to every step and every request; holds nothing that a restart would miss."""

    config: Config
    store: Store
    clock: Clock
    seal: Seal
    drivers: Mapping[str, Driver] = field(default_factory=dict)
    reach: Mapping[str, str] = field(default_factory=dict)
    """Where workers find this server, as it stands in their environment (see `core.work`)."""
    ids: Ids = field(default_factory=Ids)
    shared: Shared = field(default_factory=Shared)
    estimates: Estimates = field(default_factory=Estimates)
    arrivals: Arrivals = field(default_factory=Arrivals)
    applied: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the store has what the configuration says: nothing can be submitted to a pool that is not there yet."""
    chance: Callable[[], float] = random.random

    def cause(self, trigger: Trigger, actor: str, lease: tuple[str, int] | None = None, at: int | None = None) -> Cause:
        """Who makes a change, stamped now, or with the time at which all of its kind are made."""
        at = self.clock.now() if at is None else at
        return Cause(id=self.ids.short(), at=at, trigger=trigger, actor=actor, lease=lease)

    def causes(self, trigger: Trigger, actor: str, lease: tuple[str, int], at: int) -> Callable[[], Cause]:
        """Who makes many changes at once: each one's cause differs by its id alone."""
        short = self.ids.short
        return lambda: Cause(id=short(), at=at, trigger=trigger, actor=actor, lease=lease)


def settle_interpreter() -> None:
    """Let the collector of cyclic garbage rest: rows are frozen values without cycles, and looking through all of them
    again and again took a tenth of the work. What is there at the start is not looked at any more. And let the writer
    of SQLite begin soon: while the event loop decides, it would wait five milliseconds for its first instruction, which
    is a whole batch."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(0.00005)
