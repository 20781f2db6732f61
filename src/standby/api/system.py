"""Is it alive, is it ready, how much of everything."""

import asyncio
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Response
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST

from standby import __version__
from standby.api.needs import StoppingNeed, WorldNeed, of_app
from standby.api.problems import Problem
from standby.api.views import answer
from standby.core.errors import StandbyError
from standby.metrics import Metrics

READY_WITHIN_S: Final = 2.0

router = APIRouter(tags=["system"])


class StatusView(Struct, frozen=True):
    """How the server is."""

    status: Literal["alive", "ready"]
    version: str


@router.get("/healthz")
async def alive() -> Response:
    """The process answers."""
    return answer(StatusView("alive", __version__))


@router.get("/readyz")
async def ready(world: WorldNeed, stopping: StoppingNeed) -> Response:
    """The store answers with a schema we can read and has what the configuration says; 503 says what is wrong."""
    if stopping.is_set():
        raise _not_ready("the server is stopping", "ask another one, or wait for its restart")
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            await world.store.now()
            await world.store.last_seq()
    except TimeoutError:
        raise _not_ready("the database did not answer in time", "look at the database") from None
    except StandbyError as error:
        raise _not_ready(f"the database cannot be used ({type(error).__name__})", "look at the server's log") from None
    if not world.applied.is_set():
        raise _not_ready("the configuration is not applied yet", "ask again; look at the server's log if that lasts")
    return answer(StatusView("ready", __version__))


def _not_ready(detail: str, what_to_do: str) -> Problem:
    return Problem(503, "not_ready", detail, what_to_do, headers={"Retry-After": "2"})


@router.get("/metrics")
async def metrics(world: WorldNeed, numbers: Annotated[Metrics, of_app("metrics")]) -> Response:
    """Numbers for Prometheus."""
    # one at a time, because they are put into the same gauges: who asks meanwhile gets the same answer
    text = await world.shared.ask("metrics", lambda: numbers.text(world))
    return Response(text, media_type=CONTENT_TYPE_LATEST)
