"""Many steps at once, on both engines: whatever they decide, the store lets only the legal part happen."""

import asyncio

import pytest

from standby.control.host import HostStep
from standby.core.model import OrderState
from standby.store.contract import Heard, Store
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState


async def test_many_concurrent_steps_on_an_empty_pool_of_ten_make_ten_slots_and_ten_runs(store: Store) -> None:
    stage = Stage(store, pools={"default": {"slots_max": 10, "memory_mb": 1}})
    first = await stage.leader()
    rivals = [HostStep(stage.world, stage.driver, stage.hold, "leader:a", lambda: None) for _ in range(5)]
    ids = [await stage.submit({"run_ms": None}) for _ in range(50)]
    for _ in range(10):
        await asyncio.gather(*(_one_step(leader) for leader in [first, *rivals]))
        await asyncio.gather(*(leader.close(5) for leader in [first, *rivals]))  # their saves and starts have arrived
    states = await stage.states(ids)
    slots = await stage.store.slots()
    assert len({slot.name for slot in slots}) == len(slots) == 10
    assert sum(state in (S.PREPARING, S.RUNNING) for state in states) == 10
    assert states.count(S.PENDING) == 40
    assert len(stage.platform.alive(stage.clock.now())) == 10
    assert set(stage.platform.most_copies.values()) == {1}


async def _one_step(leader: HostStep) -> None:
    leader.hint(Heard(frozenset({"default"})))
    await leader.step()
