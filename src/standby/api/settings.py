"""The configuration as it counts: each setting, its value, and where that comes from. Secrets are masked."""

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Response
from msgspec import Struct
from msgspec.structs import replace

from standby.api.needs import WorldNeed
from standby.api.views import answer, time
from standby.config import Setting, settings
from standby.config.values import length_text
from standby.core.model import Override

router = APIRouter(tags=["system"])


class SettingsListView(Struct, frozen=True):
    """Every setting."""

    settings: Sequence[Setting]


@router.get("/config")
async def show_config(world: WorldNeed) -> Response:
    """Every setting of this server with its value as one would write it, where that comes from, and the default."""
    overrides = {
        f"pools.{pool.name}.{wire}": override
        for pool in await world.store.pools()
        for wire, override in pool.overrides.items()
    }
    return answer(SettingsListView(settings=[_as_it_counts(each, overrides) for each in settings(world.config)]))


def _as_it_counts(setting: Setting, overrides: Mapping[str, Override]) -> Setting:
    """What was set by hand wins."""
    length = overrides.get(f"{setting.name}_s")
    override = length or overrides.get(setting.name)
    if override is None:
        return setting
    value = override.value if length is None or override.value is None else length_text(round(override.value * 1000))
    where = f"by {override.actor} at {time(override.at)}"
    over = setting.over if setting.value_from == "default" else (setting.where, *setting.over)
    return replace(setting, value=value, value_from="override", where=where, over=over)
