"""How hard a host is pressed: it rises at once, falls after a calm, and what is missing changes nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from standby.core import admit, places, pressure, size
from standby.core.admit import Room
from standby.core.model import EventKind, Host, Level, PressureLimits
from standby.core.sighting import Pressure, Reading
from tests.rows import NOW, cause, host, order, pool, slot

L = Level
CALM = Reading(memory_total_mb=1_000, memory_available_mb=500)


def reading(used: float | None = 0.5, some: float = 0, full: float = 0, disk: int | None = None) -> Reading:
    """So much of the memory used, so much time lost."""
    available = None if used is None else round(1_000 * (1 - used))
    psi = Pressure(memory_some_avg10=some, memory_full_avg10=full)
    return Reading(memory_total_mb=1_000, memory_available_mb=available, pressure=psi, disk_free_mb=disk)


def pressed(level: Level, since: int = NOW - 60_000, **columns: Any) -> Host:
    return host(pressure=level, pressure_since=since, pressure_cause="it was full", **columns)


def fed(at: Host, seconds: dict[int, Reading]) -> Host:
    """The host after these readings, by the second at which they came."""
    before: int | None = None
    for second, each in seconds.items():
        unbroken = before is not None and second - before <= 10
        at, before = pressure.weigh(at, each, NOW + second * 1_000, unbroken=unbroken), second
    return at


@pytest.mark.parametrize(
    ("seen", "level"),
    [
        (reading(0.79, 10, 5), L.NONE),
        (reading(0.80), L.WARNING),
        (reading(0.1, some=10.1), L.WARNING),
        (reading(0.89, some=99), L.WARNING),
        (reading(0.90), L.CRITICAL),
        (reading(0.1, full=5.1), L.CRITICAL),
        (reading(0.1, disk=1_023), L.CRITICAL),
        (reading(0.1, disk=1_024), L.NONE),
        (CALM, L.NONE),
    ],
)
def test_a_reading_at_a_limit_puts_the_host_on_its_level_at_once(seen: Reading, level: Level) -> None:
    after = pressure.weigh(host(), seen, NOW, unbroken=True)
    assert after.pressure is level
    assert after.pressure_since == (None if level is L.NONE else NOW)
    assert (after.pressure_cause is None) is (level is L.NONE)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (reading(0.93), "93% of the memory is used (limit 90%)"),
        (reading(0.81), "81% of the memory is used (limit 80%)"),
        (reading(0.1, full=7.5), "all work stood still for memory 7.5 % of the time (limit 5 %)"),
        (reading(0.1, some=12), "work stood still for memory 12 % of the time (limit 10 %)"),
        (reading(0.1, disk=7), "7 MB of disk are free (reserve 1024 MB)"),
    ],
)
def test_the_cause_says_what_was_measured_and_what_is_allowed(seen: Reading, says: str) -> None:
    assert pressure.weigh(host(), seen, NOW, unbroken=True).pressure_cause == says


def test_the_limits_are_the_hosts_own() -> None:
    own = host(limits=PressureLimits(warning=0.3, critical=0.6, psi_warning=1, psi_critical=2, disk_reserve_mb=5))
    levels = [
        pressure.weigh(own, each, NOW, unbroken=True).pressure
        for each in (reading(0.3), reading(0.6), reading(0, some=1.5), reading(0, full=2.5), reading(0, disk=4), CALM)
    ]
    assert levels == [L.WARNING, L.CRITICAL, L.WARNING, L.CRITICAL, L.CRITICAL, L.WARNING]


@pytest.mark.parametrize("level", Level)
def test_a_missing_reading_keeps_the_level_and_breaks_the_calm(level: Level) -> None:
    at = pressed(level, calm_since=NOW - 29_000)
    for missing in (Reading(), reading(None), Reading(memory_available_mb=900), Reading(memory_total_mb=0)):
        assert pressure.weigh(at, missing, NOW, unbroken=True) == replace(at, calm_since=None)


def test_a_reading_without_memory_still_presses_by_what_it_has() -> None:
    assert pressure.weigh(host(), reading(None, full=50), NOW, unbroken=True).pressure is L.CRITICAL


def test_a_host_returns_from_warning_after_thirty_calm_seconds() -> None:
    calm = dict.fromkeys(range(30), CALM)
    still = fed(pressed(L.WARNING), calm)
    assert (still.pressure, still.calm_since) == (L.WARNING, NOW)
    over = fed(pressed(L.WARNING), {**calm, 30: CALM})
    assert (over.pressure, over.pressure_since, over.pressure_cause, over.calm_since) == (
        L.NONE,
        NOW + 30_000,
        None,
        None,
    )


@pytest.mark.parametrize("broken", [reading(0.85), reading(0.1, some=11), Reading()])
def test_one_reading_that_is_not_calm_begins_the_wait_anew(broken: Reading) -> None:
    seconds = dict.fromkeys(range(30), CALM)
    at = fed(pressed(L.WARNING), {**seconds, 15: broken, 30: CALM, 45: CALM})
    assert at.pressure is L.WARNING


def test_a_gap_without_readings_begins_the_wait_anew() -> None:
    at = fed(pressed(L.WARNING), {0: CALM, 40: CALM})
    assert (at.pressure, at.calm_since) == (L.WARNING, NOW + 40_000)


def test_from_critical_it_goes_down_one_level_at_a_time() -> None:
    calm = dict.fromkeys(range(0, 31, 5), CALM)
    at = fed(pressed(L.CRITICAL), calm)
    assert (at.pressure, at.pressure_since, at.calm_since) == (L.WARNING, NOW + 30_000, NOW + 30_000)
    assert at.pressure_cause == "it was critical before"
    assert fed(at, dict.fromkeys(range(31, 60, 5), CALM)).pressure is L.WARNING
    assert fed(at, {30: CALM, **dict.fromkeys(range(31, 66, 5), CALM)}).pressure is L.NONE


def test_below_critical_and_above_warning_it_comes_to_rest_at_warning() -> None:
    half = {second: reading(0.85) for second in range(0, 300, 5)}
    at = fed(pressed(L.CRITICAL), half)
    assert (at.pressure, at.calm_since) == (L.WARNING, None)
    fallen = fed(pressed(L.CRITICAL), {second: reading(0.85) for second in range(0, 31, 5)})
    assert (fallen.pressure, fallen.calm_since) == (L.WARNING, None), "below critical is not yet calm for warning"
    assert at.pressure_cause == "85% of the memory is used (limit 80%)"


def test_it_rises_again_in_the_middle_of_a_calm() -> None:
    at = fed(pressed(L.WARNING), {0: CALM, 5: reading(0.95)})
    assert (at.pressure, at.pressure_since, at.calm_since) == (L.CRITICAL, NOW + 5_000, None)


def test_readings_that_jump_never_make_it_fall_early() -> None:
    jumps = {second: reading(0.95) if second % 7 == 0 else CALM for second in range(600)}
    assert fed(host(), jumps).pressure is L.CRITICAL


@given(st.lists(st.tuples(st.integers(1, 25), st.sampled_from([None, 0.1, 0.79, 0.8, 0.85, 0.9, 0.99])), max_size=60))
def test_whatever_is_measured_a_level_rises_at_once_and_never_falls_without_its_calm(
    seen: list[tuple[int, float | None]],
) -> None:
    at, now, known_at = host(), NOW, -(10**9)
    floor = {L.WARNING: 0.8, L.CRITICAL: 0.9}
    calm: dict[Level, int | None] = dict.fromkeys(floor)
    for seconds, share in seen:
        now += seconds * 1_000
        before, unbroken = at, now - known_at <= 10_000
        at = pressure.weigh(before, reading(share), now, unbroken=unbroken)
        known_at = known_at if share is None else now
        for level, limit in floor.items():
            below = share is not None and share < limit
            calm[level] = None if not below else now if not unbroken or calm[level] is None else calm[level]
        asked = [L.NONE, L.WARNING, L.CRITICAL][sum(share is not None and share >= limit for limit in floor.values())]
        levels = list(Level)
        assert levels.index(at.pressure) >= levels.index(asked), "it rises at once"
        if levels.index(at.pressure) < levels.index(before.pressure):
            since = calm[before.pressure]
            assert since is not None and now - since >= 30_000, "it falls only after thirty calm seconds"
            assert levels.index(at.pressure) == levels.index(before.pressure) - 1, "one level at a time"
        if share is None:
            assert at.pressure is before.pressure, "what is missing changes nothing"


@pytest.mark.parametrize(
    ("most", "level", "eased"),
    [
        (None, L.NONE, None),
        (4, L.NONE, 4),
        (None, L.WARNING, 1),
        (9, L.WARNING, 4),
        (4, L.WARNING, 2),
        (2, L.WARNING, 1),
        (1, L.WARNING, 1),
        (0, L.WARNING, 0),
        (None, L.CRITICAL, 0),
        (4, L.CRITICAL, 0),
    ],
)
def test_starts_are_halved_at_warning_and_none_at_critical(most: int | None, level: Level, eased: int | None) -> None:
    assert pressure.starts_max(host(starts_max=most, pressure=level)) == eased


def test_starts_are_two_seconds_apart_or_what_the_host_says_if_that_is_more() -> None:
    gaps = [
        pressure.start_gap_ms(host(start_gap_ms=gap, pressure=level))
        for gap, level in ((0, L.NONE), (700, L.NONE), (700, L.WARNING), (5_000, L.WARNING), (0, L.CRITICAL))
    ]
    assert gaps == [0, 700, 2_000, 5_000, 2_000]


def room(level: Level, **more: Any) -> Room:
    slots = [slot(number) for number in (1, 2)]
    return Room(
        **{
            "host": host(pressure=level, starts_max=None),
            "pools": {"default": pool(slots_max=4)},
            "slots": slots,
            "opened": [],
            "project_open": {},
            "project_max": {},
            "now": NOW,
            **more,
        }
    )


def test_at_critical_nobody_is_served_and_nothing_is_made() -> None:
    shut, waiting = room(L.CRITICAL), [order(id="a"), order(id="b"), order(id="c")]
    plan = admit.admit(shut, waiting)
    assert (plan.admissions, plan.wanted, plan.held, plan.permits) == ([], {}, [], 0)
    assert admit.takes(shut, shut.pools["default"]) == 0
    assert size.size(cause, shut, plan, "standby") == []
    assert admit.only_wait_for_a_start(shut, waiting) == set()


def test_at_warning_seats_are_claimed_one_by_one_two_seconds_apart() -> None:
    waiting = [order(id="a"), order(id="b")]
    first = admit.admit(room(L.WARNING), waiting)
    assert [each.order.id for each in first.admissions] == ["a"] and [each.id for each in first.held] == ["b"]
    early = room(L.WARNING, started_at=NOW - 1_999)
    assert admit.admit(early, waiting).admissions == [] and early.gap_ends_at == NOW + 1
    assert len(admit.admit(room(L.WARNING, started_at=NOW - 2_000), waiting).admissions) == 1


def test_a_change_of_level_and_a_change_of_calm_are_events_and_nothing_else_is() -> None:
    at = pressed(L.WARNING)
    assert places.press(cause(), at, at) is None
    assert places.press(cause(), at, replace(at, pressure_cause="the same, said otherwise")) is None
    calm = places.press(cause(), at, replace(at, calm_since=NOW))
    level = places.press(cause(), at, replace(at, pressure=L.NONE))
    assert calm is not None and level is not None
    assert (calm.kind, level.kind) == (EventKind.HOST_CALMING, EventKind.HOST_PRESSURE)
