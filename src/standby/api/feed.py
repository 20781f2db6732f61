"""The events: by page, or as a stream that can be taken up again where it broke off."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from standby.api.needs import KNOWN_PARAMETERS, StoppingNeed, WorldNeed, cursor, resume, wait_any
from standby.api.views import EventsView, answer, event_view
from standby.core.model import Event, EventKind
from standby.store.contract import Store, StoreDown
from standby.world import World

BATCH: Final = 500
WALK_MOST: Final = 20_000
"""Events looked at for one page; then it ends, however short."""
HEARTBEAT_S: Final = 15.0

router = APIRouter(tags=["events"])
EventLimit = Annotated[int, Query(ge=1, le=1_000)]
Kinds = Annotated[list[EventKind], Query(default_factory=list, description="Only these kinds; may be repeated.")]


@router.get("/events", dependencies=KNOWN_PARAMETERS)
async def list_events(
    world: WorldNeed,
    kind: Kinds,
    after: str = "0",
    subject: str | None = None,
    limit: EventLimit = 200,
    newest: bool = False,
) -> Response:
    """Everything that happened after a place, oldest first. `next` is always a place to go on from. With `kind` a page
    may be short, also empty, although more follows: go on until `next` stays the same."""
    start = await resume(world.store, after)
    read = read_newest if newest else read_events
    events, place = await read(world.store, start, limit, frozenset(kind), subject)
    view = EventsView(events=[event_view(event) for event in events], next=place or after)
    return answer(view)


async def read_events(
    store: Store, after: int, most: int, kinds: frozenset[EventKind], subject: str | None
) -> tuple[list[Event], str | None]:
    """Some events and the cursor after the last one that was looked at; null when there was none."""
    found: list[Event] = []
    last: Event | None = None
    for _ in range(WALK_MOST // BATCH):
        batch = await store.events(after, most if not kinds else BATCH, subject)
        for event in batch:
            last, after = event, event.seq
            if not kinds or event.kind in kinds:
                found.append(event)
                if len(found) == most:
                    return found, _place(store, last)
        if not kinds or len(batch) < BATCH:
            break
    return found, None if last is None else _place(store, last)


async def read_newest(
    store: Store, after: int, most: int, kinds: frozenset[EventKind], subject: str | None
) -> tuple[list[Event], str | None]:
    """The newest events behind a place, oldest first, and the cursor after the last one there is; null when there was
    none."""
    found: list[Event] = []
    last: Event | None = None
    before: int | None = None
    size = BATCH if kinds else most
    for _ in range(WALK_MOST // BATCH):
        batch = [event for event in await store.events_before(before, size, subject) if event.seq > after]
        last = last or next(iter(batch), None)
        found += [event for event in batch if not kinds or event.kind in kinds]
        if len(found) >= most or len(batch) < size:
            break
        before = batch[-1].seq
    return found[:most][::-1], None if last is None else _place(store, last)


def _place(store: Store, event: Event) -> str:
    return cursor(store, event.seq, event.change[:8])


@router.get("/events/stream", dependencies=KNOWN_PARAMETERS)
async def stream_events(
    world: WorldNeed,
    stopping: StoppingNeed,
    kind: Kinds,
    after: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Events as they are committed (SSE), from now on or after a place; ends when the server stops."""
    store, place = world.store, last_event_id or after
    start = await store.last_seq() if place is None else await resume(store, place)
    first = cursor(store, start, await store.mark(start))
    stream = _stream(world, start, first, frozenset(kind), stopping)
    return StreamingResponse(stream, media_type="text/event-stream")


async def _stream(
    world: World, after: int, place: str, kinds: frozenset[EventKind], stopping: asyncio.Event
) -> AsyncIterator[bytes]:
    heard = asyncio.Event()
    end = world.store.listen(lambda _: heard.set())
    try:
        # Said at once, so that a client knows it is connected before anything happens.
        yield f"retry: 1000\nid: {place}\nevent: hello\ndata: {{}}\n\n".encode()
        quiet_since = world.clock.monotonic()
        while not stopping.is_set():
            heard.clear()
            try:
                events = await world.store.events(after, BATCH)
            except StoreDown:
                break
            for event in events:
                after, place = event.seq, _place(world.store, event)
                if not kinds or event.kind in kinds:
                    quiet_since = world.clock.monotonic()
                    head = f"id: {place}\nevent: {event.kind}\ndata: ".encode()
                    yield head + msgspec.json.encode(event_view(event)) + b"\n\n"
            if events:
                continue
            if world.clock.monotonic() - quiet_since >= HEARTBEAT_S:
                quiet_since = world.clock.monotonic()
                # With an id: whoever filters goes on from here, not from the last event that passed.
                yield f": still here\nid: {place}\n\n".encode()
            await wait_any(stopping, world.config.poll_ms / 1000, heard)
    finally:
        end()
