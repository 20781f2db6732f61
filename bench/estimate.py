"""How well the wait is estimated at submit: recorded workloads played through a small virtual queue, by seed.

Beside our estimate, which knows only what runs took so far, stand an oracle that knows the true distribution (and draws
from it by its own code) and the rule of thumb "position x 30 s". Only orders that had to wait count.
"""

import heapq
import random
import statistics
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import erf, exp, log, sqrt
from typing import Final

from msgspec import Struct

from bench.rounds import Figures, Target
from bench.run import Run
from standby.core import estimate

REMEMBERED: Final = 500
"""Runs that are remembered of a pool, as by the server."""
ORACLE_PATHS: Final = 60
ORACLE_KNOWS: Final = 5_000
"""So many true lengths the oracle has seen."""
ORACLE_FEW: Final = 50
"""Where fewer of them are longer than a run, it draws from the distribution itself."""
THUMB_MS: Final = 30_000
EVERY: Final = 10
"""Of so many orders one is asked for its estimate."""
ROUNDS: Final = 3

Draw = Callable[[random.Random, int], int]
"""The length of a run that takes longer than so much."""


class Workload(Struct, frozen=True, kw_only=True):
    """Orders for one pool."""

    name: str
    pool: str
    slots: int
    draw: Draw
    mean_ms: float
    burst: int = 1
    """So many come at once."""
    load: float = 0.95
    """Work that comes, for each slot."""


class Told(Struct, frozen=True):
    """What was said of one order at its submit, and what came true."""

    truth: int
    ours: estimate.Wait
    oracle: float
    thumb: float


class Score(Struct, frozen=True):
    """Median errors in percent of the true wait, and how often the range held it."""

    ours: float
    oracle: float
    thumb: float
    covered: float
    told: int


def constant(length_ms: int) -> Draw:
    return lambda chance, beyond: max(length_ms, beyond)


def log_normal(median_ms: int, sigma: float) -> Draw:
    """Drawn by the inverse of its distribution, above what has passed."""
    normal = statistics.NormalDist()

    def draw(chance: random.Random, beyond: int) -> int:
        below = 0.0 if beyond <= 0 else 0.5 * (1 + erf(log(beyond / median_ms) / sigma / sqrt(2)))
        share = min(1 - 1e-12, max(1e-12, below + chance.random() * (1 - below)))
        return max(beyond, round(median_ms * exp(sigma * normal.inv_cdf(share))))

    return draw


def either(short: Draw, long: Draw, long_share: float) -> Draw:
    """Two kinds of runs; one that is not over yet is drawn again until it is long enough."""

    def draw(chance: random.Random, beyond: int) -> int:
        for _ in range(1_000):
            found = (long if chance.random() < long_share else short)(chance, 0)
            if found > beyond:
                return found
        return long(chance, beyond)

    return draw


def _mean(median_ms: int, sigma: float) -> float:
    return median_ms * exp(sigma**2 / 2)


_MIXED: Final = either(log_normal(5_000, 0.4), log_normal(90_000, 0.4), 0.2)
WORKLOADS: Final = (
    Workload(name="constant", pool="one", slots=4, draw=constant(30_000), mean_ms=30_000, burst=5),
    Workload(name="log-normal", pool="one", slots=8, draw=log_normal(30_000, 1.0), mean_ms=_mean(30_000, 1.0)),
    Workload(
        name="bursts", pool="one", slots=4, draw=log_normal(20_000, 0.5), mean_ms=_mean(20_000, 0.5), burst=25, load=0.8
    ),
    Workload(name="pools", pool="small", slots=1, draw=log_normal(60_000, 0.7), mean_ms=_mean(60_000, 0.7), load=0.9),
    Workload(name="pools", pool="large", slots=30, draw=log_normal(40_000, 0.8), mean_ms=_mean(40_000, 0.8), burst=20),
    Workload(
        name="pools", pool="mixed", slots=6, draw=_MIXED, mean_ms=0.8 * _mean(5_000, 0.4) + 0.2 * _mean(90_000, 0.4)
    ),
)


