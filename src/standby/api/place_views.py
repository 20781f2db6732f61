"""How pools, slots and hosts are shown."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from standby.api.views import Seconds, Time, seconds, time, view_of
from standby.core import processors
from standby.core.explain import Start
from standby.core.lifecycle import blocked_total_ms
from standby.core.model import Lease, Level, Mode, Order, Slot, run_id, slot_word
from standby.core.pressure import STALE_MS
from standby.core.room import Room
from standby.core.sighting import Pressure, Reading
from standby.starts import Floor


class ModeView(Struct, frozen=True):
    """What an operator wants of a place, since when, why and by whom."""

    mode: Mode
    mode_since: Time
    mode_reason: str | None
    mode_actor: str
    mode_stop_at: Time | None
    """Drained at once: from then on what still runs is stopped."""


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
    """Of a mere seat with many short runs, not all of them (see the design page)."""
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
    return view_of(
        SlotView,
        slot,
        state=slot_word(slot, holder),
        state_since=time(slot.state_since if holder is None else holder.state_since),
        order=None if holder is None else holder.id,
        handle=None if holder is None else holder.handle,
    )


def host_view(room: Room, lease: Lease | None, measured_at: int | None) -> HostView:
    """A host, who leads it, and how much of its budgets is taken."""
    return view_of(
        HostView,
        room.host,
        lease=None if lease is None else lease_view(lease, room.now),
        memory_used_mb=room.used_mb,
        cpus_used=processors.used(room.pools, room.opened, room.seats),
        measured=measured_at is not None and room.now - measured_at <= STALE_MS,
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


def lease_view(lease: Lease, now: int) -> LeaseView:
    return view_of(LeaseView, lease, live=lease.until > now)


def reading_view(at: int, body: str) -> ReadingView:
    """A reading as it was stored."""
    return view_of(ReadingView, msgspec.json.decode(body, type=Reading), at=time(at))
