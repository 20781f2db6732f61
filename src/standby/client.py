"""A client of the HTTP API: finds its server, says what was refused, repeats only what is safe to repeat."""

import asyncio
import ipaddress
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
from msgspec import Struct

from standby.core.errors import ConfigError, StandbyError

View = dict[str, Any]
STATE_DIR: Final = ".standby"
ENDED: Final = frozenset({"completed", "failed", "cancelled"})
SUBMIT_TRIES: Final = 4
WAIT_FIRST_S: Final = 0.1
WAIT_MOST_S: Final = 1.0
RESTART_S: Final = 30.0
"""Who waits for an order waits so long for a server that goes away meanwhile: it may be restarted."""


class ServerUnreachable(StandbyError):
    """No server answers at the address."""


class ServerRefused(StandbyError):
    """The server understood and refused; `problem` is its answer."""

    def __init__(self, status: int, problem: View) -> None:
        detail = problem.get("detail") or f"the server answered {status}"
        super().__init__(f"{detail}; {problem['what_to_do']}" if problem.get("what_to_do") else str(detail))
        self.status, self.problem = status, problem


class Address(Struct, frozen=True):
    """Where the server is, and the key it knows us by."""

    url: str
    key: str | None


def find_address(
    url: str | None = None, key: str | None = None, env: Mapping[str, str] | None = None, start: Path | None = None
) -> Address:
    """Flag over STANDBY_URL and STANDBY_KEY over the state directory, which is searched upward like git does."""
    env = os.environ if env is None else env
    given = url or env.get("STANDBY_URL")
    state = find_state_dir(env, start or Path.cwd())
    found = given or _server_url(state)
    if not found:
        raise ServerUnreachable("no server found: start one with `standby serve`, or name it with --url or STANDBY_URL")
    # The key of this directory's server is not shown to any other one.
    ours = state is not None and found.rstrip("/") == (_server_url(state) or "").rstrip("/")
    address = Address(found.rstrip("/"), key or env.get("STANDBY_KEY") or (_admin_key(state) if ours else None))
    _check(address, "--url" if url else "STANDBY_URL" if given else "server.json", "--key" if key else "STANDBY_KEY")
    return address


