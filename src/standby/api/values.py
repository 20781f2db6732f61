"""Values of a request: texts, lengths and times, each bounded, and fields that may be left to somebody else."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, WithJsonSchema

from standby.core.model import NEVER_RETRIED, Reason

TEN_YEARS_S: Final = 10 * 366 * 86_400
TIME_MAX_MS: Final = 253_402_300_799_999


def unsaid(stands_in: Any) -> Any:
    """A field whose absence no value says: it is the pool's then, or stays as it is. The description names no default
    for it; what stands in for it is never looked at."""
    return Field(default_factory=lambda: stands_in)


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


EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]
Text = Annotated[str, AfterValidator(_no_nul)]
LongText = Annotated[str, Field(min_length=1), AfterValidator(_no_nul)]
ShortText = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_no_nul)]
LabelName = Annotated[str, Field(min_length=1, max_length=63), AfterValidator(_no_nul)]
LabelValue = Annotated[str, Field(max_length=255), AfterValidator(_no_nul)]
ReasonText = Annotated[str, Field(max_length=1_000), AfterValidator(_no_nul)]
NeededReason = Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(_no_nul)]
ErrorText = Annotated[str, Field(max_length=4_000), AfterValidator(_no_nul)]
LineText = Annotated[str, Field(max_length=65_536), AfterValidator(_no_nul)]
Seconds = Annotated[float, Field(ge=0, le=TEN_YEARS_S, allow_inf_nan=False)]
Time = Annotated[
    int,
    Field(ge=0, le=TIME_MAX_MS),
    BeforeValidator(_time_ms),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer", "minimum": 0}]}),
]
Reasons = Annotated[list[Reason], Field(max_length=len(Reason)), AfterValidator(_may_be_retried)]
ErrorNames = Annotated[list[ShortText], Field(max_length=100)]
Retries = Annotated[int, Field(ge=0, le=100)]
Factor = Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)]
Megabytes = Annotated[int, Field(ge=0, le=2**40)]
Processors = Annotated[float, Field(ge=0.001, le=10_000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
