"""Rows as they come from a database, turned into values, and what an event tells about a changed row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import structlog
from msgspec import MsgspecError, Struct, convert
from msgspec.json import Decoder
from msgspec.structs import astuple, replace

from standby.core.model import (
    Event,
    Host,
    Json,
    Order,
    OrderState,
    Override,
    Pool,
    PoolSettings,
    PressureLimits,
    Project,
    Reason,
    Schedule,
    Spec,
)
from standby.core.sighting import ImageState
from standby.core.work import Report
from standby.store.contract import LogChunk, LogTail

Row = Sequence[Any]

T = TypeVar("T", bound=Struct)

log = structlog.get_logger("standby.store")
_spec = Decoder(Spec)
_overrides = Decoder(dict[str, Override])
_labels = Decoder(dict[str, str])
_PENDING: Final = OrderState.PENDING
_NOTHING_RARE: Final[Sequence[None]] = [None] * 6


def _truth(found: int | bool | None) -> bool | None:
    """SQLite has no truth values, only 0 and 1."""
    return None if found is None else bool(found)


_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {}
_READ: Final[Mapping[type[Struct], Mapping[str, Callable[[Any], Any]]]] = {
    Pool: {"settings": Decoder(PoolSettings).decode, "overrides": _overrides.decode},
    Host: {"limits": Decoder(PressureLimits).decode},
    Project: {"overrides": _overrides.decode},
    Schedule: {"spec": _spec.decode},
    Event: {"data": Decoder(dict[str, Json]).decode},
    ImageState: {"present": _truth},
    Report: {"retryable": _truth},
    LogChunk: {"closed": _truth},
    LogTail: {"closed": _truth},
}
"""Columns that are not stored as they are in the value."""


def value(kind: type[T], row: Row) -> T:
    """The value of a row whose columns stand in the order of the fields; later columns are left alone."""
    fields = dict(zip(kind.__struct_fields__, row, strict=False))
    for name, read in _READ.get(kind, _PLAIN).items():
        fields[name] = read(fields[name])
    return convert(fields, kind)


def ready(row: Row) -> Order:
    """A ready order with the columns of `queries.READY`, behind the first one."""
    _, order_id, version, project, pool, memory_mb, submitted_at, since, attempt, rank, queue_due, *rare = row
    order = Order(
        id=order_id,
        version=version,
        project=project,
        pool=pool,
        memory_mb=memory_mb,
        submitted_at=submitted_at,
        state=_PENDING,
        state_since=since,
        attempt=attempt,
        rank=rank,
        queue_due=queue_due,
    )
    if rare == _NOTHING_RARE:
        return order  # each field that is named costs: this is on the hot path
    dedupe, reason, code, deploy_since, key, cpus = rare
    return replace(
        order,
        dedupe_live=dedupe,
        reason=None if reason is None else Reason(reason),
        exit_code=code,
        deploy_since=deploy_since,
        concurrency_key=key,
        cpus=cpus,
    )


def spec(body: str) -> Spec | None:
    """The spec as it was submitted; null, and an alarm, for one that this version cannot read."""
    try:
        return _spec.decode(body)
    except MsgspecError as error:
        log.error("a spec cannot be read: was it written by a newer version?", error=str(error))
        return None


def labels(body: str) -> Mapping[str, str]:
    return _labels.decode(body)


def told(was: Struct | None, now: Struct) -> Mapping[str, Json]:
    """The columns an event must hold: those that changed, or every one that is not null in a new row."""
    if was is None:
        return {name: new for name, new in zip(now.__struct_fields__, astuple(now), strict=True) if new is not None}
    both = zip(now.__struct_fields__, astuple(was), astuple(now), strict=True)
    return {name: new for name, old, new in both if new is not old and new != old}
