"""What a look means for an open run.

A run is over when its own copy was seen stopped, or seen absent by a look that was asked after its last command could
still have arrived.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from standby.core import lifecycle, warm
from standby.core.lifecycle import Cause
from standby.core.model import Change, Host, Order, OrderState, Pool, Reason, Slot, Spec, run_id
from standby.core.sighting import Exit, Seen, Sighting

_STOPPED: Final = Seen.STOPPED


class Open(Struct, gc=False, frozen=True):
    """An open run with everything that its end would touch."""

    order: Order
    spec: Spec
    slot: Slot


class Rules(Struct, gc=False, frozen=True, kw_only=True):
    """What a judgement needs besides rows and sightings."""

    window_ms: int
    """How long a start may be sent after it was saved."""
    lag_ms: int
    """How much later than a command a look must be asked to show its effect."""
    seats: bool
    pools: Mapping[str, Pool] = {}
    """Those of the host: whether a slot serves again as it is, and whether its uses count."""
    chance: float


def judge(cause: Cause, run: Open, look: Sighting, rules: Rules) -> Change | None:
    """The change that this look calls for, or null when it says nothing new (or speaks of another run)."""
    order = run.order
    if look.run_id != run_id(order) or look.incarnation != order.incarnation:
        return None
    if look.seen is _STOPPED:
        return _finish(cause, run, look.exit or Exit(lost=True), rules, look.handle)
    match look.seen:
        case Seen.READY if order.state is OrderState.PREPARING:
            return lifecycle.ready(cause, order, run.spec, look.handle)
        case Seen.ABSENT | Seen.FRESH if _late_enough(order, look, rules.lag_ms):
            if look.seen is Seen.FRESH and order.state is OrderState.PREPARING:
                return lifecycle.recommand(cause, order, rules.window_ms)
            return _finish(cause, run, Exit(lost=True), rules, None)
        case _:
            return None


def declared_dead(cause: Cause, run: Open, look: Sighting | None, host: Host, rules: Rules) -> Change | None:
    """An operator's word counts as a look that found nothing, for every run whose command was over before it (so that
    no difference of clocks can reach a later one); but what a look sees alive is alive."""
    if host.dead_at is None or run.order.command_until is None or run.order.command_until >= host.dead_at:
        return None
    if look is not None and look.incarnation == run.order.incarnation and look.seen in (Seen.STARTING, Seen.READY):
        return None
    return _finish(cause, run, Exit(lost=True), rules, None)


def unheard(cause: Cause, run: Open, look: Sighting | None, heard_at: int, rules: Rules) -> Change | None:
    """A worker that fences itself is silent for too long: what a later look sees alive is stopped, and what nobody can
    look at is over."""
    if look is None or look.asked_at <= heard_at or look.seen is Seen.UNKNOWN:
        return _finish(cause, run, Exit(lost=True), rules, None)
    alive = look.seen in (Seen.STARTING, Seen.READY) and run.order.state is not OrderState.STOPPING
    return lifecycle.stop(cause, run.order, run.spec, Reason.LOST) if alive else None


def overdue(cause: Cause, run: Open) -> Change | None:
    """The stop that a passed deadline calls for; a run that is stopping already is forced instead (see `act`)."""
    order = run.order
    if order.deadline is None or cause.at < order.deadline:
        return None
    match order.state:
        case OrderState.PREPARING:
            return lifecycle.stop(cause, order, run.spec, Reason.START_FAILED)
        case OrderState.RUNNING:
            return lifecycle.stop(cause, order, run.spec, Reason.TIMEOUT)
        case _:
            return None


def drained(cause: Cause, run: Open, stop_at: int | None) -> Change | None:
    """The stop that draining at once calls for, from its time on."""
    if stop_at is None or cause.at < stop_at or run.order.state is OrderState.STOPPING:
        return None
    return lifecycle.stop(cause, run.order, run.spec, Reason.DRAINED)


def _late_enough(order: Order, look: Sighting, lag_ms: int) -> bool:
    """Nothing that was sent before `command_until` can still arrive unseen by this look."""
    return order.command_until is not None and look.asked_at > order.command_until + lag_ms


def _forced(order: Order, now: int) -> bool:
    """Whether its end may have been forced: its place may be gone, whatever it said itself."""
    return order.state is OrderState.STOPPING and order.deadline is not None and now >= order.deadline


def _finish(cause: Cause, run: Open, ending: Exit, rules: Rules, handle: str | None) -> Change:
    pool, seats = rules.pools.get(run.slot.pool), rules.seats
    counts = not seats or (pool is not None and pool.settings.max_uses is not None)
    if not seats and pool is not None:
        seats = warm.stays(pool, seats) and not _forced(run.order, cause.at)
    return lifecycle.finish(
        cause, run.order, run.spec, run.slot, ending, handle=handle, seats=seats, chance=rules.chance, counts=counts
    )
