"""Figures from rounds that took turns: medians, spreads, paired ratios, and whether they meet their target."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

Better = Literal["higher", "lower"]


class Target(Struct, frozen=True):
    """What a row's ratio (or its own figure, where it has no peer) must be: at least, or at most, so much."""

    sense: Literal["at least", "at most"]
    value: float
    of: Literal["ratio", "ours"] = "ratio"


class Row(Struct, frozen=True, kw_only=True):
    """One comparison as it is written to the results."""

    name: str
    engine: str
    ours: float
    peer_name: str | None = None
    peer: float | None = None
    ratio: float | None = None
    """Median over the rounds of ours to peer in the same round."""
    spread_ours: tuple[float, float]
    """Smallest and largest round."""
    spread_peer: tuple[float, float] | None = None
    unit: str
    better: Better
    rounds: int
    target: str | None = None
    verdict: str | None = None
    """"ok", or by how much it falls short."""
    versions: Mapping[str, str] = {}


class Figures(Struct, frozen=True, kw_only=True):
    """What was measured, one figure a round, before anything is made of it."""

    name: str
    engine: str
    unit: str
    better: Better
    ours: Sequence[float]
    peer_name: str | None = None
    peer: Sequence[float] = ()
    target: Target | None = None


def row(figures: Figures, versions: Mapping[str, str]) -> Row:
    """Medians with their spread; the ratio is the median of each round's own, so that noise hits both sides of it."""
    ours, peer = figures.ours, figures.peer
    assert ours, f"{figures.name}: nothing was measured"
    assert not peer or len(peer) == len(ours), f"{figures.name}: rounds are not paired"
    ratio = statistics.median(a / b for a, b in zip(ours, peer, strict=True)) if peer else None
    middle, target = statistics.median(ours), figures.target
    return Row(
        name=figures.name,
        engine=figures.engine,
        ours=middle,
        peer_name=figures.peer_name,
        peer=statistics.median(peer) if peer else None,
        ratio=ratio,
        spread_ours=(min(ours), max(ours)),
        spread_peer=(min(peer), max(peer)) if peer else None,
        unit=figures.unit,
        better=figures.better,
        rounds=len(ours),
        target=None if target is None else said(target, figures.unit),
        verdict=None if target is None else judged(target, middle if ratio is None or target.of == "ours" else ratio),
        versions=dict(versions),
    )


def said(target: Target, unit: str) -> str:
    """A target in words."""
    return f"{target.sense} {target.value:g}{'x' if target.of == 'ratio' else ' ' + unit}"


def judged(target: Target, value: float) -> str:
    """ "ok", or by how many percent of the target it falls short."""
    met = value >= target.value if target.sense == "at least" else value <= target.value
    return "ok" if met else f"short by {abs(value - target.value) / target.value:.0%}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def turns(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Each measure's figures, one a round; in every round all take their turn, so that noise is noise for all."""
    figures: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for figure, measure in zip(figures, measures, strict=True):
            figure.append(measure())
    return figures
