"""Breaks core/ in one place at a time and counts how often its own tests notice. See docs/mutants.md."""

import shutil
import sys
from pathlib import Path
from typing import Final

import pytest
from mutmut.__main__ import cli
from mutmut.mutation.data import SourceFileMutationData
from mutmut.stats import status_by_exit_code

LEAST: Final = 0.9
"""The share that must be killed."""
DEAD: Final = {"killed", "timeout"}


def main() -> None:
    """Try every mutant, name those that live, say the share of the others, and fail if it is too small."""
    # Old verdicts would stand although the tests have changed.
    shutil.rmtree("mutants", ignore_errors=True)
    # pytest 9.2 has dropped a private name that mutmut 3.8 reads.
    if not hasattr(pytest.Item, "_nodeid"):
        pytest.Item._nodeid = property(lambda item: item.nodeid)  # type: ignore[attr-defined]
    cli(["run", *sys.argv[1:]], standalone_mode=False)
    verdicts = _verdicts()
    alive = {name: verdict for name, verdict in verdicts.items() if verdict not in DEAD}
    for name, verdict in alive.items():
        print(f"{verdict}: {name}")
    killed, share = len(verdicts) - len(alive), 1 - len(alive) / len(verdicts)
    print(f"{killed} of {len(verdicts)} mutants killed: {share:.1%}, at least {LEAST:.0%} are asked")
    sys.exit(share < LEAST)


def _verdicts() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(Path("src/standby/core").glob("*.py")):
        data = SourceFileMutationData(path=path)
        data.load()
        found |= {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
    return found


if __name__ == "__main__":
    main()
