"""Puts the API together: routes, the gate for keys, problems, headers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from standby import __version__
from standby.api import (
    doctor,
    feed,
    keys,
    logs,
    many,
    orders,
    places,
    problems,
    projects,
    schedules,
    settings,
    submit,
    system,
    worker,
)
from standby.api.auth import WORKER_PREFIX, KeyGate, Keyring
from standby.api.schema import Api
from standby.metrics import Metrics
from standby.web import pages
from standby.world import World

PREFIX: Final = "/api/v1"
SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def create_app(world: World) -> FastAPI:
    """The API and the page over one world. `app.state.stopping` ends all streams when it is set."""
    app = Api(
        title="Standby",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        lifespan=_lifespan,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.world = world
    app.state.stopping = asyncio.Event()
    app.state.metrics = Metrics()
    app.state.keyring = Keyring(world)
    app.state.desk = worker.Desk()
    for part in (submit, many, orders, logs, schedules, places, projects, feed, keys, settings, doctor, worker):
        app.include_router(part.router, prefix=PREFIX)
    app.include_router(system.router)
    app.include_router(pages.router)
    problems.install(app)
    app.add_middleware(KeyGate, world=world, keyring=app.state.keyring)
    app.add_middleware(LastWord, stopping=app.state.stopping)
    app.add_middleware(SecurityHeaders)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """While the app is up, the metrics follow the events, and workers that wait hear of their runs."""
    unlisten = app.state.world.store.listen(app.state.desk.hear)
    follower = asyncio.create_task(app.state.metrics.follow(app.state.world, app.state.stopping))
    try:
        yield
    finally:
        unlisten()
        app.state.stopping.set()
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


class WorkersOnly:
    """The same app for those who can reach nothing but the workers' socket."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(WORKER_PREFIX):
            hint = f"only what is under {WORKER_PREFIX} is served here; ask for the rest where the server listens"
            text = f"there is no worker route {scope['path'][:80]!r}"
            await problems.Problem(404, "no_such_worker_route", text, hint).response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class LastWord:
    """Answers whoever is still waited for when a stopping server gives up: to be asked again, not a fault."""

    def __init__(self, app: ASGIApp, stopping: asyncio.Event) -> None:
        self._app, self._stopping = app, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:
            if not self._stopping.is_set() or scope["type"] != "http":
                raise
            if not begun:
                await problems.stopping().response()(scope, receive, send)


class SecurityHeaders:
    """Puts the headers that browsers obey on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)
