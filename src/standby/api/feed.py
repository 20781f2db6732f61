"""The events: by page, or as a stream that can be taken up again where it broke off."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from standby.api.needs import StoppingNeed, WorldNeed, cursor, seq_of, wait_any
from standby.api.views import answer, event_view
from standby.store.contract import StoreDown
from standby.world import World

BATCH: Final = 500
HEARTBEAT_S: Final = 15.0

router = APIRouter(tags=["events"])


@router.get("/events")
async def list_events(
    world: WorldNeed, after: str = "0", limit: Annotated[int, Query(ge=1, le=1_000)] = 200
) -> Response:
    """Everything that happened after a place, oldest first. `next` is always a place to go on from."""
    start = seq_of(world.store, after)
    events = await world.store.events(start, limit)
    last = events[-1].seq if events else start
    return answer({"events": [event_view(event) for event in events], "next": cursor(world.store, last)})


@router.get("/events/stream")
async def stream_events(
    world: WorldNeed,
    stopping: StoppingNeed,
    after: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Events as they are committed (SSE), from now on or after a place; ends when the server stops."""
    place = last_event_id or after
    start = await world.store.last_seq() if place is None else seq_of(world.store, place)
    return StreamingResponse(_stream(world, start, stopping), media_type="text/event-stream")


async def _stream(world: World, after: int, stopping: asyncio.Event) -> AsyncIterator[bytes]:
    heard = asyncio.Event()
    end = world.store.listen(lambda _: heard.set())
    try:
        # Said at once, so that a client knows it is connected before anything happens.
        yield f"retry: 1000\nid: {cursor(world.store, after)}\nevent: hello\ndata: {{}}\n\n".encode()
        quiet_since = world.clock.monotonic()
        while not stopping.is_set():
            heard.clear()
            try:
                events = await world.store.events(after, BATCH)
            except StoreDown:
                break
            for event in events:
                after = event.seq
                head = f"id: {cursor(world.store, after)}\nevent: {event.kind}\ndata: ".encode()
                yield head + msgspec.json.encode(event_view(event)) + b"\n\n"
            if events:
                quiet_since = world.clock.monotonic()
                continue
            if world.clock.monotonic() - quiet_since >= HEARTBEAT_S:
                quiet_since = world.clock.monotonic()
                yield b": still here\n\n"
            await wait_any(stopping, world.config.poll_ms / 1000, heard)
    finally:
        end()
