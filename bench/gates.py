"""Rows about gates: what they cost a drain, and what a claim costs when very many projects wait."""

from functools import partial
from typing import Final

from bench.history import add_waiting
from bench.rounds import Figures, Target, turns
from bench.run import Run
from bench.side import Side

PROJECTS: Final = 1_000


def drain(run: Run, engine: str) -> list[Figures]:
    """Empty a full queue with every gate on that can be passed at full speed, next to none."""
    with run.ours(engine, gates=True) as gated, run.ours(engine) as plain:
        measures = [
            partial(_rate, gated, "drain", orders=run.scale.drained, projects=4, keys=True),
            partial(_rate, plain, "drain", orders=run.scale.drained),
        ]
        turns(1, *measures)
        figures = turns(run.scale.rounds, *measures)
    name, unit, target = "drain with every gate on", "orders/s", Target("at least", 0.85)
    return [_figures(name, engine, unit, figures, "itself with none", target)]


def claims(run: Run, engine: str) -> list[Figures]:
    """Serve some orders of a queue that stays as long as it is, over very many projects."""
    few, many = run.scale.pending
    urls = [run.database(engine), run.database(engine)]
    for url, pending in zip(urls, (few, many), strict=True):
        with run.ours(engine, url=url) as side:
            side.ask("submit", calls=1, callers=1, size=2)
        add_waiting(url, pending, PROJECTS)
    with run.ours(engine, url=urls[0]) as short, run.ours(engine, url=urls[1]) as long:
        measures = [
            partial(_rate, side, "claims", pending=pending, orders=run.scale.claimed, projects=PROJECTS)
            for side, pending in ((long, many), (short, few))
        ]
        turns(1, *measures)
        figures = turns(run.scale.rounds, *measures)
    name = f"claims with {many:,} waiting over {PROJECTS:,} projects"
    return [_figures(name, engine, "orders/s", figures, f"itself with {few:,}", Target("at least", round(1 / 1.3, 2)))]


def _rate(side: Side, verb: str, **asked: int | bool) -> float:
    return float(side.ask(verb, **asked)["rate"])


def _figures(name: str, engine: str, unit: str, figures: list[list[float]], beside: str, target: Target) -> Figures:
    return Figures(
        name=name,
        engine=engine,
        unit=unit,
        better="higher",
        ours=figures[0],
        peer_name=beside,
        peer=figures[1],
        target=target,
    )
