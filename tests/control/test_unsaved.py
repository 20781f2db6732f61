"""A leader decides while it saves: whatever others write meanwhile, nothing is lost, doubled or given away early."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from standby.control.host import HostStep
from standby.control.logs import LogStep
from standby.core.model import Change, OrderState, Slot, SlotState
from standby.drivers.contract import LogLine, LogPiece
from standby.store.contract import Heard, Verdict
from standby.store.sqlite import SqliteStore
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState


class Gate:
    """While it is shut, saves wait in their order, as behind a slow commit."""

    def __init__(self, stage: Stage) -> None:
        self._real = stage.store.save
        self._waiting: list[tuple[Sequence[Change], asyncio.Event]] = []
        self.shut = True
        stage.store.save = self._save  # type: ignore[method-assign]

    async def _save(self, changes: Sequence[Change], *, together: bool = False) -> Sequence[Verdict]:
        if self.shut and changes:
            passed = asyncio.Event()
            self._waiting.append((changes, passed))
            await passed.wait()
        return await self._real(changes, together=together)

    @property
    def kinds(self) -> list[str]:
        return [change.kind for changes, _ in self._waiting for change in changes]

    async def let(self, count: int) -> None:
        """Let the first of those who wait through."""
        for _ in range(count):
            self._waiting.pop(0)[1].set()
            for _ in range(10):
                await asyncio.sleep(0)


async def once(stage: Stage, leader: HostStep, ms: int) -> None:
    stage.clock.ms += ms
    stage.hold.renewed(stage.clock.monotonic(), stage.world.config.lease_ms)
    await asyncio.wait_for(leader.step(), 5)
    await stage.answers()


async def warmed(stage: Stage, slots: int = 1) -> HostStep:
    """A leader of so many idle slots."""
    leader = await stage.leader()
    for _ in range(slots):
        await stage.submit({"run_ms": 1})
    await stage.steps(leader, 12, each_ms=10)
    assert [slot.state for slot in await stage.store.slots()] == [SlotState.IDLE] * slots
    return leader


async def test_a_cancel_that_is_saved_before_a_ready_is_not_undone_by_the_end() -> None:
    stage = Stage()
    leader = await warmed(stage)
    order_id = await stage.submit({"start_ms": 5, "run_ms": 30, "exit": 3}, retries=3)
    await stage.steps(leader, 1)
    gate = Gate(stage)
    await once(stage, leader, 25)
    assert gate.kinds == ["order.ready"]
    await once(stage, leader, 25)  # seen ended, while the ready is under way
    gate.shut = False
    await stage.cancel(order_id)
    await gate.let(1)
    await stage.steps(leader, 4, each_ms=30)
    ended = await stage.order(order_id)
    assert (ended.state, ended.attempt) == (S.CANCELLED, 1)


async def test_an_end_that_is_seen_while_a_ready_is_under_way_is_judged_as_soon_as_that_is_saved() -> None:
    stage = Stage()
    leader = await warmed(stage)
    order_id = await stage.submit({"start_ms": 5, "run_ms": 30})
    await stage.steps(leader, 1)
    gate = Gate(stage)
    await once(stage, leader, 25)
    await once(stage, leader, 25)
    gate.shut = False
    await gate.let(1)
    await once(stage, leader, 0)
    assert (await stage.order(order_id)).state is S.COMPLETED


async def test_a_place_is_not_cleaned_before_the_end_of_its_run_is_saved() -> None:
    stage = Stage(seats=False)
    leader = await warmed(stage)
    removed: list[str] = []
    real = stage.driver.remove

    async def remove(slot: Slot) -> None:
        removed.append(slot.name)
        await real(slot)

    stage.driver.remove = remove  # type: ignore[method-assign]
    order_id = await stage.submit({"run_ms": 100})
    await stage.steps(leader, 2, each_ms=21)
    gate = Gate(stage)
    await once(stage, leader, 150)
    assert ((await stage.order(order_id)).state, removed) == (S.RUNNING, [])
    gate.shut = False
    await gate.let(1)
    await stage.steps(leader, 3, each_ms=10)
    assert len(removed) == 1


async def test_memory_is_given_back_only_with_the_saved_end() -> None:
    stage = Stage(host={"memory_mb": 100}, pools={"default": {"slots_max": 2, "memory_mb": 10}})
    leader = await warmed(stage, 2)
    first = await stage.submit({"start_ms": 5, "run_ms": 30}, memory_mb=100)
    await stage.steps(leader, 1)
    await stage.submit({"run_ms": None}, memory_mb=100)
    gate = Gate(stage)
    await once(stage, leader, 25)
    await gate.let(1)
    await once(stage, leader, 25)
    gate.shut = False
    await stage.cancel(first)  # before its end is saved
    gate.shut = True
    await once(stage, leader, 1)
    while gate.kinds:
        await gate.let(1)
    opened = await stage.store.open_orders("local")
    assert sum(work.order.memory_mb for work in opened) <= 100


async def test_an_order_whose_claim_is_under_way_is_not_claimed_once_more() -> None:
    stage = Stage()
    leader = await warmed(stage, 2)
    stage.store.listen(leader.hint)
    late = [await stage.submit(not_before=stage.clock.ms + 3_600_000) for _ in range(2)]
    await stage.cancel(late[0])
    await once(stage, leader, 60)
    order_id = await stage.submit()
    gate = Gate(stage)
    await once(stage, leader, 1)
    gate.shut = False
    await stage.cancel(late[1])  # a hint: what was read ahead is forgotten
    gate.shut = True
    await once(stage, leader, 21)
    assert gate.kinds == ["order.claimed"]
    gate.shut = False
    await gate.let(1)
    await stage.steps(leader, 3, each_ms=21)
    assert ((await stage.order(order_id)).state, len(await stage.store.runs(order_id))) == (S.COMPLETED, 1)


async def test_an_order_that_comes_while_another_pool_is_read_does_not_wait_for_the_poll() -> None:
    stage = Stage(pools={"a": {"slots_max": 1, "memory_mb": 1}, "b": {"slots_max": 1, "memory_mb": 1}})
    leader = await stage.leader()
    stage.store.listen(leader.hint)
    for pool in "ab":
        await stage.submit({"run_ms": 1}, pool=pool)
    for _ in range(10):
        await once(stage, leader, 150)
    real, late = stage.store.candidates, list[str]()

    async def candidates(pool: str, *rest: Any) -> Any:
        if pool == "b" and not late:
            late.append("")
            late[0] = await stage.submit({"run_ms": None}, pool="a")
        return await real(pool, *rest)

    stage.store.candidates = candidates  # type: ignore[method-assign,assignment]
    leader.hint(Heard(frozenset({"a"})))  # what was read ahead is forgotten
    await once(stage, leader, 1_000)
    for _ in range(3):
        await once(stage, leader, 20)
    assert (await stage.order(late[0])).state is S.RUNNING


class TwoPieces:
    """A run whose output comes in two pieces."""

    def __init__(self, run: str) -> None:
        self.runs = [run]

    async def logs(self, cursors: Mapping[str, str]) -> list[LogPiece]:
        return [self._piece(run, int(cursor or 0)) for run, cursor in cursors.items()]

    def _piece(self, run: str, at: int) -> LogPiece:
        lines = [LogLine(at=1, stream="stdout", text=f"line {at}")] if at < 2 else []
        return LogPiece(run_id=run, lines=lines, cursor=str(min(at + 1, 2)), closed=at >= 1)

    async def unstored(self) -> list[str]:
        return self.runs

    async def forget(self, runs: Sequence[str]) -> None:
        self.runs = [run for run in self.runs if run not in runs]


async def test_output_of_an_order_that_is_purged_half_way_comes_to_an_end() -> None:
    store, platform = SqliteStore.in_memory(), TwoPieces("purged-1")
    step = LogStep(store, platform, 1_000)
    await step.step()
    await store.remove_logs(["purged-1"])
    moved = [await step.step() for _ in range(4)]
    assert (platform.runs, moved[-1]) == ([], False)
