"""Writes docs/states.md from the state machines in the code. With --check it only says whether the file is current."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from standby.core.lifecycle import ORDER_MOVES, SLOT_MOVES
from standby.core.model import ENDED, EventKind, OrderState, SlotState

PAGE: Final = Path(__file__).parents[1] / "docs" / "states.md"
Moves = Mapping[EventKind, Mapping[str | None, frozenset[str | None]]]

ORDER_WORDS: Final[Mapping[OrderState, str]] = {
    OrderState.PENDING: "Waits for a slot, or for its `not_before`. It holds nothing.",
    OrderState.PREPARING: "Has a slot; its start is commanded, and its own copy has not been seen at work yet.",
    OrderState.RUNNING: "Its own copy was seen at work.",
    OrderState.STOPPING: "An end was asked for (a cancel, a deadline) and has not been seen yet.",
    OrderState.WAITING_RETRY: "Its run ended badly; the next one is due at a time that is set. It holds nothing.",
    OrderState.COMPLETED: "Ended with exit code 0. Final.",
    OrderState.FAILED: "Ended badly, and no retry is left or wanted; or it waited too long. Final.",
    OrderState.CANCELLED: "Ended because somebody asked for it. Final.",
}
SLOT_WORDS: Final[Mapping[SlotState, str]] = {
    SlotState.CREATING: "Its name is taken; the platform is asked to make the place.",
    SlotState.IDLE: "The place is there and clean. With an open run it is shown as `deploying` or `busy`.",
    SlotState.CLEANING: "Its run has ended; the used place is taken away and made anew.",
    SlotState.ERROR: "The platform refused; tried again later, ever more rarely, and given up after 3 failures.",
    SlotState.REMOVING: "Nobody gets it any more; it is being taken away, then its row goes.",
}

INTRO: Final = """\
# States

This page is written by `make docs` from `ORDER_MOVES` and `SLOT_MOVES` in `src/standby/core/lifecycle.py`. A test fails
when it is not current. Every change of a state is checked against these two tables before it is saved; nothing else
assigns one.
"""
SLOT_NOTE: Final = """\
One move is not in the table, because it travels with the order: when a run is seen ended, the same change that ends the
run moves its slot `idle -> cleaning`. A seat (a process host's slot, where an ended run leaves nothing behind) stays
`idle`, unless the run was lost.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            INTRO,
            "## Orders\n",
            *_machine(ORDER_MOVES, {state.value: words for state, words in ORDER_WORDS.items()}, set(ENDED)),
            "## Slots\n",
            *_machine(SLOT_MOVES, {state.value: words for state, words in SLOT_WORDS.items()}, set()),
            SLOT_NOTE,
        ]
    )


def _machine(moves: Moves, words: Mapping[str, str], final: set[str]) -> Iterator[str]:
    arrows = sorted({(was, to) for table in moves.values() for was, tos in table.items() for to in tos}, key=_key)
    yield "```mermaid\nstateDiagram-v2"
    for was, to in arrows:
        if was != to:
            yield f"    {was or '[*]'} --> {to or '[*]'}"
    for state in words:
        if state in final:
            yield f"    {state} --> [*]"
    yield "```\n"
    yield "| state | meaning |\n|---|---|"
    for state, meaning in words.items():
        yield f"| `{state}` | {meaning} |"
    yield "\n| event | from | to |\n|---|---|---|"
    for kind, table in moves.items():
        sources = " | ".join(_name(was) for was in table).replace("|", "\\|")
        targets = sorted({_name(to) for tos in table.values() for to in tos})
        yield f"| `{kind}` | {sources} | {', '.join(targets)} |"
    yield ""


def _key(arrow: tuple[str | None, str | None]) -> tuple[str, str]:
    return arrow[0] or "", arrow[1] or ""


def _name(state: str | None) -> str:
    return "nothing" if state is None else f"`{state}`"


def main() -> int:
    """Write the page, or with --check compare it."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/states.md is not current: say `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
