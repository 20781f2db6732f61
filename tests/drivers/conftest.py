"""Rigs for the driver suites: a platform each test owns, and its end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .rigs import ProcessRig, Rig, ScriptedRig


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[ProcessRig]:
    rig = ProcessRig(tmp_path / "host")
    await rig.driver.open()
    yield rig
    await rig.end()


@pytest.fixture(params=["process", "scripted", "scripted-places"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    made: Rig
    match request.param:
        case "process":
            made = ProcessRig(tmp_path / "host")
        case kind:
            made = ScriptedRig(seats=kind == "scripted")
    await made.driver.open()
    yield made
    await made.end()
