"""The real steps on a real store under a virtual clock, with every fault the simulator knows."""

from collections.abc import Callable

import pytest

from sim.run import run_seed

SEEDS = 80


@pytest.mark.timeout(600)
def test_no_truth_is_broken_in_a_short_run(figure: Callable[[str], None]) -> None:
    broken = {seed: violation for seed in range(SEEDS) if (violation := run_seed(seed).violation) is not None}
    assert broken == {}, "tell one with: python -m sim --seed N --shrink"
    figure(f"simulator: {SEEDS} seeds, no truth broken (more with: make sim SEEDS=N)")


def test_a_seed_plays_the_same_twice() -> None:
    assert run_seed(7, telling=True).history == run_seed(7, telling=True).history
