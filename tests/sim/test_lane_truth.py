"""Who is said to be starved: only those for whom there was room."""

import pytest

from sim.book import Book
from sim.lanes import LaneTruths
from standby.core.model import Event, EventKind, Trigger
from tests.rows import NOW, order, pool


@pytest.mark.parametrize(("wanted", "starved"), [(None, True), (0.5, True), (1.25, False)])
def test_whoever_wants_more_processors_than_those_served_before_it_is_not_starved(
    wanted: float | None, starved: bool
) -> None:
    book, broken = Book(), list[str]()
    book.pools["default"] = pool()
    truths = LaneTruths(book, lambda _: NOW - 60_000, broken.append)
    waiting = order(id="waits", project="c", cpus=wanted)
    book.orders["waits"] = waiting
    book.unfinished.add("waits")
    served = order(id="served", project="a", cpus=0.5)
    event = Event(
        seq=1,
        at=NOW,
        kind=EventKind.ORDER_CLAIMED,
        subject="served",
        trigger=Trigger.ADMIT,
        actor="leader:a",
        change="c",
        from_state="pending",
        to_state="preparing",
        data={},
    )
    for _ in range(20):
        truths.claimed("served", served, event)
    assert bool(broken) is starved
