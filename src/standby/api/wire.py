"""What may be sent to us: strict bodies, unknown fields refused, every text and list bounded. What stands
below a field is its description to others."""

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from standby.api.problems import Problem, from_validation, invalid
from standby.api.values import (
    Count,
    EnvName,
    ErrorNames,
    ErrorText,
    Factor,
    LabelName,
    LabelValue,
    LineText,
    LongText,
    Megabytes,
    NeededReason,
    Processors,
    Reasons,
    ReasonText,
    Retries,
    Seconds,
    ShortText,
    Text,
    Time,
    unsaid,
)
from standby.core.model import Json, Missed, OnConflict, OrderState
from standby.core.places import OVERRIDABLE, PROJECT_SETTINGS

BULK_MOST: Final = 1_000
RESULT_MAX: Final = 65_536
JSON: Final = "application/json"
_parts: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class Body(BaseModel):
    """A request body: nothing is coerced, nothing unknown is let in."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class RetryBody(Body):
    """How often and when an order is run again by itself. What is left out, or null, is the pool's."""

    retries: Retries | None = unsaid(None)
    """How many more runs may follow a failed start or a lost run; after a failing exit only with `exit` in `retry_on`.
    Left out: the pool's."""
    base_s: Seconds | None = unsaid(None)
    """Wait before the first retry. Left out: the pool's."""
    factor: Factor | None = unsaid(None)
    """How much longer each next wait is, a tenth more or less by chance. Left out: the pool's."""
    cap_s: Seconds | None = unsaid(None)
    """The longest wait. Left out: the pool's."""
    retry_on: Reasons | None = unsaid(None)
    """Also retry after these: `exit`, `oom`, `timeout`. Left out: the pool's."""
    no_retry_on: Reasons | None = unsaid(None)
    """Reasons not retried although they would be. Left out: the pool's."""
    retry_errors: ErrorNames | None = unsaid(None)
    """Names of workers' errors that are retried, whatever the worker says. Left out: the pool's."""
    fatal_errors: ErrorNames | None = unsaid(None)
    """Names of workers' errors that are never retried. Left out: the pool's."""


class SubmitBody(Body):
    """A new work order, with exactly one of `command` and `script`. A time limit of null is none."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["command"]}, {"required": ["script"]}]})

    project: Name = "default"
    """Project it belongs to."""
    pool: ShortText = "default"
    """Pool that runs it."""
    command: Annotated[list[Text], Field(min_length=1, max_length=4_096)] | None = unsaid(None)
    """Program and arguments."""
    script: LongText | None = unsaid(None)
    """A shell script to run instead of a command."""
    env: Annotated[dict[EnvName, Text], Field(max_length=1_000)] = Field(default_factory=dict)
    """Environment variables, by name. Values are kept sealed and never shown."""
    payload: Json = None
    """JSON for the order; it is in the file that `STANDBY_PAYLOAD_FILE` names."""
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=64)] = Field(default_factory=dict)
    """Names and values of yours, to find it by."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 100
    """Smaller goes first."""
    queue_timeout_s: Seconds | None = unsaid(None)
    """How long it may wait for a slot; null: for ever. Left out: the pool's."""
    start_timeout_s: Seconds = unsaid(0)
    """How long its start may take. Left out: the pool's."""
    run_timeout_s: Seconds | None = unsaid(None)
    """How long it may run; null: for ever. Left out: the pool's."""
    stop_grace_s: Seconds = unsaid(0)
    """How long it may take to stop before it is forced. Left out: the pool's."""
    memory_mb: Megabytes | None = unsaid(None)
    """Memory it takes of its host's budget. Left out or null: the pool's."""
    cpus: Processors | None = unsaid(None)
    """Processors it takes of its host's budget. Left out or null: the pool's."""
    retry: RetryBody = unsaid(RetryBody())
    """How often and when it is run again by itself. Left out: the pool's."""
    not_before: Time | None = None
    """Not before this time, like 2030-01-31T12:00:00Z, or in milliseconds since the epoch."""
    dedupe_key: ShortText | None = None
    """While an order of its project with this key is unfinished, that one is meant."""
    concurrency_key: ShortText | None = None
    """Of the orders of its project with this key one runs at a time."""
    on_conflict: OnConflict = OnConflict.WAIT
    """With a `concurrency_key` that another unfinished order has: wait, cancel this new one, or cancel the old one."""
    urgent: bool = False
    """Before all that wait; for the admin key only."""
    rerun_of: ShortText | None = None
    """Id of the order that this one repeats."""


