"""Which states met which faults, so that blind spots show."""

from collections.abc import Iterable

from sim import readings
from sim.plan import ALWAYS, CALL_FAULTS, SOMETIMES, WITH_WORKERS, WORKER_FAULTS
from standby.core.model import ENDED, OPEN, OrderState
from standby.core.sighting import Seen

Pair = tuple[str, str]

UNFINISHED = sorted(set(OrderState) - ENDED)
ALL: frozenset[Pair] = frozenset(
    {(state, kind) for state in UNFINISHED for kind in {**ALWAYS, **SOMETIMES, **WITH_WORKERS, **readings.ACTIONS}}
    | {(state, fault) for state in sorted(OPEN) for fault in (*CALL_FAULTS, *WORKER_FAULTS, *readings.FAULTS)}
    | {(state, f"seen {seen}") for state in sorted(OPEN) for seen in Seen}
)
"""Every pair that could be met."""


class Coverage:
    """Pairs of an order's state and what happened meanwhile."""

    def __init__(self) -> None:
        self.pairs: set[Pair] = set()

    def met(self, states: Iterable[str], what: str) -> None:
        """Orders in these states were there when it happened."""
        for state in states:
            self.pairs.add((state, what))


def told(pairs: set[Pair]) -> str:
    """How much was reached, and what was not."""
    seen = {pair for pair in ALL if pair[1].startswith("seen ")}
    faults = ALL - seen
    missing = sorted(ALL - pairs)
    text = (
        f"states x actions and faults: {len(pairs & faults)} of {len(faults)}; "
        f"states x sightings: {len(pairs & seen)} of {len(seen)}"
    )
    return text + (
        "" if not missing else "\nnever met: " + ", ".join(f"{what} while {state}" for state, what in missing)
    )
