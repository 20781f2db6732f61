"""The simulator is worth something only if it finds bugs: each planted one is found, for the right reason."""

import re
from collections.abc import Callable

import pytest

from sim.plan import draw
from sim.run import run_seed
from tests.sim import planted, planted_workers
from tests.sim.planted import Plant

pytestmark = pytest.mark.timeout(900)
SEEDS_MOST = 1_000
PLANTS = {**planted.PLANTS, **planted_workers.PLANTS}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]) -> None:
    plant(monkeypatch)
    lived_in = plant in planted_workers.PLANTS
    for seed in range(1, SEEDS_MOST + 1):
        if lived_in and not any(pool.more.get("worker") for pool in draw(seed)[0].pools):
            continue
        violation = run_seed(seed).violation
        if violation is not None and re.search(PLANTS[plant], violation):
            monkeypatch.undo()
            assert run_seed(seed).violation is None, "it was not the planted bug that was found"
            figure(f"{plant.__name__.replace('_', ' ')}: found by seed {seed}: {violation}")
            return
    pytest.fail(f"not found in {SEEDS_MOST} seeds")