class BulkBody(Body):
    """Orders to take in: each for itself, or all or none of them."""

    orders: Annotated[list[SubmitBody], Field(min_length=1, max_length=BULK_MOST)]
    """The orders, each as for one alone."""
    together: bool = False
    """All or none of them, in one transaction."""


class FilterBody(Body):
    """Which orders are meant: what is given must all hold."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    state: Annotated[list[OrderState], Field(max_length=len(OrderState))] = []
    """In one of these states; an empty list is any."""
    pool: ShortText | None = None
    """Of this pool."""
    project: Name | None = None
    """Of this project."""
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=64)] = {}
    """With all of these labels."""
    id_prefix: ShortText | None = None
    """Whose id begins with this."""
    ids: Annotated[list[ShortText], Field(max_length=BULK_MOST)] = []
    """One of these; an empty list is any."""


class ManyBody(Body):
    """Something to be done with every order that matches, at most 1,000 in one call."""

    filter: FilterBody
    """Which orders are meant."""
    dry_run: bool = False
    """Only count them."""
    reason: ReasonText | None = None
    """Why; kept in the events."""
    cursor: ShortText | None = None
    """The `next` of the call before."""


class ReasonBody(Body):
    """Why somebody asks."""

    reason: ReasonText | None = None
    """Why; kept in the event."""


class DrainBody(ReasonBody):
    """Why somebody drains; `now` stops what runs."""

    now: bool = False
    """Stop what runs."""


class ScheduleBody(Body):
    """A new schedule: when it ticks, and the order of each tick."""

    name: Name
    """Its name."""
    cron: ShortText
    """When it ticks: minute, hour, day of month, month, day of week; or `@hourly`, `@daily`, `@weekly`, `@monthly`."""
    zone: ShortText = "UTC"
    """Time zone of its ticks, like Europe/Berlin."""
    missed: Missed = Missed.ONCE
    """What becomes of ticks that nobody could make: none of them, the last one, or each."""
    order: SubmitBody
    """The order of each tick, without `not_before` and `rerun_of`."""


class PatchScheduleBody(Body):
    """What to change of a schedule; what is left out stays as it is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    cron: ShortText = unsaid("")
    """When it ticks."""
    zone: ShortText = unsaid("")
    """Time zone of its ticks."""
    missed: Missed = unsaid(Missed.ONCE)
    """What becomes of ticks that nobody could make."""
    order: SubmitBody = unsaid(SubmitBody())
    """The order of each tick, as a whole, with its env values."""


class SettingsBody(Body):
    """Settings of a pool, as in its configuration; what is left out stays as it is. Null is unlimited."""

    slots_max: Count = unsaid(0)
    slots_warm: Count = unsaid(0)
    running_max: Count | None = unsaid(None)
    starts_per_minute: Count | None = unsaid(None)
    queue_max: Count | None = unsaid(None)
    idle_ttl_s: Seconds | None = unsaid(None)
    max_uses: Count | None = unsaid(None)
    max_age_s: Seconds | None = unsaid(None)
    pick: Literal["lru", "mru"] = unsaid("lru")
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = unsaid(None)
    memory_mb: Megabytes = unsaid(0)
    queue_timeout_s: Seconds | None = unsaid(None)
    queue_timeout_max_s: Seconds | None = unsaid(None)
    deploy_timeout_s: Seconds = unsaid(0)
    start_timeout_s: Seconds = unsaid(0)
    run_timeout_s: Seconds | None = unsaid(None)
    stop_grace_s: Seconds = unsaid(0)
    retries: Retries = unsaid(0)
    retry_base_s: Seconds = unsaid(0)
    retry_factor: Factor = unsaid(1)
    retry_cap_s: Seconds = unsaid(0)
    retry_on: Reasons = unsaid([])
    no_retry_on: Reasons = unsaid([])


class PatchPoolBody(Body):
    """What to set over the configuration, and what to give back to it."""

    set: SettingsBody = unsaid(SettingsBody())
    """What wins over the configuration from now on."""
    unset: Annotated[list[Literal[tuple(OVERRIDABLE)]], Field(max_length=len(OVERRIDABLE))] = []  # type: ignore[valid-type]
    """What is the configuration's again."""
    reason: ReasonText | None = None
    """Why; kept in the event."""


