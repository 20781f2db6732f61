"""How long an order will probably wait."""

import pytest

from standby.core import estimate
from standby.core.estimate import Lengths


def wait_ms(ahead: int, places: int, open_ms: list[int]) -> int | None:
    line = estimate.line(places, open_ms, Lengths(100, 400))
    return None if line is None else line.wait_ms(ahead)


def test_the_usual_length_is_the_median_of_what_was_measured_and_nine_of_ten_are_no_longer_than_a_long_one() -> None:
    assert estimate.measured([]) is None
    assert estimate.measured([7]) == Lengths(7, 7)
    assert estimate.measured([900, 10, 20]) == Lengths(20, 900)
    assert estimate.measured([4, 3, 2, 1]) == Lengths(3, 4)
    assert estimate.measured(range(10, 0, -1)) == Lengths(6, 9)
    assert estimate.measured(range(1, 21)) == Lengths(11, 18)


@pytest.mark.parametrize(
    ("ahead", "places", "open_ms", "expected"),
    [
        (0, 2, [], 0),
        (1, 2, [], 0),
        (2, 2, [], 100),
        (5, 2, [], 200),
        (0, 1, [30], 70),
        (1, 1, [30], 170),
        (0, 2, [30, 60], 40),
        (1, 2, [30, 60], 70),
        (2, 2, [30, 60], 140),
        (0, 0, [], None),
    ],
)
def test_runs_of_the_usual_length_take_the_places_in_turns(
    ahead: int, places: int, open_ms: list[int], expected: int | None
) -> None:
    assert wait_ms(ahead, places, open_ms) == expected


def test_of_more_runs_than_places_all_but_the_last_must_end() -> None:
    assert wait_ms(0, 1, [90, 10]) == 90


@pytest.mark.parametrize(
    ("ahead", "places", "open_ms", "expected"),
    [
        (0, 1, [99], 1),
        (0, 1, [100], 300),
        (0, 1, [399], 1),
        (0, 1, [400], None),
        (0, 2, [500, 500], None),
        (0, 2, [500, 30], 70),
        (1, 2, [500, 30], 170),
        (0, 3, [500, 30], 0),
        (0, 1, [500, 30], None),
    ],
)
def test_a_run_that_outlasted_the_usual_counts_with_what_is_left_of_a_long_one_then_nobody_knows(
    ahead: int, places: int, open_ms: list[int], expected: int | None
) -> None:
    assert wait_ms(ahead, places, open_ms) == expected
