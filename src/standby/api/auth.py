"""Who is asking: API keys, known by their hash. Everything is closed unless it is named here as open."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from standby.api.problems import Problem, store_down
from standby.config.values import is_loopback
from standby.store.contract import Key, Store, StoreDown
from standby.world import World

KEY_PREFIX: Final = "sb_"
KEY_FILE: Final = "admin.key"
LOCAL_ACTOR: Final = "local"
ADMINS: Final = frozenset({"admin", LOCAL_ACTOR})
"""Who may put orders before all lanes: the first key, and anybody where there are no keys."""
OPEN_PATHS: Final = frozenset({"/", "/docs", "/healthz", "/readyz", "/favicon.ico"})
OPEN_PREFIX: Final = "/static/"
WORKER_PREFIX: Final = "/api/v1/worker/"
"""There tokens are shown instead of keys, which the routes themselves check."""
KEYS_FRESH_S: Final = 5.0
"""A key that was added or taken away elsewhere counts after this long at most."""
MISS_GAP_S: Final = 1.0
"""An unknown key makes us read the keys again, but not more often than this."""


def hashed(token: str) -> str:
    """How a key is stored. Keys are long and random, so a plain hash suffices."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    """A new key: 32 random bytes."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def new_key(name: str, token: str, now: int) -> Key:
    """A key as it is stored."""
    return Key(name=name, hash=hashed(token), created_at=now, last4=token[-4:])


async def ensure_first_key(store: Store, state_dir: Path, now: int) -> str | None:
    """Make the first admin key when there is none: written to `<state_dir>/admin.key` (0600), its hash stored."""
    if await store.keys():
        return None
    path = state_dir / KEY_FILE
    kept = _kept(path)
    token = kept or new_token()
    # The file comes first: killed in between, the next start takes the same key up again.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as out:
        os.fchmod(out.fileno(), 0o600)
        out.write(token + "\n")
    if await store.add_key(new_key("admin", token, now)):
        return token
    if kept is None:
        path.unlink(missing_ok=True)  # another server was first: nobody will ever know this key
    return None


def _kept(path: Path) -> str | None:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return token if token.startswith(KEY_PREFIX) and len(token) >= len(KEY_PREFIX) + 43 else None


class Keyring:
    """The store's keys, remembered for a few seconds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: Sequence[Key] = ()
        self._read_at: float | None = None
        self._missed_at: float | None = None

    async def holder(self, token: str) -> str | None:
        """The name of the key, or null for an unknown one."""
        now = self._world.clock.monotonic()
        if self._read_at is None or now - self._read_at >= KEYS_FRESH_S:
            await self.read()
        found = self._find(token)
        if found is None and (self._missed_at is None or now - self._missed_at >= MISS_GAP_S):
            self._missed_at = now
            await self.read()
            found = self._find(token)
        return found

    async def read(self) -> None:
        """Know the store's keys as they are now; an answer to an earlier question does not undo it."""
        asked_at = self._world.clock.monotonic()
        keys = await self._world.store.keys()
        if self._read_at is None or asked_at >= self._read_at:
            self._keys, self._read_at = keys, asked_at

    def _find(self, token: str) -> str | None:
        mine, found = hashed(token), None
        for key in self._keys:
            if hmac.compare_digest(key.hash, mine):
                found = key.name
        return found


class KeyGate:
    """Lets a request through when it may pass, and notes who asks in `request.state.actor`."""

    def __init__(self, app: ASGIApp, world: World, keyring: Keyring) -> None:
        self._app, self._world, self._keyring = app, world, keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})["actor"] = await self._actor(scope)
        except Problem as problem:
            await problem.response()(scope, receive, send)
        except StoreDown:
            await store_down().response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _actor(self, scope: Scope) -> str:
        path, headers = scope["path"], Headers(scope=scope)
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return "nobody"
        if path.startswith(WORKER_PREFIX):
            return "worker"
        if not self._world.config.auth:
            _refuse_foreign(headers)
            return LOCAL_ACTOR
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            hint = "send `Authorization: Bearer <key>`; the first key is in the server's state directory, in admin.key"
            raise _refused("key_needed", "this needs an API key", hint)
        name = await self._keyring.holder(token.strip())
        if name is None:
            text = "the API key is not known to this server"
            raise _refused("key_unknown", text, "if it was removed or lost, see docs/operating.md")
        return name


def _refused(code: str, detail: str, hint: str) -> Problem:
    return Problem(401, code, detail, hint, headers={"WWW-Authenticate": "Bearer"})


def _refuse_foreign(headers: Headers) -> None:
    """Without keys only this machine may ask, and no web page of somebody else in this machine's browser."""
    host, origin = headers.get("host", ""), headers.get("origin")
    try:
        ours = is_loopback(urlsplit(f"//{host}").hostname or "") and (origin is None or urlsplit(origin).netloc == host)
    except ValueError:  # "http://[" is nobody's address
        ours = False
    if not ours:
        raise Problem(
            403,
            "foreign_origin",
            "without keys only pages of this server itself may ask",
            "set auth = true and use a key",
        )
