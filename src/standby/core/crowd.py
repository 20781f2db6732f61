"""Who goes before an order: those of its own lane, and of other lanes as many as their weights give turns meanwhile."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from standby.core.estimate import Line, Wait
from standby.core.model import Order
from standby.core.rank import is_urgent

ROUNDS: Final = 100
"""So often it is asked how many more come while one waits for those who came."""
KEYS_VARY: Final = 0.4
"""How much the order in which keys come free adds to the range, next to orders that nobody knows of yet."""

End = tuple[int, str]
"""When a run ended, and whose it was."""


class Keyed(Struct, frozen=True):
    """Ready orders of one lane that wait for one concurrency key."""

    behind: int
    """Those that another one is before."""
    held_ms: int = 0
    """For so long a run has it."""

    def freed(self, wait_ms: float, run_ms: float) -> int:
        """How many of them get the key within a wait, when each run has it for so long."""
        return min(self.behind, int((self.held_ms + wait_ms) / run_ms))


class Queue(Struct, frozen=True):
    """The ready orders of one lane."""

    ready: int
    urgent: int = 0
    """So many of them go before all lanes."""
    weight: int = 1
    rate: float = 0.0
    """How many more come, a millisecond."""
    keyed: Sequence[Keyed] = ()

    @property
    def free(self) -> int:
        """Those that wait for no key."""
        return max(0, self.ready - sum(each.behind for each in self.keyed))


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
    """How long the order waits that stands there, while others go before it and more of them come, or get the keys that
    they wait for."""
    own = queues.get(of.project, Queue(0))
    known = float(max(0, of.position - 1 - (own.ready - own.free)))
    growing = [_Growing(float("inf"), 0.0, own.keyed)] if own.keyed else []
    for project, queue in queues.items():
        if project == of.project:
            continue
        # it may be anywhere between two turns of its lane: the half
        turns = queue.urgent + (0.0 if of.urgent else (of.position - 0.5) * queue.weight / of.weight)
        known += min(queue.free, turns)
        if (queue.rate or queue.keyed) and queue.free < turns:
            growing.append(_Growing(turns - queue.free, queue.rate, queue.keyed))
    freed, more = _more(growing, known, line) if growing else (0.0, 0.0)
    first = line.wait(round(known + freed))
    if not freed and not more:
        return first
    # whoever makes it wait longer lets still more of them come before it; half as much again because what was sent
    # lately is itself only a sample
    longer = 1 + more * line.rate_ms / max(1, first.usual_ms)
    return line.wait(round(known + freed + more), 1.5 * more * longer**2 + KEYS_VARY * freed)


class _Growing(Struct, frozen=True):
    """A lane of which more go before the order the longer it waits: as many as there are turns left for them."""

    turns: float
    rate: float
    keyed: Sequence[Keyed]

    def within(self, wait_ms: float, run_ms: float) -> tuple[float, float]:
        """How many get a key that they wait for, and how many come."""
        freed = min(self.turns, sum(each.freed(wait_ms, run_ms) for each in self.keyed))
        return freed, min(self.turns - freed, self.rate * wait_ms) if self.rate else 0.0


def _more(growing: Sequence[_Growing], known: float, line: Line) -> tuple[float, float]:
    """How many get their keys, and how many come, and are served before the one that `known` others are before."""
    freed = more = 0.0
    for _ in range(ROUNDS):
        before, takes_ms = freed + more, line.wait(round(known + freed)).usual_ms + more * line.rate_ms
        each = [lane.within(takes_ms, line.run_ms) for lane in growing]
        freed, more = sum(keys for keys, _ in each), sum(new for _, new in each)
        if freed + more - before < 0.1:
            break
    return freed, more
