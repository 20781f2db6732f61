"""How well the wait is estimated at submit: recorded workloads played through a small virtual queue, by seed.

Beside our estimate, which knows only what runs took so far, stand an oracle that knows the true distribution (and draws
from it by its own code) and the rule of thumb "position x 30 s". Only orders that had to wait count.
"""

import heapq
import random
import statistics
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import erf, exp, log, sqrt
from typing import Final

from msgspec import Struct

from bench.rounds import Figures, Target
from bench.run import Run
from standby.core import crowd, estimate, telling

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

End = tuple[int, int, int | None]
"""When a run ends, a number that nothing else has, and its key."""
Draw = Callable[[random.Random, int], int]
"""The length of a run that takes longer than so much."""


class Sender(Struct, frozen=True, kw_only=True):
    """Who sends orders: one project."""

    project: str = "one"
    burst: int = 1
    """So many come at once."""
    load: float = 0.95
    """Work that comes, for each slot."""


class Kind(Struct, frozen=True):
    """Orders with one label, where they have one."""

    draw: Draw
    mean_ms: float
    label: str = ""
    share: float = 1.0
    keys: int = 0
    """So many concurrency keys these orders have, one each."""

    @property
    def labels(self) -> telling.Labels:
        return {"kind": self.label} if self.label else {}


class Workload(Struct, frozen=True, kw_only=True):
    """Orders for one pool."""

    name: str
    pool: str
    slots: int
    kinds: Sequence[Kind]
    senders: Sequence[Sender] = (Sender(),)

    @property
    def mean_ms(self) -> float:
        return sum(kind.share * kind.mean_ms for kind in self.kinds)

    def order(self, chance: random.Random) -> "Wanted":
        """The next one."""
        kind = chance.choices(self.kinds, [kind.share for kind in self.kinds])[0] if self.kinds[1:] else self.kinds[0]
        return Wanted(kind, chance.randrange(kind.keys) if kind.keys else None)

    def gap_ms(self, sender: Sender, chance: random.Random) -> int:
        """Until it sends again."""
        return round(chance.expovariate(self.slots * sender.load / self.mean_ms / sender.burst))


class Wanted(Struct, frozen=True):
    """An order."""

    kind: Kind
    key: int | None = None


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


def constant(length_ms: int) -> Kind:
    return Kind(lambda chance, beyond: max(length_ms, beyond), length_ms)


def log_normal(median_ms: int, sigma: float, label: str = "", share: float = 1.0, keys: int = 0) -> Kind:
    """Drawn by the inverse of its distribution, above what has passed."""
    normal = statistics.NormalDist()

    def draw(chance: random.Random, beyond: int) -> int:
        below = 0.0 if beyond <= 0 else 0.5 * (1 + erf(log(beyond / median_ms) / sigma / sqrt(2)))
        share = min(1 - 1e-12, max(1e-12, below + chance.random() * (1 - below)))
        return max(beyond, round(median_ms * exp(sigma * normal.inv_cdf(share))))

    return Kind(draw, median_ms * exp(sigma**2 / 2), label, share, keys)


def either(short: Kind, long: Kind, long_share: float) -> Kind:
    """Two kinds of runs that nothing tells apart; one that is not over yet is drawn again until it is long enough."""

    def draw(chance: random.Random, beyond: int) -> int:
        for _ in range(1_000):
            found = (long if chance.random() < long_share else short).draw(chance, 0)
            if found > beyond:
                return found
        return long.draw(chance, beyond)

    return Kind(draw, (1 - long_share) * short.mean_ms + long_share * long.mean_ms)


WORKLOADS: Final = (
    Workload(name="constant", pool="one", slots=4, kinds=[constant(30_000)], senders=(Sender(burst=5),)),
    Workload(name="log-normal", pool="one", slots=8, kinds=[log_normal(30_000, 1.0)]),
    Workload(
        name="bursts", pool="one", slots=4, kinds=[log_normal(20_000, 0.5)], senders=(Sender(burst=25, load=0.8),)
    ),
    Workload(name="pools", pool="small", slots=1, kinds=[log_normal(60_000, 0.7)], senders=(Sender(load=0.9),)),
    Workload(name="pools", pool="large", slots=30, kinds=[log_normal(40_000, 0.8)], senders=(Sender(burst=20),)),
    Workload(name="pools", pool="mixed", slots=6, kinds=[either(log_normal(5_000, 0.4), log_normal(90_000, 0.4), 0.2)]),
    Workload(
        name="lanes",
        pool="one",
        slots=6,
        kinds=[log_normal(20_000, 0.6)],
        senders=(Sender(project="crowd", burst=60, load=0.6), Sender(project="few", load=0.3)),
    ),
    Workload(
        name="labels",
        pool="one",
        slots=6,
        kinds=[log_normal(5_000, 0.4, "short", 0.8), log_normal(90_000, 0.4, "long", 0.2)],
    ),
    Workload(
        name="keys",
        pool="one",
        slots=6,
        kinds=[log_normal(20_000, 0.5, share=0.5), log_normal(20_000, 0.5, share=0.5, keys=3)],
        senders=(Sender(burst=30, load=0.85),),
    ),
)


