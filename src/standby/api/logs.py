"""The output of runs: by page, or followed until it is closed."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from msgspec import Struct, field
from msgspec.structs import asdict

from standby.api.needs import KNOWN_PARAMETERS, StoppingNeed, WorldNeed, wait_any
from standby.api.orders import find
from standby.api.problems import Problem, invalid
from standby.api.views import Time, answer, time
from standby.core.lifecycle import SILENT
from standby.core.model import ENDED, OPEN, Lease, Order, OrderState
from standby.store.contract import StoreDown
from standby.world import World

PAGE_BYTES: Final = 1_048_576
STREAM_BYTES: Final = 131_072
"""A stream takes whole pieces of about this size, so that no stored line is read twice."""
QUIET_S: Final = 5.0
"""A run that is over and whose log did not grow for so long since, while one server led its host, has nobody to close
it (a driver without output)."""
HEARTBEAT_S: Final = 15.0
LINE_MAX: Final = 2**53
EVENTS_MOST: Final = 10_000
"""More than any order has."""

router = APIRouter(tags=["work orders"])


class LineView(Struct, frozen=True):
    """One line of output."""

    line: int
    at: Time
    stream: str
    text: str


class LogView(Struct, frozen=True):
    """Some lines; `next` is where to go on, `dropped` how many lines before the first one are no longer kept."""

    order: str
    run: int | None
    from_line: int = field(name="from")
    next: int
    dropped: int
    closed: bool
    lines: Sequence[LineView]


class _Place(msgspec.Struct, frozen=True):
    order_id: str
    number: int | None
    """Run number; null is the last one, whichever that is when there is one."""
    line: int
    limit: int | None
    """Null is all lines of a piece."""


@router.get("/work-orders/{order_id}/logs", dependencies=KNOWN_PARAMETERS)
async def read_logs(
    request: Request,
    world: WorldNeed,
    stopping: StoppingNeed,
    order_id: str,
    run: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    from_line: Annotated[int, Query(alias="from", ge=0, le=LINE_MAX)] = 0,
    tail: Annotated[int | None, Query(ge=1, le=LINE_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    follow: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Lines from a line number on, or the last `tail` ones. With follow=true: a JSON object a line (or SSE, if asked
    for) until the log is closed; SSE is taken up again after a Last-Event-ID."""
    work = await find(world, order_id)
    sse = follow and "text/event-stream" in request.headers.get("accept", "")
    if sse and last_event_id:
        run, from_line = _after(last_event_id)
        tail = None
    if run is not None and run > work.order.attempt:
        had = f"{work.order.attempt} run{'' if work.order.attempt == 1 else 's'}"
        raise invalid(f"order {order_id} has had {had}", "ask for one of those", "run")
    if tail is not None:
        from_line = max(from_line, await _lines_stored(world, f"{order_id}-{run or work.order.attempt}") - tail)
    if not follow:
        return answer((await _page(world, _Place(order_id, run, from_line, limit), PAGE_BYTES))[0])
    kind = "text/event-stream" if sse else "application/x-ndjson"
    place = _Place(order_id, run, from_line, None)
    return StreamingResponse(_stream(world, place, stopping, sse=sse), media_type=kind)


