"""How pools, slots and hosts are shown."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from standby.api.views import Seconds, Time, length, seconds, shown_time, time
from standby.core.explain import Start
from standby.core.lifecycle import blocked_total_ms
from standby.core.model import (
    OPEN,
    Host,
    Json,
    Lease,
    Level,
    Mode,
    Order,
    OrderState,
    Pool,
    Reason,
    Reset,
    Slot,
    Warmth,
    run_id,
    slot_word,
)
from standby.core.pressure import STALE_MS
from standby.core.sighting import ImageState, Pressure, Reading
from standby.estimates import Record
from standby.starts import Floor
from standby.store.contract import Peaks


class ModeView(Struct, frozen=True):
    """What an operator wants of a place, since when, why and by whom."""

    mode: Mode
    mode_since: Time
    mode_reason: str | None
    mode_actor: str
    mode_stop_at: Time | None
    """Drained at once: from then on what still runs is stopped."""


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
    estimates: EstimatesView | None
    peaks: PeaksView | None
    settings: SettingsView
    overrides: Mapping[str, OverrideView]


class PoolsView(Struct, frozen=True):
    """All pools."""

    pools: Sequence[PoolView]


class SlotView(Struct, frozen=True):
    """A slot in the words people use: `deploying` and `busy` are an idle one with an open run."""

    name: str
    host: str
    pool: str
    state: str
    state_since: Time
    order: str | None
    handle: str | None
    incarnation: str | None
    generation: int
    uses: int
    created_at: Time
    last_used_at: Time | None
    error: str | None
    retry_at: Time | None


class SlotsView(Struct, frozen=True):
    """All slots that were asked for."""

    slots: Sequence[SlotView]


class LeaseView(Struct, frozen=True):
    """Who leads a host, and until when."""

    owner: str
    epoch: int
    until: Time
    live: bool


class HostView(ModeView, frozen=True):
    """A host, who leads it, how much of its budgets is taken (by open runs; memory by idle live slots, too), and how
    hard it is pressed: at `warning` starts are fewer, at `critical` nothing new is started. `calm_since`: what is
    measured is below that. Not `measured`: nobody knows how full it is, and the level stays as it is."""

    name: str
    driver: str
    lease: LeaseView | None
    memory_used_mb: int
    memory_mb: int | None
    cpus_used: float
    cpus: float | None
    identity: str | None
    unreachable_since: Time | None
    error: str | None
    dead_at: Time | None
    measured: bool
    pressure: Level
    pressure_since: Time | None
    pressure_cause: str | None
    calm_since: Time | None


class Used(Struct, frozen=True):
    """What is taken of a host's budgets."""

    memory_mb: int
    cpus: float


class ReadingView(Struct, frozen=True):
    """How full the host's machine was, and when; null where it does not say."""

    at: Time
    memory_total_mb: int | None
    memory_available_mb: int | None
    cpu_count: int | None
    cpu_used: float | None
    load_1m: float | None
    pressure: Pressure | None
    disk_free_mb: int | None


class ImageView(Struct, frozen=True):
    """What is known of an image on a host: there, on its way (and how far), or why it could not be had."""

    image: str
    present: bool
    at: Time
    pulling_since: Time | None
    progress: str | None
    error: str | None


class FullHostView(HostView, frozen=True):
    """A host with its last reading, its slots by word, its starts in flight and how many orders wait for it."""

    reading: ReadingView | None
    slots: Mapping[str, int]
    slots_max: int
    queue_depth: int
    pools: Sequence[str]
    starts_max: int | None
    start_gap_s: Seconds
    starting: int
    images: Sequence[ImageView]


class StartView(Struct, frozen=True):
    """A start in flight: of a run, or of a slot that is being made (then `order` and `run` are null)."""

    order: str | None
    run: str | None
    slot: str
    pool: str | None
    since: Time


class WaiterView(Struct, frozen=True):
    """An order that waits for nothing but a start. After `gives_up_in_s` it gets until `deploy_timeout` in all, once;
    then it fails."""

    order: str
    pool: str
    since: Time
    position: int
    gives_up_in_s: Seconds | None
    last_time: bool
    """It has got its longer time already."""


class StartsView(Struct, frozen=True):
    """Starts in flight on a host, and who waits for one; null is no maximum. Between two starts there are `gap_s`."""

    active: int
    queued: int
    maximum: int | None
    gap_s: Seconds
    holders: Sequence[StartView]
    waiters: Sequence[WaiterView]


class HostsView(Struct, frozen=True):
    """All hosts."""

    hosts: Sequence[HostView]


def slot_view(slot: Slot, holder: Order | None) -> SlotView:
    return SlotView(
        name=slot.name,
        host=slot.host,
        pool=slot.pool,
        state=slot_word(slot, holder),
        state_since=time(slot.state_since if holder is None else holder.state_since),
        order=None if holder is None else holder.id,
        handle=None if holder is None else holder.handle,
        incarnation=slot.incarnation,
        generation=slot.generation,
        uses=slot.uses,
        created_at=time(slot.created_at),
        last_used_at=shown_time(slot.last_used_at),
        error=slot.error,
        retry_at=shown_time(slot.retry_at),
    )


