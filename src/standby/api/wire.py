"""What may be sent to us: strict bodies, unknown fields refused, every text and list bounded."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from fastapi import Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)

from standby.api.problems import Problem, cut, from_validation, invalid
from standby.core.model import NEVER_RETRIED, Json, Missed, OnConflict, OrderState, Reason
from standby.core.places import OVERRIDABLE, PROJECT_SETTINGS

TEN_YEARS_S: Final = 10 * 366 * 86_400
TIME_MAX_MS: Final = 253_402_300_799_999
BULK_MOST: Final = 1_000
RESULT_MAX: Final = 65_536
_parts: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def _time_ms(value: Any) -> Any:
    """RFC 3339 with a time zone, or milliseconds since the epoch."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise ValueError("write a time like 2030-01-31T12:00:00Z, or milliseconds since the epoch")
        value = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    return value


def _may_be_retried(reasons: list[Reason]) -> list[Reason]:
    if never := sorted(NEVER_RETRIED.intersection(reasons)):
        raise ValueError(f"{', '.join(never)} is never retried")
    return reasons


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]
Text = Annotated[str, AfterValidator(_no_nul)]
ShortText = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_no_nul)]
LabelName = Annotated[str, Field(min_length=1, max_length=63), AfterValidator(_no_nul)]
LabelValue = Annotated[str, Field(max_length=255), AfterValidator(_no_nul)]
ReasonText = Annotated[str, Field(max_length=1_000), AfterValidator(_no_nul)]
Seconds = Annotated[float, Field(ge=0, le=TEN_YEARS_S, allow_inf_nan=False)]
Time = Annotated[
    int,
    Field(ge=0, le=TIME_MAX_MS),
    BeforeValidator(_time_ms),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer", "minimum": 0}]}),
]
Reasons = Annotated[list[Reason], Field(max_length=len(Reason)), AfterValidator(_may_be_retried)]
ErrorNames = Annotated[list[ShortText], Field(max_length=100)]


CountOrNull = Annotated[int, Field(ge=0, le=1_000_000)] | None


class Body(BaseModel):
    """A request body: nothing is coerced, nothing unknown is let in."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class RetryBody(Body):
    """What is not given is the pool's."""

    retries: Annotated[int, Field(ge=0, le=100)] | None = None
    base_s: Seconds | None = None
    factor: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] | None = None
    cap_s: Seconds | None = None
    retry_on: Reasons | None = None
    no_retry_on: Reasons | None = None
    retry_errors: ErrorNames | None = None
    fatal_errors: ErrorNames | None = None


class SubmitBody(Body):
    """A new work order. A time limit that is left out is the pool's; null is unlimited."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["command"]}, {"required": ["script"]}]})

    project: Name = "default"
    pool: ShortText = "default"
    command: Annotated[list[Text], Field(min_length=1, max_length=4_096)] | None = None
    script: Annotated[str, Field(min_length=1), AfterValidator(_no_nul)] | None = None
    env: Annotated[dict[EnvName, Text], Field(max_length=1_000)] = Field(default_factory=dict)
    payload: Json = None
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=64)] = Field(default_factory=dict)
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 100
    queue_timeout_s: Seconds | None = None
    start_timeout_s: Seconds = 0
    run_timeout_s: Seconds | None = None
    stop_grace_s: Seconds = 0
    memory_mb: Annotated[int, Field(ge=0, le=2**40)] | None = None
    cpus: Annotated[float, Field(ge=0.001, le=10_000, allow_inf_nan=False)] | None = None
    retry: RetryBody = RetryBody()
    not_before: Time | None = None
    dedupe_key: ShortText | None = None
    concurrency_key: ShortText | None = None
    on_conflict: OnConflict = OnConflict.WAIT
    urgent: bool = False
    rerun_of: ShortText | None = None


class BulkBody(Body):
    """Orders to take in: each for itself, or all or none of them."""

    orders: Annotated[list[SubmitBody], Field(min_length=1, max_length=BULK_MOST)]
    together: bool = False


class FilterBody(Body):
    """Which orders are meant: what is given must all hold."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    state: Annotated[list[OrderState], Field(max_length=len(OrderState))] = []
    pool: ShortText | None = None
    project: Name | None = None
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=64)] = {}
    id_prefix: ShortText | None = None
    ids: Annotated[list[ShortText], Field(max_length=BULK_MOST)] = []


