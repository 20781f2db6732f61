"""How runs are shown."""

from collections.abc import Sequence

from msgspec import Struct

from standby.api.views import Time, time, view_of
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
    return view_of(RunView, run, id=f"{run.order_id}-{run.number}", state="ended")


def open_run_view(order: Order) -> RunView | None:
    """The open run, which is part of its order's row; null when there is none."""
    if order.state not in OPEN:
        return None
    of_its_end = ("ended_at", "exit_code", "signal", "error_name", "error", "peak_memory_kb", "cpu_ms")
    return view_of(
        RunView,
        order,
        id=run_id(order),
        number=order.attempt,
        stop_asked_at=time(order.state_since) if order.state is OrderState.STOPPING else None,
        reason=order.stop_reason,
        **dict.fromkeys(of_its_end),
    )
