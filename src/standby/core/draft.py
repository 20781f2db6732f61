"""A new order before it is submitted."""

from standby.core.model import Order, OrderState, Pool, Spec


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


def foreign(pool: Pool, project: str) -> str | None:
    """Why no order of this project may be in the pool; null when it may."""
    if pool.settings.project in (None, project):
        return None
    return f"pool {pool.name} takes only orders of project {pool.settings.project}, not of {project}"
