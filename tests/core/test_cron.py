"""Cron expressions, also against a slow oracle that looks at every minute, where clocks are set too."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from standby.core import cron
from standby.core.cron import BadCron, Cron

MINUTE = timedelta(minutes=1)
ZONES = {
    "UTC": (datetime(2026, 2, 28, 22, tzinfo=UTC),),
    "Europe/Berlin": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2026, 4, 4, 15, tzinfo=UTC), datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    "America/Sao_Paulo": (datetime(2018, 2, 18, 2, tzinfo=UTC), datetime(2018, 11, 4, 3, tzinfo=UTC)),
    "America/St_Johns": (datetime(2010, 11, 7, 2, 31, tzinfo=UTC), datetime(2010, 3, 14, 3, 31, tzinfo=UTC)),
    "Pacific/Apia": (datetime(2011, 12, 30, 10, tzinfo=UTC), datetime(2011, 4, 2, 14, tzinfo=UTC)),
    "Asia/Kathmandu": (datetime(2024, 2, 29, 0, tzinfo=UTC),),
}
"""And moments at which their clocks are set."""


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    """What another test read is not kept: a mutant is in place only while a test runs."""
    cron.parse.cache_clear()


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def matches(found: Cron, wall: datetime) -> bool:
    return found.on(wall.date()) and wall.hour * 60 + wall.minute in found.minutes


def slow(found: Cron, zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """Look at every minute."""
    moment = after.replace(second=0, microsecond=0)
    while moment < until:
        before, moment = moment, moment + MINUTE
        wall = moment.astimezone(zone)
        if matches(found, wall) and not (found.fixed and wall.fold):
            return moment
        skipped = before.astimezone(zone).replace(tzinfo=None) + MINUTE
        while found.fixed and skipped < wall.replace(tzinfo=None):
            if matches(found, skipped):
                return moment
            skipped += MINUTE
    return None


def numbers(low: int, high: int) -> some.SearchStrategy[str]:
    value = some.integers(low, high)
    pairs = some.tuples(value, value).map(sorted)
    part = some.one_of(
        value.map(str),
        pairs.map(lambda pair: f"{pair[0]}-{pair[1]}"),
        some.tuples(pairs, some.integers(1, 9)).map(lambda both: f"{both[0][0]}-{both[0][1]}/{both[1]}"),
        some.integers(1, 40).map(lambda step: f"*/{step}"),
    )
    return some.one_of(some.just("*"), some.lists(part, min_size=1, max_size=3).map(",".join))


expressions = some.tuples(
    numbers(0, 59), numbers(0, 23), numbers(1, 31), some.one_of(some.just("*"), numbers(1, 12)), numbers(0, 7)
).map(" ".join)


@settings(max_examples=300)
@given(some.sampled_from(sorted(ZONES)), some.integers(0, 1), some.integers(-2_000, 200), expressions)
def test_the_next_tick_is_the_one_that_looking_at_every_minute_finds(
    name: str, which: int, minutes: int, text: str
) -> None:
    zone, found = ZoneInfo(name), cron.parse(text)
    after = ZONES[name][which % len(ZONES[name])] + MINUTE * minutes
    until = after + timedelta(days=3)
    expected = slow(found, zone, after, until)
    tick = cron.tick_after(found, zone, ms(after))
    if expected is None:
        assert tick is None or tick > ms(until)
    else:
        assert tick == ms(expected)


@pytest.mark.parametrize(
    ("text", "zone", "after", "ticks"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        (
            "1,17,43,59 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00+01:00",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:01+02:00"],
        ),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        (
            "*/30 2 * * *",
            "Europe/Berlin",
            "2026-10-25T01:00+02:00",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00"],
        ),
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-29T01:00+01:00", ["2026-03-30T02:00+02:00"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00+00:00", ["2028-02-29T00:00+00:00"]),
        ("0 9 1 * mon", "UTC", "2026-11-15T00:00+00:00", ["2026-11-16T09:00+00:00", "2026-11-23T09:00+00:00"]),
        ("@hourly", "Asia/Kathmandu", "2026-11-15T00:10+05:45", ["2026-11-15T01:00+05:45"]),
        ("0 0 * jan,jul sun", "UTC", "2026-11-15T00:00+00:00", ["2027-01-03T00:00+00:00"]),
        ("0 12 * * 5-7", "UTC", "2026-11-12T13:00+00:00", ["2026-11-13T12:00+00:00", "2026-11-14T12:00+00:00"]),
        ("50/5 0 * * *", "UTC", "2026-11-15T00:00+00:00", ["2026-11-15T00:50+00:00", "2026-11-15T00:55+00:00"]),
        (
            "*/30 * 6,7 * *",
            "America/St_Johns",
            "2010-11-06T23:45-02:30",
            ["2010-11-07T00:00-02:30", "2010-11-06T23:30-03:30", "2010-11-07T00:00-03:30"],
        ),
        ("*/30 * 6 * *", "America/St_Johns", "2010-11-06T23:45-02:30", ["2010-11-06T23:30-03:30"]),
        ("30 0,5 * * *", "Atlantic/Azores", "2026-10-25T00:10-01:00", ["2026-10-25T05:30-01:00"]),
        ("*/30 23 * * *", "Antarctica/Casey", "2010-03-05T01:30+11:00", ["2010-03-04T23:00+08:00"]),
        ("0 1,5 * * *", "Antarctica/Casey", "2010-03-05T00:30+08:00", ["2010-03-05T05:00+08:00"]),
    ],
)
def test_ticks_come_when_a_person_expects_them(text: str, zone: str, after: str, ticks: list[str]) -> None:
    found = cron.preview(cron.parse(text), ZoneInfo(zone), ms(datetime.fromisoformat(after)), len(ticks))
    assert found == [ms(datetime.fromisoformat(tick)) for tick in ticks]


def test_a_tick_is_always_after_the_moment_it_was_asked_for() -> None:
    every, at = cron.parse("* * * * *"), ms(datetime(2026, 11, 15, tzinfo=UTC))
    assert cron.preview(every, UTC, at) == [at + 60_000, at + 120_000, at + 180_000]
    assert cron.tick_after(every, UTC, at - 1) == at
    assert isinstance(cron.tick_after(every, UTC, at), int)


def test_a_day_that_never_comes_has_no_tick() -> None:
    assert cron.tick_after(cron.parse("0 0 30 2 *"), UTC, 0) is None


def test_the_end_of_the_calendar_has_no_tick() -> None:
    assert cron.tick_after(cron.parse("@hourly"), UTC, 253_402_300_799_999) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 fields and needs five"),
        ("* * * *", "4 fields and needs five"),
        ("60 * * * *", "minute: '60' is not a value; use 0 to 59$"),
        ("* * 0 * *", "day of month: '0' is not a value"),
        ("* * * fob *", "month: 'fob' is not a value; use 1 to 12 or jan, feb"),
        ("*/0 * * * *", "needs a step of 1 or more"),
        ("1/x * * * *", "needs a step of 1 or more"),
        ("30-10 * * * *", "goes backwards"),
        ("* * * * fri-mon", "goes backwards"),
        ("1-2-3 * * * *", "minute: '2-3' is not a value"),
        ("1,, * * * *", "minute: '' is not a value"),
        ("-5 * * * *", "minute: '' is not a value"),
        ("² * * * *", "is not a value"),
        ("@often", "there is no @often: use one of @annually, @daily"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(text: str, said: str) -> None:
    with pytest.raises(BadCron, match=said.replace("*", r"\*").replace("²", ".")):
        cron.parse(text)
