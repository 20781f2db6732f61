"""What the deploy gate writes: an order that is held, given longer, and claimed with a note."""

import pytest
from msgspec.structs import replace

from standby.core import lifecycle
from standby.core.model import Host, Pool, PoolSettings, Trigger
from standby.store.contract import Store
from tests import make
from tests.rows import cause, spec

pytestmark = pytest.mark.anyio
WHY = {"starts": {"n": 4, "max": 4, "place": 1, "queue": 1}}


async def test_an_order_that_is_held_extended_and_claimed_tells_its_story(store: Store) -> None:
    lease = await store.take_lease("h", "a", 10_000)
    assert lease is not None
    seat, pool = make.slot(), Pool(name="p", host="h", settings=PoolSettings(), mode_since=1)
    host = Host(name="h", driver="scripted", mode_since=1)
    submitted = make.submit(id="held-1", queue_due=5)
    await store.save([make.add_slot(seat), make.put_pool(None, pool), make.put_host(None, host), submitted])
    order = make.saved_order(submitted)
    by = cause(Trigger.ADMIT, lease=("h", lease[0].epoch))

    held = lifecycle.hold(replace(by, id="hold"), order, WHY)
    extended = lifecycle.extend(replace(by, id="longer"), make.saved_order(held), spec(), 1_800_000)
    assert extended is not None
    waits = make.saved_order(extended)
    claimed = lifecycle.claim(replace(by, id="claim"), waits, spec(), seat, pool, host, 2_000, {"starts": {"n": 1}})
    for change in (held, extended, claimed):
        (verdict,) = await store.save([change])
        assert verdict.saved, change.kind

    events = await store.events(0, 100, subject="held-1")
    assert [event.kind.value for event in events] == [
        "order.submitted",
        "order.held",
        "order.extended",
        "order.claimed",
    ]
    assert [event.data.get("note") for event in events[1:]] == [WHY, None, {"starts": {"n": 1}}]
    found = await store.order("held-1")
    assert found is not None and (found.order.version, found.order.deploy_since) == (4, None)
