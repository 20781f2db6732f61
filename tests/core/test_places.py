"""Pools, hosts and projects: what the configuration says of them, what operators want, what looks showed."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from standby.core import places
from standby.core.model import (
    Change,
    EventKind,
    Guards,
    Host,
    Level,
    Mode,
    Override,
    Pool,
    PoolSettings,
    Project,
    Reason,
    Retry,
    Template,
    Trigger,
)
from tests.core.columns import changed
from tests.rows import NOW, cause, host, pool

ADA = cause(Trigger.REQUEST, id="change-7", actor="ada", lease=("local", 9))
K = EventKind
Make = Callable[[], Change | None]
SETTINGS = PoolSettings(slots_max=7)
AWAY = host(unreachable_since=NOW - 9_000, error="no answer")

POOLS: dict[str, tuple[Make, EventKind, dict[str, Any]]] = {
    "configured anew": (
        lambda: places.apply_pool(ADA, pool(), "default", "far", SETTINGS),
        K.POOL_APPLIED,
        {"host": "far", "settings": SETTINGS},
    ),
    "paused": (
        lambda: places.set_pool_mode(ADA, pool(), Mode.PAUSED, "repairs"),
        K.POOL_MODE,
        {"mode": Mode.PAUSED, "mode_since": NOW, "mode_reason": "repairs", "mode_actor": "ada"},
    ),
    "blocked": (lambda: places.block(ADA, pool(), NOW - 500), K.POOL_BLOCKED, {"blocked_since": NOW - 500}),
    "unblocked": (
        lambda: places.unblock(ADA, pool(blocked_ms=1_000, blocked_since=NOW - 500)),
        K.POOL_UNBLOCKED,
        {"blocked_ms": 1_500, "blocked_since": None},
    ),
    "failing": (lambda: places.count_failures(ADA, pool(failures=1), 2, "no room"), K.POOL_FAILING, {"failures": 3}),
    "broken": (
        lambda: places.count_failures(ADA, pool(failures=3), 2, "no room"),
        K.POOL_BROKEN,
        {"failures": 5, "broken_at": NOW},
    ),
    "mended": (lambda: places.count_success(ADA, pool(failures=4)), K.POOL_MENDED, {"failures": 0}),
    "reset": (
        lambda: places.reset_breaker(ADA, pool(failures=5, broken_at=NOW)),
        K.POOL_RESET,
        {"failures": 0, "broken_at": None},
    ),
    "refusing orders": (lambda: places.refuse_for_pool(ADA, pool()), K.POOL_BACKPRESSURE, {}),
}
HOSTS: dict[str, tuple[Make, EventKind, dict[str, Any]]] = {
    "configured anew": (
        lambda: places.apply_host(
            ADA, host(), "local", places.HostSaid(driver="scripted", memory_mb=512, starts_max=4, start_gap_ms=50)
        ),
        K.HOST_APPLIED,
        {"driver": "scripted", "memory_mb": 512, "starts_max": 4, "start_gap_ms": 50},
    ),
    "drained": (
        lambda: places.set_host_mode(ADA, host(), Mode.DRAINING, "moving"),
        K.HOST_MODE,
        {"mode": Mode.DRAINING, "mode_since": NOW, "mode_reason": "moving", "mode_actor": "ada"},
    ),
    "led": (
        lambda: places.lead_host(ADA, AWAY, "k-2"),
        K.HOST_LED,
        {"identity": "k-2", "unreachable_since": None, "error": None},
    ),
    "unreachable": (
        lambda: places.host_unreachable(ADA, host(), "no answer"),
        K.HOST_UNREACHABLE,
        {"unreachable_since": NOW, "error": "no answer"},
    ),
    "still unreachable": (lambda: places.host_unreachable(ADA, AWAY, "late"), K.HOST_UNREACHABLE, {"error": "late"}),
    "reachable": (
        lambda: places.host_reachable(ADA, AWAY),
        K.HOST_REACHABLE,
        {"unreachable_since": None, "error": None},
    ),
    "declared dead": (
        lambda: places.declare_dead(ADA, host(), "burnt down"),
        K.HOST_DECLARED_DEAD,
        {"dead_at": NOW, "identity": None},
    ),
    "swept": (lambda: places.sweep(ADA, host(error="too many"), ["a"]), K.HOST_SWEPT, {"error": None}),
    "alarmed": (lambda: places.alarm(ADA, host(), "too many"), K.HOST_ALARMED, {"error": "too many"}),
    "pressed": (
        lambda: places.press(ADA, host(), host(pressure=Level.WARNING, pressure_since=NOW)),
        K.HOST_PRESSURE,
        {"pressure": Level.WARNING, "pressure_since": NOW},
    ),
    "calming": (lambda: places.press(ADA, host(), host(calm_since=NOW)), K.HOST_CALMING, {"calm_since": NOW}),
}


def _caused(change: Change | None, kind: EventKind) -> Change:
    """The change, which carries its cause and is guarded by the lease of who makes it."""
    assert change is not None and change.kind is kind
    assert (change.id, change.at, change.trigger, change.actor) == ("change-7", NOW, Trigger.REQUEST, "ada")
    assert change.guards == Guards(lease=("local", 9))
    return change


@pytest.mark.parametrize(("make", "kind", "columns"), POOLS.values(), ids=POOLS)
def test_a_change_of_a_pool_writes_what_it_is_about(make: Make, kind: EventKind, columns: dict[str, Any]) -> None:
    change = _caused(make(), kind)
    assert changed(change.pool_was, change.pool) == columns
    assert change.subject == "default"


@pytest.mark.parametrize(("make", "kind", "columns"), HOSTS.values(), ids=HOSTS)
def test_a_change_of_a_host_writes_what_it_is_about(make: Make, kind: EventKind, columns: dict[str, Any]) -> None:
    change = _caused(make(), kind)
    assert changed(change.host_was, change.host) == columns
    assert change.subject == "local"


def test_a_new_pool_is_blocked_until_somebody_leads_its_host() -> None:
    change = _caused(places.apply_pool(ADA, None, "big", "far", SETTINGS), K.POOL_APPLIED)
    assert change.pool_was is None
    assert change.pool == Pool(name="big", host="far", settings=SETTINGS, mode_since=NOW, blocked_since=NOW)


def test_a_new_host_is_open() -> None:
    change = _caused(
        places.apply_host(ADA, None, "far", places.HostSaid(driver="process", memory_mb=512)), K.HOST_APPLIED
    )
    assert change.host_was is None
    assert change.host == Host(name="far", driver="process", memory_mb=512, mode=Mode.OPEN, mode_since=NOW)


def test_a_project_is_made_and_limited_by_the_configuration() -> None:
    limited = Project(name="a", version=3, running_max=2, configured_max=2)
    made = _caused(places.apply_project(ADA, None, Project(name="a", running_max=2)), K.PROJECT_APPLIED)
    raised = _caused(places.apply_project(ADA, limited, Project(name="a", running_max=5, weight=4)), K.PROJECT_APPLIED)
    assert (made.project_was, made.project, made.subject) == (None, replace(limited, version=1), "a")
    told = {"running_max": 5, "configured_max": 5, "weight": 4}
    assert raised.project_was == limited and changed(limited, raised.project) == told
    assert places.apply_project(ADA, limited, Project(name="a", running_max=2)) is None


def test_what_an_operator_set_of_a_project_stays_until_it_is_given_back() -> None:
    configured, by_hand = Project(name="a", running_max=2), Override(value=9, actor="ada", at=NOW)
    change = _caused(places.override_project(ADA, None, configured, {"running_max": by_hand}), K.PROJECT_OVERRIDDEN)
    made = change.project
    assert made is not None and (made.running_max, made.overrides) == (9, {"running_max": by_hand})
    assert places.apply_project(ADA, made, configured) is None
    again = Override(value=9, actor="bob", at=NOW + 1)
    assert places.override_project(ADA, made, configured, {"running_max": again}) is None
    back = _caused(places.override_project(ADA, made, configured, {"running_max": None}), K.PROJECT_OVERRIDDEN)
    assert (back.project_was, back.project) == (made, replace(configured, configured_max=2))


def test_a_mode_that_is_set_already_keeps_its_first_actor_and_reason() -> None:
    assert places.set_pool_mode(ADA, pool(mode=Mode.PAUSED, mode_actor="bob"), Mode.PAUSED, "mine") is None
    assert places.set_host_mode(ADA, host(mode=Mode.PAUSED, mode_actor="bob"), Mode.PAUSED, "mine") is None


def test_a_leader_says_in_which_epoch_it_found_the_host() -> None:
    assert places.lead_host(ADA, host(), "k-1").note == {"epoch": 9}
    assert places.lead_host(cause(), host(), "k-1").note == {"epoch": None}


def test_a_declared_death_keeps_the_operators_reason() -> None:
    assert places.declare_dead(ADA, host(), "burnt down").note == {"reason": "burnt down"}


def test_who_refuses_orders_says_how_many_may_wait() -> None:
    full = pool(settings=PoolSettings(queue_max=40))
    assert places.refuse_for_pool(ADA, full).note == {"queue_max": 40}
    busy = Project(name="a", queue_max=7)
    change = _caused(places.refuse_for_project(ADA, busy), K.PROJECT_BACKPRESSURE)
    assert (change.project_was, change.project, change.note) == (busy, busy, {"queue_max": 7})


def test_a_clock_that_went_back_takes_no_blocked_time_away() -> None:
    change = places.unblock(ADA, pool(blocked_ms=1_000, blocked_since=NOW + 500))
    assert change.pool is not None and change.pool.blocked_ms == 1_000


def _set(value: object, actor: str = "ada") -> Override:
    return Override(value=value, actor=actor, at=NOW, reason="a busy week")


@pytest.mark.parametrize(
    ("name", "value", "settings"),
    [
        ("slots_max", 9, PoolSettings(slots_max=9)),
        ("memory_mb", 512, PoolSettings(memory_mb=512)),
        ("image", "bot:2", PoolSettings(template=Template(image="bot:2"))),
        ("queue_timeout_s", 1.5, PoolSettings(queue_timeout_ms=1_500)),
        ("queue_timeout_s", None, PoolSettings(queue_timeout_ms=None)),
        ("queue_timeout_max_s", 60, PoolSettings(queue_timeout_max_ms=60_000)),
        ("start_timeout_s", 7, PoolSettings(start_timeout_ms=7_000)),
        ("run_timeout_s", None, PoolSettings(run_timeout_ms=None)),
        ("stop_grace_s", 0, PoolSettings(stop_grace_ms=0)),
        ("retries", 5, PoolSettings(retry=Retry(retries=5))),
        ("retry_base_s", 0.25, PoolSettings(retry=Retry(base_ms=250))),
        ("retry_factor", 3.0, PoolSettings(retry=Retry(factor=3.0))),
        ("retry_cap_s", 10, PoolSettings(retry=Retry(cap_ms=10_000))),
        ("retry_on", ["oom", "exit"], PoolSettings(retry=Retry(retry_on=(Reason.OOM, Reason.EXIT)))),
        ("no_retry_on", ["lost"], PoolSettings(retry=Retry(no_retry_on=(Reason.LOST,)))),
    ],
)
def test_an_operator_sets_a_setting_in_the_unit_of_the_api(name: str, value: object, settings: PoolSettings) -> None:
    assert places.overlaid(PoolSettings(), {name: _set(value)}) == settings


def test_every_setting_that_may_be_set_leaves_the_others_as_they_are_configured() -> None:
    configured = PoolSettings(slots_max=7, memory_mb=64, retry=Retry(retries=1, base_ms=9))
    both = places.overlaid(configured, {"memory_mb": _set(128), "retries": _set(2)})
    assert {name: value for name, value in asdict(both).items() if value != getattr(configured, name)} == {
        "memory_mb": 128,
        "retry": Retry(retries=2, base_ms=9),
    }
    assert places.overlaid(configured, {}) == configured


def test_settings_are_set_over_the_configuration_and_given_back_to_it() -> None:
    hours, slots = _set(3_600), _set(9)
    row = pool(overrides={"slots_max": slots}, settings=PoolSettings(slots_max=9))
    change = _caused(
        places.override_pool(ADA, row, SETTINGS, {"slots_max": None, "run_timeout_s": hours, "retries": None}),
        K.POOL_OVERRIDDEN,
    )
    assert changed(change.pool_was, change.pool) == {
        "settings": PoolSettings(slots_max=7, run_timeout_ms=3_600_000),
        "overrides": {"run_timeout_s": hours},
    }


def test_a_setting_that_is_set_already_keeps_who_set_it_first() -> None:
    row = pool(overrides={"slots_max": _set(9, "bob")}, settings=PoolSettings(slots_max=9))
    assert places.override_pool(ADA, row, SETTINGS, {"slots_max": _set(9)}) is None
    change = _caused(
        places.override_pool(ADA, row, SETTINGS, {"slots_max": _set(9), "memory_mb": _set(64)}), K.POOL_OVERRIDDEN
    )
    assert change.pool is not None
    assert change.pool.overrides == {"slots_max": _set(9, "bob"), "memory_mb": _set(64)}
    again = places.override_pool(ADA, row, SETTINGS, {"slots_max": _set(8)})
    assert again is not None and again.pool is not None and again.pool.overrides == {"slots_max": _set(8)}


def test_the_configuration_does_not_undo_what_an_operator_set() -> None:
    row = pool(overrides={"slots_max": _set(9)}, settings=PoolSettings(slots_max=9))
    change = _caused(places.apply_pool(ADA, row, "default", "local", PoolSettings(memory_mb=64)), K.POOL_APPLIED)
    assert change.pool is not None and change.pool.settings == PoolSettings(slots_max=9, memory_mb=64)


def test_a_template_is_known_by_what_slots_are_made_of_and_by_nothing_else() -> None:
    one = PoolSettings(template=Template(image="bot:1"))
    assert places.fingerprint(one) == places.fingerprint(replace(one, slots_max=3, slots_warm=1, idle_ttl_ms=5))
    others = [
        PoolSettings(),
        PoolSettings(template=Template(image="bot:2")),
        PoolSettings(template=Template(image="bot:1", command=("a",))),
        PoolSettings(template=Template(image="bot:1"), memory_mb=512),
    ]
    assert len({places.fingerprint(each) for each in [one, *others]}) == 5


def test_failures_without_a_success_open_the_breaker_once() -> None:
    shaky = pool(failures=3)
    failing = places.count_failures(cause(), shaky, 1, "no room")
    assert failing.pool is not None and failing.kind is K.POOL_FAILING
    assert (failing.pool.failures, failing.pool.broken_at, failing.note) == (4, None, {"error": "no room"})
    broken = places.count_failures(cause(), shaky, 2, "no room")
    assert broken.pool is not None and broken.kind is K.POOL_BROKEN
    assert (broken.pool.failures, broken.pool.broken_at) == (5, NOW)
    more = places.count_failures(cause(at=NOW + 9), broken.pool, 1, "no room")
    assert more.pool is not None and more.kind is K.POOL_FAILING
    assert (more.pool.failures, more.pool.broken_at) == (6, NOW)


def test_after_five_minutes_a_success_closes_the_breaker_and_a_failure_opens_it_again() -> None:
    broken, later = pool(failures=5, broken_at=NOW), NOW + places.TRIES_AFTER_MS
    assert [places.may_try(broken, at) for at in (later - 1, later)] == [False, True]
    assert places.count_success(cause(at=later - 1), broken) is None
    mended = places.count_success(cause(at=later), broken)
    assert mended is not None and mended.pool == pool() and mended.kind is K.POOL_MENDED
    again = places.count_failures(cause(at=later), broken, 1, "no room")
    assert again.pool is not None and again.kind is K.POOL_BROKEN
    assert (again.pool.failures, again.pool.broken_at) == (6, later)


def test_a_success_forgets_failures_but_closes_no_breaker_that_has_just_opened() -> None:
    assert places.count_success(cause(), pool()) is None and places.reset_breaker(cause(), pool()) is None
    mended = places.count_success(cause(), pool(failures=4))
    assert mended is not None and mended.pool == pool() and mended.kind is K.POOL_MENDED
    broken = pool(failures=5, broken_at=NOW)
    assert places.count_success(cause(), broken) is None
    for each in (broken, pool(failures=1), pool(broken_at=NOW)):
        reset = places.reset_breaker(cause(), each)
        assert reset is not None and reset.pool == pool() and reset.kind is K.POOL_RESET


def test_a_new_template_closes_the_breaker_and_other_settings_do_not() -> None:
    broken = pool(failures=5, broken_at=NOW)
    other = replace(broken.settings, template=Template(image="app:2"))
    applied = places.apply_pool(cause(), broken, "default", "local", other)
    assert applied is not None and applied.pool is not None
    assert (applied.pool.failures, applied.pool.broken_at, applied.pool.settings) == (0, None, other)
    more = places.apply_pool(cause(), broken, "default", "local", replace(broken.settings, slots_warm=1))
    assert more is not None and more.pool is not None and more.pool.broken_at == NOW
    memory = {"memory_mb": Override(value=512, actor="tester", at=NOW)}
    overridden = places.override_pool(cause(), broken, broken.settings, memory)
    assert overridden is not None and overridden.pool is not None and overridden.pool.broken_at is None


def test_a_sweep_is_told_and_an_alarm_stands_until_it_is_over() -> None:
    swept = places.sweep(cause(), host(error="too many"), ["a", "b"])
    assert swept.host == host() and swept.note == {"strays": ["a", "b"]} and swept.kind is K.HOST_SWEPT
    alarmed = places.alarm(cause(), host(), "too many")
    assert alarmed is not None and alarmed.host == host(error="too many") and alarmed.kind is K.HOST_ALARMED
    assert places.alarm(cause(), host(error="too many"), "too many") is None
    over = places.alarm(cause(), host(error="too many"), None)
    assert over is not None and over.host == host()
    assert places.alarm(cause(), host(unreachable_since=NOW, error="away"), None) is None


def test_a_project_is_closed_and_opened_with_who_when_and_why_also_when_nobody_knew_it() -> None:
    paused = _caused(places.set_project_mode(ADA, None, "a", Mode.PAUSED, "audit"), K.PROJECT_MODE)
    row = Project(name="a", running_max=0, mode=Mode.PAUSED, mode_since=NOW, mode_reason="audit", mode_actor="ada")
    assert (paused.project_was, paused.project, paused.states) == (None, row, (None, "paused"))
    assert places.set_project_mode(ADA, row, "a", Mode.PAUSED, "other") is None
    opened = _caused(places.set_project_mode(ADA, row, "a", Mode.OPEN, None), K.PROJECT_MODE)
    assert opened.project_was == row
    assert changed(row, opened.project) == {"mode": Mode.OPEN, "mode_reason": None, "running_max": None}
    assert places.set_project_mode(ADA, None, "a", Mode.OPEN, None) is None


def test_a_closed_project_may_have_no_runs_whatever_the_configuration_says_until_it_is_opened() -> None:
    closed = Project(name="a", running_max=0, mode=Mode.DRAINING, configured_max=3)
    raised = _caused(places.apply_project(ADA, closed, Project(name="a", running_max=5)), K.PROJECT_APPLIED)
    assert changed(closed, raised.project) == {"configured_max": 5}
    opened = _caused(places.set_project_mode(ADA, raised.project, "a", Mode.OPEN, None), K.PROJECT_MODE)
    assert opened.project is not None and opened.project.running_max == 5


@pytest.mark.parametrize("drain", [places.set_pool_mode, places.set_host_mode])
def test_draining_at_once_says_from_when_on_what_runs_is_stopped(drain: Any) -> None:
    row = pool() if drain is places.set_pool_mode else host()
    first = drain(ADA, row, Mode.DRAINING, "moving")
    slowly = first.pool or first.host
    assert slowly.mode_stop_at is None
    at_once = drain(ADA, slowly, Mode.DRAINING, "hurry", stop=True)
    after = at_once.pool or at_once.host
    assert (after.mode_stop_at, after.mode_reason) == (NOW, "hurry")
    assert drain(ADA, after, Mode.DRAINING, "again", stop=True) is None
    opened = drain(ADA, after, Mode.OPEN, None)
    assert (opened.pool or opened.host).mode_stop_at is None
