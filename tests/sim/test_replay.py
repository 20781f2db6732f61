"""A failing seed is worth something because it can be told again, by anybody, and shorter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.run import run_seed, shrink
from tests.sim.planted import lost_cancel

ROOT = Path(__file__).parents[2]


def test_another_process_tells_the_same_history() -> None:
    here = run_seed(12, telling=True).history
    command = [sys.executable, "-m", "sim", "--seed", "12"]
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    there = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert there.stdout.splitlines()[:-1] == list(here)
    assert len(here) > 200


def test_a_failing_seed_is_made_shorter_and_still_fails_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_cancel(monkeypatch)
    seed = next(seed for seed in range(1, 100) if "acknowledged" in (run_seed(seed).violation or ""))
    shorter, kept = shrink(seed)
    assert "acknowledged" in (shorter.violation or "")
    assert len(kept) < 60
    assert run_seed(seed, keep=kept, telling=True).history == shorter.history