class Queue:
    """One pool under a virtual clock: projects take turns, each first come, first served but for those who wait for
    their keys."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.opened: list[tuple[int, int, int, str, Wanted]] = []
        """(ends at, began at, number, project, order), the next to end first."""
        self.waiting: dict[str, list[tuple[int, int, Wanted]]] = {}
        """Project -> (number, length, order) of those who wait."""
        self.at, self.passes = 0, Counter[str]()
        self.ran: deque[telling.Ran] = deque(maxlen=REMEMBERED)
        self.ends: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)
        self.began: dict[int, int] = {}

    def until(self, now: int) -> None:
        """Let everything happen that happens before this moment."""
        while self.opened and self.opened[0][0] <= now:
            ended, began, _, project, order = heapq.heappop(self.opened)
            self.ran.append((ended - began, order.kind.labels))
            self.ends.append((ended, project))
            while len(self.opened) < self.slots and self._begin_next(ended):
                pass

    def submit(self, number: int, length: int, order: Wanted, project: str, now: int) -> None:
        self.waiting.setdefault(project, []).append((number, length, order))
        if len(self.opened) < self.slots:
            self._begin_next(now)

    def turn(self, project: str) -> int:
        """When it is this project's turn."""
        return max(self.at, self.passes[project])

    def held(self) -> dict[int, int]:
        """The keys that runs have, and since when."""
        return {order.key: began for _, began, _, _, order in self.opened if order.key is not None}

    def keyed(self, project: str, now: int) -> list[crowd.Keyed]:
        """Those of a project who wait for keys."""
        wanted, held = Counter(order.key for *_, order in self.waiting.get(project, ())), self.held()
        return [
            crowd.Keyed(count - (key not in held), now - held.get(key, now))
            for key, count in wanted.items()
            if key is not None and (count > 1 or key in held)
        ]

    def _begin_next(self, now: int) -> bool:
        """The next of those who wait begins, if one may."""
        firsts = _firsts({name: [order for *_, order in lane] for name, lane in self.waiting.items()}, self.held())
        if not firsts:
            return False
        lanes = [(self.turn(name), self.waiting[name][place][0], name, place) for name, place in firsts.items()]
        self.at, number, project, first = min(lanes)
        self.passes[project] = self.at + 1
        _, length, order = self.waiting[project].pop(first)
        self.began[number] = now
        heapq.heappush(self.opened, (now + length, now, number, project, order))
        return True


def _firsts(lanes: Mapping[str, Sequence[Wanted]], held: Collection[int | None]) -> dict[str, int]:
    """Of each lane the place of the first one that need not wait for its key."""
    if not held:
        return {name: 0 for name, orders in lanes.items() if orders}
    places = {
        name: next((place for place, order in enumerate(orders) if order.key not in held), None)
        for name, orders in lanes.items()
    }
    return {name: place for name, place in places.items() if place is not None}


def played(work: Workload, orders: int, seed: int) -> Iterator[Told]:
    """What was said of each order that waited."""
    chance, guess = random.Random(f"{work.name} {work.pool} {seed}"), random.Random(seed)
    queue = Queue(work.slots)
    truth = {kind.label: sorted(kind.draw(guess, 0) for _ in range(ORACLE_KNOWS)) for kind in work.kinds}
    submitted: list[int] = []
    said: dict[int, tuple[estimate.Wait, float, float]] = {}
    next_ = [(work.gap_ms(sender, chance), nth) for nth, sender in enumerate(work.senders)]
    heapq.heapify(next_)
    while len(submitted) < orders or not queue.began.keys() >= said.keys():
        now, nth = heapq.heappop(next_)
        sender = work.senders[nth]
        queue.until(now)
        for _ in range(sender.burst):
            number, ask, order = len(submitted), Asked(work, truth, queue, sender.project, now), work.order(chance)
            asks = number < orders and number % EVERY == 0 and len(queue.opened) == work.slots and order.key is None
            if asks and (wait := _ours(ask)) is not None:
                said[number] = (wait, _oracle(ask, guess), ask.position * THUMB_MS)
            submitted.append(now)
            queue.submit(number, order.kind.draw(chance, 0), order, sender.project, now)
        heapq.heappush(next_, (now + work.gap_ms(sender, chance), nth))
    return (Told(queue.began[number] - submitted[number], *each) for number, each in said.items())


