import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from standby.cli.main import run
from tests.e2e.house import House, house


class Said(NamedTuple):
    code: int
    out: str
    err: str


Standby = Callable[..., Said]
POOL = '[pools.default]\nmemory_mb = 1\nretry_base = "100ms"\n'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A running server, shared by the tests of a module: each uses orders of its own."""
    directory = tmp_path_factory.mktemp("house")
    with house(directory, state=directory / ".standby", toml=POOL) as made:
        yield made.start()


@pytest.fixture
def standby(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Standby:
    """Run a command line away from any server."""
    for name in [name for name in os.environ if name.startswith("STANDBY_") or name == "DATABASE_URL"]:
        if not name.startswith("STANDBY_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def say(*words: str) -> Said:
        capfd.readouterr()
        code = run(words)
        return Said(code, *capfd.readouterr())

    return say


@pytest.fixture
def at_home(home: House, standby: Standby, monkeypatch: pytest.MonkeyPatch) -> Standby:
    """Run a command line somewhere below the server's directory."""
    below = home.directory / "some" / "where"
    below.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(below)
    return standby
