"""API keys: made, listed and taken away. Everybody who has one may do everything."""

from collections.abc import Sequence
from typing import Annotated

import structlog
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct, UnsetType

from standby.api.auth import Keyring, new_key, new_token
from standby.api.needs import ActorNeed, WorldNeed, of_app
from standby.api.problems import Problem, not_found
from standby.api.views import Time, answer, time
from standby.api.wire import KeyBody, parse
from standby.store.contract import Key

log = structlog.get_logger()
router = APIRouter(tags=["system"])


KeyringNeed = Annotated[Keyring, of_app("keyring")]


class KeyView(Struct, frozen=True):
    """A key, by its name and its last letters; the key itself is in the answer that made it and nowhere else."""

    name: str
    created_at: Time
    last4: str | None
    key: str | UnsetType = UNSET


class KeysView(Struct, frozen=True):
    """All keys."""

    keys: Sequence[KeyView]


@router.get("/keys")
async def list_keys(world: WorldNeed) -> Response:
    """All keys by name."""
    return answer(KeysView(keys=[_view(key) for key in await world.store.keys()]))


@router.post("/keys", status_code=201)
async def add_key(request: Request, world: WorldNeed, keyring: KeyringNeed, actor: ActorNeed) -> Response:
    """A new key, shown this once. It may do everything that the first one may."""
    body, _ = await parse(request, KeyBody, world.config.request_max_kb)
    token = new_token()
    key = new_key(body.name, token, world.clock.now())
    if not await world.store.add_key(key):
        raise Problem(
            409, "name_taken", f"there is a key {body.name!r} already", "take another name, or remove it first"
        )
    await keyring.read()
    log.info("key_added", name=body.name, actor=actor)
    return answer(KeyView(key.name, time(key.created_at), key.last4, token), 201)


@router.delete("/keys/{name}")
async def remove_key(world: WorldNeed, keyring: KeyringNeed, actor: ActorNeed, name: str) -> Response:
    """Whoever has this key is no longer let in: here at once, at other servers after 5 seconds at most. The last key
    stays."""
    keys = {key.name: key for key in await world.store.keys()}
    if name not in keys:
        raise not_found("key", name, sorted(keys))
    if not await world.store.remove_key(name):
        raise Problem(409, "last_key", f"{name!r} is the last key: nobody could ask any more", "add another key first")
    await keyring.read()
    log.info("key_removed", name=name, actor=actor)
    return answer(_view(keys[name]))


def _view(key: Key) -> KeyView:
    return KeyView(key.name, time(key.created_at), key.last4)