def _check(address: Address, url_from: str, key_from: str) -> None:
    """Refuse what no request can be made of."""
    try:
        parts = urlsplit(address.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx2.URL(address.url)
    except (ValueError, httpx2.InvalidURL):
        usable = False
    if not usable:
        raise ConfigError(f"{url_from}: {address.url!r} is not an address; write one like http://127.0.0.1:8377")
    if address.key is not None and not (address.key.isascii() and address.key.isprintable()):
        raise ConfigError(f"{key_from}: this is not a key: keys begin with sb_ and are plain ASCII")


def find_state_dir(env: Mapping[str, str], start: Path) -> Path | None:
    """STANDBY_STATE_DIR, or the nearest `.standby` at or above a directory."""
    if env.get("STANDBY_STATE_DIR"):
        return Path(env["STANDBY_STATE_DIR"])
    for directory in [start, *start.parents]:
        if (directory / STATE_DIR).is_dir():
            return directory / STATE_DIR
    return None


def _server_url(state: Path | None) -> str | None:
    try:
        found = msgspec.json.decode((state / "server.json").read_bytes()) if state is not None else {}
    except (OSError, msgspec.DecodeError):
        return None
    url = found.get("url") if isinstance(found, dict) else None
    return url if isinstance(url, str) else None


def _admin_key(state: Path | None) -> str | None:
    try:
        return (state / "admin.key").read_text().strip() or None if state is not None else None
    except OSError:
        return None


def _loopback(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Client:
    """One server. Use as an async context; every method may raise ServerUnreachable or ServerRefused."""

    def __init__(self, address: Address, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
        self.url = address.url
        self._reached = False
        self._away_since: float | None = None
        self._http = httpx2.AsyncClient(
            base_url=f"{address.url}/api/v1",
            headers=headers,
            timeout=httpx2.Timeout(30.0, connect=5.0),
            transport=transport,
            trust_env=not _loopback(address.url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def submit(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> View:
        """Hand in an order; repeated under one Idempotency-Key when the answer is lost, so that it is taken in once.
        `replayed` is true when the given key was used for this very order before."""
        if idempotency_key is not None and not (idempotency_key.isascii() and idempotency_key.isprintable()):
            raise ConfigError("the idempotency key cannot be used: write 1 to 255 ASCII characters")
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        wait_s = WAIT_FIRST_S
        for left in reversed(range(SUBMIT_TRIES)):
            try:
                answer = await self._send("POST", "/work-orders", body=body, headers=headers)
                replayed = idempotency_key is not None and "idempotent-replayed" in answer.headers
                return {**_view(answer), "replayed": True} if replayed else _view(answer)
            except (ServerUnreachable, ServerRefused) as error:
                if left == 0 or (isinstance(error, ServerRefused) and error.status != 503):
                    raise
            await asyncio.sleep(wait_s)
            wait_s *= 2
        raise AssertionError("unreachable")

    async def order(self, order_id: str) -> View:
        """One order as it is now."""
        return await self._call("GET", f"/work-orders/{quote(order_id, safe='')}")

    async def orders(self, **filters: str | int | None) -> View:
        """A page of orders (`orders`, `next`); filters are state, pool, project, limit, cursor."""
        return await self._call("GET", "/work-orders", params=_given(filters))

    async def runs(self, order_id: str) -> list[View]:
        """Its runs, oldest first."""
        return _views(await self._call("GET", f"/work-orders/{quote(order_id, safe='')}/runs"), "runs")

    async def events(self, order_id: str) -> list[View]:
        """What happened to it, oldest first (the first thousand)."""
        path = f"/work-orders/{quote(order_id, safe='')}/events"
        return _views(await self._call("GET", path, params={"limit": "1000"}), "events")

    async def cancel(self, order_id: str, reason: str | None = None) -> View:
        """Ask for its end."""
        body = {} if reason is None else {"reason": reason}
        return await self._call("POST", f"/work-orders/{quote(order_id, safe='')}/cancel", body=body)

    async def watch(self, order_id: str) -> AsyncIterator[View]:
        """The order now and after each change that is noticed, until it has ended; a restart of the server is sat
        out."""
        seen, wait_s = None, WAIT_FIRST_S
        while True:
            try:
                order = await self.order(order_id)
            except (ServerUnreachable, ServerRefused) as error:
                self._bear(error)
            else:
                if seen != (order["state"], order["attempt"]):
                    seen, wait_s = (order["state"], order["attempt"]), WAIT_FIRST_S
                    yield order
                if order["state"] in ENDED:
                    return
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, WAIT_MOST_S)

    def _bear(self, error: ServerUnreachable | ServerRefused) -> None:
        """Raise it, unless the server was there a moment ago and may be back in another one."""
        passing = isinstance(error, ServerUnreachable) or error.status == 503
        if not passing or not self._reached:
            raise error
        self._away_since = self._away_since or time.monotonic()
        if time.monotonic() - self._away_since > RESTART_S:
            raise error

    def _answered(self) -> None:
        self._reached, self._away_since = True, None

    async def logs(self, order_id: str, **place: int | None) -> View:
        """A page of output; place is run, from, limit."""
        return await self._call("GET", f"/work-orders/{quote(order_id, safe='')}/logs", params=_given(place))

    async def follow(self, order_id: str, run: int, from_line: int = 0) -> AsyncIterator[View]:
        """The output of one run as it comes, taken up again where a connection broke off. The last record has `end`,
        and `closed` when that is all there will ever be."""
        while True:
            try:
                async for record in self._log_records(order_id, run, from_line):
                    from_line = record["line"] + 1 if "line" in record else from_line + record.get("dropped", 0)
                    yield record
                    if record.get("end"):
                        return
            except (ServerUnreachable, ServerRefused) as error:
                self._bear(error)
            await asyncio.sleep(WAIT_MOST_S)

    async def _log_records(self, order_id: str, run: int, from_line: int) -> AsyncIterator[View]:
        params = {"follow": "true", "run": str(run), "from": str(from_line)}
        path = f"/work-orders/{quote(order_id, safe='')}/logs"
        timeout = httpx2.Timeout(60.0, connect=5.0)
        try:
            async with self._http.stream("GET", path, params=params, timeout=timeout) as response:
                if response.is_error:
                    await response.aread()
                    raise _refused(response)
                async for line in response.aiter_lines():
                    self._answered()
                    if line:
                        yield json.loads(line)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    async def pools(self) -> list[View]:
        """All pools."""
        return _views(await self._call("GET", "/pools"), "pools")

    async def slots(self, **filters: str | None) -> list[View]:
        """Slots; filters are pool and host."""
        return _views(await self._call("GET", "/slots", params=_given(filters)), "slots")

    async def hosts(self) -> list[View]:
        """All hosts."""
        return _views(await self._call("GET", "/hosts"), "hosts")

    async def set_mode(self, noun: str, name: str, verb: str, reason: str | None) -> View:
        """pause, resume or drain a pool or a host (`noun` is pools or hosts)."""
        body = {} if reason is None else {"reason": reason}
        return await self._call("POST", f"/{noun}/{quote(name, safe='')}/{verb}", body=body)

    async def declare_dead(self, host: str, reason: str) -> View:
        """An operator's word that nothing commanded on the host so far is alive."""
        body = {"reason": reason, "confirm": host}
        return await self._call("POST", f"/hosts/{quote(host, safe='')}/declare-dead", body=body)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> View:
        return _view(await self._send(method, path, body=body, params=params))

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        content = None if body is None else encode(body)
        said = {"Content-Type": "application/json", **(headers or {})}
        try:
            response = await self._http.request(method, path, content=content, params=params, headers=said)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise _refused(response)
        self._answered()
        return response

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        return ServerUnreachable(f"the server at {self.url} does not answer ({type(error).__name__}); is it running?")


def encode(body: Mapping[str, Any]) -> bytes:
    """A body as JSON: integers of any size, and a `msgspec.Raw` as the very text it is."""
    parts = {
        name: value if isinstance(value, msgspec.Raw) else msgspec.Raw(json.dumps(value, allow_nan=False).encode())
        for name, value in body.items()
    }
    return msgspec.json.encode(parts)


def _refused(response: httpx2.Response) -> ServerRefused:
    try:
        problem = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        problem = {}
    return ServerRefused(response.status_code, problem if isinstance(problem, dict) else {})


def _view(response: httpx2.Response) -> View:
    view: View = json.loads(response.content)
    return view


def _given(values: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _views(answer: View, name: str) -> list[View]:
    found: list[View] = answer[name]
    return found
