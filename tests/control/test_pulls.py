"""One pull for each image at a time; those who wait for it hold no permit; a failed one is tried again."""

from typing import Any

import pytest

from standby.core.model import OrderState, Reason
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState


def pulling(pools: dict[str, Any], *, pull_ms: int = 30_000, **host: Any) -> Stage:
    """A host of containers without any image."""
    stage = Stage(
        seats=False, host=host, pools={name: {"slots_max": 5, "memory_mb": 10} | pools[name] for name in pools}
    )
    stage.platform.yard.images, stage.platform.yard.pull_ms = set(), pull_ms
    return stage


async def test_one_pull_serves_all_who_wait_for_the_image_and_its_progress_is_seen() -> None:
    stage = pulling({"default": {"image": "app:1"}})
    leader = await stage.leader()
    ids = [await stage.submit({}) for _ in range(3)]
    await stage.steps(leader, 6, each_ms=3_000)
    (state,) = await stage.store.images("local")
    assert (state.image, state.present, state.pulling_since is not None) == ("app:1", False, True)
    assert state.progress is not None and state.progress.endswith("%") and await stage.store.slots() == []
    await stage.steps(leader, 12, each_ms=3_000)
    (state,) = await stage.store.images("local")
    assert await stage.states(ids) == [S.COMPLETED] * 3
    assert (state.present, state.pulling_since, stage.platform.yard.pulls) == (True, None, ["app:1"])


async def test_who_waits_for_an_image_holds_no_permit() -> None:
    stage = pulling({"default": {"image": "app:1"}, "there": {}}, starts_max=1)
    leader = await stage.leader()
    first = await stage.submit({})
    other = await stage.submit({}, pool="there")
    await stage.steps(leader, 6, each_ms=1_000)
    assert await stage.states([first, other]) == [S.PENDING, S.COMPLETED]


async def test_a_failed_pull_is_tried_again_ever_more_rarely() -> None:
    stage = pulling({"default": {"image": "app:1"}}, pull_ms=100)
    stage.platform.yard.pulls_fail = 2
    leader = await stage.leader()
    order = await stage.submit({})
    await stage.steps(leader, 4, each_ms=1_000)
    (state,) = await stage.store.images("local")
    assert state.error == "the script says that app:1 cannot be pulled" and len(stage.platform.yard.pulls) == 1
    await stage.steps(leader, 5, each_ms=1_000)
    assert len(stage.platform.yard.pulls) == 2
    await stage.steps(leader, 8, each_ms=1_000)
    assert len(stage.platform.yard.pulls) == 2
    await stage.steps(leader, 10, each_ms=1_000)
    assert len(stage.platform.yard.pulls) == 3 and await stage.states([order]) == [S.COMPLETED]


async def test_an_image_that_was_removed_is_pulled_again() -> None:
    stage = pulling({"default": {"image": "app:1"}}, pull_ms=0)
    leader = await stage.leader()
    first = await stage.submit({})
    await stage.steps(leader, 8, each_ms=1_000)
    assert stage.platform.yard.images == {"app:1"}
    stage.platform.yard.images.clear()
    second = await stage.submit({})
    await stage.steps(leader, 3, each_ms=1_000)
    third = await stage.submit({})
    await stage.steps(leader, 20, each_ms=1_000)
    assert await stage.states([first, second, third]) == [S.COMPLETED] * 3
    assert stage.platform.yard.pulls == ["app:1"] * 2


async def test_an_order_whose_image_does_not_come_gets_longer_once() -> None:
    stage = pulling({"default": {"image": "app:1"}}, pull_ms=10_000_000)
    leader = await stage.leader()
    order = await stage.submit({})
    await stage.steps(leader, 31, each_ms=10_000)
    waits = await stage.order(order)
    assert waits.state is S.PENDING and waits.deploy_since is not None
    await stage.steps(leader, 155, each_ms=10_000)
    assert (await stage.order(order)).reason is Reason.DEPLOY_TIMEOUT
    await leader.close(0)


async def test_a_slot_kept_warm_gets_its_image_without_any_order() -> None:
    stage = pulling({"default": {"image": "app:1", "slots_warm": 2}}, pull_ms=100)
    leader = await stage.leader()
    await stage.steps(leader, 6, each_ms=1_000)
    assert [slot.state for slot in await stage.store.slots()] == ["idle", "idle"]