class Asked(Struct, frozen=True):
    """How long will an order of this project wait that comes now?"""

    work: Workload
    truth: Mapping[str, Sequence[int]]
    queue: Queue
    project: str
    now: int

    @property
    def position(self) -> int:
        return len(self.queue.waiting.get(self.project, ())) + 1


def _ours(ask: Asked) -> estimate.Wait | None:
    queue, now = ask.queue, ask.now
    lengths = estimate.measured([length for length, _ in queue.ran], [now - began for _, began, *_ in queue.opened])
    if lengths is None:
        return None
    by = telling.by_label(queue.ran)
    kinds = [lengths if by is None else by.of(order.kind.labels, lengths) for *_, order in queue.opened]
    free = [kind.left(now - each[1], nth) for nth, (kind, each) in enumerate(zip(kinds, queue.opened, strict=True))]
    free += [estimate.NOW] * (queue.slots - len(free))
    rates, waiting = crowd.rates(list(queue.ends), now), queue.waiting
    queues = {
        project: crowd.Queue(
            len(waiting.get(project, ())), rate=rates.get(project, 0.0), keyed=queue.keyed(project, now)
        )
        for project in {*waiting, *rates}
    }
    ahead = [] if by is None else [by.of(order.kind.labels, lengths) for *_, order in waiting.get(ask.project, ())]
    line = estimate.Line(free, queue.slots, lengths, ahead=ahead)
    return crowd.wait(line, queues, crowd.Standing(ask.project, ask.position))


def _oracle(ask: Asked, chance: random.Random) -> float:
    """The median of plain draws from the true distributions."""

    def longer(kind: Kind, taken: int) -> int:
        truth = ask.truth[kind.label]
        first = bisect_right(truth, taken)
        if len(truth) - first < ORACLE_FEW:
            return kind.draw(chance, taken)
        return truth[first + int(chance.random() * (len(truth) - first))]

    def path() -> int:
        opened = [(order, ask.now - began) for _, began, *_, order in ask.queue.opened]
        ends = [(longer(order.kind, taken) - taken, nth, order.key) for nth, (order, taken) in enumerate(opened)]
        return _path(ask, ends, lambda kind: longer(kind, 0), chance)

    return statistics.median(path() for _ in range(ORACLE_PATHS))


def _path(ask: Asked, ends: list[End], drawn: Callable[[Kind], int], chance: random.Random) -> int:
    """One way in which it may come: others send more, and lanes take turns until it is served."""
    work, queue, mine = ask.work, ask.queue, ask.project
    keyed, others = any(kind.keys for kind in work.kinds), [each for each in work.senders if each.project != mine]
    ready = {name: [order for *_, order in queue.waiting.get(name, ())] for name in {mine, *queue.waiting}}
    asked = Wanted(work.kinds[0])
    ready[mine].append(asked)
    comes = {sender.project: work.gap_ms(sender, chance) for sender in others}
    at, turns = queue.at, {sender.project: queue.passes[sender.project] for sender in work.senders}
    heapq.heapify(ends)
    while True:
        now, _, _ = heapq.heappop(ends)
        for sender in others:
            while comes[sender.project] <= now:
                ready.setdefault(sender.project, []).extend(work.order(chance) for _ in range(sender.burst))
                comes[sender.project] += work.gap_ms(sender, chance)
        while len(ends) < work.slots:
            firsts = _firsts(ready, {key for *_, key in ends if key is not None} if keyed else ())
            if not firsts:
                break
            at, _, served = min((max(at, turns[name]), chance.random(), name) for name in firsts)
            turns[served] = at + 1
            order = ready[served].pop(firsts[served])
            if order is asked:
                return now
            heapq.heappush(ends, (now + drawn(order.kind), chance.getrandbits(30), order.key))


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
    seeds = [range(each * nth, each * (nth + 1)) for nth in range(ROUNDS)]
    with ProcessPoolExecutor() as processes:  # no time is measured
        rounds = list(processes.map(partial(scores, 1_000), seeds))
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
