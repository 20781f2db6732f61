"""What routes ask for: the world, who asks, and cursors that name their store."""

import asyncio
import re
from typing import Annotated, Final

from fastapi import Depends, Request

from standby.api.problems import Problem
from standby.store.contract import Store
from standby.world import World

SEQ_MAX: Final = 2**62


# coroutines, because plain functions would each take a trip through a thread


async def _world(request: Request) -> World:
    world: World = request.app.state.world
    return world


async def _actor(request: Request) -> str:
    actor: str = request.state.actor
    return actor


async def _stopping(request: Request) -> asyncio.Event:
    stopping: asyncio.Event = request.app.state.stopping
    return stopping


WorldNeed = Annotated[World, Depends(_world)]
ActorNeed = Annotated[str, Depends(_actor)]
StoppingNeed = Annotated[asyncio.Event, Depends(_stopping)]


def cursor(store: Store, seq: int) -> str:
    """A place in this store's history."""
    return f"{store.incarnation}.{seq}"


def seq_of(store: Store, text: str) -> int:
    """The place a cursor names (a plain number is one of this store); 410 for a cursor of another store."""
    incarnation, _, number = text.rpartition(".")
    if not re.fullmatch(r"[0-9]{1,19}", number) or int(number) > SEQ_MAX:
        raise Problem(422, "bad_cursor", "the cursor cannot be read", "use the `next` of an earlier answer")
    if incarnation and incarnation != store.incarnation:
        raise Problem(
            410, "other_store", "the cursor belongs to another database (was it restored?)", "start from the beginning"
        )
    return int(number)


async def wait_any(stopping: asyncio.Event, timeout_s: float, heard: asyncio.Event | None = None) -> None:
    """Wait until the server stops, something was heard, or the time is up."""
    events = [stopping] if heard is None else [stopping, heard]
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
