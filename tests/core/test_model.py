from enum import StrEnum
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from standby.core import model
from standby.core.explain import Gate, GateName
from standby.core.lifecycle import Cause
from standby.core.model import (
    Change,
    EventKind,
    Guards,
    Mode,
    OrderState,
    PoolSettings,
    Project,
    Reason,
    Retry,
    SlotState,
    Trigger,
    order_of,
    run_id,
    slot_word,
)
from standby.core.sighting import Exit, Pressure, Reading, Seen, Sighting
from tests.rows import NOW, host, order, pool, slot

S = OrderState
PROJECT = Project(name="a")
SCHEDULE = model.Schedule(
    name="nightly",
    project="a",
    pool="p",
    cron="@daily",
    memory_mb=1,
    spec=model.Spec(order_id=""),
    mode_since=NOW,
    mode_actor="ada",
)
SUBJECTS: dict[EventKind, tuple[str, Struct, str, str | None]] = {
    EventKind.ORDER_CLAIMED: ("order", order(), "order-1", "pending"),
    EventKind.SLOT_IDLE: ("slot", slot(), slot().name, "idle"),
    EventKind.POOL_APPLIED: ("pool", pool("big"), "big", "open"),
    EventKind.HOST_LED: ("host", host(name="far"), "far", "open"),
    EventKind.PROJECT_APPLIED: ("project", PROJECT, "a", "open"),
    EventKind.SCHEDULE_ADDED: ("schedule", SCHEDULE, "nightly", "open"),
}


@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_change_is_about_the_row_that_its_kind_names_also_when_it_begins_or_goes(kind: EventKind) -> None:
    noun, row, name, state = SUBJECTS[kind]
    others = {each: made for each, made, _, _ in SUBJECTS.values() if each != noun}
    for rows, states in (
        ({noun: row}, (None, state)),
        ({f"{noun}_was": row}, (state, None)),
        ({f"{noun}_was": row, noun: row}, (state, state)),
    ):
        change = Change(id="c", kind=kind, at=NOW, trigger=Trigger.LOOK, actor="a", **{**others, **rows})  # type: ignore[arg-type]
        assert (change.subject, change.states) == (name, states)


def test_a_change_without_the_row_that_its_kind_names_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match=r"host\.led"):
        _ = Change(id="c", kind=EventKind.HOST_LED, at=NOW, trigger=Trigger.LEASE, actor="a", pool=pool()).subject


@pytest.mark.parametrize(
    ("holder", "word"), [(None, "idle"), (S.PREPARING, "deploying"), (S.RUNNING, "busy"), (S.STOPPING, "busy")]
)
def test_a_slot_is_called_by_what_its_holder_does(holder: OrderState | None, word: str) -> None:
    assert slot_word(slot(), None if holder is None else order(holder)) == word


def test_a_slot_without_a_holder_is_called_by_its_state() -> None:
    assert slot_word(slot(state=SlotState.CLEANING), None) == "cleaning"


def test_a_run_is_named_after_its_order_and_its_number() -> None:
    assert run_id(order(S.RUNNING, id="order-7", attempt=3)) == "order-7-3"
    assert order_of("order-7-3") == "order-7"


@pytest.mark.parametrize("words", [OrderState, SlotState, Mode, Reason, Trigger, Seen, GateName])
def test_the_words_in_rows_and_answers_are_the_names_in_the_code(words: type[StrEnum]) -> None:
    assert [word.value for word in words] == [word.name.lower() for word in words]


def test_a_kind_says_whose_row_it_is_then_what_happened() -> None:
    assert [kind.value for kind in EventKind] == [kind.name.lower().replace("_", ".", 1) for kind in EventKind]


