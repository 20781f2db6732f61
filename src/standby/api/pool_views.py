"""How pools are shown."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from standby.api.place_views import ModeView
from standby.api.views import Seconds, Time, length, shown_time, view_of
from standby.core.model import OPEN, Json, OrderState, Override, Pool, Reason, Reset, Warmth
from standby.core.outlook import NOTHING, Took
from standby.estimates import Record
from standby.store.contract import Peaks


class SettingsView(Struct, frozen=True):
    """What a pool's orders get unless they say otherwise, by the names that `PATCH` takes."""

    slots_warm: int
    running_max: int | None
    starts_per_minute: int | None
    queue_max: int | None
    idle_ttl_s: Seconds | None
    max_uses: int | None
    max_age_s: Seconds | None
    pick: str
    image: str | None
    memory_mb: int
    queue_timeout_s: Seconds | None
    queue_timeout_max_s: Seconds | None
    deploy_timeout_s: Seconds
    start_timeout_s: Seconds
    run_timeout_s: Seconds | None
    stop_grace_s: Seconds
    retries: int
    retry_base_s: Seconds
    retry_factor: float
    retry_cap_s: Seconds
    retry_on: Sequence[Reason]
    no_retry_on: Sequence[Reason]


class OverrideView(Struct, frozen=True):
    """What an operator set over the configuration."""

    value: Json
    actor: str
    at: Time
    reason: str | None


class EstimatesView(Struct, frozen=True):
    """How right the waits estimated at submit were, of the last `started` orders that this server took in and that
    started since: the median of how far off they were, and the share of those whose range held."""

    started: int
    off_ms: int
    held: float


class LengthsView(Struct, frozen=True):
    """How long the last `count` runs of a pool took: as many took longer than `usual_ms` as took less. Where a label
    tells how long a run takes (`label`), the same by its values, and estimates go by them."""

    count: int
    usual_ms: int
    label: str | None = None
    usual_ms_by_label: Mapping[str, int] = {}


class PeaksView(Struct, frozen=True):
    """What the last ended runs of a pool took of the memory: of so many `runs` it is known, and so many took more than
    they had declared (`above`)."""

    runs: int
    above: int
    most_mb: int


class PoolView(ModeView, frozen=True):
    """A pool with its unfinished orders by state and its slots by word. While its breaker is open (`broken_since`),
    after `failures` slots that could not be made or started, it only tries one now and then."""

    name: str
    host: str
    pending: int
    open: int
    orders: Mapping[OrderState, int]
    slots: Mapping[str, int]
    slots_max: int
    blocked_since: Time | None
    blocked_s: Seconds
    project: str | None
    warmth: Warmth | None
    worker: bool
    reset: Reset
    failures: int
    broken_since: Time | None
    lengths: LengthsView | None
    estimates: EstimatesView | None
    peaks: PeaksView | None
    settings: SettingsView
    overrides: Mapping[str, OverrideView]


class PoolsView(Struct, frozen=True):
    """All pools."""

    pools: Sequence[PoolView]


def pool_view(
    pool: Pool,
    counts: Mapping[OrderState, int],
    words: Mapping[str, int],
    record: Record | None = None,
    peaks: Peaks | None = None,
    took: Took = NOTHING,
) -> PoolView:
    """A pool with its unfinished orders by state and its slots by word."""
    settings, retry = pool.settings, pool.settings.retry
    return view_of(
        PoolView,
        pool,
        pending=counts.get(OrderState.PENDING, 0),
        open=sum(count for state, count in counts.items() if state in OPEN),
        orders=counts,
        slots=words,
        slots_max=settings.slots_max,
        project=settings.project,
        warmth=None if settings.template.image is None else settings.template.warmth,
        worker=settings.template.worker,
        reset=settings.reset,
        broken_since=shown_time(pool.broken_at),
        lengths=_lengths(took),
        estimates=None if record is None else EstimatesView(record.started, record.off_ms, round(record.held, 3)),
        peaks=None if peaks is None else PeaksView(peaks.runs, peaks.above, -(-peaks.most_kb // 1024)),
        settings=view_of(
            SettingsView,
            settings,
            image=settings.template.image,
            retries=retry.retries,
            retry_base_s=length(retry.base_ms),
            retry_factor=retry.factor,
            retry_cap_s=length(retry.cap_ms),
            retry_on=retry.retry_on,
            no_retry_on=retry.no_retry_on,
        ),
        overrides=override_views(pool.overrides),
    )


def override_views(overrides: Mapping[str, Override]) -> dict[str, OverrideView]:
    """What operators set, by setting."""
    return {name: view_of(OverrideView, each) for name, each in overrides.items()}


def _lengths(took: Took) -> LengthsView | None:
    if not took.runs:
        return None
    by = took.by_label
    known = {} if by is None else by.usual_ms()
    return LengthsView(len(took.runs), took.usual_ms, None if by is None else by.name, known)
