"""The output of runs: by page, or followed until it is closed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from standby.api.needs import StoppingNeed, WorldNeed, wait_any
from standby.api.orders import find
from standby.api.problems import Problem, invalid
from standby.api.views import View, answer, shown_time
from standby.core.model import ENDED, OrderState
from standby.store.contract import StoreDown
from standby.world import World

PAGE_BYTES: Final = 1_048_576
QUIET_MS: Final = 5_000
"""A run that ended this long ago without its log being closed has nobody to close it (a driver without output)."""
HEARTBEAT_S: Final = 15.0

router = APIRouter(tags=["work orders"])


class _Place(msgspec.Struct, frozen=True):
    order_id: str
    number: int | None
    """Run number; null is the last one, whichever that is when there is one."""
    line: int
    limit: int


@router.get("/work-orders/{order_id}/logs")
async def read_logs(
    request: Request,
    world: WorldNeed,
    stopping: StoppingNeed,
    order_id: str,
    run: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    from_line: Annotated[int, Query(alias="from", ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    follow: bool = False,
) -> Response:
    """Lines from a line number on. With follow=true: a JSON object a line (or SSE, if asked for) until it is closed."""
    work = await find(world, order_id)
    if run is not None and run > work.order.attempt:
        raise invalid(f"order {order_id} has had {work.order.attempt} runs", "ask for one of those", "run")
    place = _Place(order_id, run, from_line, limit)
    if not follow:
        return answer(await _page(world, place))
    sse = "text/event-stream" in request.headers.get("accept", "")
    kind = "text/event-stream" if sse else "application/x-ndjson"
    return StreamingResponse(_stream(world, place, stopping, sse=sse), media_type=kind)


async def _page(world: World, place: _Place) -> View:
    """Some lines; `next` is where to go on, `dropped` how many lines before the first one are no longer kept."""
    work = await find(world, place.order_id)
    number = place.number or work.order.attempt
    run_id = f"{place.order_id}-{number}"
    # The tail first: lines stored after it are simply on the next page, and closed stays true.
    tail = (await world.store.log_tails([run_id])).get(run_id) if number else None
    chunks = await world.store.read_log(run_id, place.line, PAGE_BYTES) if tail is not None else []
    lines: list[View] = []
    at = place.line
    dropped = 0
    for chunk in chunks:
        if len(lines) >= place.limit:
            break
        if chunk.first > at:
            dropped += chunk.first - at
            at = chunk.first
        rows: list[Any] = msgspec.json.decode(chunk.body)
        for when, stream, text in rows[at - chunk.first :][: place.limit - len(lines)]:
            lines.append({"line": at, "at": shown_time(when), "stream": stream, "text": text})
            at += 1
    return {
        "order": place.order_id,
        "run": number or None,
        "from": place.line,
        "next": at,
        "dropped": dropped,
        "closed": tail is not None and tail.closed and at >= tail.next_line,
        "lines": lines,
    }


async def _over(world: World, order_id: str, number: int | None) -> bool:
    """Whether the run ended so long ago that nobody will close its log any more."""
    order = (await find(world, order_id)).order
    ended = order.state in ENDED or order.state is OrderState.WAITING_RETRY or (number or 0) < order.attempt
    return ended and world.clock.now() - order.state_since >= QUIET_MS


async def _stream(world: World, place: _Place, stopping: asyncio.Event, *, sse: bool) -> AsyncIterator[bytes]:
    """Lines as they come; ends when the log is closed, the run is long over, or the server stops."""
    number, line, quiet_since = place.number, place.line, world.clock.monotonic()
    while not stopping.is_set():
        try:
            page = await _page(world, _Place(place.order_id, number, line, place.limit))
            number = number or page["run"]
            over = not page["lines"] and not page["closed"] and await _over(world, place.order_id, number)
        except (StoreDown, Problem):
            break
        if page["dropped"]:
            yield _record({"dropped": page["dropped"], "run": number}, sse=sse)
        for each in page["lines"]:
            yield _record({"run": number, **each}, sse=sse, event_id=each["line"] + 1)
        line = page["next"]
        if page["closed"] or over:
            yield _record({"end": True, "closed": page["closed"], "run": number, "next": line}, sse=sse)
            break
        if page["lines"]:
            quiet_since = world.clock.monotonic()
            continue
        if world.clock.monotonic() - quiet_since >= HEARTBEAT_S:
            quiet_since = world.clock.monotonic()
            yield b": still here\n\n" if sse else b"\n"
        await wait_any(stopping, world.config.log_poll_ms / 1000)


def _record(view: View, *, sse: bool, event_id: int | None = None) -> bytes:
    text = msgspec.json.encode(view)
    if not sse:
        return text + b"\n"
    ident = b"" if event_id is None else f"id: {event_id}\n".encode()
    return ident + b"data: " + text + b"\n\n"
