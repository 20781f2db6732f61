"""What a save promises, on both engines: all of a change or nothing, and a true word about each."""

import asyncio

import pytest
from msgspec.structs import replace

from standby.core.model import EventKind, Host, Mode, OrderState, Pool, PoolSettings, Project, Trigger
from standby.store.contract import Answer, Store, Verdict
from tests import make
from tests.conftest import Database

pytestmark = pytest.mark.anyio


def answers(verdicts: object) -> list[Answer]:
    assert isinstance(verdicts, list | tuple)
    return [verdict.answer for verdict in verdicts]


async def test_a_submitted_order_is_there_with_its_spec_and_its_sealed_environment(store: Store) -> None:
    made = make.submit(env=b"sealed", labels={"team": "blue"})
    assert made.order is not None and made.spec is not None

    assert await store.save([made]) == [Verdict(Answer.SAVED, 1)]

    work = await store.order(made.order.id)
    assert work is not None and (work.order, work.spec) == (made.order, made.spec)
    assert await store.sealed_env([made.order.id]) == {made.order.id: b"sealed"}
    assert await store.order("nobody") is None


async def test_nothing_to_save_is_saved(store: Store) -> None:
    assert list(await store.save([])) == []


async def test_every_written_row_gets_the_next_version(store: Store) -> None:
    made = make.submit()
    assert made.order is not None
    place = make.slot()
    await store.save([made, make.add_slot(place)])

    claimed = make.claim(made.order, place)
    await store.save([claimed])
    await store.save([make.settle(make.saved_order(claimed), place)])

    work = await store.order(made.order.id)
    assert work is not None and (work.order.version, work.order.state) == (3, OrderState.COMPLETED)
    assert [(slot.version, slot.uses) for slot in await store.slots()] == [(2, 1)]
    assert [run.number for run in await store.runs(made.order.id)] == [1]
    assert await store.ended_runs([f"{made.order.id}-1", f"{made.order.id}-2", "other"]) == {f"{made.order.id}-1"}


async def test_a_stale_version_changes_nothing(store: Store) -> None:
    made = make.submit()
    assert made.order is not None
    await store.save([made])
    assert answers(await store.save([make.cancel(made.order)])) == [Answer.SAVED]

    assert answers(await store.save([make.cancel(made.order)])) == [Answer.CONFLICT]

    work = await store.order(made.order.id)
    assert work is not None and work.order.version == 2
    assert await store.last_seq() == 2


async def test_a_change_of_a_missing_row_is_a_conflict(store: Store) -> None:
    assert answers(await store.save([make.cancel(make.order()), make.slot_gone(make.slot())])) == [Answer.CONFLICT] * 2
    assert await store.last_seq() == 0


async def test_a_change_with_one_stale_row_writes_none_of_its_rows(store: Store) -> None:
    made, place = make.submit(), make.slot()
    assert made.order is not None
    claimed = make.claim(made.order, place)
    await store.save([made, make.add_slot(place)])
    await store.save([claimed])

    stale = make.settle(make.saved_order(claimed), replace(place, version=9))
    assert answers(await store.save([stale])) == [Answer.CONFLICT]

    work = await store.order(made.order.id)
    assert work is not None and work.order == make.saved_order(claimed)
    assert await store.runs(made.order.id) == []
    assert await store.slots() == [place]


async def test_of_two_changes_for_one_slot_one_is_saved_and_the_other_conflicts(store: Store) -> None:
    first, second, place = make.submit(), make.submit(), make.slot()
    assert first.order is not None and second.order is not None
    await store.save([first, second, make.add_slot(place)])

    verdicts = await store.save([make.claim(first.order, place), make.claim(second.order, place)])

    assert answers(verdicts) == [Answer.SAVED, Answer.CONFLICT]
    work = await store.order(second.order.id)
    assert work is not None and work.order == second.order
    assert list(await store.holders(host="h")) == ["s-1"]


async def test_changes_of_one_row_in_one_call_are_saved_one_after_the_other(store: Store) -> None:
    made, place = make.submit(), make.slot()
    assert made.order is not None
    claimed = make.claim(made.order, place)
    settled = make.settle(make.saved_order(claimed), place)

    verdicts = await store.save([made, make.add_slot(place), claimed, settled])

    assert answers(verdicts) == [Answer.SAVED] * 4
    seqs = [verdict.seq for verdict in verdicts]
    assert seqs[0] < seqs[2] < seqs[3]  # type: ignore[operator]


async def test_a_slot_freed_in_a_batch_can_be_claimed_after_it(store: Store) -> None:
    first, second, place = make.submit(), make.submit(), make.slot()
    assert first.order is not None and second.order is not None
    claimed = make.claim(first.order, place)
    await store.save([first, second, make.add_slot(place)])
    await store.save([claimed])

    settled = make.settle(make.saved_order(claimed))
    assert answers(await store.save([settled, make.claim(second.order, place)])) == [Answer.SAVED] * 2