LIMITS = {
    "queue_timeout_ms": 5 * 60_000,
    "start_timeout_ms": 25 * 60_000,
    "run_timeout_ms": 60 * 60_000,
    "stop_grace_ms": 30_000,
    "retry": Retry(),
}
AT_FIRST: dict[type[Struct], dict[str, Any]] = {
    model.Order: {"version": 1, "attempt": 0},
    model.Retry: {
        "retries": 3,
        "base_ms": 5_000,
        "factor": 2.0,
        "cap_ms": 300_000,
        "retry_on": (),
        "no_retry_on": (),
        "retry_errors": (),
        "fatal_errors": (),
    },
    model.Spec: {
        "command": (),
        "env_names": (),
        "payload": "null",
        "labels": {},
        "priority": 100,
        "submitted_by": "admin",
        "on_conflict": model.OnConflict.WAIT,
        "urgent": False,
        **LIMITS,
    },
    model.Run: {},
    model.Slot: {"version": 1, "uses": 0, "failures": 0, "generation": 1, "template": ""},
    model.Template: {
        "command": (),
        "warmth": model.Warmth.CREATED,
        "worker": False,
        "ready": "running",
        "pids_max": 1_024,
        "shm_mb": 64,
        "network": "bridge",
        "mounts": (),
        "read_only": True,
        "cap_add": (),
    },
    model.PoolSettings: {
        "slots_max": 100,
        "slots_warm": 0,
        "idle_ttl_ms": 600_000,
        "pick": "lru",
        "reset": model.Reset.RECREATE,
        "deploy_timeout_ms": 30 * 60_000,
        "template": model.Template(),
        "memory_mb": 256,
        "queue_timeout_max_ms": 10 * 60_000,
        **LIMITS,
    },
    model.Pool: {
        "version": 1,
        "settings": PoolSettings(),
        "mode": Mode.OPEN,
        "mode_actor": "config",
        "blocked_ms": 0,
        "overrides": {},
        "failures": 0,
    },
    model.Override: {},
    model.Host: {
        "version": 1,
        "mode": Mode.OPEN,
        "mode_actor": "config",
        "start_gap_ms": 0,
        "limits": model.PressureLimits(),
        "pressure": model.Level.NONE,
    },
    model.Project: {
        "version": 1,
        "weight": 1,
        "overrides": {},
        "mode": Mode.OPEN,
        "mode_since": 0,
        "mode_actor": "config",
    },
    model.Schedule: {"version": 1, "zone": "UTC", "missed": model.Missed.ONCE, "mode": Mode.OPEN},
    model.Tick: {},
    model.Lease: {},
    model.Event: {},
    model.Guards: {"project_limit": False},
    model.Change: {"note": {}, "guards": Guards()},
    Cause: {},
    Exit: {"oom": False, "lost": False, "place_failed": False, "silent": False},
    Sighting: {},
    Reading: {},
    Pressure: {},
    Gate: {"holders": (), "stuck": False},
}


@pytest.mark.parametrize("noun", AT_FIRST)
def test_what_is_not_said_is_null_or_has_a_default_that_is_named_here(noun: type[Struct]) -> None:
    defaults = {field.name: field.default for field in fields(noun) if field.default is not NODEFAULT}
    empty = {field.name: field.default_factory() for field in fields(noun) if field.default_factory is not NODEFAULT}
    assert {name: default for name, default in {**defaults, **empty}.items() if default is not None} == AT_FIRST[noun]


@pytest.mark.parametrize(("spec", "stored"), [(model.Spec(order_id="x"), {"order_id": "x"}), (Retry(), {})])
def test_what_a_stored_order_leaves_out_is_what_is_named_above(spec: Struct, stored: dict[str, str]) -> None:
    """Another default there would change the orders that are stored: it goes to the pools, or is said from then on."""
    assert msgspec.to_builtins(spec) == stored
    assert msgspec.convert(stored, type(spec)) == spec


@pytest.mark.parametrize(
    "kind", [model.Order, model.Spec, model.Run, model.Slot, model.Event, Change, Guards, Cause, Exit, Sighting, Retry]
)
def test_what_is_made_for_every_order_is_no_burden_for_the_collector_of_cyclic_garbage(kind: type[Struct]) -> None:
    assert not kind.__struct_config__.gc
