"""Who hears of a commit, and when: what follows an answer begins while others are still answered."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from standby.core.model import Change, EventKind
from standby.store.commit import MANY, MOST_CHANGES, GroupCommit
from standby.store.contract import Answer, Verdict
from standby.store.entry import Entry, Prepared
from tests import make

pytestmark = pytest.mark.anyio


class Saving:
    """An engine that saves everything, a turn later."""

    def __init__(self) -> None:
        self.batches: list[list[EventKind]] = []

    def prepare(self, batch: Sequence[Entry]) -> Prepared:
        return {}, batch, None

    async def commit(
        self, batch: Sequence[Entry], *, together: bool = False, prepared: Prepared | None = None
    ) -> Sequence[Verdict]:
        self.batches.append([one.change.kind for one in batch])
        await asyncio.sleep(0)
        return [Verdict(Answer.SAVED, place) for place, _ in enumerate(batch, 1)]

    async def find(self, batch: Sequence[Entry]) -> Mapping[str, int]:
        return {}


async def test_of_many_submits_one_half_is_heard_of_first_and_asks_again_meanwhile() -> None:
    engine, heard = Saving(), list[str]()
    commit = GroupCommit(engine, lambda _: None)

    async def caller() -> None:
        for _ in range(2):
            await commit.save([make.submit()])
            heard.append(f"commit {len(engine.batches)}")

    await asyncio.gather(*(caller() for _ in range(MANY)))
    half = MANY // 2
    assert [len(batch) for batch in engine.batches] == [MANY, half, half]
    assert heard[:half] == ["commit 1"] * half
    assert heard[half : 2 * half] == ["commit 2"] * half, "the next commit was on its way before the others heard"


async def test_a_claim_that_came_with_its_order_is_sent_before_anybody_hears_of_the_order() -> None:
    engine, heard = Saving(), list[str]()
    commit = GroupCommit(engine, lambda _: None)
    submit = make.submit()
    assert submit.order is not None
    claim = make.claim(submit.order, make.slot())

    async def start() -> None:
        heard.append("start")

    async def saved(change: Change) -> None:
        await commit.save([change])
        if change is claim:
            await asyncio.ensure_future(start())
        heard.append(change.kind)

    await asyncio.gather(saved(submit), saved(claim))
    assert engine.batches == [[EventKind.ORDER_SUBMITTED, EventKind.ORDER_CLAIMED]]
    assert heard[0] == "start"


@pytest.mark.parametrize("size", [3, MOST_CHANGES + 3])
async def test_a_save_that_is_written_in_parts_is_answered_once_and_in_its_order(size: int) -> None:
    engine = Saving()
    commit = GroupCommit(engine, lambda _: None)
    submit = make.submit()
    assert submit.order is not None
    cancel = make.cancel(submit.order)
    others = [make.submit() for _ in range(size - 2)]
    beside = make.submit()
    saved, _ = await asyncio.gather(commit.save([submit, cancel, *others]), commit.save([beside]))
    first = min(size - 1, MOST_CHANGES)
    assert [len(batch) for batch in engine.batches] == [first + (size == 3), size - first + (size != 3)]
    assert engine.batches[1][0] is EventKind.ORDER_CANCELLED, "what touches the same order stays behind it"
    rest = [2] if size == 3 else [*range(2, first + 1), *range(2, size - first + 1)]
    assert [verdict.seq for verdict in saved] == [1, 1, *rest]


async def test_what_was_decided_together_is_not_torn_apart_for_what_came_before_it() -> None:
    engine = Saving()
    commit = GroupCommit(engine, lambda _: None)
    sizes = [MOST_CHANGES // 2, MOST_CHANGES // 2 + 1, MOST_CHANGES // 2 - 1]
    await asyncio.gather(*(commit.save([make.submit() for _ in range(size)]) for size in sizes))
    assert [len(batch) for batch in engine.batches] == [sizes[0], sizes[1] + sizes[2]]
