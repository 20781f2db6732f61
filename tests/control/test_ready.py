"""A server is ready when what its configuration names is there, and not before."""

import asyncio
from collections.abc import Sequence

import pytest

from standby.control.controller import Controller
from standby.core.model import Change
from standby.store.contract import Verdict
from tests.control.stage import Stage
from tests.workers import front_door

pytestmark = pytest.mark.anyio


async def test_a_server_is_ready_when_its_configuration_was_applied_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, stop = Stage(), asyncio.Event()
    save, asked, go = stage.store.save, asyncio.Event(), asyncio.Event()

    async def slowly(changes: Sequence[Change], *, together: bool = False) -> Sequence[Verdict]:
        asked.set()
        await go.wait()
        return await save(changes, together=together)

    monkeypatch.setattr(stage.store, "save", slowly)
    async with front_door(stage.world) as http, asyncio.timeout(20):
        running = asyncio.create_task(Controller(stage.world, "a").run(stop))
        await asked.wait()
        early = await http.get("/readyz")
        assert (early.status_code, early.json()["code"]) == (503, "not_ready"), early.text
        assert "configuration" in early.json()["detail"] and int(early.headers["retry-after"]) > 0
        go.set()
        while (await http.get("/readyz")).status_code != 200:  # noqa: ASYNC110  a turn at a time
            await asyncio.sleep(0)
        assert await stage.store.pool("default") is not None
        stop.set()
        await running
