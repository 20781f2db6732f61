"""A worker as a test plays it: it says one thing at a time, over the real API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from standby.api.app import create_app
from standby.world import World


class Played:
    """One life of a worker in a slot."""

    def __init__(self, http: httpx2.AsyncClient, slot_token: str, nonce: str) -> None:
        self._http, self._slot_token, self.nonce = http, slot_token, nonce
        self.boot_token = ""

    async def ask(self, method: str, route: str, token: str, body: Any = None) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return await self._http.request(method, f"/api/v1/worker/{route}", json=body, headers=headers)

    async def boot(self) -> httpx2.Response:
        answer = await self.ask("POST", "boot", self._slot_token, {"nonce": self.nonce})
        if answer.status_code == 200:
            self.boot_token = answer.json()["boot_token"]
        return answer

    async def fetch(self, wait_s: float = 0) -> httpx2.Response:
        return await self.ask("GET", f"assignment?wait_s={wait_s}", self.boot_token)

    async def beat(self, run: str, **said: Any) -> str:
        """What it is told to do."""
        answer = await self.ask("POST", "heartbeat", self.boot_token, {"run_id": run, **said})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["do"])

    async def say(self, run: str, **said: Any) -> httpx2.Response:
        return await self.ask("POST", "output", self.boot_token, {"run_id": run, **said})

    async def tell(self, run: str, **said: Any) -> httpx2.Response:
        return await self.ask("POST", "result", self.boot_token, {"run_id": run, **said})


@asynccontextmanager
async def front_door(world: World) -> AsyncIterator[httpx2.AsyncClient]:
    """The API over this world."""
    app = create_app(world)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8377") as http,
    ):
        yield http
