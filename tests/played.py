"""A server that is played: it gives the answers it is told, and keeps what it was asked."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import msgspec

from standby import AsyncClient, Client
from standby.api import views
from standby.core.model import Spec
from tests import make

URL = "http://127.0.0.1:1"
LOST = httpx2.ReadError("lost")


class Streamed(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """Pieces of a body; the connection breaks after the last one if it is told so."""

    def __init__(self, *pieces: str, breaks: bool = False) -> None:
        self.pieces, self.breaks, self.closed = pieces, breaks, False

    def __iter__(self) -> Iterator[bytes]:
        yield from (piece.encode() for piece in self.pieces)
        if self.breaks:
            raise LOST

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


class Played:
    """A server that gives the answers it is told, in turn, and keeps the requests; an exception is raised."""

    def __init__(self, *answers: httpx2.Response | Streamed | Exception) -> None:
        self.left, self.asked = list(answers), list[httpx2.Request]()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Streamed):
            return httpx2.Response(200, stream=answer)
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def client(self) -> Client:
        return Client(URL, "sb_key", transport=httpx2.MockTransport(self))

    def later(self) -> AsyncClient:
        return AsyncClient(URL, "sb_key", transport=httpx2.MockTransport(self))

    @property
    def paths(self) -> list[str]:
        return [f"{each.method} {each.url.raw_path.decode()}" for each in self.asked]


def order_view(**fields: Any) -> dict[str, Any]:
    """An order as the API shows it."""
    view = views.order_view(make.order(), Spec(order_id="x", command=("true",)))
    return {**json.loads(msgspec.json.encode(view)), **fields}


def ok(body: Any, status: int = 200, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()})


def no(status: int, code: str = "no", **headers: str) -> httpx2.Response:
    return ok({"code": code, "detail": "it is so", "what_to_do": "do this"}, status, **headers)
