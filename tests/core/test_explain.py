from typing import Any

import pytest

from standby.core import explain
from standby.core.explain import GateName, House, gate
from standby.core.model import Lease, Mode, OrderState, SlotState
from tests.rows import NOW, host, order, pool, slot

LEASE = Lease(host="local", owner="a", epoch=1, until=NOW + 1, renewed_at=NOW)


def _house(**parts: Any) -> House:
    base: dict[str, Any] = {
        "pool": pool(slots_max=1),
        "host": host(memory_mb=300),
        "lease": LEASE,
        "slots": [slot(1)],
        "holders": {},
        "project_open": 0,
        "project_max": None,
        "now": NOW,
    }
    return House(**{**base, **parts})


HELD = {slot(1).name: order(OrderState.RUNNING, id="other")}


@pytest.mark.parametrize(
    ("name", "row", "parts"),
    [
        (GateName.RETRY_WAIT, order(OrderState.WAITING_RETRY), {}),
        (GateName.NOT_BEFORE, order(rank=None, due_at=NOW + 9_000), {}),
        (GateName.HOST_NOT_LED, order(), {"lease": None}),
        (GateName.HOST_NOT_LED, order(), {"now": NOW + 1}),
        (GateName.HOST_UNREACHABLE, order(), {"host": host(unreachable_since=NOW - 1, error="gone")}),
        (GateName.HOST_MODE, order(), {"host": host(mode=Mode.DRAINING)}),
        (GateName.POOL_MODE, order(), {"pool": pool(mode=Mode.PAUSED)}),
        (GateName.PROJECT_LIMIT, order(), {"project_open": 2, "project_max": 2}),
        (GateName.SLOTS, order(), {"holders": HELD}),
        (GateName.SLOTS, order(), {"slots": [slot(1, state=SlotState.ERROR)]}),
        (GateName.SLOTS, order(), {"slots": []}),
        (GateName.MEMORY, order(memory_mb=299), {"holders": {"elsewhere": order(OrderState.RUNNING, memory_mb=2)}}),
        (GateName.TURN, order(), {}),
    ],
)
def test_each_gate_names_itself(name: GateName, row: Any, parts: dict[str, Any]) -> None:
    found = gate(row, _house(**parts))
    assert found is not None and found.name is name and found.text


@pytest.mark.parametrize("state", [OrderState.RUNNING, OrderState.COMPLETED, OrderState.STOPPING])
def test_an_order_that_does_not_wait_has_no_gate(state: OrderState) -> None:
    assert gate(order(state), _house()) is None


@pytest.mark.parametrize("state", OrderState)
def test_what_follows_is_said_for_every_state_and_every_gate(state: OrderState) -> None:
    texts = [explain.what_follows(order(state), None)]
    texts += [explain.what_follows(order(state), explain.Gate(name, "")) for name in explain.GateName]
    assert all(text and not text.endswith(".") for text in texts)
    waits = state in (OrderState.PENDING, OrderState.WAITING_RETRY)
    assert all(text.startswith(("it does not wait", "nothing: ")) != waits for text in texts)
