"""Cron expressions: which minutes they name, and when the next one comes in a time zone.

Where clocks go forward, the times of a *fixed* expression (neither minute nor hour begins with `*`) that do not exist
come at once after the gap; where they go back, they come the first time only. Any other one follows the clock on the
wall: nothing for minutes that do not exist, and twice for those that come twice.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Final

from msgspec import Struct

from standby.core.errors import Refused

Zone = tzinfo
"""Of the standard library; who finds one by its name is elsewhere, because that reads files."""
DAYS_MOST: Final = 8 * 366 + 2
"""The 29th of February can be eight years away."""
LAST: Final = datetime(9990, 1, 1, tzinfo=UTC)
NAMED: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)


class BadCron(Refused):
    """A cron expression cannot be used."""


class Field(Struct, frozen=True):
    """One of the five: its values, and what they may be called."""

    name: str
    least: int
    most: int
    names: Mapping[str, int] = {}


FIELDS: Final = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of month", 1, 31),
    Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    Field("day of week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)


class Cron(Struct, frozen=True, kw_only=True):
    """A cron expression, read."""

    minutes: tuple[int, ...]
    """Of the day, in order."""
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either: bool
    """Both days are limited: one of them is enough."""
    fixed: bool
    """It names hours and minutes, not every nth of them."""

    def on(self, day: date) -> bool:
        """Whether it names this day."""
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month or by_week if self.either else by_month and by_week


@lru_cache(256)
def parse(text: str) -> Cron:
    """Read an expression; raises BadCron with what to do."""
    plain = text.strip().lower()
    words = NAMED.get(plain, plain).split()
    if plain.startswith("@") and plain not in NAMED:
        raise BadCron(f"there is no {plain}: use one of {', '.join(sorted(NAMED))}, or five fields")
    if len(words) != len(FIELDS):
        names = ", ".join(field.name for field in FIELDS)
        raise BadCron(f"it has {len(words)} fields and needs five ({names}), like: 30 2 * * mon-fri")
    minutes, hours, days, months, weekdays = (_values(field, word) for field, word in zip(FIELDS, words, strict=True))
    star = [word.startswith("*") for word in words]
    return Cron(
        minutes=tuple(hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        either=not star[2] and not star[4],
        fixed=not star[0] and not star[1],
    )


def tick_after(cron: Cron, zone: Zone, after_ms: int) -> int | None:
    """The first time it names after a moment, in milliseconds since the epoch; null when it never comes."""
    after = _EPOCH + timedelta(milliseconds=after_ms)
    if after > LAST:
        return None
    here = after.astimezone(zone)
    first = here.date() - _DAY
    for day in (first + _DAY * count for count in range(DAYS_MOST)):
        if cron.on(day) and (found := _first(_moments(cron, zone, day, here), after)) is not None:
            # where clocks go back over midnight, the next day's first minutes come before the last ones of this one
            later = _moments(cron, zone, day + _DAY, here) if cron.on(day + _DAY) else ()
            return _ms(min(found, _first(later, after) or found))
    return None


def ticks_after(cron: Cron, zone: Zone, after_ms: int) -> Iterator[int]:
    """All the times it names after a moment."""
    tick = tick_after(cron, zone, after_ms)
    while tick is not None:
        yield tick
        tick = tick_after(cron, zone, tick)


def preview(cron: Cron, zone: Zone, after_ms: int, most: int = 3) -> list[int]:
    """The next few times."""
    return list(islice(ticks_after(cron, zone, after_ms), most))


def _values(field: Field, word: str) -> frozenset[int]:
    found: set[int] = set()
    for part in word.split(","):
        whole, slash, step = part.partition("/")
        if slash and not (step.isdecimal() and int(step) > 0):
            raise BadCron(f"{field.name}: {part!r} needs a step of 1 or more after the slash, like */15")
        low, dash, high = whole.partition("-")
        if whole == "*":
            first, last = field.least, field.most
        elif dash:
            first, last = _value(field, low), _value(field, high)
        else:
            first = _value(field, whole)
            last = field.most if slash else first
        if first > last:
            raise BadCron(f"{field.name}: {whole!r} goes backwards; write the smaller value first, or two ranges")
        found.update(range(first, last + 1, int(step) if slash else 1))
    return frozenset(found)


def _value(field: Field, word: str) -> int:
    number = int(word) if word.isdecimal() and word.isascii() else field.names.get(word)
    if number is None or not field.least <= number <= field.most:
        names = f" or {', '.join(field.names)}" if field.names else ""
        raise BadCron(f"{field.name}: {word!r} is not a value; use {field.least} to {field.most}{names}")
    return number


def _moments(cron: Cron, zone: Zone, day: date, here: datetime) -> Iterable[datetime]:
    """The times of one day, those before `here` left out where that is easy. Most days have one offset from beginning
    to end: then no clock is changed, and only the first time matters."""
    begin = datetime.combine(day, time.min)
    ends = (begin - timedelta(hours=1), begin + _DAY + timedelta(hours=1))
    offsets = {wall.replace(tzinfo=zone, fold=fold).utcoffset() for wall in ends for fold in (0, 1)}
    minutes: Sequence[int] = cron.minutes
    if len(offsets) == 1:
        passed = (here.replace(tzinfo=None) - begin) // timedelta(minutes=1)
        place = bisect_right(minutes, passed)
        minutes = minutes[place : place + 1]
    return [moment for minute in minutes for moment in _instants(cron, begin + timedelta(minutes=minute), zone)]


def _instants(cron: Cron, wall: datetime, zone: Zone) -> list[datetime]:
    """When a clock on the wall shows this; see above for what is done where it is set."""
    early, late = wall.replace(tzinfo=zone), wall.replace(tzinfo=zone, fold=1)
    before, after = early.utcoffset(), late.utcoffset()
    if before == after:
        return [early.astimezone(UTC)]
    if before > after:  # type: ignore[operator]
        return [early.astimezone(UTC)] if cron.fixed else [early.astimezone(UTC), late.astimezone(UTC)]
    return [_end_of_gap(late.astimezone(UTC), early.astimezone(UTC), zone)] if cron.fixed else []


def _end_of_gap(low: datetime, high: datetime, zone: Zone) -> datetime:
    """When the clock is set, between two moments of which the second has its new offset."""
    new = high.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if middle.astimezone(zone).utcoffset() == new:
            high = middle
        else:
            low = middle
    return high


def _first(moments: Iterable[datetime], after: datetime) -> datetime | None:
    return min((moment for moment in moments if moment > after), default=None)


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
