"""Whether and when a failed run is followed by another one."""

from standby.core.model import NEVER_RETRIED, RETRIED_BY_DEFAULT, Order, Reason, Retry, Spec
from standby.core.sighting import Exit

JITTER = 0.1


def wait_ms(policy: Retry, attempt: int, reason: Reason, chance: float, ending: Exit | None = None) -> int | None:
    """How long to wait before the next run, or null for none. `attempt` runs were claimed; `chance` is in [0, 1)."""
    if attempt > policy.retries or not retried(policy, reason, ending):
        return None
    wait = policy.base_ms * policy.factor ** (attempt - 1) * (1 + JITTER * (2 * chance - 1))
    return int(min(wait, policy.cap_ms))


def retried(policy: Retry, reason: Reason, ending: Exit | None = None) -> bool:
    """Whether this policy retries after this reason. Of an error that its worker named, the policy's lists of names say
    most, fatal ones before all; then its lists of reasons; then the worker. What certainly fails to start again is
    retried only where the policy names that reason."""
    if reason in NEVER_RETRIED:
        return False
    named = ending if reason is Reason.ERROR else None
    if named is not None and named.error_name in (*policy.fatal_errors, *policy.retry_errors):
        return named.error_name not in policy.fatal_errors
    if reason in policy.no_retry_on:
        return False
    never_began = ending is not None and ending.start_error is not None and ending.retryable is False
    if reason is Reason.START_FAILED and never_began:
        return reason in policy.retry_on
    return reason in RETRIED_BY_DEFAULT or reason in policy.retry_on or (named is not None and named.retryable is True)


def retries_left(order: Order, spec: Spec) -> int:
    """How many more runs the policy allows, whatever the reasons."""
    return max(0, spec.retry.retries + 1 - max(1, order.attempt))
