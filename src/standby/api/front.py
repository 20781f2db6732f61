"""The front door: HTTP as uvicorn reads it, with an end to what may be sent before anybody has looked at it."""

import asyncio
from typing import Final

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from standby.api.problems import Problem

HEAD_MAX: Final = 65_536
HEAD_S: Final = 30.0
BODY_WORTH: Final = 8
"""A byte of body pays for so many bytes around it: chunks may be small, but not endless extensions and trailers."""


class FrontDoor(HttpToolsProtocol):
    """Refuses a head that is too large or takes too long; says as a problem what it could not read."""

    _seen = _body = 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody knocks: the first head is expected soon."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is expected."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes; 431 when there are too many that are no body."""
        self._seen += len(data)
        super().data_received(data)
        if self._seen > HEAD_MAX + BODY_WORTH * self._body and not self.transport.is_closing():
            self._refuse(431, "head_too_large", "the request's head is too large", "send fewer and shorter headers")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._expect_nothing()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._seen = self._body = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read is refused like everything else."""
        self._refuse(400, "bad_http", "this is not HTTP that can be read", "send an HTTP/1.1 request")

    def _expect_head(self) -> None:
        self._expect_nothing()
        self._late = self.loop.call_later(HEAD_S, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: int, code: str, detail: str, what_to_do: str) -> None:
        body = msgspec.json.encode(Problem(status, code, detail, what_to_do).view())
        head = f"content-type: application/problem+json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()