def _after(event_id: str) -> tuple[int, int]:
    """The run and the line after an event of a stream (see `_event_id`)."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})\.([0-9]{1,15})", event_id)
    if found is None:
        raise invalid("the Last-Event-ID cannot be read", "send the id of an event of this stream", "Last-Event-ID")
    return int(found[1]), int(found[2])


def _event_id(run: int, line: int) -> str:
    """Where to go on after a line. The run is in it: without one a stream is of the last run, which may be another."""
    return f"{run}.{line + 1}"


async def _lines_stored(world: World, run_id: str) -> int:
    found = (await world.store.log_tails([run_id])).get(run_id)
    return 0 if found is None else found.next_line


async def _page(world: World, place: _Place, most_bytes: int) -> tuple[LogView, Order]:
    """Some lines of one run, and its order as it was before they were read."""
    work = await find(world, place.order_id)
    number = place.number or work.order.attempt
    run_id = f"{place.order_id}-{number}"
    # The tail first: lines stored after it are simply on the next page, and closed stays true.
    tail = (await world.store.log_tails([run_id])).get(run_id) if number else None
    chunks = await world.store.read_log(run_id, place.line, most_bytes) if tail is not None else []
    most = place.limit or LINE_MAX
    lines: list[LineView] = []
    at = place.line
    dropped = 0
    for chunk in chunks:
        if len(lines) >= most:
            break
        if chunk.first > at:
            dropped += chunk.first - at
            at = chunk.first
        rows: list[Any] = msgspec.json.decode(chunk.body)
        for when, stream, text in rows[at - chunk.first :][: most - len(lines)]:
            lines.append(LineView(line=at, at=time(when), stream=stream, text=text))
            at += 1
    closed = tail.closed and at >= tail.next_line if tail is not None else await _silent(world, work.order, number)
    view = LogView(
        order=place.order_id,
        run=number or None,
        from_line=place.line,
        next=at,
        dropped=dropped,
        closed=closed,
        lines=lines,
    )
    return view, work.order


async def _silent(world: World, order: Order, number: int) -> bool:
    """Whether the run ended without having written anything: nothing is stored of such a log."""
    if number == 0 or (number == order.attempt and order.state in OPEN):
        return False
    events = await world.store.events(0, EVENTS_MOST, order.id)
    ends = [event.data for event in events if event.data.get("run", {}).get("number") == number]
    return any(SILENT.items() <= data.get("note", {}).items() for data in ends)


def _over(order: Order, number: int | None) -> bool:
    """Whether the run has ended, so that its log grows no more once it is all stored."""
    return order.state in ENDED or order.state is OrderState.WAITING_RETRY or (number or 0) < order.attempt


class _Quiet:
    """The time since a run was seen over in which its log did not grow, and who could have stored more of it."""

    def __init__(self, world: World, pool: str) -> None:
        self._world, self._pool = world, pool
        self._began = self._led_since = world.clock.monotonic()
        self._leader: Lease | None = None

    async def lasted(self) -> bool:
        """Whether a living leader had the time to store more; or whether none came, two leases long."""
        now, lease_s = self._world.clock.monotonic(), self._world.config.lease_ms / 1000
        if self._leader is not None and now - self._led_since < QUIET_S:
            return False
        was, self._leader = self._leader, await self._lease()
        if now - self._began >= QUIET_S + 2 * lease_s:
            return True
        if was is None or self._leader is None or self._leader.epoch != was.epoch:
            self._led_since = now
            return False
        return self._leader.renewed_at > was.renewed_at

    async def _lease(self) -> Lease | None:
        pool, leases = await self._world.store.pool(self._pool), await self._world.store.leases()
        return next((lease for lease in leases if pool is not None and lease.host == pool.host), None)


async def _stream(world: World, place: _Place, stopping: asyncio.Event, *, sse: bool) -> AsyncIterator[bytes]:
    """Lines as they come; ends when the log is closed, the run is over and its log quiet, or the server stops."""
    number, line, now = place.number, place.line, world.clock.monotonic
    said, quiet = now(), None
    while not stopping.is_set():
        try:
            page, order = await _page(world, _Place(place.order_id, number, line, None), STREAM_BYTES)
            number, line = number or page.run, page.next
            # counted from when it was seen over: what it wrote last may be stored after its end
            quiet = None if page.lines or not _over(order, number) else quiet or _Quiet(world, order.pool)
            over = page.closed or (quiet is not None and await quiet.lasted())
        except (StoreDown, Problem):
            break
        if records := _records(page, sse=sse):
            yield records
            said = now()
        if over:
            yield _record({"end": True, "closed": page.closed, "run": number, "next": line}, sse=sse)
            break
        if page.lines:
            continue
        if now() - said >= HEARTBEAT_S:
            said = now()
            yield b": still here\n\n" if sse else b"\n"
        await wait_any(stopping, world.config.log_poll_ms / 1000)


def _records(page: LogView, *, sse: bool) -> bytes:
    """A page as records of a stream, in one piece: many short lines cost no more than a few long ones."""
    run = page.run or 0
    found = [_record({"dropped": page.dropped, "run": run}, sse=sse)] if page.dropped else []
    found += [_record({"run": run, **asdict(each)}, sse=sse, event_id=_event_id(run, each.line)) for each in page.lines]
    return b"".join(found)


def _record(view: dict[str, Any], *, sse: bool, event_id: str | None = None) -> bytes:
    text = msgspec.json.encode(view)
    if not sse:
        return text + b"\n"
    ident = b"" if event_id is None else f"id: {event_id}\n".encode()
    return ident + b"data: " + text + b"\n\n"
