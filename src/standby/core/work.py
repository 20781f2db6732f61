"""The worker protocol, decided: what a worker is told, who has a run, and what its reports mean for it.

A *boot* is one life of a worker in a slot, named by the nonce it drew. A run belongs to at most one boot.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from standby.core import lifecycle, slots
from standby.core.judge import Open
from standby.core.lifecycle import Cause
from standby.core.model import OPEN, Change, Order, OrderState, Pool, Slot, SlotState, Template, Warmth, run_id
from standby.core.sighting import Exit, Seen, Sighting

URL: Final = "STANDBY_URL"
"""Where the server is, for whoever has a network."""
SOCKET: Final = "STANDBY_SOCKET"
"""The path of a Unix socket that serves the worker routes. Its directory is what is mounted, at the same path: the
socket itself is a new one after each start of the server."""
SLOT: Final = "STANDBY_SLOT"
SLOT_TOKEN: Final = "STANDBY_SLOT_TOKEN"  # noqa: S105  the name, not the token
"""Of a place that a worker lives in: exchanged for a boot token."""
SILENCE_S: Final = "STANDBY_SILENCE_S"
"""So long after its last answered heartbeat the worker ends itself; not set where silence means nothing."""
RUN_ID: Final = "STANDBY_RUN_ID"
RUN_TOKEN: Final = "STANDBY_RUN_TOKEN"  # noqa: S105
"""Of one run that is started for its order: heartbeats, progress and a result, nothing else."""

ITSELF: Final = "itself"
"""The boot of a run that speaks for itself, with a token of its own."""
MARGIN_MS: Final = 5_000
"""How far clocks may be apart, and an answer on its way, before silence settles anything."""
HEARD_MS: Final = 15_000
"""Whoever was heard within this before a look was alive then, whatever the look concludes: three heartbeats."""
_STARTED: Final = (OrderState.PREPARING, OrderState.RUNNING)
_GONE: Final = (Seen.STOPPED, Seen.ABSENT)
_LIVED_IN: Final = (SlotState.CREATING, SlotState.IDLE)


class Report(Struct, frozen=True, kw_only=True):
    """What the worker of a run said last. A field is a column of its table."""

    run_id: str
    boot: str = ""
    """Who says it; empty for a run that shows a token of its own."""
    begun_at: int | None = None
    heartbeat_at: int
    progress: float | None = None
    text: str | None = None
    ended_at: int | None = None
    """When it told its result."""
    exit_code: int | None = None
    error_name: str | None = None
    error: str | None = None
    retryable: bool | None = None
    result: str | None = None
    """JSON as it was sent."""


class Offer(StrEnum):
    """What a worker that asks for work gets."""

    TAKE = "take"
    WAIT = "wait"
    GIVE_BACK = "give_back"
    """Its run is being stopped and was not begun, and whoever asks for work has none under way."""
    LEAVE = "leave"
    """It has nothing to do here any more."""


class Word(StrEnum):
    """What a heartbeat is answered."""

    GO_ON = "go_on"
    STOP = "stop"
    EXIT = "exit"
    """The run is over, or somebody else's."""


def handed_over(template: Template) -> bool:
    """Whether a run is handed to a worker that waits for it, so that nothing has to be sent to the platform."""
    return template.worker and template.warmth is Warmth.RUNNING


def awaits_boot(pool: Pool, slot: Slot) -> bool:
    """Whether the place is of no use before its worker has reported."""
    return handed_over(pool.settings.template) and slot.boot is None


def boot(cause: Cause, slot: Slot, pool: Pool, order: Order | None, nonce: str) -> Change | None:
    """What a worker that begins to live in a slot changes: it gets the open run that nobody has, or those to come."""
    if order is not None and order.boot is None and order.state in _STARTED:
        return lifecycle.bind(cause, order, nonce)
    if handed_over(pool.settings.template) and slot.boot != nonce and slot.state in _LIVED_IN:
        return slots.booted(cause, slot, nonce)
    return None


def speaks(cause: Cause, order: Order) -> Change | None:
    """A run shows a token of its own for the first time: it is its own boot. Null when that is known, or it is over."""
    return lifecycle.bind(cause, order, ITSELF) if order.boot is None and order.state in _STARTED else None


