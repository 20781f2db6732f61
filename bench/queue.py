"""Rows about the queue: submit, drain, submit to start, history, a held snapshot."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import asyncpg

from bench.history import add_history
from bench.rounds import Figures, Target, percentile, turns
from bench.run import Run
from bench.side import Side

PACE: Final = 50
"""Orders a second where waits are measured."""


def drain(run: Run, engine: str, slots: int, peer: str, target: float) -> list[Figures]:
    """Empty a full queue of orders that do nothing."""
    asked = {"batch": slots} if peer == "pgqueuer" else {}
    theirs_drained = run.scale.drained_slow if peer == "procrastinate" else run.scale.emptied
    with run.ours(engine, slots) as ours, run.peer(peer) as theirs:
        mine = partial(_drained, ours, orders=run.scale.emptied)
        other = partial(_drained, theirs, orders=theirs_drained, **asked)
        turns(1, mine, other)
        figures = turns(run.scale.rounds, mine, other)
    return [_rate(f"drain, {slots} slots", engine, figures, peer, Target("at least", target))]


def submit(run: Run, engine: str, peers: tuple[str, ...]) -> list[Figures]:
    """Put orders in: one caller, a hundred at once, a thousand in one call."""
    found: list[Figures] = []
    shapes = {
        "submit, one caller": {"calls": run.scale.calls // 4, "callers": 1, "size": 1},
        "submit, 100 callers at once": {"calls": run.scale.calls, "callers": 100, "size": 1},
        "submit, bulk of 1,000": {"calls": 2, "callers": 1, "size": 1_000},
    }
    with ExitStack() as stack:
        sides = [stack.enter_context(run.ours(engine)), *(stack.enter_context(run.peer(peer)) for peer in peers)]
        for name, shape in shapes.items():
            figures = turns(run.scale.rounds, *(partial(_asked, side, "submit", "rate", **shape) for side in sides))
            for peer, other in zip(peers, figures[1:], strict=True):
                wanted = Target("at least", 5) if "at once" in name and peer == "pgqueuer" else None
                found.append(_rate(name, engine, [figures[0], other], peer, wanted))
    return found


def start(run: Run, engine: str, peers: tuple[str, ...]) -> list[Figures]:
    """How long an order waits for its first instruction when there is room for it."""
    with ExitStack() as stack:
        sides = [stack.enter_context(run.ours(engine)), *(stack.enter_context(run.peer(peer)) for peer in peers)]
        waits: dict[str, list[list[float]]] = {side.name: [] for side in sides}
        for _ in range(max(1, run.scale.rounds // 2 + 1)):
            for side in sides:
                waits[side.name].append(side.ask("starts", orders=run.scale.started, per_second=PACE)["waits_ms"])
    middles = {name: [percentile(each, 0.5) for each in all_] for name, all_ in waits.items()}
    tails = {name: [percentile(each, 0.99) for each in all_] for name, all_ in waits.items()}
    best = min(peers, key=lambda peer: statistics.median(middles[peer]))
    return [
        Figures(
            name=f"submit to start at {PACE:g}/s, {word}",
            engine=engine,
            unit="ms",
            better="lower",
            ours=figures["ours"],
            peer_name=peer,
            peer=figures[peer],
            target=Target("at most", 0.7) if peer == best and word == "p50" else None,
        )
        for word, figures in (("p50", middles), ("p99", tails))
        for peer in peers
    ]


def history(run: Run, engine: str) -> list[Figures]:
    """What a long history costs: the same queue drained beside few and beside many ended orders."""
    few, many = run.scale.history
    urls = [run.database(engine), run.database(engine)]
    for url, ended in zip(urls, (few, many), strict=True):
        with run.ours(engine, url=url) as side:
            side.ask("drain", orders=10)
        add_history(url, ended)
    with run.ours(engine, url=urls[0]) as short, run.ours(engine, url=urls[1]) as long:
        measures = [partial(_drained, side, orders=run.scale.drained) for side in (long, short)]
        turns(1, *measures)
        figures = turns(run.scale.rounds, *measures)
    name = f"drain beside {many:,} ended orders"
    return [_rate(name, engine, figures, f"itself beside {few:,}", Target("at least", 0.88))]


def snapshot(run: Run) -> list[Figures]:
    """What a snapshot that is held open costs: nothing that was updated since can be cleaned up meanwhile."""
    rates: list[tuple[float, float]] = []
    mine, other = run.postgres.database(), run.postgres.database()
    with run.ours("postgresql", url=mine) as ours, run.peer("pgqueuer", url=other) as theirs:
        for url, measure in (
            (mine, partial(_drained, ours, orders=run.scale.drained)),
            (other, partial(_drained, theirs, orders=run.scale.drained, batch=100)),
        ):
            before = statistics.median(turns(4, measure)[0][1:])
            with _held(url):
                rates.append((before, _late(run.scale.held_s, measure)))
    kept = [[after / before] for before, after in rates]
    held, engine = f"with a snapshot held for {run.scale.held_s} s", "postgresql"
    return [
        _rate("drain before a snapshot is held", engine, [[before] for before, _ in rates], "pgqueuer"),
        _rate(f"drain {held}", engine, [[after] for _, after in rates], "pgqueuer"),
        Figures(
            name=f"drain {held}, share kept",
            engine=engine,
            unit="of before",
            better="higher",
            ours=kept[0],
            peer_name="pgqueuer",
            peer=kept[1],
            target=Target("at least", 1.0),
        ),
    ]


def _late(seconds: float, measure: Callable[[], float]) -> float:
    """Measure again and again for so long; the median of the last third."""
    began, rates = time.monotonic(), list[tuple[float, float]]()
    while (at := time.monotonic() - began) < seconds or not rates:
        rates.append((at, measure()))
    late = [rate for at, rate in rates if at > seconds * 2 / 3]
    return statistics.median(late or [rates[-1][1]])


@contextmanager
def _held(url: str) -> Iterator[None]:
    """A second connection that keeps looking at the database as it is now."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url))
        runner.run(connection.execute("begin isolation level repeatable read"))
        runner.run(connection.fetchval("select count(*) from pg_class"))
        try:
            yield
        finally:
            runner.run(connection.close())


def _drained(side: Side, **asked: int) -> float:
    return _asked(side, "drain", "rate", **asked)


def _asked(side: Side, verb: str, key: str, **asked: int) -> float:
    return float(side.ask(verb, **asked)[key])


def _rate(name: str, engine: str, figures: list[list[float]], peer: str, target: Target | None = None) -> Figures:
    return Figures(
        name=name,
        engine=engine,
        unit="orders/s",
        better="higher",
        ours=figures[0],
        peer_name=peer,
        peer=figures[1],
        target=target,
    )