class ProjectSettingsBody(Body):
    """Settings of a project, as in its configuration; what is left out stays as it is. Null is unlimited."""

    running_max: Count | None = unsaid(None)
    weight: Annotated[int, Field(ge=1, le=1_000)] = unsaid(1)
    queue_max: Count | None = unsaid(None)


class PatchProjectBody(Body):
    """What to set over the configuration, and what to give back to it."""

    set: ProjectSettingsBody = unsaid(ProjectSettingsBody())
    """What wins over the configuration from now on."""
    unset: Annotated[list[Literal[PROJECT_SETTINGS]], Field(max_length=len(PROJECT_SETTINGS))] = []  # type: ignore[valid-type]
    """What is the configuration's again."""
    reason: ReasonText | None = None
    """Why; kept in the event."""


class KeyBody(Body):
    """A new API key."""

    name: Name


class DeadBody(Body):
    """An operator's word about a host; its name is written once more so that no other one is meant."""

    reason: NeededReason
    confirm: str


class BootBody(Body):
    """One life of a worker."""

    nonce: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{8,64}$")]


class BeatBody(Body):
    """A sign of life, and how far the run is."""

    run_id: ShortText | None = None
    """Needed with a boot token."""
    progress: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    text: ReasonText | None = None


class LineBody(Body):
    """One line of output."""

    stream: Literal["stdout", "stderr"] = "stdout"
    text: LineText


class OutputBody(Body):
    """Lines that a run wrote, from one on."""

    run_id: ShortText | None = None
    """Needed with a boot token."""
    first: Annotated[int, Field(ge=0, le=2**53)]
    """The number of the first of them; the first one of all is 0."""
    lines: Annotated[list[LineBody], Field(max_length=1_000)]
    closed: bool = False
    """There will be no more."""


class ErrorBody(Body):
    """Why a run failed, by its worker's word."""

    name: ShortText
    text: ErrorText | None = None
    retryable: bool | None = None


class ResultBody(BeatBody):
    """How a run ended: well unless its exit code or an error says something else."""

    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    error: ErrorBody | None = None
    result: Json = None
    """At most 64 KB."""


B = TypeVar("B", bound=Body)


async def read_body(request: Request, most_kb: int) -> bytes:
    """The whole body, or 413 as soon as it is too large."""
    parts, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            # nobody is there to read it, but the log of a server is not for faults of its callers
            raise Problem(400, "cut_off", "the body ended before its end", "send it again")
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > most_kb * 1024:
            text = f"the body is larger than {most_kb} KB"
            raise Problem(413, "too_large", text, "send less, or raise request_max_kb")
        parts.append(part)
    return b"".join(parts)


async def parse(request: Request, model: type[B], most_kb: int, *, empty: bytes | None = None) -> tuple[B, bytes]:
    """The checked body and its bytes. `empty` stands for a body that was left out."""
    raw = await read_body(request, most_kb)
    if not raw.strip() and empty is not None:
        return model.model_validate_json(empty), empty
    need_json(request)
    try:
        return model.model_validate_json(raw), raw
    except ValidationError as error:
        raise from_validation(error, model) from None


def header(request: Request, name: bytes) -> str | None:
    """The first header of this name, which is in small letters as every server passes them on."""
    for given, value in request.scope["headers"]:
        if given == name:
            return str(value, "latin-1")
    return None


def need_json(request: Request) -> None:
    """415 for a body of another kind."""
    kind = header(request, b"content-type") or ""
    if kind != JSON and kind.partition(";")[0].strip().lower() != JSON:
        raise Problem(415, "json_needed", "the body must be JSON", "send it with Content-Type: application/json")


def result_text(raw: bytes) -> str | None:
    """The result exactly as it was sent, null for none; 413 when it is too large to be kept."""
    text = _part(raw, "result", "result")
    if len(text) > RESULT_MAX:
        text = f"the result is larger than {RESULT_MAX >> 10} KB"
        raise Problem(413, "result_too_large", text, "keep it elsewhere and say where")
    return None if text == "null" else text


def scheduled_payload(raw: bytes) -> str:
    """The payload of a schedule's order, exactly as it was sent."""
    return payload_text(_part(raw, "order", "payload").encode())


def payload_text(raw: bytes) -> str:
    """The payload exactly as it was sent."""
    return _part(raw, "payload", "payload")


def _part(raw: bytes, name: str, field: str) -> str:
    """A part of a body exactly as it was sent, null where it was left out; `field` is what a problem is about."""
    try:
        return bytes(_parts(raw).get(name, b"null")).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid("the body is not valid JSON", "NaN and Infinity are not JSON", field) from None
