"""Rigs for the driver suites: a platform each test owns, and its end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .coolify_rig import CoolifyRig
from .rigs import CANNOT, KINDS, ProcessRig, Rig, ScriptedRig


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(what): a promise that not every platform can make, see CANNOT")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rig" in metafunc.fixturenames:
        needs = {what for mark in metafunc.definition.iter_markers("needs") for what in mark.args}
        kinds = [kind for kind in KINDS if not needs & CANNOT.get(kind, {}).keys()]
        metafunc.parametrize("rig", kinds, indirect=True)


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
        case kind:
            made = ScriptedRig(seats=kind == "scripted")
    await made.driver.open()
    yield made
    await made.end()
