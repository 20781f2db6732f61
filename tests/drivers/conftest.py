"""Rigs for the driver suites: a platform each test owns, and its end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standby.core.model import Warmth
from tests.engine import shared_engine

from .coolify_rig import CoolifyRig
from .docker_rig import DockerRig
from .rigs import CANNOT, DOCKER, KINDS, ProcessRig, Rig, ScriptedRig


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(what): a promise that not every platform can make, see CANNOT")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rig" in metafunc.fixturenames:
        needs = {what for mark in metafunc.definition.iter_markers("needs") for what in mark.args}
        kinds = [kind for kind in KINDS if not needs & CANNOT.get(kind, {}).keys()]
        marks = {kind: [pytest.mark.docker] for kind in DOCKER}
        params = [pytest.param(kind, marks=marks.get(kind, ()), id=kind) for kind in kinds]
        metafunc.parametrize("rig", params, indirect=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[ProcessRig]:
    rig = ProcessRig(tmp_path / "host")
    await rig.driver.open()
    yield rig
    await rig.end()


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    made: Rig
    match request.param:
        case "process":
            made = ProcessRig(tmp_path / "host")
        case "coolify":
            made = CoolifyRig()
        case kind if kind in DOCKER:
            _, end, warmth = kind.split("-")
            made = DockerRig(shared_engine(), Warmth(warmth), tls=end == "tls")
        case kind:
            made = ScriptedRig(seats=kind == "scripted")
    await made.driver.open()
    yield made
    await made.end()


@pytest.fixture(params=list(Warmth))
async def tier(request: pytest.FixtureRequest) -> AsyncIterator[DockerRig]:
    """A Docker engine, in every tier."""
    made = DockerRig(shared_engine(), request.param)
    yield made
    await made.end()


@pytest.fixture
async def created() -> AsyncIterator[DockerRig]:
    made = DockerRig(shared_engine(), Warmth.CREATED)
    yield made
    await made.end()


@pytest.fixture
async def running() -> AsyncIterator[DockerRig]:
    made = DockerRig(shared_engine(), Warmth.RUNNING)
    yield made
    await made.end()


@pytest.fixture
async def cold() -> AsyncIterator[DockerRig]:
    made = DockerRig(shared_engine(), Warmth.COLD)
    yield made
    await made.end()
