"""Databases for real servers: what they are told to use."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import fresh_database


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(400))  # they wait for real time and real processes


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A migrated, empty PostgreSQL database."""
    with asyncio.Runner() as runner:
        database = fresh_database()
        yield runner.run(database.__aenter__())
        runner.run(database.__aexit__(None, None, None))


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str | None:
    """What `database` is set to: null is the embedded default."""
    url: str | None = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="sb-") as directory:
        yield Path(directory)
