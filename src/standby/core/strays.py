"""What a look at a platform's places says: idle slots whose place is gone, and things of ours that belong to nobody."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from standby.core.admit import Room
from standby.core.model import Slot, SlotState
from standby.core.sighting import Place

STRAY_AGE_MS: Final = 120_000
"""Nothing younger is a stray: somebody may just be making it."""
STRAY_GAP_MS: Final = 30_000
"""At least so long between the look that first found a stray and the one that condemns it."""
FEW: Final = 3
SHARE: Final = 0.2
"""A sweep that would remove more (a fifth of everything, at least three) is a mistake of ours, not of the platform."""

Suspects = Mapping[str, int]
"""Incarnation -> when the look was asked that first found something wrong with it."""


class Found(Struct, frozen=True, kw_only=True):
    """What is to be done, and what to remember for the next look."""

    vanished: Sequence[tuple[Slot, str]] = ()
    """Idle slots that cannot serve, with the reason."""
    strays: Sequence[Place] = ()
    refused: int = 0
    """So many strays that none of them is touched."""
    suspects: Suspects = {}


def compare(room: Room, places: Sequence[Place], asked_at: int, suspects: Suspects, lag_ms: int) -> Found:
    """Compare a whole list of places with the rows. Absence must be seen twice, and so must a stray."""
    by_incarnation = {place.incarnation: place for place in places}
    now_suspect: dict[str, int] = {}
    vanished: list[tuple[Slot, str]] = []
    for slot in _idle(room):
        assert slot.incarnation is not None
        place = by_incarnation.get(slot.incarnation)
        if asked_at <= slot.state_since + lag_ms or (place is not None and place.usable):
            continue
        if place is not None:
            vanished.append((slot, "its place cannot serve any more"))
        elif suspects.get(slot.incarnation, asked_at) < asked_at:
            vanished.append((slot, "its place is gone"))
        else:
            now_suspect[slot.incarnation] = asked_at
    strays: list[Place] = []
    for place in _strays(room, places):
        since = suspects.get(place.incarnation, asked_at)
        now_suspect[place.incarnation] = since
        if asked_at - since >= STRAY_GAP_MS and asked_at - place.made_at >= STRAY_AGE_MS:
            strays.append(place)
    if len(strays) > max(FEW, SHARE * len(places)):
        return Found(vanished=vanished, refused=len(strays), suspects=now_suspect)
    return Found(vanished=vanished, strays=strays, suspects=now_suspect)


def _idle(room: Room) -> list[Slot]:
    """Idle slots that are things and that nobody holds."""
    held = {order.slot for order in (*room.opened, *room.ending)}
    idle = [slot for slot in room.slots if slot.state is SlotState.IDLE and slot.name not in held]
    return [slot for slot in idle if slot.pool in room.pools and not room.is_seat(slot.pool)]


def _strays(room: Room, places: Sequence[Place]) -> list[Place]:
    """Places that no slot and no open run knows; whatever may just be made or taken away is left alone."""
    orders = (*room.opened, *room.ending)
    known = {slot.incarnation for slot in room.slots} | {order.incarnation for order in orders}
    known |= {order.handle for order in orders}
    settled = {slot.name: slot.state in (SlotState.IDLE, SlotState.ERROR) for slot in room.slots}
    settled.update((order.slot, False) for order in orders if order.slot is not None)
    return [place for place in places if place.incarnation not in known and settled.get(place.slot, True)]