class Queue:
    """One pool under a virtual clock: first come, first served."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.opened: list[tuple[int, int]] = []
        """(ends at, began at), the next to end first."""
        self.waiting: deque[tuple[int, int]] = deque()
        """(number, length) of those who wait."""
        self.lengths: deque[int] = deque(maxlen=REMEMBERED)
        self.began: dict[int, int] = {}

    def until(self, now: int) -> None:
        """Let everything happen that happens before this moment."""
        while self.opened and self.opened[0][0] <= now:
            ended, began = heapq.heappop(self.opened)
            self.lengths.append(ended - began)
            if self.waiting:
                self._begin(*self.waiting.popleft(), ended)

    def submit(self, number: int, length: int, now: int) -> None:
        if len(self.opened) < self.slots:
            self._begin(number, length, now)
        else:
            self.waiting.append((number, length))

    def _begin(self, number: int, length: int, now: int) -> None:
        self.began[number] = now
        heapq.heappush(self.opened, (now + length, now))


def played(work: Workload, orders: int, seed: int) -> Iterator[Told]:
    """What was said of each order that waited."""
    chance, guess = random.Random(f"{work.name} {work.pool} {seed}"), random.Random(seed)
    queue, now, truth = Queue(work.slots), 0, sorted(work.draw(guess, 0) for _ in range(ORACLE_KNOWS))
    submitted: dict[int, int] = {}
    said: dict[int, tuple[estimate.Wait, float, float]] = {}
    for number in range(orders):
        if number % work.burst == 0:
            now += round(chance.expovariate(work.slots * work.load / work.mean_ms / work.burst))
        queue.until(now)
        if number % EVERY == 0 and len(queue.opened) == work.slots and (wait := _ours(queue, now)) is not None:
            said[number] = (wait, _oracle(work, truth, queue, now, guess), (len(queue.waiting) + 1) * THUMB_MS)
        submitted[number] = now
        queue.submit(number, work.draw(chance, 0), now)
    queue.until(2**62)
    return (Told(queue.began[number] - submitted[number], *each) for number, each in said.items())


def _ours(queue: Queue, now: int) -> estimate.Wait | None:
    lengths = estimate.measured(queue.lengths, [now - began for _, began in queue.opened])
    if lengths is None:
        return None
    free = [lengths.left(now - began, nth) for nth, (_, began) in enumerate(queue.opened)]
    free += [estimate.NOW] * (queue.slots - len(free))
    return estimate.Line(free, queue.slots, lengths).wait(len(queue.waiting))


def _oracle(work: Workload, truth: Sequence[int], queue: Queue, now: int, chance: random.Random) -> float:
    """The median of plain draws from the true distribution."""
    waits, known = [], len(truth)
    opened = [(now - began, bisect_right(truth, now - began)) for _, began in queue.opened]

    def left(taken: int, first: int) -> int:
        if known - first < ORACLE_FEW:
            return work.draw(chance, taken) - taken
        return truth[first + int(chance.random() * (known - first))] - taken

    for _ in range(ORACLE_PATHS):
        free = [left(taken, first) for taken, first in opened]
        heapq.heapify(free)
        for _ in queue.waiting:
            heapq.heapreplace(free, free[0] + truth[int(chance.random() * known)])
        waits.append(free[0])
    return statistics.median(waits)


def score(told: Sequence[Told]) -> Score:
    """The errors of all these."""
    waited = [each for each in told if each.truth > 0]

    def error(guess: Callable[[Told], float]) -> float:
        return 100 * statistics.median(abs(guess(each) - each.truth) / each.truth for each in waited)

    inside = sum(each.ours.low_ms <= each.truth <= each.ours.high_ms for each in waited)
    return Score(
        ours=error(lambda each: each.ours.usual_ms),
        oracle=error(lambda each: each.oracle),
        thumb=error(lambda each: each.thumb),
        covered=100 * inside / len(waited),
        told=len(waited),
    )


def scores(orders: int, seeds: Sequence[int]) -> dict[str, Score]:
    """One score for each name, over all seeds: the waits of one busy time are much alike."""
    told: dict[str, list[Told]] = {}
    for work in WORKLOADS:
        for seed in seeds:
            told.setdefault(work.name, []).extend(played(work, orders, seed))
    return {name: score(each) for name, each in told.items()}


def measure(run: Run) -> list[Figures]:
    """Errors next to the oracle's and the rule of thumb's; how often the range of eight in ten held."""
    each = run.scale.estimated
    rounds = [scores(1_000, range(each * nth, each * (nth + 1))) for nth in range(ROUNDS)]
    return [figures for name in rounds[0] for figures in _figures(name, [found[name] for found in rounds])]


def _figures(name: str, found: Sequence[Score]) -> Iterator[Figures]:
    def row(what: str, ours: Sequence[float], target: Target | None, peer: tuple[str, Sequence[float]]) -> Figures:
        return Figures(
            name=f"{what}, {name}",
            engine="virtual",
            unit="%",
            better="lower",
            ours=ours,
            peer_name=peer[0] or None,
            peer=peer[1],
            target=target,
        )

    errors, covered = [each.ours for each in found], [each.covered for each in found]
    if name == "constant":
        yield row("estimate error", errors, Target("at most", 20, "ours"), ("", ()))
    else:
        oracle = ("oracle", [each.oracle for each in found])
        yield row("estimate error", errors, Target("at most", 1.25), oracle)
        yield row("estimate range holds", covered, Target("at least", 75, "ours"), ("", ()))
        yield row("estimate range holds", covered, Target("at most", 85, "ours"), ("", ()))
    yield row("estimate error", errors, None, ("position x 30 s", [each.thumb for each in found]))
