"""How long an order will probably wait: a pool played forward on many paths, with runs as long as the last ones."""

from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import blake2b
from heapq import heapreplace
from math import log, sqrt
from typing import Final

from msgspec import Struct

PATHS: Final = 64
EXACT: Final = 256
"""So many orders ahead are played one by one; beyond them the pool's rate counts."""
FINE: Final = 8
"""Each path draws from its own share of all lengths, at one of so many places in it."""
FEW: Final = 8
"""Of fewer longer runs nobody can tell how much longer a run takes: then the tail of all of them says it."""
SETTLED: Final = 10
"""When so many runs have ended for each that is open, the open ones need not be guessed."""
WIDE: Final = 1.2816
"""Eight of ten are within so many standard deviations."""
NOW: Final[Sequence[int]] = (0,) * PATHS
"""Of a place that is free on every path."""


class Confidence(StrEnum):
    """How much an estimate is worth, by how many runs were measured."""

    GOOD = "good"
    FAIR = "fair"
    POOR = "poor"


class Wait(Struct, frozen=True):
    """The wait that is as probably shorter as longer, and the range in which eight of ten are."""

    usual_ms: int
    low_ms: int
    high_ms: int
    confidence: Confidence

    def and_then(self, other: "Wait") -> "Wait":
        """Of one that waits for both."""
        return Wait(
            max(self.usual_ms, other.usual_ms),
            max(self.low_ms, other.low_ms),
            max(self.high_ms, other.high_ms),
            max(self.confidence, other.confidence, key=list(Confidence).index),
        )


