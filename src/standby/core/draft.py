"""A new order before it is submitted."""

from standby.core.model import Order, OrderState, Spec


def draft(order_id: str, at: int, project: str, pool: str, memory_mb: int, spec: Spec) -> Order:
    """An order with its identity only; `lifecycle.submit` says when it is ready."""
    key = spec.dedupe_key
    return Order(
        id=order_id,
        project=project,
        pool=pool,
        memory_mb=memory_mb,
        submitted_at=at,
        state=OrderState.PENDING,
        state_since=at,
        dedupe_live=None if key is None else f"{project}:{key}",
        concurrency_key=spec.concurrency_key,
        cpus=spec.cpus,
    )