async def test_a_row_the_database_refuses_harms_only_its_own_change(store: Store) -> None:
    good = [make.submit() for _ in range(5)]
    # Two orders cannot hold one slot; no guard names it, so only the unique index can refuse the second.
    place = make.slot()
    held, rival = make.submit(), make.submit()
    assert held.order is not None and rival.order is not None
    await store.save([held, rival, make.add_slot(place)])
    await store.save([make.claim(held.order, place)])
    stolen = make.claim(rival.order, place, slot_free=None)
    nonsense = make.submit(make.order(ended_at=make.NOW))

    verdicts = await store.save([*good[:2], stolen, nonsense, *good[2:]])

    assert answers(verdicts) == [Answer.SAVED] * 2 + [Answer.CONFLICT] * 2 + [Answer.SAVED] * 3
    assert await store.counts() == {("p", OrderState.PENDING): 6, ("p", OrderState.PREPARING): 1}


async def test_fifty_submits_with_one_dedupe_key_make_one_order(store: Store) -> None:
    made = [make.submit(dedupe_live="a/nightly") for _ in range(50)]

    verdicts = [verdict for (verdict,) in await asyncio.gather(*(store.save([one]) for one in made))]

    saved = [one for one, verdict in zip(made, verdicts, strict=True) if verdict.saved]
    assert len(saved) == 1 and saved[0].order is not None
    others = {verdict.order_id for verdict in verdicts if verdict.answer is Answer.DUPLICATE}
    assert others == {saved[0].order.id}
    assert await store.counts() == {("p", OrderState.PENDING): 1}


async def test_a_dedupe_key_is_free_again_when_its_order_has_ended(store: Store) -> None:
    first, second = make.submit(dedupe_live="a/x"), make.submit(dedupe_live="a/x")
    assert first.order is not None
    await store.save([first])

    assert answers(await store.save([make.cancel(first.order), second])) == [Answer.SAVED] * 2


async def test_an_idempotency_key_gives_the_first_order_again(store: Store) -> None:
    first, again, other = make.submit(key="k"), make.submit(key="k"), make.submit(key="k", project="b")
    assert first.order is not None

    verdicts = await store.save([first, again, other])

    assert answers(verdicts) == [Answer.SAVED, Answer.DUPLICATE, Answer.SAVED]
    assert verdicts[1].order_id == first.order.id
    assert await store.idempotency("a", "k") == first.idempotency
    assert await store.idempotency("a", "other") is None
    assert await store.prune_idempotency(make.NOW + 1, 1) == 1
    assert await store.prune_idempotency(make.NOW + 1, 10) == 1
    assert await store.prune_idempotency(make.NOW + 1, 10) == 0


async def test_the_same_order_or_slot_or_run_is_not_inserted_twice(store: Store) -> None:
    made, place = make.submit(), make.slot()
    assert made.order is not None
    claimed = make.claim(made.order, place)
    settled = make.settle(make.saved_order(claimed))
    await store.save([made, make.add_slot(place), claimed, settled])

    run_again = make.change(EventKind.ORDER_COMPLETED, order=make.order(), run=settled.run)
    verdicts = await store.save([make.submit(made.order), make.add_slot(place), run_again])

    assert answers(verdicts) == [Answer.CONFLICT] * 3
    assert await store.last_seq() == 4


async def test_pools_hosts_and_projects_are_written_changed_and_removed(store: Store) -> None:
    pool = Pool(name="p", host="h", mode_since=1, settings=PoolSettings(slots_max=3))
    host, project = Host(name="h", driver="process", mode_since=1), Project(name="a", running_max=2)
    made = [make.put_pool(None, pool), make.put_host(None, host), make.limit_project("a", 2)]
    assert answers(await store.save(made)) == [Answer.SAVED] * 3
    assert (await store.pools(), await store.hosts(), await store.projects()) == ([pool], [host], [project])

    changed = replace(pool, blocked_since=5)
    assert (
        answers(await store.save([make.put_pool(pool, changed), make.limit_project("a", None, project)]))
        == [Answer.SAVED] * 2
    )
    assert await store.pool("p") == replace(changed, version=2)
    assert await store.host("h") == host
    assert (await store.pool("other"), await store.host("other")) == (None, None)
    assert answers(await store.save([make.put_pool(pool, changed), make.put_host(None, host)])) == [Answer.CONFLICT] * 2

    gone = make.change(EventKind.HOST_APPLIED, Trigger.CONFIG, host_was=host)
    assert answers(await store.save([gone])) == [Answer.SAVED]
    assert await store.hosts() == []


