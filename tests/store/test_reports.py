"""What workers say of their runs: kept without a version, the first result counts, news are told."""

import pytest
from msgspec.structs import replace

from standby.core.work import Report
from standby.store.contract import Heard, Store
from tests import make
from tests.conftest import Database
from tests.store.test_hints import Ear

pytestmark = pytest.mark.anyio

BEGUN = Report(run_id="o-1", boot="b", begun_at=5, heartbeat_at=5, progress=0.25, text="on its way")


async def test_what_a_report_leaves_out_stays_as_it_was(store: Store) -> None:
    await store.put_report(BEGUN, news=True)
    await store.put_report(Report(run_id="o-1", boot="b", begun_at=9, heartbeat_at=9), news=False)
    await store.put_report(Report(run_id="o-1", boot="b", heartbeat_at=7, text="nearly"), news=False)

    assert await store.reports(["o-1", "o-2"]) == {
        "o-1": Report(run_id="o-1", boot="b", begun_at=5, heartbeat_at=9, progress=0.25, text="nearly")
    }
    assert await store.reports([]) == {}
    assert await store.last_seq() == 0


async def test_the_first_result_counts(store: Store) -> None:
    failed = Report(
        run_id="o-1", boot="b", heartbeat_at=8, ended_at=8, error_name="Busy", error="try later", retryable=True
    )
    await store.put_report(BEGUN, news=True)
    await store.put_report(failed, news=True)
    await store.put_report(
        Report(run_id="o-1", boot="b", heartbeat_at=9, ended_at=9, exit_code=0, result='{"a":1}'), news=True
    )

    found = (await store.reports(["o-1"]))["o-1"]
    assert (found.ended_at, found.error_name, found.error, found.retryable) == (8, "Busy", "try later", True)
    assert (found.exit_code, found.result, found.begun_at, found.heartbeat_at) == (None, None, 5, 9)


async def test_news_are_heard_in_this_process_and_in_others(database: Database) -> None:
    store, here = await database.open(), Ear()
    store.listen(here)
    await store.put_report(BEGUN, news=False)
    assert here.heard == []
    await store.put_report(BEGUN, news=True)
    assert here.heard[0] == Heard(frozenset(), reported=frozenset({"o-1"}))
    if database.kind == "postgres":
        other, there = await database.open(), Ear()
        other.listen(there)
        await _heard(store, there)


async def _heard(store: Store, ear: Ear) -> None:
    """A listener takes a moment to be there: news are told again until they are heard."""
    for _ in range(100):
        await store.put_report(BEGUN, news=True)
        if await ear.within(0.1):
            break
    assert ear.heard[-1].reported == {"o-1"}


async def test_a_claim_for_a_worker_names_its_slot(database: Database) -> None:
    store, ear = await database.open(), Ear()
    slot = make.slot(boot="b")
    plain, order, other = make.slot("s-2"), make.order(), make.order()
    await store.save([make.add_slot(slot), make.add_slot(plain), make.submit(order), make.submit(other)])
    store.listen(ear)
    await store.save([make.claim(order, slot), make.claim(other, plain)])

    assert [heard.handed for heard in ear.heard] == [frozenset({slot.name})]


async def test_a_seat_is_a_slot_with_the_order_in_it(store: Store) -> None:
    slot, order = make.slot(boot="b"), make.order()
    await store.save([make.add_slot(slot), make.submit(order)])
    assert await store.seat("nowhere") is None
    assert await store.seat(slot.name) == (slot, None)

    claimed = make.claim(order, slot)
    await store.save([claimed])
    found = await store.seat(slot.name)
    assert found is not None and found[1] is not None
    assert (found[1].order.id, found[1].order.boot, found[1].spec.order_id) == (order.id, "b", order.id)


async def test_what_began_is_not_given_back_and_whoever_speaks_of_what_was_hears_of_it(store: Store) -> None:
    back = Report(run_id="o-1", boot="b", heartbeat_at=7, ended_at=7)
    assert await store.put_report(BEGUN, news=False) == BEGUN
    kept = await store.put_report(back, news=True)
    assert (kept.ended_at, kept.heartbeat_at) == (None, 7)
    other = await store.put_report(replace(back, run_id="o-2"), news=True)
    assert other.ended_at == 7
    late = await store.put_report(replace(BEGUN, run_id="o-2"), news=False)
    assert (late.begun_at, late.ended_at) == (5, 7)
