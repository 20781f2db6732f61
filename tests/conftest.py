"""Fixtures that every test may use: a store of each engine, and the database behind it."""

import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from standby.store.contract import Store
from standby.store.sqlite import SqliteStore, clock_ms
from tests import engine
from tests.launched import end_launched
from tests.postgres import DIRECTORY, fresh_database

# how long an example takes says something about the machine only
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "docker: needs a Docker engine, which is started where that is possible")
    # In the process that starts the workers, so that they share one server and one engine.
    if not hasattr(config, "workerinput"):
        for directory in (DIRECTORY, engine.DIRECTORY):
            os.environ[directory] = tempfile.mkdtemp(prefix="standby-test-")
            os.environ[f"{directory}_OWNER"] = str(os.getpid())


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        for directory in (DIRECTORY, engine.DIRECTORY):
            end_launched(Path(os.environ[directory]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without an engine its tests are left out, and that is said; `.ci/run` does not accept it."""
    if engine.missing() is not None:
        left_out = [item for item in items if item.get_closest_marker("docker") is not None]
        items[:] = [item for item in items if item not in left_out]
        if left_out:
            config.hook.pytest_deselected(items=left_out)


def pytest_report_header() -> str | None:
    why = engine.missing()
    return None if why is None else f"Docker: its tests are left out, because {why}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed")
    figures = [value for report in reports for name, value in report.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("figures")
        for figure in figures:
            terminalreporter.write_line(str(figure))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say a figure that was measured: all of them are shown after the run."""
    return lambda text: record_property("figure", text)


class Database:
    """One database and all stores that a test opened on it. `skew_ms` moves their clock."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self.skew_ms = 0
        self._opened: list[Store] = []

    async def open(self, *, hints: bool = True) -> Store:
        """One more store on this database, as another instance would have it; closed with the test."""
        store: Store
        if self.kind == "sqlite":
            path = Path(self.url.removeprefix("sqlite:///"))
            store = SqliteStore.open(path, clock=lambda: clock_ms() + self.skew_ms, hints=hints)
        else:
            from standby.store.postgres import PostgresStore

            store = await PostgresStore.open(self.url, hints=hints, offset=lambda: self.skew_ms)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database of each engine."""
    if request.param == "sqlite":
        opened = Database("sqlite", f"sqlite:///{tmp_path / 'standby.db'}")
        yield opened
        await opened.close()
        return
    async with fresh_database() as url:
        opened = Database("postgres", url)
        yield opened
        await opened.close()


@pytest.fixture
async def store(database: Database) -> Store:
    """A store on an empty database of each engine."""
    return await database.open()
