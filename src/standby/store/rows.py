"""Rows as they come from a database, turned into values, and what an event tells about a changed row."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import structlog
from msgspec import MsgspecError, Struct, convert
from msgspec.json import Decoder
from msgspec.structs import astuple

from standby.core.model import (
    Event,
    Host,
    Idempotency,
    Json,
    Lease,
    Order,
    Override,
    Pool,
    PoolSettings,
    PressureLimits,
    Project,
    Run,
    Slot,
    Spec,
)
from standby.core.sighting import ImageState
from standby.core.work import Report
from standby.store.contract import Key, LogChunk, LogTail

Row = Sequence[Any]

T = TypeVar("T", bound=Struct)

log = structlog.get_logger("standby.store")
_spec = Decoder(Spec)
_settings = Decoder(PoolSettings)
_limits = Decoder(PressureLimits)
_overrides = Decoder(dict[str, Override])
_json = Decoder(dict[str, Json])
_labels = Decoder(dict[str, str])


def value(kind: type[T], row: Row) -> T:
    """The value of a row whose columns stand in the order of the fields; later columns are left alone."""
    return convert(dict(zip(kind.__struct_fields__, row, strict=False)), kind)


def order(row: Row) -> Order:
    return value(Order, row)


def spec(body: str) -> Spec | None:
    """The spec as it was submitted; null, and an alarm, for one that this version cannot read."""
    try:
        return _spec.decode(body)
    except MsgspecError as error:
        log.error("a spec cannot be read: was it written by a newer version?", error=str(error))
        return None


def labels(body: str) -> Mapping[str, str]:
    return _labels.decode(body)


def slot(row: Row) -> Slot:
    return value(Slot, row)


def run(row: Row) -> Run:
    return value(Run, row)


def host(row: Row) -> Host:
    fields = dict(zip(Host.__struct_fields__, row, strict=False))
    return convert({**fields, "limits": _limits.decode(fields["limits"])}, Host)


def project(row: Row) -> Project:
    fields = dict(zip(Project.__struct_fields__, row, strict=False))
    fields["overrides"] = _overrides.decode(fields["overrides"])
    return convert(fields, Project)


def lease(row: Row) -> Lease:
    return value(Lease, row)


def key(row: Row) -> Key:
    return value(Key, row)


def idempotency(row: Row) -> Idempotency:
    return value(Idempotency, row)


def image(row: Row) -> ImageState:
    fields = dict(zip(ImageState.__struct_fields__, row, strict=False))
    return convert({**fields, "present": bool(fields["present"])}, ImageState)


def pool(row: Row) -> Pool:
    fields = dict(zip(Pool.__struct_fields__, row, strict=False))
    fields["settings"] = _settings.decode(fields["settings"])
    fields["overrides"] = _overrides.decode(fields["overrides"])
    return convert(fields, Pool)


def event(row: Row) -> Event:
    fields = dict(zip(Event.__struct_fields__, row, strict=False))
    fields["data"] = _json.decode(fields["data"])
    return convert(fields, Event)


def report(row: Row) -> Report:
    fields = dict(zip(Report.__struct_fields__, row, strict=False))
    retryable = fields["retryable"]
    return convert({**fields, "retryable": None if retryable is None else bool(retryable)}, Report)


def log_chunk(row: Row) -> LogChunk:
    run_id, first, count, body, cursor, closed, size = row[:7]
    return LogChunk(run_id=run_id, first=first, count=count, body=body, cursor=cursor, closed=bool(closed), bytes=size)


def log_tail(row: Row) -> LogTail:
    run_id, next_line, cursor, closed = row
    return LogTail(run_id=run_id, next_line=next_line, cursor=cursor, closed=bool(closed))


def told(was: Struct | None, now: Struct) -> Mapping[str, Json]:
    """The columns an event must hold: those that changed, or every one that is not null in a new row."""
    if was is None:
        return {name: new for name, new in zip(now.__struct_fields__, astuple(now), strict=True) if new is not None}
    both = zip(now.__struct_fields__, astuple(was), astuple(now), strict=True)
    return {name: new for name, old, new in both if new is not old and new != old}
