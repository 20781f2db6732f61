import pytest

from standby.cli.talk import length


@pytest.mark.parametrize(
    ("seconds", "units", "told"),
    [
        (0, 1, "0 s"),
        (-3, 1, "0 s"),
        (0.0004, 1, "0 s"),
        (0.18, 1, "180 ms"),
        (0.9996, 1, "999 ms"),
        (1.9, 1, "1 s"),
        (125, 1, "2 min"),
        (125, 2, "2 min 5 s"),
        (90_061, 2, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_told_in_its_largest_units(seconds: float, units: int, told: str) -> None:
    assert length(seconds, units) == told
