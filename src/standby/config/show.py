"""The configuration as it is shown: every setting, its value as one would write it, where that comes from."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field
from pydantic import BaseModel, SecretStr

from standby.config.model import RETRY_KEYS, SECTIONS, TEMPLATE_KEYS, Config, keys_of
from standby.config.values import length_text, shown_url
from standby.core.model import PoolSettings

MASK: Final = "(secret)"


class Setting(Struct, frozen=True, kw_only=True):
    """One key: its path in the file, its value and its default as one would write them (null is unlimited or not set),
    where the value comes from, and which places lost."""

    name: str
    value: Any
    value_from: Literal["flag", "env", "file", "default", "override"] = field(name="from")
    where: str
    default: Any
    over: tuple[str, ...] = ()


def settings(config: Config) -> list[Setting]:
    """Every setting, in the order of the documents; nothing secret is in it."""
    plain = Config.of()
    found = [
        _setting(config, key, getattr(config, name), getattr(plain, name)) for key, name in keys_of(Config).items()
    ]
    for section in SECTIONS:
        for name, table in getattr(config, section).items():
            found += _pool(config, name) if section == "pools" else _table(config, f"{section}.{name}", table)
    return found


def _table(config: Config, prefix: str, table: BaseModel) -> Iterator[Setting]:
    plain = type(table)()
    for key, name in keys_of(type(table)).items():
        yield _setting(config, f"{prefix}.{key}", getattr(table, name), getattr(plain, name))


def _pool(config: Config, pool: str) -> Iterator[Setting]:
    own, now, base = config.pools[pool], config.pool_settings(pool), config.pool_base(pool)
    for key, name in keys_of(type(own)).items():
        if key in ("host", "profile"):
            yield _setting(config, f"pools.{pool}.{key}", getattr(own, name), None)
        else:
            yield _setting(config, f"pools.{pool}.{key}", pool_value(now, name), pool_value(base, name))


def pool_value(of: PoolSettings, name: str) -> Any:
    """The value of a pool's key (by its field's name), be it a part of the retry policy or the template, or not."""
    if name in RETRY_KEYS:
        return getattr(of.retry, RETRY_KEYS[name])
    return getattr(of.template if name in TEMPLATE_KEYS else of, name)


def _setting(config: Config, path: str, value: Any, default: Any) -> Setting:
    source, key = config.sources[path], path.rpartition(".")[2]
    written = [_written(key, each, is_length=_is_length(path)) for each in (value, default)]
    return Setting(
        name=path,
        value=written[0],
        value_from=source.value_from,
        where=source.where,
        default=written[1],
        over=source.over,
    )


def _is_length(path: str) -> bool:
    section, _, key = path.rpartition(".")
    model = SECTIONS[section.partition(".")[0]] if section else Config
    return keys_of(model)[key].endswith("_ms")


def _written(key: str, value: Any, *, is_length: bool) -> Any:
    """A value as one would write it in the file; null is not set, or unlimited."""
    if isinstance(value, SecretStr):
        return MASK
    if key == "database" and value is not None:
        return shown_url(value)
    if is_length:
        return length_text(value)
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return str(value) if isinstance(value, Path | Enum) else value
