"""What runs and the making of slots took, as the events tell it."""

import pytest
from msgspec.structs import replace

from standby.core.model import Change, EventKind, SlotState
from standby.store.contract import Length, Store
from tests import make

pytestmark = pytest.mark.anyio
FIRST = Length("p", 700, 200, False, make.NOW + 700, "a")
SECOND = Length("q", 900, None, False, make.NOW + 900, "a")


def at(moment: int, change: Change) -> Change:
    return replace(change, at=make.NOW + moment)


async def end(
    store: Store, took_ms: int, *, pool: str = "p", ready_ms: int | None = None, labels: dict[str, str] | None = None
) -> None:
    """A run that took so long ends."""
    place = make.slot(f"s-{pool}", pool=pool)
    await store.save([make.change(EventKind.SLOT_CREATING, slot=place)])
    submitted = make.submit(pool=pool, labels=labels)
    assert submitted.order is not None
    claimed = make.claim(submitted.order, next(each for each in await store.slots() if each.name == place.name))
    assert claimed.order is not None
    opened = replace(claimed.order, version=2)
    settled = make.settle(replace(opened, version=2))
    assert settled.run is not None
    ready_at = None if ready_ms is None else make.NOW + ready_ms
    ended = replace(settled, run=replace(settled.run, ended_at=make.NOW + took_ms, ready_at=ready_at))
    for change in (submitted, claimed, at(took_ms, ended)):
        (verdict,) = await store.save([change])
        assert verdict.saved, verdict


async def test_the_lengths_of_ended_runs_are_told_by_pool_oldest_first(store: Store) -> None:
    await end(store, 700, ready_ms=200)
    middle = await store.last_seq()
    await end(store, 900, pool="q")
    last = await store.last_seq()
    assert await store.lengths(0, last) == [FIRST, SECOND]
    assert await store.lengths(middle, last) == [SECOND]
    assert await store.lengths(0, middle) == [FIRST]
    assert await store.lengths(last, last) == []


async def test_the_labels_of_a_run_are_told_with_its_length(store: Store) -> None:
    labels = {"kind": 'a "long" one', "labels": '{"x":1}'}
    await end(store, 700, labels=labels)
    await end(store, 900, pool="q")
    first, second = await store.lengths(0, await store.last_seq())
    assert (first.labels, second.labels) == (labels, {})


async def test_the_labels_of_a_very_long_order_are_not_looked_for(store: Store) -> None:
    """Whoever remembers lengths reads thousands at once."""
    await end(store, 700, labels={"kind": "x" * 32_000})
    await end(store, 900, pool="q", labels={"kind": "x" * 33_000})
    first, second = await store.lengths(0, await store.last_seq())
    assert (list(first.labels), list(second.labels)) == (["kind"], [])


async def test_the_making_of_a_place_is_told_but_not_that_of_a_seat(store: Store) -> None:
    for name, template in (("made", "t-1"), ("seat", "")):
        row = make.slot(name, state=SlotState.CREATING, template=template, incarnation=None)
        await store.save([at(0, make.change(EventKind.SLOT_CREATING, slot=row))])
        idle = replace(row, state=SlotState.IDLE, incarnation="i")
        await store.save([at(4_000, make.change(EventKind.SLOT_IDLE, slot_was=row, slot=idle))])
    assert await store.lengths(0, await store.last_seq()) == [Length("p", 4_000, None, True, make.NOW + 4_000, None)]


async def test_whoever_wants_labels_of_many_orders_reads_no_long_ones(store: Store) -> None:
    await store.save([make.change(EventKind.SLOT_CREATING, slot=make.slot("s-p"))])
    (place,) = await store.slots()
    opened = make.submit(pool="p", labels={"kind": "x" * 33_000})
    assert opened.order is not None
    few = [make.submit(pool="p", labels={"kind": "short"}), make.submit(pool="p", labels={"kind": "x" * 33_000})]
    for change in (opened, make.claim(opened.order, place), *few):
        (verdict,) = await store.save([change])
        assert verdict.saved
    waiting = await store.candidates("p", 9, None, brief=True)
    assert sorted(work.spec.labels.get("kind", "") for work in waiting) == ["", "short"]
    assert [work.order for work in waiting] == [work.order for work in await store.candidates("p", 9, None)]
    (work,) = await store.open_orders(place.host, brief=True)
    assert (work.order.id, work.spec.labels) == (opened.order.id, {})
    assert [len(each.spec.labels) for each in await store.open_orders(place.host)] == [1]
