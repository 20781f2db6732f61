"""The kinds of values a setting can have, how they are written, and how they are shown.

In the file a length of time is a number of seconds or a text like "5m" or "250ms"; in the code it is milliseconds.
"none" in the file means unlimited; 0 means zero.
"""

import difflib
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from standby.core.model import NEVER_RETRIED, Reason, Reset, Warmth

E = TypeVar("E", bound=StrEnum)

DATABASES: Final = ("sqlite:///", "postgresql://", "postgres://")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LENGTH: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_LENGTH_MAX_MS: Final = 100 * 366 * 86_400_000
_MEMORY_MAX_MB: Final = 2**40


def length_ms(value: Any) -> int:
    """A number of seconds, or a text like "5m", as milliseconds."""
    if isinstance(value, str) and (match := _LENGTH.fullmatch(value.strip())):
        ms = float(match[1]) * _UNITS_MS[match[2]]
    elif isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", value.strip()):
        ms = float(value) * 1_000
    elif isinstance(value, int | float) and not isinstance(value, bool):
        ms = value * 1_000
    else:
        raise ValueError('write a number of seconds, or a text like "250ms", "30s", "5m", "1h"')
    if not 0 <= ms <= _LENGTH_MAX_MS:
        raise ValueError("a length of time must be 0 or more, and less than a hundred years")
    return round(ms)


def length_text(ms: int | None) -> str | None:
    """A length as one would write it: "5m", "250ms"."""
    if not ms:
        return None if ms is None else "0s"
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if ms % _UNITS_MS[unit] == 0)
    return f"{ms // _UNITS_MS[unit]}{unit}"


def _or_none(value: Any) -> Any:
    return None if value == "none" else value


def _thousandths(value: float | None) -> float | None:
    """Processors are counted in thousandths: finer ones would never fit what is left of them."""
    return None if value is None else round(value, 3)


def _length_or_none(value: Any) -> Any:
    return None if value is None or value == "none" else length_ms(value)


def _reason(value: Any) -> Any:
    try:
        reason = Reason(value)
    except ValueError:
        raise ValueError(f"write some of: {', '.join(sorted(set(Reason) - NEVER_RETRIED))}") from None
    if reason in NEVER_RETRIED:
        raise ValueError(f"{reason} is never retried")
    return reason


def _one_of(kind: type[E]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"write one of: {', '.join(kind)}") from None

    return read


_reset = _one_of(Reset)
_warmth = _one_of(Warmth)


def _path(what: str) -> BeforeValidator:
    """An absolute path of what is meant."""

    def read(value: Any) -> Any:
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise ValueError(f"write the path of {what}")
        try:
            return Path(value).expanduser().absolute()
        except RuntimeError:
            raise ValueError(f"there is no such user; write the path of {what}") from None

    return BeforeValidator(read)


def _like(pattern: str, text: str) -> BeforeValidator:
    """A text of that shape; what is not is told what to write, and never shown."""

    def read(value: Any) -> Any:
        if value is not None and not (isinstance(value, str) and len(value) <= 512 and re.fullmatch(pattern, value)):
            raise ValueError(text)
        return value

    return BeforeValidator(read)


Length = Annotated[int, BeforeValidator(length_ms)]
LengthOrNone = Annotated[int | None, BeforeValidator(_length_or_none)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
CountOrNone = Annotated[int | None, Field(ge=0, le=1_000_000), BeforeValidator(_or_none)]
DaysOrNone = Annotated[float | None, Field(ge=0, le=36_600, allow_inf_nan=False), BeforeValidator(_or_none)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Megabytes = Annotated[int, Field(ge=0, le=_MEMORY_MAX_MB)]
ProcessorsOrNone = Annotated[
    float | None,
    Field(ge=0.001, le=100_000, allow_inf_nan=False),
    BeforeValidator(_or_none),
    AfterValidator(_thousandths),
]
MegabytesOrNone = Annotated[int | None, Field(ge=0, le=_MEMORY_MAX_MB), BeforeValidator(_or_none)]
Reasons = Annotated[list[Annotated[Reason, BeforeValidator(_reason)]], Field(max_length=len(Reason))]
Directory = Annotated[Path, _path("a directory")]
FilePath = Annotated[Path, _path("a file")]
HttpUrlOrNone = Annotated[
    str | None, _like(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", "write https://host without a password")
]
UuidOrNone = Annotated[str | None, _like("[A-Za-z0-9-]{1,64}", "write a uuid: letters, digits and -")]
Mount = Annotated[str, StringConstraints(pattern=r"^[^:\x00]+:/[^:\x00]*(:r[ow])?$", max_length=1024)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


def names_database(url: str) -> bool:
    """Whether a URL has the shape of one that a store can be opened by. PostgreSQL's may name several servers."""
    if not url.startswith(DATABASES) or url in DATABASES:
        return False
    try:
        servers = [] if url.startswith("sqlite") else urlsplit(url).netloc.rpartition("@")[2].split(",")
        return all(urlsplit(f"//{each}").port != 0 for each in servers)
    except ValueError:
        return False


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; null when none is near."""
    return next(iter(difflib.get_close_matches(name[:100], sorted(known), n=1, cutoff=0.5)), None)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A question for what was probably meant, else everything that is known."""
    meant = nearest(name, known)
    return f"known are {', '.join(sorted(known)[:80])}" if meant is None else f"did you mean {meant}?"


def is_loopback(bind: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return bind == "localhost" or ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return False


def shown_url(url: str) -> str:
    """A database address without its password, and without its query, where passwords may hide too."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    return f"{parts.scheme}://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"
