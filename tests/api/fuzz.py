"""A furnished house that a fuzzer can knock at: the same at every start, with an order in every state."""

import asyncio
import importlib
import random
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from standby.api.app import create_app
from standby.config import Config
from standby.core.model import OrderState
from standby.seal import Seal
from standby.store.sqlite import SqliteStore
from standby.world import Ids, World
from tests.api.house import Clock, House, house
from tests.workers import Played

# else it is imported in the middle of a check, so deep in the stack that Python 3.11 may lose count
importlib.import_module("schemathesis.specs.openapi.object_authorization")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
STREAMS = (b"text/event-stream", b"application/x-ndjson")
STREAM_S = 0.02
SEAL = Seal(b"k" * 32)
WORKER_SLOT, GENERATION, NONCE = "standby-pool-bots-001", Clock().at, "nonce-one"


def description() -> dict[str, Any]:
    """The API's own description, without a server."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteStore.in_memory(clock=clock.now)
        world = World(config=Config.of(state_dir=directory), store=store, clock=clock, seal=Seal(b"k" * 32))
        found: dict[str, Any] = create_app(world).openapi()
        asyncio.run(store.close())
    return found


class FrontDoor:
    """The app as a fuzzer reaches it: `/work-orders/running` is the running one, and streams end after a moment."""

    def __init__(self) -> None:
        self._home: House | None = None
        self._orders: dict[str, str] = {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        assert self._home is not None
        scope["path"] = "/".join(self._orders.get(part, part) for part in scope["path"].split("/"))
        if scope["path"].endswith("/assignment"):  # nobody waits here: what is waited for is over in a moment
            asyncio.get_running_loop().call_later(STREAM_S, self._home.clock.skip, 100)
        streams = asyncio.Event()

        async def pass_on(message: Message) -> None:
            if dict(message.get("headers", ())).get(b"content-type", b"").partition(b";")[0] in STREAMS:
                streams.set()
            await send(message)

        answering = asyncio.ensure_future(self._home.app(scope, receive, pass_on))
        cutting = asyncio.ensure_future(streams.wait())
        await asyncio.wait([answering, cutting], return_when=asyncio.FIRST_COMPLETED)
        cutting.cancel()
        await asyncio.wait([answering], timeout=STREAM_S)
        if answering.cancel():
            await asyncio.wait([answering])
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await answering

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        with tempfile.TemporaryDirectory() as directory:
            pools = {"default": {}, "bots": {"worker": True, "warmth": "running"}}
            async with house(Path(directory), ids=Ids(random.Random(0).randbytes), pools=pools) as home:
                self._home, self._orders = home, await _furnish(home)
                await send({"type": "lifespan.startup.complete"})
                await receive()
        await send({"type": "lifespan.shutdown.complete"})


async def _furnish(home: House) -> dict[str, str]:
    orders: dict[str, str] = {}
    for state in OrderState:
        made = await home.submit(env={"SECRET": "s"}, labels={"team": "a"}, payload={"n": [1, None, "x"]})
        orders[str(state)] = made["id"]
        await home.walk(made["id"], state)
    await home.log(orders["running"], "hello", "world")
    await home.log(orders["completed"], "bye", closed=True)
    await home.store.put_reading("local", 1, '{"pressure":{}}')
    await home.post("/keys", {"name": "spare"})
    await home.new_slot("bots")
    worker = Played(home.http, SEAL.slot_token(WORKER_SLOT, GENERATION), NONCE)
    assert (await worker.boot()).status_code == 200
    return orders