def pool_view(
    pool: Pool,
    counts: Mapping[OrderState, int],
    words: Mapping[str, int],
    record: Record | None = None,
    peaks: Peaks | None = None,
) -> PoolView:
    """A pool with its unfinished orders by state and its slots by word."""
    settings, retry = pool.settings, pool.settings.retry
    return PoolView(
        name=pool.name,
        host=pool.host,
        mode=pool.mode,
        mode_since=time(pool.mode_since),
        mode_reason=pool.mode_reason,
        mode_actor=pool.mode_actor,
        mode_stop_at=shown_time(pool.mode_stop_at),
        pending=counts.get(OrderState.PENDING, 0),
        open=sum(count for state, count in counts.items() if state in OPEN),
        orders=counts,
        slots=words,
        slots_max=settings.slots_max,
        blocked_since=shown_time(pool.blocked_since),
        blocked_s=length(pool.blocked_ms),
        project=settings.project,
        warmth=None if settings.template.image is None else settings.template.warmth,
        worker=settings.template.worker,
        reset=settings.reset,
        failures=pool.failures,
        broken_since=shown_time(pool.broken_at),
        estimates=None if record is None else EstimatesView(record.started, record.off_ms, round(record.held, 3)),
        peaks=None if peaks is None else PeaksView(peaks.runs, peaks.above, -(-peaks.most_kb // 1024)),
        settings=SettingsView(
            slots_warm=settings.slots_warm,
            running_max=settings.running_max,
            starts_per_minute=settings.starts_per_minute,
            queue_max=settings.queue_max,
            idle_ttl_s=seconds(settings.idle_ttl_ms),
            max_uses=settings.max_uses,
            max_age_s=seconds(settings.max_age_ms),
            pick=settings.pick,
            image=settings.template.image,
            memory_mb=settings.memory_mb,
            queue_timeout_s=seconds(settings.queue_timeout_ms),
            queue_timeout_max_s=seconds(settings.queue_timeout_max_ms),
            deploy_timeout_s=length(settings.deploy_timeout_ms),
            start_timeout_s=length(settings.start_timeout_ms),
            run_timeout_s=seconds(settings.run_timeout_ms),
            stop_grace_s=length(settings.stop_grace_ms),
            retries=retry.retries,
            retry_base_s=length(retry.base_ms),
            retry_factor=retry.factor,
            retry_cap_s=length(retry.cap_ms),
            retry_on=retry.retry_on,
            no_retry_on=retry.no_retry_on,
        ),
        overrides={
            name: OverrideView(each.value, each.actor, time(each.at), each.reason)
            for name, each in pool.overrides.items()
        },
    )


def host_view(host: Host, lease: Lease | None, used: Used, now: int, measured_at: int | None) -> HostView:
    """A host, who leads it, and how much of its memory budget is taken by open runs."""
    return HostView(
        name=host.name,
        driver=host.driver,
        mode=host.mode,
        mode_since=time(host.mode_since),
        mode_reason=host.mode_reason,
        mode_actor=host.mode_actor,
        mode_stop_at=shown_time(host.mode_stop_at),
        lease=None if lease is None else lease_view(lease, now),
        memory_used_mb=used.memory_mb,
        memory_mb=host.memory_mb,
        cpus_used=used.cpus,
        cpus=host.cpus,
        identity=host.identity,
        unreachable_since=shown_time(host.unreachable_since),
        error=host.error,
        dead_at=shown_time(host.dead_at),
        measured=measured_at is not None and now - measured_at <= STALE_MS,
        pressure=host.pressure,
        pressure_since=shown_time(host.pressure_since),
        pressure_cause=host.pressure_cause,
        calm_since=shown_time(host.calm_since),
    )


def start_view(start: Start, floor: Floor) -> StartView:
    holder = floor.holders.get(start.slot)
    pools = {slot.name: slot.pool for slot in floor.slots}
    run = None if holder is None or start.order is None else run_id(holder)
    return StartView(order=start.order, run=run, slot=start.slot, pool=pools.get(start.slot), since=time(start.since))


def waiter_view(position: int, order: Order, floor: Floor, now: int) -> WaiterView:
    blocked_ms = blocked_total_ms(floor.pools[order.pool], now)
    left = None if order.queue_due is None else max(0, order.queue_due + blocked_ms - now)
    return WaiterView(
        order=order.id,
        pool=order.pool,
        since=time(order.state_since),
        position=position,
        gives_up_in_s=seconds(left),
        last_time=order.deploy_since is not None,
    )


def image_view(state: ImageState) -> ImageView:
    return ImageView(
        image=state.image,
        present=state.present,
        at=time(state.at),
        pulling_since=shown_time(state.pulling_since),
        progress=state.progress,
        error=state.error,
    )


def lease_view(lease: Lease, now: int) -> LeaseView:
    return LeaseView(owner=lease.owner, epoch=lease.epoch, until=time(lease.until), live=lease.until > now)


def reading_view(at: int, body: str) -> ReadingView:
    """A reading as it was stored."""
    reading = msgspec.json.decode(body, type=Reading)
    return ReadingView(at=time(at), **{name: getattr(reading, name) for name in Reading.__struct_fields__})
