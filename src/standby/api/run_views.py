"""How runs are shown."""

from collections.abc import Sequence

from msgspec import Struct

from standby.api.views import Time, shown_time, time
from standby.core.model import OPEN, Order, OrderState, Reason, Run, run_id


class RunView(Struct, frozen=True):
    """One run; an open one has no end."""

    id: str
    number: int
    state: str
    slot: str | None
    handle: str | None
    commanded_at: Time | None
    ready_at: Time | None
    stop_asked_at: Time | None
    ended_at: Time | None
    reason: Reason | None
    exit_code: int | None
    signal: int | None
    error_name: str | None
    """What its worker called the error."""
    error: str | None
    peak_memory_kb: int | None
    cpu_ms: int | None


class RunsView(Struct, frozen=True):
    """The runs of an order, oldest first."""

    runs: Sequence[RunView]


def run_view(run: Run) -> RunView:
    """One ended run."""
    return RunView(
        id=f"{run.order_id}-{run.number}",
        number=run.number,
        state="ended",
        slot=run.slot,
        handle=run.handle,
        commanded_at=time(run.commanded_at),
        ready_at=shown_time(run.ready_at),
        stop_asked_at=shown_time(run.stop_asked_at),
        ended_at=time(run.ended_at),
        reason=run.reason,
        exit_code=run.exit_code,
        signal=run.signal,
        error_name=run.error_name,
        error=run.error,
        peak_memory_kb=run.peak_memory_kb,
        cpu_ms=run.cpu_ms,
    )


def open_run_view(order: Order) -> RunView | None:
    """The open run, which is part of its order's row; null when there is none."""
    if order.state not in OPEN:
        return None
    return RunView(
        id=run_id(order),
        number=order.attempt,
        state=order.state,
        slot=order.slot,
        handle=order.handle,
        commanded_at=shown_time(order.commanded_at),
        ready_at=shown_time(order.ready_at),
        stop_asked_at=time(order.state_since) if order.state is OrderState.STOPPING else None,
        ended_at=None,
        reason=order.stop_reason,
        exit_code=None,
        signal=None,
        error_name=None,
        error=None,
        peak_memory_kb=None,
        cpu_ms=None,
    )
