"""What routes ask for: the world, who asks, and cursors that name their store."""

import asyncio
import re
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from standby.api.problems import Problem, invalid
from standby.config.values import did_you_mean
from standby.store.contract import Store
from standby.world import World

SEQ_MAX: Final = 2**62
_CURSOR: Final = re.compile(r"(?:(?P<store>[^.]+)\.)?(?P<seq>[0-9]{1,19})(?:\.(?P<mark>[0-9a-z-]{1,8}))?")


# coroutines, because plain functions would each take a trip through a thread


def of_app(name: str) -> Any:
    """What the whole app has under this name."""

    async def find(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(find)


async def _actor(request: Request) -> str:
    actor: str = request.state.actor
    return actor


async def _known_parameters(request: Request) -> None:
    """422 for a parameter that the route does not take: to leave it out would answer another question."""
    known = {each.alias for each in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            text = f"{name[:100]}: unknown parameter; {did_you_mean(name[:100], known)}"
            raise invalid(text, "correct it and send it again", name[:100])


KNOWN_PARAMETERS: Final = [Depends(_known_parameters)]
"""For routes that list: what a typing error leaves out must not look like an answer."""
WorldNeed = Annotated[World, of_app("world")]
ActorNeed = Annotated[str, Depends(_actor)]
StoppingNeed = Annotated[asyncio.Event, of_app("stopping")]


def cursor(store: Store, seq: int, mark: str | None = None) -> str:
    """A place in this store's history; the mark tells its event from another one with the same number."""
    return f"{store.incarnation}.{seq}.{mark}" if mark else f"{store.incarnation}.{seq}"


def place_of(store: Store, text: str) -> tuple[int, str | None]:
    """The number and the mark a cursor names (a plain number is one of this store); 410 for one of another store."""
    found = _CURSOR.fullmatch(text)
    if found is None or int(found["seq"]) > SEQ_MAX:
        raise Problem(422, "bad_cursor", "the cursor cannot be read", "use the `next` of an earlier answer")
    if found["store"] and found["store"] != store.incarnation:
        raise Problem(
            410, "other_store", "the cursor belongs to another database (was it restored?)", "start from the beginning"
        )
    return int(found["seq"]), found["mark"]


async def resume(store: Store, text: str) -> int:
    """The number to go on after; 410 when events after it are gone, or it is from before a restore."""
    seq, mark = place_of(store, text)
    if seq == 0:
        return 0
    history = await store.history()
    if seq < history.pruned_to:
        raise Problem(
            410,
            "pruned",
            f"events up to {history.pruned_to} are no longer kept, this cursor is at {seq}",
            "read the rows anew, then go on from after=0 (the oldest event kept) or without a cursor (from now on)",
        )
    if mark is not None and (seq > history.last_seq or (await store.mark(seq) or mark) != mark):
        raise Problem(
            410,
            "restored",
            f"event {seq} is not the one this cursor was made from: the database was restored from a backup",
            "read the rows anew, then go on from after=0 (the oldest event kept) or without a cursor (from now on)",
        )
    return seq


async def wait_any(stopping: asyncio.Event, timeout_s: float, heard: asyncio.Event | None = None) -> None:
    """Wait until the server stops, something was heard, or the time is up."""
    events = [stopping] if heard is None else [stopping, heard]
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
