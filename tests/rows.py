"""Plain builders of rows for tests: everything has a default, anything can be given."""

from typing import Any

from standby.core.lifecycle import Cause
from standby.core.model import (
    Host,
    Order,
    OrderState,
    Pool,
    PoolSettings,
    Reason,
    Slot,
    SlotState,
    Spec,
    Trigger,
)

NOW = 1_700_000_000_000

_OPEN_RUN: dict[str, Any] = {
    "attempt": 1,
    "slot": "standby-pool-default-001",
    "incarnation": "i-1",
    "commanded_at": NOW - 10_000,
    "command_until": NOW - 8_000,
    "deadline": NOW + 60_000,
}

_IN_STATE: dict[OrderState, dict[str, Any]] = {
    OrderState.PENDING: {"rank": NOW + 100_000, "queue_due": NOW + 300_000},
    OrderState.PREPARING: _OPEN_RUN,
    OrderState.RUNNING: {**_OPEN_RUN, "ready_at": NOW - 9_000, "handle": "h-1"},
    OrderState.STOPPING: {**_OPEN_RUN, "ready_at": NOW - 9_000, "stop_reason": Reason.TIMEOUT},
    OrderState.WAITING_RETRY: {"attempt": 1, "due_at": NOW + 5_000, "reason": Reason.LOST},
    OrderState.COMPLETED: {"attempt": 1, "ended_at": NOW, "exit_code": 0},
    OrderState.FAILED: {"attempt": 1, "ended_at": NOW, "reason": Reason.EXIT, "exit_code": 3},
    OrderState.CANCELLED: {"ended_at": NOW, "reason": Reason.CANCELLED},
}


def order(state: OrderState = OrderState.PENDING, **columns: Any) -> Order:
    """An order as it looks in this state."""
    base: dict[str, Any] = {
        "id": "order-1",
        "project": "default",
        "pool": "default",
        "memory_mb": 256,
        "submitted_at": NOW - 20_000,
        "state": state,
        "state_since": NOW - 5_000,
    }
    return Order(**{**base, **_IN_STATE[state], **columns})


def spec(**columns: Any) -> Spec:
    return Spec(**{"order_id": "order-1", "command": ("true",), **columns})


def slot(number: int = 1, state: SlotState = SlotState.IDLE, **columns: Any) -> Slot:
    base: dict[str, Any] = {
        "name": f"standby-pool-default-{number:03}",
        "host": "local",
        "pool": "default",
        "state": state,
        "state_since": NOW - 50_000,
        "created_at": NOW - 50_000,
        "incarnation": "i-1",
    }
    return Slot(**{**base, **columns})


def pool(name: str = "default", *, slots_max: int = 2, **columns: Any) -> Pool:
    settings = PoolSettings(slots_max=slots_max)
    return Pool(**{"name": name, "host": "local", "settings": settings, "mode_since": NOW - 99_000, **columns})


def host(**columns: Any) -> Host:
    return Host(**{"name": "local", "driver": "process", "mode_since": NOW - 99_000, "identity": "k-1", **columns})


def cause(trigger: Trigger = Trigger.LOOK, at: int = NOW, **more: Any) -> Cause:
    return Cause(**{"id": "change-1", "at": at, "trigger": trigger, "actor": "tester", **more})
