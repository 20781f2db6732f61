"""Who hears of a commit, and when: what follows an answer begins while others are still answered."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence

import pytest

from standby.core import lifecycle as life
from standby.core.model import Change, EventKind, Trigger
from standby.store.commit import MANY, MOST_CHANGES, GroupCommit
from standby.store.contract import Answer, Verdict
from standby.store.entry import Entry, Prepared
from tests import make, rows

pytestmark = pytest.mark.anyio

_numbers = itertools.count(1)


class Saving:
    """An engine that saves everything, a turn later, or when it may."""

    def __init__(self, *, sends_ahead: bool = False) -> None:
        self.sends_ahead = sends_ahead
        self.batches: list[list[EventKind]] = []
        self.ready: list[Sequence[Entry]] = []
        self.ready_when_sent: list[bool] = []
        self.may = asyncio.Event()
        self.may.set()
        self.error: Exception | None = None

    def prepare(self, batch: Sequence[Entry]) -> Prepared:
        if self.error is not None:
            raise self.error
        self.ready.append(batch)
        return {}, batch, None

    async def commit(
        self, batch: Sequence[Entry], *, together: bool = False, prepared: Prepared | None = None
    ) -> Sequence[Verdict]:
        self.batches.append([one.change.kind for one in batch])
        self.ready_when_sent.append(prepared is not None and prepared[1] == batch)
        if self.error is not None and len(batch) >= MANY:
            raise self.error
        await asyncio.sleep(0)
        await self.may.wait()
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


def _claims(count: int) -> list[Change]:
    """A leader's claims, each of a slot of its own."""
    claims: list[Change] = []
    for _ in range(count):
        number = next(_numbers)
        order, slot = rows.order(id=f"order-{number}"), rows.slot(number)
        cause = rows.cause(Trigger.ADMIT, id=f"change-{number}", lease=("local", 1))
        claims.append(life.claim(cause, order, rows.spec(order_id=order.id), slot, rows.pool(), rows.host(), 2_000))
    return claims


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_many_moves_that_wait_are_made_ready_while_a_commit_is_under_way() -> None:
    engine = Saving()
    commit = GroupCommit(engine, lambda _: None)
    engine.may.clear()
    first = asyncio.create_task(commit.save(_claims(1)))
    await _turns()
    second = asyncio.create_task(commit.save(_claims(MANY)))
    await _turns()
    assert [len(batch) for batch in engine.ready] == [MANY]
    late = asyncio.create_task(commit.save(_claims(2)))
    await _turns()
    assert len(engine.batches) == 1, "it is made ready, not sent"
    engine.may.set()
    assert [len(await each) for each in (first, second, late)] == [1, MANY, 2]
    assert [len(batch) for batch in engine.batches] == [1, MANY, 2], "who comes later does not join it"
    assert engine.ready_when_sent == [False, True, False]


async def test_many_moves_are_sent_behind_the_commit_under_way_where_the_engine_writes_them_in_turn() -> None:
    engine = Saving(sends_ahead=True)
    commit = GroupCommit(engine, lambda _: None)
    engine.may.clear()
    saves = [asyncio.create_task(commit.save(_claims(1)))]
    await _turns()
    for size in (MANY, MANY + 1, MANY + 2):
        saves.append(asyncio.create_task(commit.save(_claims(size))))
        await _turns()
    assert [len(batch) for batch in engine.batches] == [1, MANY], "one is written, one waits there, the others here"
    engine.may.set()
    assert [len(await save) for save in saves] == [1, MANY, MANY + 1, MANY + 2]
    assert [len(batch) for batch in engine.batches] == [1, MANY, 2 * MANY + 3]
    assert engine.ready_when_sent == [False, True, True]


async def test_a_batch_sent_ahead_that_fails_is_told_to_those_who_wait_for_it_and_the_next_one_goes_on() -> None:
    engine = Saving(sends_ahead=True)
    commit = GroupCommit(engine, lambda _: None)
    engine.may.clear()
    saves = [asyncio.create_task(commit.save(_claims(1)))]
    await _turns()
    engine.error = OSError("the disk is gone")
    saves.append(asyncio.create_task(commit.save(_claims(MANY))))
    await _turns()
    engine.error = None
    saves.append(asyncio.create_task(commit.save(_claims(2))))
    engine.may.set()
    with pytest.raises(OSError, match="the disk is gone"):
        await saves[1]
    assert [len(await save) for save in (saves[0], saves[2])] == [1, 2]


async def test_a_store_that_closes_waits_for_a_batch_that_was_sent_ahead() -> None:
    engine = Saving(sends_ahead=True)
    commit = GroupCommit(engine, lambda _: None)
    engine.may.clear()
    saves = []
    for size in (1, MANY):
        saves.append(asyncio.create_task(commit.save(_claims(size))))
        await _turns()
    closing = asyncio.create_task(commit.close())
    await _turns()
    assert (len(engine.batches), closing.done()) == (2, False)
    engine.may.set()
    await closing
    assert all(save.done() for save in saves)


@pytest.mark.parametrize("beside", [[], [make.submit()]])
async def test_changes_of_which_more_may_come_are_not_made_ready_before_their_turn(beside: list[Change]) -> None:
    engine = Saving()
    commit = GroupCommit(engine, lambda _: None)
    engine.may.clear()
    saves = [asyncio.create_task(commit.save(_claims(1)))]
    await _turns()
    saves += [asyncio.create_task(commit.save(beside))] if beside else []
    saves.append(asyncio.create_task(commit.save(_claims(MANY if beside else MANY - 1))))
    await _turns()
    assert not engine.ready
    saves.append(asyncio.create_task(commit.save([make.submit()])))
    await _turns()
    engine.may.set()
    await asyncio.gather(*saves)
    assert [len(batch) for batch in engine.batches] == [1, MANY if not beside else MANY + 2], "they share a commit"


async def test_a_batch_that_cannot_be_made_ready_tells_why_at_its_turn_and_the_next_one_goes_on() -> None:
    engine = Saving()
    commit = GroupCommit(engine, lambda _: None)
    engine.may.clear()
    saves = [asyncio.create_task(commit.save(_claims(1)))]
    await _turns()
    engine.error = ValueError("a value that no database takes")
    saves.append(asyncio.create_task(commit.save(_claims(MANY))))
    await _turns()
    saves.append(asyncio.create_task(commit.save([make.submit()])))
    engine.may.set()
    assert len(await saves[0]) == 1
    with pytest.raises(ValueError, match="no database takes"):
        await saves[1]
    assert len(await saves[2]) == 1


async def test_the_next_batch_is_sent_before_anybody_is_told_of_the_last_one() -> None:
    engine, told = Saving(), list[int]()
    commit = GroupCommit(engine, lambda _: told.append(len(engine.batches)))
    engine.may.clear()
    saves = [asyncio.create_task(commit.save([make.submit()]))]
    await _turns()
    saves.append(asyncio.create_task(commit.save([make.submit()])))
    await _turns()
    assert len(engine.batches) == 1, "one is under way, one waits"
    engine.may.set()
    await asyncio.gather(*saves)
    assert told == [2, 2]