class Lengths(Struct, frozen=True, dict=True):
    """How long the last runs of a pool took: at least one, the shortest first."""

    ordered: Sequence[int]
    ended: int
    """So many of them were measured; the others are guessed."""

    @property
    def confidence(self) -> Confidence:
        return Confidence.GOOD if self.ended >= 50 else Confidence.FAIR if self.ended >= 10 else Confidence.POOR

    @cached_property
    def mean(self) -> float:
        return sum(self.ordered) / len(self.ordered)

    @cached_property
    def deviation(self) -> float:
        return sqrt(sum((each - self.mean) ** 2 for each in self.ordered) / len(self.ordered))

    @cached_property
    def shares(self) -> Sequence[Sequence[int]]:
        """FINE times a length for each path, which together are like all lengths."""
        return [[self.ordered[place] for place in _places(nth, len(self.ordered))] for nth in range(FINE)]

    def left(self, taken: int, nth: int = 0) -> Sequence[int]:
        """How much longer a run takes that took so long already, for each path."""
        count = len(self.ordered)
        first = bisect_right(self.ordered, taken)
        longer = count - first
        if longer >= FEW or 2 * longer >= count:
            return [self.ordered[first + place] - taken for place in _places(nth % FINE, longer)]
        return [round(taken * factor) for factor in self._tail]

    @cached_property
    def _tail(self) -> Sequence[float]:
        """By what share of its time so far a very long run becomes longer, for each path. The longest tenth tells
        (Hill): where all are alike it ends soon, where they are not it may take as long again."""
        top = max(1, len(self.ordered) // 10)
        if len(self.ordered) <= top:
            return _tail_of(0.5)
        edge = max(1, self.ordered[-top - 1])
        logs = [log(max(1, each) / edge) for each in self.ordered[-top:]]
        return _tail_of(min(1.0, max(0.05, sum(logs) / top)))


def measured(lengths: Sequence[int], open_ms: Sequence[int] = ()) -> Lengths | None:
    """What was measured; null when nothing was. Runs that are open for `open_ms` count with the lengths that they will
    probably have, as long as few have ended: the first to end are the short ones."""
    if not lengths:
        return None
    found = Lengths(sorted(lengths), len(lengths))
    if len(lengths) >= SETTLED * len(open_ms):
        return found
    whole = [taken + found.left(taken)[_shuffled(nth)[0]] for nth, taken in enumerate(open_ms)]
    return Lengths(sorted([*lengths, *whole]), len(lengths))


class Starts(Struct, frozen=True):
    """What lets an order start that has a place: the host's permits, and the gap between two starts, of the host or of
    the pool's rate."""

    free_in: Sequence[int]
    """When each permit comes free; none where they are not limited."""
    takes_ms: int
    """How long one is held."""
    gap_ms: int = 0
    first_ms: int = 0
    """Before this nobody starts."""


class Line:
    """When the places of a pool come free and the next orders get them. It is played as far as it is asked for."""

    def __init__(
        self,
        free: Sequence[Sequence[int]],
        places: int,
        lengths: Lengths,
        turn_ms: int = 0,
        starts: Starts | None = None,
        ahead: Sequence[Lengths] = (),
        beside: "Line | None" = None,
    ) -> None:
        """`free` says for each place when it comes free, on each path; of more than `places` the first to come free are
        not used again. `turn_ms` passes from a run's end until its place can have another one. `ahead` are the lengths
        of the next ones, where those are known to be of another kind than all. `beside` is another line that the same
        orders wait in."""
        assert 0 < places <= len(free)
        self._free, self._places, self._lengths, self._turn_ms, self._starts = free, places, lengths, turn_ms, starts
        self._now = sum(each is NOW for each in free) - (len(free) - places)
        self._permits = [sorted(starts.free_in) for _ in range(PATHS)] if starts is not None else []
        self._ahead, self._beside = ahead, beside
        self._before: Sequence[int] = NOW
        self._gone: list[Sequence[int]] = []

    def wait(self, ahead: int, guessed: float = 0.0) -> Wait:
        """How long the order behind `ahead` others waits for a place; so many of them have not come yet."""
        found = self._wait(ahead, guessed)
        return found if self._beside is None else found.and_then(self._beside.wait(ahead, guessed))

    def _wait(self, ahead: int, guessed: float) -> Wait:
        confidence = self._lengths.confidence
        if ahead < self._now and self._starts is None:
            return Wait(0, 0, 0, confidence)
        played = min(ahead, EXACT)
        while len(self._gone) <= played:
            self._gone.append(sorted(self._play()))
        on = self._gone[played]
        # of 64 sorted paths: the median, the 10th and the 90th percentile
        usual, low, high = (on[31] + on[32]) / 2, (on[5] + on[6]) / 2, (on[57] + on[58]) / 2
        later = (ahead - played) * self._rate_ms
        # what was measured is itself only a sample: the longer the line, the more its error adds up; half as much again
        # because a sample knows little of the longest runs
        wider = sqrt(1 + 1.5 * (ahead + self._places) / self._lengths.ended)
        beyond = (ahead - played) * (WIDE * self._beyond[1] / self._places) ** 2
        beyond += guessed * (WIDE * self._rate_ms) ** 2
        below, above = (wider * sqrt(beyond + part**2) for part in (usual - low, high - usual))
        usual += later
        return Wait(round(usual), round(max(0, usual - below)), round(usual + above), confidence)

    @property
    def rate_ms(self) -> float:
        """How long until one more gets a place, when all are busy."""
        return self._rate_ms if self._beside is None else max(self._rate_ms, self._beside.rate_ms)

    @property
    def run_ms(self) -> float:
        """How long a run has its place."""
        return max(1.0, self._beyond[0] + self._turn_ms)

    @property
    def _rate_ms(self) -> float:
        rate = (self._beyond[0] + self._turn_ms) / self._places
        if self._starts is None:
            return rate
        permits = len(self._starts.free_in)
        return max(rate, self._starts.takes_ms / permits if permits else 0, self._starts.gap_ms)

    @cached_property
    def _beyond(self) -> tuple[float, float]:
        """Mean and deviation of those whom nobody looked at: as the next ones, if these are many, else as all."""
        like = self._ahead if len(self._ahead) >= EXACT else (self._lengths,)
        mean = sum(each.mean for each in like) / len(like)
        square = sum(each.deviation**2 + each.mean**2 for each in like) / len(like)
        return mean, sqrt(max(0.0, square - mean**2))

    @cached_property
    def _heaps(self) -> Sequence[list[int]]:
        """When places come free, on each path."""
        columns = [
            each if each is NOW else [each[place] for place in _shuffled(nth)] for nth, each in enumerate(self._free)
        ]
        return [sorted(free)[-self._places :] for free in zip(*columns, strict=True)]  # what is sorted is a heap

    def _play(self) -> list[int]:
        """The next order gets its place, on each path: when."""
        nth = len(self._gone)
        lengths = self._ahead[nth] if nth < len(self._ahead) else self._lengths
        share, turn = lengths.shares[nth % FINE], self._turn_ms
        heaps, order = self._heaps, _shuffled(len(self._free) + nth)
        gone = [heap[0] for heap in heaps] if self._starts is None else self._permitted(self._starts)
        for heap, at, place in zip(heaps, gone, order, strict=True):
            heapreplace(heap, at + share[place] + turn)
        return gone

    def _permitted(self, starts: Starts) -> list[int]:
        """When the next order gets its place and may start in it."""
        gone = [max(heap[0], starts.first_ms) for heap in self._heaps]
        if self._gone:
            gone = [max(at, before + starts.gap_ms) for at, before in zip(gone, self._before, strict=True)]
        if starts.free_in:
            gone = [max(at, permits[0]) for at, permits in zip(gone, self._permits, strict=True)]
            for at, permits in zip(gone, self._permits, strict=True):
                heapreplace(permits, at + starts.takes_ms)
        self._before = gone
        return gone


@lru_cache(maxsize=1024)
def _shuffled(nth: int) -> Sequence[int]:
    """The paths in an order of their own, so that one which has a long run first has any run next."""
    keys = blake2b(str(nth).encode(), digest_size=PATHS).digest()
    return sorted(range(PATHS), key=keys.__getitem__)


@lru_cache(maxsize=8192)
def _places(nth: int, count: int) -> Sequence[int]:
    """A place among `count` for each path, spread evenly; the nth of FINE ways."""
    inside = (nth + 0.5) / FINE
    return [int((path + inside) * count / PATHS) for path in range(PATHS)]


def _tail_of(weight: float) -> Sequence[float]:
    return [(1 - (path + 0.5) / PATHS) ** -weight - 1 for path in range(PATHS)]