class ManyBody(Body):
    """Something to be done with every order that matches, at most 1,000 in one call."""

    filter: FilterBody
    dry_run: bool = False
    reason: ReasonText | None = None
    cursor: ShortText | None = None
    """The `next` of the call before."""


class ReasonBody(Body):
    """Why somebody asks; kept in the event."""

    reason: ReasonText | None = None


class DrainBody(ReasonBody):
    """Why somebody drains; `now` stops what runs."""

    now: bool = False


class ScheduleBody(Body):
    """A new schedule: when it ticks, and the order of each tick."""

    name: Name
    cron: ShortText
    zone: ShortText = "UTC"
    missed: Missed = Missed.ONCE
    order: SubmitBody


class PatchScheduleBody(Body):
    """What to change of a schedule; only what is given."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    cron: ShortText = ""
    zone: ShortText = ""
    missed: Missed = Missed.ONCE
    order: SubmitBody = SubmitBody()


class SettingsBody(Body):
    """Settings of a pool; only what is given is set. Null is unlimited."""

    slots_max: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    slots_warm: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    running_max: CountOrNull = None
    starts_per_minute: CountOrNull = None
    queue_max: CountOrNull = None
    idle_ttl_s: Seconds | None = None
    max_uses: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    max_age_s: Seconds | None = None
    pick: Literal["lru", "mru"] = "lru"
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    memory_mb: Annotated[int, Field(ge=0, le=2**40)] = 0
    queue_timeout_s: Seconds | None = None
    queue_timeout_max_s: Seconds | None = None
    deploy_timeout_s: Seconds = 0
    start_timeout_s: Seconds = 0
    run_timeout_s: Seconds | None = None
    stop_grace_s: Seconds = 0
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    retry_base_s: Seconds = 0
    retry_factor: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1
    retry_cap_s: Seconds = 0
    retry_on: Reasons = []
    no_retry_on: Reasons = []


class PatchPoolBody(Body):
    """What to set over the configuration, and what to give back to it."""

    set: SettingsBody = SettingsBody()
    unset: Annotated[list[Literal[tuple(OVERRIDABLE)]], Field(max_length=len(OVERRIDABLE))] = []  # type: ignore[valid-type]
    reason: ReasonText | None = None


class ProjectSettingsBody(Body):
    """Settings of a project; only what is given is set. Null is unlimited."""

    running_max: CountOrNull = None
    weight: Annotated[int, Field(ge=1, le=1_000)] = 1
    queue_max: CountOrNull = None


class PatchProjectBody(Body):
    """What to set over the configuration, and what to give back to it."""

    set: ProjectSettingsBody = ProjectSettingsBody()
    unset: Annotated[list[Literal[PROJECT_SETTINGS]], Field(max_length=len(PROJECT_SETTINGS))] = []  # type: ignore[valid-type]
    reason: ReasonText | None = None


class KeyBody(Body):
    """A new API key."""

    name: Name


class DeadBody(Body):
    """An operator's word about a host; its name is written once more so that no other one is meant."""

    reason: Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(_no_nul)]
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
    text: Annotated[str, Field(max_length=65_536), AfterValidator(_no_nul)]


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
    text: Annotated[str, Field(max_length=4_000), AfterValidator(_no_nul)] | None = None
    retryable: bool | None = None


class ResultBody(BeatBody):
    """How a run ended: well unless its exit code or an error says something else."""

    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    error: ErrorBody | None = None
    result: Json = None
    """At most 64 KB."""


class _Bulk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    orders: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=BULK_MOST)]
    together: bool = False


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
    _need_json(request)
    try:
        return model.model_validate_json(raw), raw
    except ValidationError as error:
        raise from_validation(error, model) from None


async def parse_bulk(request: Request, most_kb: int) -> tuple[list[bytes], bool]:
    """The orders of a bulk, each as it was sent, and whether all or none are meant: each is checked for itself."""
    _need_json(request)
    raw = await read_body(request, most_kb)
    try:
        bulk = msgspec.json.decode(raw, type=_Bulk)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = cut(f"the body cannot be used: {error}", 300)
        hint = f'send {{"orders": [...], "together": false}} with 1 to {BULK_MOST} orders'
        raise invalid(text, hint, "orders") from None
    return [bytes(each) for each in bulk.orders], bulk.together


def _need_json(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
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