def offer(slot: Slot, pool: Pool, order: Order | None, nonce: str, report: Report | None, now: int) -> Offer:
    """What a boot gets that asks for work: its run, as often as it asks until it told a result, and no other boot's.
    One that began with its run has nothing to wait for after it, and nobody else would end it."""
    resident = handed_over(pool.settings.template)
    if order is not None and order.boot == nonce:
        if report is not None and report.ended_at is not None:
            return Offer.WAIT if resident else Offer.LEAVE
        if fenced(report, pool.settings.silence_ms, now):
            return Offer.LEAVE
        if order.state in _STARTED:
            return Offer.TAKE
        # a question may come late: whoever has begun does not give back by asking
        return Offer.GIVE_BACK if report is None or report.begun_at is None else Offer.WAIT
    over = slot.boot != nonce if resident else order is None
    return Offer.LEAVE if over else Offer.WAIT


def word(order: Order, run: str, boot: str | None, *, fenced: bool) -> Word:
    """What the one who works on a run is told. `boot` is null for a run with a token of its own."""
    if fenced or run_id(order) != run or order.state not in OPEN or (boot is not None and order.boot != boot):
        return Word.EXIT
    return Word.STOP if order.state is OrderState.STOPPING else Word.GO_ON


def fenced(report: Report | None, silence_ms: int | None, now: int) -> bool:
    """Whether a worker that fences itself should have ended by now: it gets no more work and no more time, so that
    what `silent` settles can never be taken up again."""
    return report is not None and silence_ms is not None and now >= report.heartbeat_at + silence_ms


def sighting(
    order: Order, template: Template, look: Sighting | None, report: Report | None, dead_at: int | None
) -> Sighting | None:
    """What the look at the platform and the report of the worker say together. `dead_at` is an operator's word that
    nothing was alive then."""
    if look is not None:
        look = replace(look, seen=_of_work(look.seen, template))
    if report is None or order.incarnation is None:
        return look
    stopped = look is not None and look.seen is Seen.STOPPED
    mine = Sighting(
        run_id=run_id(order),
        incarnation=order.incarnation,
        seen=Seen.READY,
        asked_at=report.heartbeat_at,
        handle=None if look is None else look.handle,
    )
    if report.ended_at is not None and template.worker:
        return replace(mine, seen=Seen.STOPPED, exit=_exit(report))
    if look is not None and look.seen in _GONE and template.worker and _heard_since(report, look):
        return mine
    if look is not None and stopped:
        return replace(look, exit=_told(look.exit or Exit(lost=True), report))
    begun = template.worker and report.begun_at is not None and report.heartbeat_at > (dead_at or 0)
    news = order.state is OrderState.PREPARING and look is not None and look.seen is not Seen.ABSENT
    return mine if begun and (look is None or news) else look


def _heard_since(report: Report, look: Sighting) -> bool:
    """Whether a worker still speaks whose platform only concludes that it is over: no exit of it was seen, or nothing
    is where it was looked for (a command that came twice may have made its place anew)."""
    ending = look.exit or Exit()
    concluded = ending.code is None and ending.signal is None and not ending.oom
    return concluded and report.begun_at is not None and report.heartbeat_at > look.asked_at - HEARD_MS


def silent(run: Open, report: Report | None, silence_ms: int | None, now: int) -> bool:
    """Whether a worker that fences itself was silent for so long that it certainly has ended. Of any other worker
    silence says nothing, nor of one that never took its run."""
    if silence_ms is None or report is None or report.ended_at is not None:
        return False
    return now > report.heartbeat_at + silence_ms + run.spec.stop_grace_ms + MARGIN_MS


def _of_work(seen: Seen, template: Template) -> Seen:
    """What a look says of the work: where that is handed over, or says itself when it is ready, the platform knows of
    the place alone."""
    if handed_over(template) and seen is Seen.FRESH:
        return Seen.STARTING
    by_word = template.worker and (template.ready == "heartbeat" or handed_over(template))
    return Seen.STARTING if by_word and seen is Seen.READY else seen


def given_back(report: Report) -> bool:
    """Whether the worker gave its run back without having begun it: whoever speaks of it now has it no more."""
    return report.ended_at is not None and report.exit_code is None and report.error_name is None


def _exit(report: Report) -> Exit:
    return Exit(
        code=report.exit_code,
        error_name=report.error_name,
        error=report.error,
        retryable=report.retryable,
        lost=given_back(report),
    )


def _told(ending: Exit, report: Report) -> Exit:
    """An end that the platform saw, with what its worker said: an error that it named counts, and where nobody knows
    how it ended, its result."""
    if report.ended_at is None:
        return ending
    if ending.lost:
        return _exit(report)
    if report.error_name is None:
        return ending
    return replace(ending, error_name=report.error_name, error=report.error, retryable=report.retryable)
