"""How a conversation goes, without any input or output: steps come out, replies go in.

A *plan* is a generator that yields steps (a call, a pause) and returns what was asked for; a *flow* also yields items
as they come. `blocking` and `awaiting` carry the steps out; what is sent, read, repeated or waited for is decided here,
in `plans` and in `flows`.
"""

import json
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from standby.client.errors import ConfigError, ServerRefused, ServerUnreachable

TRIES: Final = 4
WAIT_FIRST_S: Final = 0.1
WAIT_MOST_S: Final = 1.0
RETRY_AFTER_MOST_S: Final = 10.0
RESTART_S: Final = 30.0
"""Who waits for an order waits so long for a server that goes away meanwhile: it may be restarted."""
PASSING: Final = frozenset({429, 502, 503, 504})

T = TypeVar("T")


class Call(Struct, frozen=True, kw_only=True):
    """A request. `safe` ones are repeated when the answer is lost; a `stream` is read line by line; `within_s` is how
    long its answer is worth waiting for."""

    method: str = "GET"
    path: str
    params: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    safe: bool = False
    stream: bool = False
    within_s: float | None = None


class Pause(Struct, frozen=True):
    """Wait so long."""

    seconds: float


class Read(Struct, frozen=True):
    """Read one more line of the open stream."""


class Item(Struct, Generic[T], frozen=True):
    """Something for whoever asked."""

    value: T


class Reply(Struct, frozen=True):
    """An answer of the server; the body is empty for a stream that is open."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Away(Struct, frozen=True):
    """No answer came. `known`: the same client was answered before."""

    error: str
    known: bool


Step = Call | Pause | Read
Said = Reply | Away | str | None
Plan = Generator[Step, Said, T]
Flow = Generator[Step | Item[T], Said, None]


def get(*parts: str, params: Sequence[tuple[str, str]] = (), stream: bool = False) -> Call:
    """A question, safe to repeat; each part is one part of the path, whatever is in it."""
    return Call(path=path(*parts), params=params, safe=not stream, stream=stream)


def post(*parts: str, body: Mapping[str, Any] | None = None, method: str = "POST", safe: bool = False) -> Call:
    """Something to be done."""
    headers = {"Content-Type": "application/json"}
    return Call(method=method, path=path(*parts), body=encode(body or {}), headers=headers, safe=safe)


def path(*parts: str) -> str:
    """A path of parts, none of which can leave its place."""
    for part in parts:
        _check_name(part)
    return "".join("/" + quote(part, safe="").replace(".", "%2E") for part in parts)


def _check_name(part: object) -> None:
    """Refuse what names nothing: null, an empty text, or the thing itself instead of its id or name."""
    if not isinstance(part, str):
        instead = next((f": give its {name}" for name in ("id", "name") if hasattr(part, name)), "")
        raise TypeError(f"an id or a name is a str, not {type(part).__name__}{instead}")
    if not part:
        raise ConfigError("an id or a name cannot be empty")


def encode(body: Mapping[str, Any]) -> bytes:
    """A body as JSON: integers of any size, and a `msgspec.Raw` as the very text it is. What JSON cannot say is refused
    by its name, as Python has refused it."""
    parts: dict[str, msgspec.Raw] = {}
    for name, value in body.items():
        try:
            text = value if isinstance(value, msgspec.Raw) else json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        parts[name] = msgspec.Raw(text)
    return msgspec.json.encode(parts)


def ask(call: Call, kind: type[T]) -> Plan[T]:
    """The answer as a value; a safe call is repeated a few times, when the server asks for it after that time."""
    return read(kind, (yield from reply_to(call)))


def rows(call: Call, name: str, kind: type[T]) -> Plan[tuple[T, ...]]:
    """What the answer lists under a name."""
    reply = yield from reply_to(call)
    listed = read(dict[str, msgspec.Raw], reply).get(name, b"")
    return read(tuple[kind, ...], replace(reply, body=bytes(listed)))  # type: ignore[valid-type]


def reply_to(call: Call) -> Plan[Reply]:
    """The answer as it came; ServerRefused or ServerUnreachable when there is no good one."""
    wait_s = WAIT_FIRST_S
    for left in reversed(range(TRIES if call.safe else 1)):
        said = yield call
        if isinstance(said, Reply) and said.status < 300:
            return said
        after_s = _retry_after_s(said)
        if left == 0 or not passes(said) or after_s > RETRY_AFTER_MOST_S:
            raise problem(said)
        yield Pause(max(wait_s, after_s))
        wait_s *= 2
    raise AssertionError("unreachable")


def _retry_after_s(said: Said) -> float:
    text = said.headers.get("retry-after", "") if isinstance(said, Reply) else ""
    return float(text) if text.isascii() and text.isdigit() else 0.0


def passes(said: Said) -> bool:
    """Whether it may be well again in a moment."""
    return isinstance(said, Away) or (isinstance(said, Reply) and said.status in PASSING)


def problem(said: Said) -> ServerRefused | ServerUnreachable:
    """The error that says what was answered, or that nothing was."""
    if not isinstance(said, Reply):
        return ServerUnreachable(said.error if isinstance(said, Away) else "the server does not answer")
    if said.status < 400:
        detail = f"the server answered {said.status} and sends on to {said.headers.get('location')}"
        return ServerRefused(said.status, {"detail": detail, "what_to_do": "name the address that is meant"})
    try:
        found = msgspec.json.decode(said.body)
    except msgspec.DecodeError:
        found = None
    return ServerRefused(said.status, found if isinstance(found, dict) else {})


def read(kind: type[T], reply: Reply) -> T:
    """A body as a value."""
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except msgspec.DecodeError as error:
        text = f"the answer cannot be read ({error}); is this a Standby server?"
        raise ServerRefused(reply.status, {"detail": text}) from None


class Patience:
    """Sits out a restart of the server: bears that it is away for a while, if it was there before."""

    def __init__(self) -> None:
        self._reached, self._since = False, 0.0

    def answered(self) -> None:
        """It is there."""
        self._reached, self._since = True, 0.0

    def bear(self, said: Said) -> None:
        """Raise what this is, unless the server was there a moment ago and may be back in another one."""
        known = self._reached or (isinstance(said, Away) and said.known)
        self._since = self._since or time.monotonic()
        if not (known and passes(said)) or time.monotonic() - self._since > RESTART_S:
            raise problem(said)


def patient(call: Call, kind: type[T], patience: Patience, until: float | None = None) -> Plan[T]:
    """The answer as a value, whenever it comes; TimeoutError when there is none at a time."""
    while True:
        said = yield call if until is None else replace(call, within_s=max(WAIT_MOST_S, until - time.monotonic()))
        if isinstance(said, Reply) and said.status < 300:
            patience.answered()
            return read(kind, said)
        patience.bear(said)
        left_s = WAIT_MOST_S if until is None else until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(str(problem(said)))
        yield Pause(min(WAIT_MOST_S, left_s))


def opened(call: Call, patience: Patience) -> Plan[bool]:
    """Whether a stream is open now; a server that is away for a moment is borne with."""
    said = yield call
    if isinstance(said, Reply) and said.status < 300:
        patience.answered()
        return True
    patience.bear(said)
    return False
