"""The configuration as it counts: each setting, its value, and where that comes from. Secrets are masked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from fastapi import APIRouter, Response
from msgspec import Struct, field
from pydantic import BaseModel, SecretStr

from standby.api.needs import WorldNeed
from standby.api.views import answer, length, time
from standby.config import SECTIONS, Config, shown_url
from standby.core.model import Json, Pool, PoolSettings
from standby.core.places import OVERRIDABLE

MASK: Final = "(secret)"

router = APIRouter(tags=["system"])


class SettingView(Struct, frozen=True):
    """One setting; lengths of time are in seconds, null is unlimited or not set."""

    name: str
    value: Json
    value_from: Literal["flag", "env", "file", "default", "override"] = field(name="from")
    where: str
    default: Json


class SettingsListView(Struct, frozen=True):
    """Every setting."""

    settings: Sequence[SettingView]


@router.get("/config")
async def show_config(world: WorldNeed) -> Response:
    """Every setting of this server with its value, where that comes from, and the default."""
    pools = {pool.name: pool for pool in await world.store.pools()}
    return answer(SettingsListView(settings=list(_settings(world.config, pools))))


def _settings(config: Config, pools: Mapping[str, Pool]) -> Iterator[SettingView]:
    yield from _section(config, "", config, Config)
    for section in ("hosts", "projects"):
        for name, part in getattr(config, section).items():
            yield from _section(config, f"{section}.{name}.", part, type(part))
    for name in config.pools:
        yield _view(config, f"pools.{name}.host", config.pool_host(name), None)
        now, plain = config.pool_settings(name), PoolSettings()
        for wire, place in OVERRIDABLE.items():
            key = f"pools.{name}.{wire.removesuffix('_s')}"
            found = _view(config, key, _shown(place, _at(now, place)), _shown(place, _at(plain, place)))
            override = pools[name].overrides.get(wire) if name in pools else None
            if override is not None:
                where = f"by {override.actor} at {time(override.at)}"
                found = SettingView(key, override.value, "override", where, found.default)
            yield found


def _section(config: Config, prefix: str, part: BaseModel, kind: type[BaseModel]) -> Iterator[SettingView]:
    for name, about in kind.model_fields.items():
        if name not in SECTIONS:
            default = getattr(Config.of(), name) if kind is Config else about.default
            yield _view(
                config, prefix + (about.alias or name), _shown(name, getattr(part, name)), _shown(name, default)
            )


def _view(config: Config, name: str, value: Json, default: Json) -> SettingView:
    source = getattr(config, "sources", {}).get(name)
    if source is not None:
        return SettingView(name, value, source.value_from, source.where, default)
    return SettingView(name, value, "default" if value == default else "file", "", default)


def _at(settings: PoolSettings, place: str) -> Any:
    of_retry = place.startswith("retry.")
    return getattr(settings.retry, place.removeprefix("retry.")) if of_retry else getattr(settings, place)


def _shown(name: str, value: Any) -> Json:
    if isinstance(value, SecretStr):
        return MASK
    if name == "database" and isinstance(value, str):
        return shown_url(value)
    if name.endswith("_ms") and isinstance(value, int):
        return length(value)
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)