async def test_a_guarded_version_that_moved_is_a_conflict(store: Store) -> None:
    pool, host = Pool(name="p", host="h", mode_since=1), Host(name="h", driver="process", mode_since=1)
    made, place = make.submit(), make.slot()
    assert made.order is not None
    await store.save([make.put_pool(None, pool), make.put_host(None, host), made, make.add_slot(place)])
    taken = await store.take_lease("h", "me", 10_000)
    assert taken is not None
    lease = ("h", taken[0].epoch)

    refused = [
        make.claim(made.order, place, lease=lease, pool_version=2),
        make.claim(made.order, place, lease=lease, host_version=2),
        make.claim(made.order, place, lease=lease, slot_version=2),
        make.claim(made.order, replace(place, name="s-2"), lease=lease),
    ]
    assert answers(await store.save(refused)) == [Answer.CONFLICT] * 4
    # The configuration moves the pool in the same call, before the claim that was decided on the old one.
    late = make.claim(made.order, place, lease=lease, pool_version=1, host_version=1)
    moved = make.put_pool(pool, replace(pool, blocked_since=1))
    assert answers(await store.save([moved, late])) == [Answer.SAVED, Answer.CONFLICT]
    fresh = make.claim(made.order, place, lease=lease, pool_version=2, host_version=1)
    assert answers(await store.save([fresh])) == [Answer.SAVED]


async def test_hundreds_of_changes_from_many_callers_are_all_saved_once(store: Store) -> None:
    calls = [[make.submit() for _ in range(30)] for _ in range(40)]

    verdicts = [verdict for call in await asyncio.gather(*map(store.save, calls)) for verdict in call]

    assert all(verdict.saved for verdict in verdicts)
    assert sorted(verdict.seq or 0 for verdict in verdicts) == list(range(1, 1201))


async def test_text_that_a_database_cannot_hold_harms_no_other_change(store: Store) -> None:
    bad = make.add_slot(make.slot(error="a\0b", failures=2**70))
    assert answers(await store.save([make.submit(), bad, make.submit()]))[::2] == [Answer.SAVED] * 2


async def test_a_change_that_makes_no_sense_is_refused_before_it_is_tried(store: Store) -> None:
    made = make.submit()
    assert made.order is not None
    with pytest.raises(ValueError, match="never deleted"):
        await store.save([make.change(EventKind.ORDER_FAILED, order_was=made.order)])
    with pytest.raises(ValueError, match="keeps its id"):
        moved = replace(made.order, pool="q")
        await store.save([make.change(EventKind.ORDER_QUEUED, order_was=made.order, order=moved)])


async def test_a_second_store_sees_and_respects_what_the_first_saved(database: Database) -> None:
    one, two = await database.open(), await database.open()
    made = make.submit()
    assert made.order is not None
    await one.save([made])

    assert answers(await two.save([make.cancel(made.order)])) == [Answer.SAVED]
    assert answers(await one.save([make.cancel(made.order)])) == [Answer.CONFLICT]
    assert one.incarnation == two.incarnation


async def test_changes_that_are_saved_together_are_all_there_or_none(store: Store) -> None:
    first = make.submit(dedupe_live="k")
    await store.save([first])
    group = [make.submit(), make.submit(dedupe_live="k"), make.submit(make.order(id="once"))]
    assert first.order is not None
    assert await store.save(group, together=True) == [
        Verdict(Answer.HELD_BACK),
        Verdict(Answer.DUPLICATE, order_id=first.order.id),
        Verdict(Answer.HELD_BACK),
    ]
    assert await store.last_seq() == 1
    assert await store.save([group[0], group[2]], together=True) == [Verdict(Answer.SAVED, 2), Verdict(Answer.SAVED, 3)]
    assert await store.last_seq() == 3


async def test_a_large_group_is_one_whole_while_others_save_beside_it(store: Store) -> None:
    group = [make.submit() for _ in range(700)]
    alone = [make.submit() for _ in range(50)]
    verdicts, *others = await asyncio.gather(
        store.save(group, together=True), *(store.save([change]) for change in alone)
    )
    seqs = [verdict.seq for verdict in verdicts]
    assert None not in seqs
    assert seqs == list(range(seqs[0] or 0, (seqs[0] or 0) + 700))
    assert all(one[0].saved for one in others)


async def test_a_group_whose_changes_touch_the_same_row_is_nonsense(store: Store) -> None:
    order = make.order()
    with pytest.raises(ValueError, match="same rows"):
        await store.save([make.submit(order), make.submit(order)], together=True)


async def test_no_claim_slips_into_a_project_that_was_closed_meanwhile(store: Store) -> None:
    made, place = make.submit(project="a"), make.slot()
    assert made.order is not None
    await store.save([made, make.add_slot(place)])
    closed = Project(name="a", running_max=0, mode=Mode.PAUSED, configured_max=3)
    await store.save([make.change(EventKind.PROJECT_MODE, Trigger.REQUEST, project=closed)])
    claim = make.claim(made.order, place, project_limit=True)
    assert answers(await store.save([claim])) == [Answer.FULL]
    opened = replace(closed, mode=Mode.OPEN, running_max=3)
    await store.save([make.change(EventKind.PROJECT_MODE, Trigger.REQUEST, project_was=closed, project=opened)])
    assert answers(await store.save([replace(claim, id="again")])) == [Answer.SAVED]


async def test_the_database_refuses_a_closed_project_that_may_have_runs(store: Store) -> None:
    for limit in (None, 1):
        wrong = Project(name="a", running_max=limit, mode=Mode.PAUSED)
        assert answers(await store.save([make.change(EventKind.PROJECT_MODE, project=wrong)])) == [Answer.CONFLICT]
    assert list(await store.projects()) == []
