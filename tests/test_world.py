"""Ids: of changes, made many at a time, each given out once; of orders, one larger than the other. Answers that are
shared, and kept."""

import asyncio

import pytest
from msgspec.structs import replace

from standby.core.lifecycle import Cause
from standby.core.model import Trigger
from standby.world import Ids, Shared
from tests.control.stage import Stage


def test_short_ids_never_repeat_and_hold_64_bits_of_chance_each() -> None:
    ids = Ids()
    made = [ids.short() for _ in range(1_000)]

    assert len(set(made)) == len(made)
    assert all(len(bytes.fromhex(each)) == 8 for each in made)


def test_causes_of_changes_that_are_made_at_once_differ_by_their_ids_alone() -> None:
    world = Stage().world
    cause = world.causes(Trigger.LOOK, "leader:a", ("local", 7), 5)
    first, second = cause(), cause()

    assert first.id != second.id
    assert (
        first
        == replace(second, id=first.id)
        == Cause(id=first.id, at=5, trigger=Trigger.LOOK, actor="leader:a", lease=("local", 7))
    )


def test_no_byte_of_chance_is_used_for_two_short_ids() -> None:
    asked: list[bytes] = []

    def counted(count: int) -> bytes:
        first = sum(map(len, asked))
        asked.append(b"".join((first // 8 + nth).to_bytes(8, "big") for nth in range(count // 8)))
        return asked[-1]

    ids = Ids(counted)
    made = {ids.short() for _ in range(200)}

    given = b"".join(asked).hex()
    assert len(made) == 200
    assert made <= {given[at : at + 16] for at in range(0, len(given), 16)}


def test_ids_of_orders_grow_within_a_millisecond_and_with_the_time() -> None:
    ids = Ids(lambda count: b"\xff" * count)
    made = [ids.order(at) for at in (5, 5, 5, 6, 4, 6, 1 << 40)]

    assert made == sorted(set(made))
    assert {len(each) for each in made} == {26}
    assert made[0][:10] == "0000000005"
    assert made[-1][:10] > made[0][:10]


@pytest.mark.anyio
async def test_an_answer_is_at_hand_while_it_is_kept_and_not_once_it_is_forgotten() -> None:
    shared, asked = Shared(), list[str]()

    async def question() -> str:
        asked.append("once")
        return "answer"

    assert shared.at_hand("key") is None
    assert [await shared.ask("key", question, keep_s=60.0) for _ in range(2)] == ["answer", "answer"]
    assert shared.at_hand("key") == "answer"
    shared.forget("key")
    assert shared.at_hand("key") is None
    await shared.ask("key", question, keep_s=60.0)
    assert asked == ["once", "once"]


@pytest.mark.anyio
async def test_an_answer_that_was_forgotten_while_it_was_asked_for_is_not_kept() -> None:
    shared, go = Shared(), asyncio.Event()

    async def question() -> str:
        await go.wait()
        return "old"

    asking = asyncio.create_task(shared.ask("key", question, keep_s=60.0))
    await asyncio.sleep(0)
    shared.forget("key")
    go.set()
    assert await asking == "old"
    await asyncio.sleep(0)
    assert shared.at_hand("key") is None


@pytest.mark.anyio
async def test_an_answer_that_is_not_kept_is_never_at_hand() -> None:
    shared = Shared()

    async def question() -> str:
        return "answer"

    assert await shared.ask("key", question) == "answer"
    assert shared.at_hand("key") is None
