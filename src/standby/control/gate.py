"""What the history tells of the deploy gate: who begins to wait for a start, and who was granted one."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from standby.control.book import Book
from standby.core import lifecycle, pressure
from standby.core.admit import Admission, Plan, Room
from standby.core.lifecycle import Cause
from standby.core.model import Json, Spec, Trigger
from standby.core.rank import rank
from standby.store.contract import Work


class StartGate:
    """One leader's account of those who wait for a start. Another leader tells it once more."""

    def __init__(self, book: Book, cause: Callable[[Trigger], Cause]) -> None:
        self._book, self._cause = book, cause
        self._told: set[str] = set()
        self.opens_at: int | None = None
        """When the gap between two starts is over, or a pool's start rate lets one through, if one waits for it."""

    async def tell(self, room: Room, plan: Plan, waiting: Mapping[str, Work]) -> None:
        """Write down, once, who begins to wait for a start."""
        gap = room.gap_ends_at if plan.held and room.gap_ends_at > room.now else None
        self.opens_at = min((at for at in (gap, plan.opens_at) if at is not None), default=None)
        if not plan.held and not self._told:
            return
        self._told &= waiting.keys()
        new = []
        for place, order in enumerate(plan.held, 1):
            if order.id not in self._told:
                most = pressure.starts_max(room.host)
                starts = {"n": plan.starting, "max": most, "place": place, "queue": len(plan.held)}
                new.append(lifecycle.hold(self._cause(Trigger.ADMIT), order, {"starts": starts}))
        for change in await self._book.save(new):
            assert change.order is not None and change.order_was is not None
            self._told.add(change.order.id)
            held = replace(change.order, version=change.order_was.version + 1)
            self._book.ahead.drop([held])
            self._book.ahead.add(Work(held, waiting[held.id].spec))


def grant_note(
    cause: Cause, admission: Admission, spec: Spec, starts_max: int | None, queue: int
) -> Mapping[str, Json]:
    """Which start in flight it is, how many wait behind it, and how long it waited in all."""
    ready_at = (admission.order.rank or 0) - rank(spec, 0)
    waited_ms = max(0, cause.at - ready_at)
    return {"starts": {"n": admission.nth, "max": starts_max, "queue": queue, "waited_ms": waited_ms}}
