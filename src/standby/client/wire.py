"""What both clients share of HTTP: how they are set up, how a call becomes a request and a response a reply."""

import os
import ssl
from typing import Any, Final

import httpx2

from standby.client.address import Address, is_local
from standby.client.talk import Away, Call, Reply

ANSWER_S: Final = 30.0
CONNECT_S: Final = 5.0
STREAM_TIMEOUT: Final = httpx2.Timeout(60.0, connect=CONNECT_S)
"""A stream says something every 15 s at least."""


def options(address: Address) -> dict[str, Any]:
    """How an HTTP client is made for a server."""
    return {
        "base_url": f"{address.url}/api/v1",
        "headers": {"Authorization": f"Bearer {address.key}"} if address.key else {},
        "trust_env": not is_local(address.url),
    }


def request(http: httpx2.Client | httpx2.AsyncClient, call: Call) -> httpx2.Request:
    """A call as a request."""
    return http.build_request(
        call.method,
        call.path,
        params=list(call.params),
        content=call.body,
        headers=dict(call.headers),
        timeout=STREAM_TIMEOUT if call.stream else _timeout(call.within_s),
    )


def _timeout(within_s: float | None) -> httpx2.Timeout:
    """How long each step of a request may take: as ever, or no longer than its answer is worth."""
    within_s = ANSWER_S if within_s is None else within_s
    return httpx2.Timeout(min(within_s, ANSWER_S), connect=min(within_s, CONNECT_S))


def reply(response: httpx2.Response, body: bytes = b"") -> Reply:
    """A response as a reply."""
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


class Lines:
    """The lines of a stream that comes in pieces. Only a newline ends one: texts in JSON may hold whatever else Python
    ends lines at. One that was cut off is none."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, piece: bytes) -> list[str]:
        """The lines that are whole with one more piece."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


def away(url: str, error: Exception, *, known: bool) -> Away:
    """A server that did not answer, in words."""
    return Away(f"the server at {url} does not answer ({_how(error)}); start it with `standby serve`", known)


def _how(error: BaseException) -> str:
    """A failed request in words, from what the system said."""
    cause: BaseException | None = error
    while cause is not None:
        # Several addresses of one name are tried at once when one awaits.
        for each in getattr(cause, "exceptions", (cause,)):
            if isinstance(each, ssl.SSLError):  # its errno is none of the system's
                return f"TLS: {getattr(each, 'verify_message', '') or str(each.reason).replace('_', ' ').lower()}"
            if isinstance(each, OSError) and each.errno:
                return (os.strerror(each.errno) if each.errno > 0 else str(each.strerror)).lower()
        cause = cause.__cause__ or cause.__context__
    return "timed out" if isinstance(error, httpx2.TimeoutException) else type(error).__name__
