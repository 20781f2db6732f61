"""Each slot's line in the platform's own page: best effort, one call at a time, never read back."""

from datetime import UTC, datetime
from typing import Final

from standby.control.act import Hands
from standby.control.mirror import Mirror
from standby.core.model import Order, Slot, SlotState
from standby.drivers.contract import Caption
from standby.world import Clock

GAP_S: Final = 1.0
"""At least so long between two lines: platforms count calls."""


class Captions:
    """What the platform was last told of each slot, by one leader."""

    def __init__(self, driver: Caption, hands: Hands, clock: Clock) -> None:
        self._driver, self._hands, self._clock = driver, hands, clock
        self._told: dict[str, str] = {}
        self._sent_at = float("-inf")

    def tell(self, mirror: Mirror) -> None:
        """Send one line that is out of date: of the slot that was told of the longest ago."""
        now = self._clock.monotonic()
        if now - self._sent_at < GAP_S:
            return
        self._told = {name: text for name, text in self._told.items() if name in mirror.slots}
        holders = {work.order.slot: work.order for work in mirror.opened.values()}
        turns = {name: turn for turn, name in enumerate(self._told)}
        for slot in sorted(mirror.slots.values(), key=lambda slot: turns.get(slot.name, -1)):
            text = caption(slot, holders.get(slot.name))
            if text is not None and self._told.get(slot.name) != text:
                if self._hands.beside("caption", self._driver.caption(slot, text)):
                    self._told.pop(slot.name, None)
                    self._told[slot.name], self._sent_at = text, now
                return


def caption(slot: Slot, held_by: Order | None) -> str | None:
    """The line beside it in the platform's own page; null while there is nothing to tell."""
    if held_by is not None and held_by.ready_at is None:
        return f"[DEPLOYING] Order {held_by.id} - {_iso(held_by.commanded_at)}"
    if held_by is not None:
        return f"[BUSY] Order {held_by.id} - {_iso(held_by.ready_at)}"
    match slot.state:
        case SlotState.IDLE:
            return f"[IDLE] Available - Last used: {_iso(slot.last_used_at)}"
        case SlotState.ERROR:
            return f"[ERROR] {slot.error} - {_iso(slot.state_since)}"
        case _:
            return None


def _iso(at: int | None) -> str:
    if at is None:
        return "never"
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
