import pytest

from standby.core import retry
from standby.core.model import NEVER_RETRIED, OrderState, Reason, Retry
from standby.core.sighting import Exit
from tests.rows import order, spec


def test_three_retries_make_four_runs() -> None:
    waits = [retry.wait_ms(Retry(), attempt, Reason.LOST, 0.5) for attempt in (1, 2, 3, 4)]
    assert waits == [5_000, 10_000, 20_000, None]


def test_jitter_is_ten_percent_either_way_and_the_cap_comes_last() -> None:
    policy = Retry(base_ms=1_000, retries=50, cap_ms=300_000)
    assert retry.wait_ms(policy, 1, Reason.LOST, 0.0) == 900
    assert retry.wait_ms(policy, 1, Reason.LOST, 1.0) == 1_100
    assert retry.wait_ms(policy, 40, Reason.LOST, 1.0) == 300_000


@pytest.mark.parametrize("reason", Reason)
def test_only_start_failed_lost_and_drained_are_retried_by_default(reason: Reason) -> None:
    assert retry.retried(Retry(), reason) is (reason in (Reason.START_FAILED, Reason.LOST, Reason.DRAINED))


@pytest.mark.parametrize(
    ("policy", "ending", "again"),
    [
        (Retry(), Exit(start_error="no such command", retryable=False), False),
        (Retry(), Exit(start_error="no such image"), True),
        (Retry(), Exit(error_name="Late", retryable=False), True),  # it was not ready in time, and then said why
        (Retry(), None, True),
        (Retry(retry_on=(Reason.START_FAILED,)), Exit(start_error="no such command", retryable=False), True),
        (Retry(retry_on=(Reason.EXIT,)), Exit(start_error="no such command", retryable=False), False),
        (Retry(no_retry_on=(Reason.START_FAILED,)), Exit(start_error="no such image"), False),
    ],
)
def test_what_certainly_fails_to_start_again_is_retried_only_where_the_policy_names_that(
    policy: Retry, ending: Exit | None, again: bool
) -> None:
    assert retry.retried(policy, Reason.START_FAILED, ending) is again
    assert retry.retried(Retry(), Reason.LOST, ending)


@pytest.mark.parametrize("reason", sorted(NEVER_RETRIED))
def test_some_reasons_are_never_retried_whatever_the_policy_says(reason: Reason) -> None:
    assert not retry.retried(Retry(retry_on=(reason,)), reason)


@pytest.mark.parametrize(
    ("policy", "word", "again"),
    [
        (Retry(), None, False),
        (Retry(), False, False),
        (Retry(), True, True),
        (Retry(retry_errors=("Busy",)), False, True),
        (Retry(fatal_errors=("Busy",)), True, False),
        (Retry(fatal_errors=("Busy",), retry_errors=("Busy",)), True, False),
        (Retry(retry_errors=("Other",)), False, False),
        (Retry(fatal_errors=("Other",)), True, True),
        (Retry(no_retry_on=(Reason.ERROR,)), True, False),
        (Retry(no_retry_on=(Reason.ERROR,), retry_errors=("Busy",)), None, True),
        (Retry(retry_on=(Reason.ERROR,)), False, True),
        (Retry(retry_on=(Reason.ERROR,), fatal_errors=("Busy",)), True, False),
    ],
)
def test_of_a_named_error_the_policys_names_count_before_its_reasons_and_the_worker_last(
    policy: Retry, word: bool | None, again: bool
) -> None:
    ending = Exit(error_name="Busy", retryable=word)
    assert retry.retried(policy, Reason.ERROR, ending) is again
    assert retry.wait_ms(policy, 1, Reason.ERROR, 0.5, ending) == (5_000 if again else None)


def test_a_named_error_says_nothing_about_another_reason() -> None:
    ending = Exit(error_name="Busy", retryable=True)
    assert not retry.retried(Retry(retry_errors=("Busy",)), Reason.EXIT, ending)
    assert retry.retried(Retry(fatal_errors=("Busy",)), Reason.LOST, ending)
    assert not retry.retried(Retry(retry_errors=("Busy",)), Reason.CANCELLED, ending)


@pytest.mark.parametrize(("attempt", "left"), [(0, 3), (1, 3), (2, 2), (4, 0), (9, 0)])
def test_retries_left_counts_claims(attempt: int, left: int) -> None:
    assert retry.retries_left(order(OrderState.PENDING, attempt=attempt), spec()) == left
