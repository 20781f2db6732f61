"""Output of runs: when it is carried, and when nobody need."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from standby.control.apply import apply_config
from standby.control.controller import Controller
from standby.control.logs import LogStep
from standby.core.errors import Unreachable
from standby.core.model import OrderState
from standby.drivers.contract import CommandRefused, LogLine, LogPiece
from standby.store.sqlite import SqliteStore
from tests import make
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio


class Kept:
    """A platform that keeps the whole output of some runs until it may forget them."""

    def __init__(self, *runs: str) -> None:
        self.runs = list(runs)

    async def logs(self, cursors: Mapping[str, str]) -> Sequence[LogPiece]:
        line = LogLine(at=1, stream="stdout", text="hello")
        return [LogPiece(run_id=run, lines=[line], cursor="1", closed=True) for run in cursors]

    async def unstored(self) -> Sequence[str]:
        return self.runs

    async def forget(self, run_ids: Sequence[str]) -> None:
        self.runs = [run for run in self.runs if run not in run_ids]


async def test_output_of_a_purged_order_is_forgotten_and_leaves_nothing() -> None:
    store = SqliteStore.in_memory()
    await store.save([make.submit(id="known")])
    platform = Kept("known-1", "purged-1")
    step = LogStep(store, platform, 1_000)
    assert await step.step()
    assert not await step.step()
    assert platform.runs == ["known-1"]
    assert set(await store.log_tails(["known-1", "purged-1"])) == {"known-1"}
    await store.close()


class Asked(SqliteStore):
    """Notes which runs it was asked about."""

    asked: list[str]

    async def ended_runs(self, run_ids: Sequence[str]) -> frozenset[str]:
        self.asked = [*getattr(self, "asked", []), *run_ids]
        return await super().ended_runs(run_ids)


async def test_a_run_whose_end_was_told_is_forgotten_without_a_question() -> None:
    store, platform = Asked.in_memory(), Kept("told-1", "silent-1", "unknown-1")
    assert isinstance(store, Asked)
    await store.save([make.submit(id="unknown")])
    step = LogStep(store, platform, 1_000)
    step.ended([("told-1", False), ("silent-1", True)])
    await step.step()
    assert platform.runs == ["unknown-1"]
    assert set(await store.log_tails(["told-1", "silent-1"])) == {"told-1"}
    await step.step()
    assert (store.asked, platform.runs) == (["unknown-1"], ["unknown-1"])
    await store.close()


async def test_a_leader_that_stops_in_order_leaves_no_log_of_runs_that_wrote_nothing() -> None:
    stage = Stage(log_poll="60s")
    await apply_config(stage.world)
    silent = [await stage.submit() for _ in range(10)]
    loud = await stage.submit({"log": ["one line"]})
    stop = asyncio.Event()
    async with asyncio.timeout(20):
        controlling = asyncio.create_task(Controller(stage.world, "a").run(stop))
        while set(await stage.states([*silent, loud])) != {OrderState.COMPLETED}:  # noqa: ASYNC110  a turn at a time
            await asyncio.sleep(0)
        stop.set()
        await controlling
    assert list(stage.platform.copies) == [f"{loud}-1"], "the next leader carries the one that wrote something"
    assert await stage.store.log_tails([f"{order}-1" for order in silent]) == {}


@pytest.mark.parametrize("fault", [Unreachable("away"), CommandRefused("still alive"), RuntimeError("a driver's own")])
async def test_a_platform_that_cannot_forget_keeps_no_leader_from_stopping(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    stage = Stage(log_poll="60s")
    await apply_config(stage.world)
    order = await stage.submit()
    stop = asyncio.Event()

    async def forget(_: Sequence[str]) -> None:
        raise fault

    monkeypatch.setattr(stage.driver, "forget", forget)
    with capture_logs() as said:
        async with asyncio.timeout(20):
            controlling = asyncio.create_task(Controller(stage.world, "a").run(stop))
            while await stage.states([order]) != [OrderState.COMPLETED]:  # noqa: ASYNC110  a turn at a time
                await asyncio.sleep(0)
            stop.set()
            await controlling
    assert "leading a host failed" not in [each["event"] for each in said]
