"""Who goes before an order: those of its own lane, and of other lanes as many as their weights give turns meanwhile."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from standby.core.estimate import Line, Wait
from standby.core.model import Order
from standby.core.rank import is_urgent

ROUNDS: Final = 30
"""So often it is asked how many more come while one waits for those who came."""

End = tuple[int, str]
"""When a run ended, and whose it was."""


class Queue(Struct, frozen=True):
    """The ready orders of one lane."""

    ready: int
    urgent: int = 0
    """So many of them go before all lanes."""
    weight: int = 1
    rate: float = 0.0
    """How many more come, a millisecond."""


class Standing(Struct, frozen=True):
    """An order's place in its lane: 1 for the next one."""

    project: str
    position: int
    weight: int = 1
    """Of its project."""
    urgent: bool = False


def rates(ends: Sequence[End], now: int) -> Mapping[str, float]:
    """How many orders a millisecond each project sends, by the last runs: what ended had come, and the first one only
    says since when is counted."""
    if len(ends) < 2:
        return {}
    span = max(1, now - ends[0][0])
    return {project: count / span for project, count in Counter(project for _, project in ends[1:]).items()}


def in_turn(waiting: Sequence[Order], weights: Mapping[str, int]) -> Sequence[Order]:
    """Ready orders in about the order in which they will be served: each lane by rank, lanes by their turns."""
    places = Counter[str]()
    turns: dict[str, tuple[bool, float]] = {}
    by_rank = sorted(waiting, key=lambda order: (order.rank or 0, order.id))
    for order in by_rank:
        places[order.project] += 1
        later = not is_urgent(order)
        turns[order.id] = later, places[order.project] / weights.get(order.project, 1) if later else 0.0
    return sorted(by_rank, key=lambda order: turns[order.id])


def wait(line: Line, queues: Mapping[str, Queue], of: Standing) -> Wait:
    """How long the order waits that stands there, while others go before it and more of them come."""
    known = float(of.position - 1)
    growing: list[tuple[float, float]] = []
    for project, queue in queues.items():
        if project == of.project:
            continue
        # it may be anywhere between two turns of its lane: the half
        turns = queue.urgent + (0.0 if of.urgent else (of.position - 0.5) * queue.weight / of.weight)
        known += min(queue.ready, turns)
        if queue.rate and queue.ready < turns:
            growing.append((turns - queue.ready, queue.rate))
    first = line.wait(round(known))
    if not growing:
        return first
    more = _more(growing, first.usual_ms, line.rate_ms)
    # whoever makes it wait longer lets still more of them come before it; half as much again because what was sent
    # lately is itself only a sample
    longer = 1 + more * line.rate_ms / max(1, first.usual_ms)
    return line.wait(round(known + more), 1.5 * more * longer**2)


def _more(growing: Sequence[tuple[float, float]], wait_ms: float, rate_ms: float) -> float:
    """How many come and are served before it, of lanes that have so many turns left and get so many orders."""
    more = 0.0
    for _ in range(ROUNDS):
        before, takes_ms = more, wait_ms + more * rate_ms
        more = sum(min(turns, rate * takes_ms) for turns, rate in growing)
        if more - before < 0.1:
            break
    return more
