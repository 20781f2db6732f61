"""What comes bit by bit: pages of orders, events, output, the way of an order to its end."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, Unpack

import msgspec
from msgspec.structs import replace

from standby.client import plans
from standby.client.answers import Event, LogEnd, LogLine, LogPage, Order
from standby.client.plans import Which, _Events, given
from standby.client.talk import (
    WAIT_FIRST_S,
    WAIT_MOST_S,
    Flow,
    Item,
    Patience,
    Pause,
    Plan,
    Read,
    ask,
    get,
    opened,
    patient,
)

PAGE: Final = 200
PAGE_EVENTS: Final = 1_000
PAGE_LINES: Final = 10_000

Kinds = str | Sequence[str] | None
T = TypeVar("T")


def orders(*, limit: int | None = None, **which: Unpack[Which]) -> Flow[Order]:
    """All orders that match, newest first, read page by page as they are taken."""
    cursor, left = None, limit
    while left is None or left > 0:
        page = yield from plans.orders_page(limit=min(PAGE, left or PAGE), cursor=cursor, **which)
        for order in page.orders:
            yield Item(order)
        cursor, left = page.next, None if left is None else left - len(page.orders)
        if cursor is None:
            return


def watch(order_id: str) -> Flow[Order]:
    """The order now and after each change that is noticed, until it has ended; a restart of the server is sat out."""
    seen, wait_s, patience = None, WAIT_FIRST_S, Patience()
    while True:
        order = yield from patient(get("work-orders", order_id), Order, patience)
        if seen != (order.state, order.attempt):
            seen, wait_s = (order.state, order.attempt), WAIT_FIRST_S
            yield Item(order)
        if order.ended:
            return
        yield Pause(wait_s)
        wait_s = min(wait_s * 1.5, WAIT_MOST_S)


def wait(order_id: str, timeout: float | None = None) -> Plan[Order]:
    """The order once it has ended; TimeoutError when that takes longer than `timeout` seconds."""
    until = None if timeout is None else time.monotonic() + timeout
    wait_s, patience = WAIT_FIRST_S, Patience()
    while True:
        order = yield from patient(get("work-orders", order_id), Order, patience, until)
        if order.ended:
            return order
        left_s = wait_s if until is None else until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"order {order_id} is still {order.state} after {timeout:g} s")
        yield Pause(min(wait_s, left_s))
        wait_s = min(wait_s * 1.5, WAIT_MOST_S)


def events(
    *,
    follow: bool = False,
    after: str | int | None = None,
    kind: Kinds = None,
    subject: str | None = None,
    newest: int | None = None,
) -> Flow[Event]:
    """What happened after a place (an event's `cursor`), oldest first. With `follow` also what comes, taken up again
    where a connection broke off; without `after` that is from now on, else from the oldest one that is kept. With
    `newest` of what happened only so many, the last ones (1 to 1000)."""
    if newest is not None:
        return _newest_events(newest, after, kind, subject, follow=follow)
    if follow:
        return _followed_events(after, kind, subject)
    return _event_pages(after, kind, subject)


def _newest_events(
    newest: int, after: str | int | None, kind: Kinds, subject: str | None, *, follow: bool
) -> Flow[Event]:
    place = str(after or 0)
    params = [*_kinds(kind), *given(after=place, subject=subject, limit=newest, newest="true")]
    page = yield from ask(get("events", params=params), _Events)
    for event in page.events:
        yield Item(replace(event, cursor=_cursor(event, page.next)))
    if follow:
        yield from _followed_events(page.next, kind, subject)


def _event_pages(after: str | int | None, kind: Kinds, subject: str | None) -> Flow[Event]:
    place = str(after or 0)
    while True:
        params = [*_kinds(kind), *given(after=place, subject=subject, limit=PAGE_EVENTS)]
        page = yield from ask(get("events", params=params), _Events)
        for event in page.events:
            yield Item(replace(event, cursor=_cursor(event, page.next)))
        if page.next is None or (not page.events and page.next == place):
            return
        place = page.next


def _cursor(event: Event, following: str | None) -> str:
    """The place after an event. With a filter the next place may lie behind the last event that passed."""
    store, _, looked = (following or "").partition(".")
    return following if following and looked.partition(".")[0] == str(event.seq) else f"{store}.{event.seq}"


def _followed_events(after: str | int | None, kind: Kinds, subject: str | None) -> Flow[Event]:
    place, patience = None if after is None else str(after), Patience()
    while True:
        call = get("events", "stream", params=[*_kinds(kind), *given(after=place)], stream=True)
        if (yield from opened(call, patience)):
            record: dict[str, str] = {}
            while isinstance(line := (yield Read()), str):
                name, _, value = line.partition(": ")
                if line:
                    record[name] = value
                    continue
                place = record.get("id", place)
                if record.get("event", "hello") != "hello":
                    event = msgspec.json.decode(record["data"], type=Event)
                    if subject in (None, event.subject):
                        yield Item(replace(event, cursor=place or ""))
                record = {}
        yield Pause(WAIT_MOST_S)


def _kinds(kind: Kinds) -> list[tuple[str, str]]:
    return [("kind", each) for each in ([kind] if isinstance(kind, str) else kind or ())]


def follow(order_id: str, run: int, start: int = 0) -> Flow[LogLine | LogEnd]:
    """The output of one run as it comes, taken up again where a connection broke off; a LogEnd is the last."""
    return _records(order_id, run, start, Patience(), lambda found: found)


def logs(order_id: str, *, run: int | None = None, start: int = 0, follow: bool = False) -> Flow[LogLine]:
    """Output from a line on, of the last run or the one named. With `follow` also what comes, until there is no more;
    without `run` that is of all runs, until the order has ended."""
    if not follow:
        return _log_pages(order_id, run, start)
    return _all_runs(order_id) if run is None else _records(order_id, run, start, Patience(), _line)


def _line(found: LogLine | LogEnd) -> LogLine | None:
    return found if isinstance(found, LogLine) else None


def _all_runs(order_id: str) -> Flow[LogLine]:
    number, patience = 0, Patience()
    while True:
        order = yield from patient(get("work-orders", order_id), Order, patience)
        while number < order.attempt:
            number += 1
            yield from _records(order_id, number, 0, patience, _line)
        if order.ended:
            return
        yield Pause(WAIT_MOST_S / 2)


def _records(
    order_id: str, run: int, start: int, patience: Patience, pick: Callable[[LogLine | LogEnd], T | None]
) -> Flow[T]:
    dropped = 0
    while True:
        params = given(follow="true", run=run, from_=start)
        if (yield from opened(get("work-orders", order_id, "logs", params=params, stream=True), patience)):
            while isinstance(line := (yield Read()), str):
                record = json.loads(line) if line else {}
                if "line" in record:
                    start = record["line"] + 1
                    found: LogLine | LogEnd = msgspec.convert({**record, "dropped": dropped}, LogLine)
                    dropped = 0
                elif "dropped" in record:
                    dropped, start = record["dropped"], start + record["dropped"]
                    continue
                elif "end" in record:
                    found = msgspec.convert(record, LogEnd)
                else:
                    continue
                if (picked := pick(found)) is not None:
                    yield Item(picked)
                if isinstance(found, LogEnd):
                    return
        yield Pause(WAIT_MOST_S)


def _log_pages(order_id: str, run: int | None, start: int) -> Flow[LogLine]:
    while True:
        params = given(run=run, from_=start, limit=PAGE_LINES)
        page = yield from ask(get("work-orders", order_id, "logs", params=params), LogPage)
        for number, line in enumerate(page.lines):
            found = {**line, "run": page.run, "dropped": 0 if number else page.dropped}
            yield Item(msgspec.convert(found, LogLine))
        if not page.lines:
            return
        start, run = page.next, page.run
