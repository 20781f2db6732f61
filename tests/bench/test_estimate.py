"""The estimate at submit against an oracle that knows the true distributions, on recorded workloads."""

from collections.abc import Callable

import pytest

from bench import estimate

pytestmark = pytest.mark.timeout(300)  # the workloads are played once for all tests, by half a minute of work


@pytest.fixture(scope="module")
def scores() -> dict[str, estimate.Score]:
    return estimate.scores(1_000, range(5))


def test_where_all_runs_take_the_same_time_the_estimate_is_nearly_right(
    scores: dict[str, estimate.Score], figure: Callable[[str], None]
) -> None:
    found = scores["constant"]
    figure(f"estimated wait, constant: median error {found.ours:.0f} %, of position x 30 s {found.thumb:.0f} %")
    assert found.ours <= 20


@pytest.mark.parametrize("name", ["log-normal", "bursts", "pools", "lanes", "labels", "keys"])
def test_the_estimate_is_nearly_as_good_as_that_of_an_oracle_and_its_range_holds_eight_of_ten(
    name: str, scores: dict[str, estimate.Score], figure: Callable[[str], None]
) -> None:
    found = scores[name]
    figure(
        f"estimated wait, {name}: median error {found.ours:.0f} %, an oracle's {found.oracle:.0f} %, "
        f"of position x 30 s {found.thumb:.0f} %; the range held {found.covered:.0f} % of {found.told}"
    )
    assert found.ours <= 1.25 * found.oracle
    assert found.ours < found.thumb
    assert 75 <= found.covered <= 85
