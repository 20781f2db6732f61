"""Whether and when a failed run is followed by another one."""

from standby.core.model import NEVER_RETRIED, RETRIED_BY_DEFAULT, Order, Reason, Retry, Spec

JITTER = 0.1


def wait_ms(policy: Retry, attempt: int, reason: Reason, chance: float) -> int | None:
    """How long to wait before the next run, or null for none. `attempt` runs were claimed; `chance` is in [0, 1)."""
    if attempt > policy.retries or not retried(policy, reason):
        return None
    wait = policy.base_ms * policy.factor ** (attempt - 1) * (1 + JITTER * (2 * chance - 1))
    return int(min(wait, policy.cap_ms))


def retried(policy: Retry, reason: Reason) -> bool:
    """Whether this policy retries after this reason."""
    if reason in NEVER_RETRIED or reason in policy.no_retry_on:
        return False
    return reason in RETRIED_BY_DEFAULT or reason in policy.retry_on


def retries_left(order: Order, spec: Spec) -> int:
    """How many more runs the policy allows, whatever the reasons."""
    return max(0, spec.retry.retries + 1 - max(1, order.attempt))
