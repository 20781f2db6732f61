"""An order's place in its lane: fixed when it becomes ready, so that waiting counts for everybody."""

from typing import Final

from standby.core.model import Order, Spec

AGE_STEP_MS: Final = 1_000
"""One point of priority is worth this much waiting."""
URGENT_MS: Final = 10**15
"""By so much an urgent order goes before all others: its rank is below zero."""


def rank(spec: Spec, ready_at: int) -> int:
    """The rank of an order that is ready since then; the smallest goes first."""
    return ready_at + spec.priority * AGE_STEP_MS - (URGENT_MS if spec.urgent else 0)


def is_urgent(order: Order) -> bool:
    """Whether this waiting order goes before all lanes."""
    return order.rank is not None and order.rank < 0
