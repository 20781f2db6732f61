"""How long an order will probably wait."""

import pytest

from standby.core import estimate


def test_the_usual_length_is_the_median_of_what_was_measured() -> None:
    assert estimate.usual_ms([]) is None
    assert estimate.usual_ms([900, 10, 20]) == 20
    assert estimate.usual_ms([4, 3, 2, 1]) == 3


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
        (0, 1, [500], 0),
        (0, 0, [], None),
        (0, 1, [90, 10], 10),
    ],
)
def test_runs_of_the_usual_length_take_the_places_in_turns(
    ahead: int, places: int, open_ms: list[int], expected: int | None
) -> None:
    assert estimate.wait_ms(ahead, places, open_ms, 100) == expected
