"""One seed from its beginning to its end, a failing one made shorter, and many of them side by side."""

import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import structlog
from msgspec import Struct

from sim.coverage import Pair
from sim.house import House
from sim.plan import ACTIONS, Action
from sim.readings import drawn
from standby.world import settle_interpreter

COMPARE_EVERY = 100
CHUNK = 5


class Outcome(Struct, frozen=True, kw_only=True):
    """What a seed came to."""

    seed: int
    violation: str | None
    at: int | None
    """How many actions were done when it broke."""
    history: Sequence[str]
    pairs: set[Pair]
    orders: int
    events: int
    cpu_s: float


def run_seed(seed: int, *, actions: int = ACTIONS, keep: Sequence[int] | None = None, telling: bool = False) -> Outcome:
    """Play a seed; `keep` names the only actions that shall happen."""
    began = time.process_time()
    shape, todo = drawn(seed, actions)
    chosen = todo if keep is None else [todo[number] for number in keep]
    house = House(shape, seed, telling=telling)
    done: int | None = None
    with quiet(house.truths.broken), house.loop.running():
        house.say(lambda: f"seed {seed}: {shape}")
        house.open()
        for number, action in enumerate(chosen):
            house.do(action)
            if number % COMPARE_EVERY == COMPARE_EVERY - 1:
                house.truths.compare()
            if house.violations:
                done = number + 1
                break
        house.finale()
    violation = house.violations[0] if house.violations else None
    return Outcome(
        seed=seed,
        violation=violation,
        at=done,
        history=house.lines,
        pairs=house.coverage.pairs,
        orders=len(house.truths.book.orders),
        events=house.truths.seq,
        cpu_s=time.process_time() - began,
    )


def shrink(seed: int, *, actions: int = ACTIONS) -> tuple[Outcome, list[int]]:
    """Drop actions as long as it still fails; returns the shorter failure, told, and the actions that are left."""
    failed = run_seed(seed, actions=actions)
    keep = list(range(failed.at if failed.at is not None else actions + 2))
    size = max(1, len(keep) // 2)
    while failed.violation is not None:
        start, shorter = 0, False
        while start < len(keep):
            fewer = keep[:start] + keep[start + size :]
            if _alike(run_seed(seed, actions=actions, keep=fewer).violation, failed.violation):
                keep, shorter = fewer, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return run_seed(seed, actions=actions, keep=keep, telling=True), keep


def _alike(one: str | None, other: str) -> bool:
    """Whether two violations are of one kind: they differ only in names and numbers."""
    return one is not None and re.sub(r"\d+", "", one) == re.sub(r"\d+", "", other)


def run_many(seeds: Sequence[int], *, actions: int, jobs: int) -> Iterator[Outcome]:
    """Play seeds on several cores; their outcomes as they come."""
    tasks = [(seed, actions) for seed in seeds]
    if jobs == 1:
        yield from map(_play, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, settle_interpreter) as pool:
        yield from pool.imap_unordered(_play, tasks, chunksize=CHUNK)


def first_failure(seeds: Iterator[int], *, actions: int = ACTIONS, most: int) -> Outcome | None:
    """The first of these seeds that fails."""
    outcomes = (run_seed(seed, actions=actions) for seed in islice(seeds, most))
    return next((outcome for outcome in outcomes if outcome.violation is not None), None)


def _play(task: tuple[int, int]) -> Outcome:
    return run_seed(task[0], actions=task[1])


@contextmanager
def quiet(broken: Callable[[str], None]) -> Iterator[None]:
    """Nobody reads the log, but an error in it is a broken truth."""

    def listen(_: Any, level: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        broken(f"the log says ({level}): {event}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[listen], wrapper_class=structlog.make_filtering_bound_logger("error"))
    try:
        yield
    finally:
        structlog.configure(**before)


__all__ = ["Action", "Outcome", "first_failure", "run_many", "run_seed", "shrink"]
