"""What is made of measured figures."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from bench.__main__ import PARTS, chosen
from bench.history import Sample, copies
from bench.report import table
from bench.rounds import Figures, Target, judged, percentile, row, said, turns


def figures(ours: list[float], peer: list[float], target: Target | None = None) -> Figures:
    made = Figures(name="drain", engine="sqlite", unit="orders/s", better="higher", ours=ours)
    return replace(made, peer_name="huey", peer=peer, target=target)


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    made = row(figures([10, 100, 30], [1, 100, 10]), {})
    assert made.ratio == 3
    assert (made.ours, made.peer) == (30, 10)


def test_a_spread_is_the_smallest_and_the_largest_round() -> None:
    made = row(figures([10, 100, 30], [1, 100, 10]), {})
    assert (made.spread_ours, made.spread_peer, made.rounds) == ((10, 100), (1, 100), 3)


def test_a_row_without_a_peer_is_judged_by_its_own_figure() -> None:
    idle = Figures(
        name="idle", engine="sqlite", unit="MB", better="lower", ours=[90], target=Target("at most", 80, "ours")
    )
    made = row(idle, {})
    assert (made.ratio, made.target, made.verdict) == (None, "at most 80 MB", "short by 12%")


def test_rounds_that_are_not_paired_are_refused() -> None:
    with pytest.raises(AssertionError, match="not paired"):
        row(figures([1, 2], [1]), {})


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (Target("at least", 1.2), 1.2, "ok"),
        (Target("at least", 1.2), 0.9, "short by 25%"),
        (Target("at most", 0.7), 0.7, "ok"),
        (Target("at most", 0.7), 1.4, "short by 100%"),
    ],
)
def test_a_target_is_met_or_missed_by_a_share_of_it(target: Target, value: float, verdict: str) -> None:
    assert judged(target, value) == verdict


def test_a_target_of_a_ratio_is_said_without_a_unit() -> None:
    assert said(Target("at least", 5), "orders/s") == "at least 5x"


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50, 99, 7)


def test_in_every_round_all_take_their_turn() -> None:
    clock = itertools.count()
    ours, peer = turns(2, lambda: float(next(clock)), lambda: float(next(clock)))
    assert (ours, peer) == ([0, 2], [1, 3])


def test_a_part_is_chosen_by_how_its_name_begins() -> None:
    assert chosen(["start"]) == ["start-pg", "start-sqlite"]
    assert chosen([]) == list(PARTS)


def test_a_word_that_begins_no_part_is_answered_with_all_of_them() -> None:
    with pytest.raises(SystemExit, match=r"no part 'drian'; the parts are: drain-pg-100"):
        chosen(["drian"])


def test_a_copied_past_has_ids_and_numbers_of_its_own() -> None:
    rows: dict[str, list[tuple[Any, ...]]] = {
        "orders": [("real", 2, "one", "one")],
        "specs": [(4, "real", "one", "one", '{"order_id":"real"}')],
        "runs": [("real", 1)],
        "events": [(4, "real", '{"project":"one","pool":"one"}'), (9, "real", "{}")],
    }
    sample, first, second = Sample("real", "one", rows, 20), f"0{0:025d}", f"0{1:025d}"
    (page,) = copies(sample, 2, None)
    assert page["orders"] == [(first, 2, "one", "one"), (second, 2, "one", "one")]
    assert [(spec[0], spec[1], spec[4]) for spec in page["specs"]] == [
        (21, first, f'{{"order_id":"{first}"}}'),
        (23, second, f'{{"order_id":"{second}"}}'),
    ]
    assert [event[:2] for event in page["events"]] == [(21, first), (22, first), (23, second), (24, second)]
    (spread,) = copies(sample, 2, 9)
    assert [order[2:] for order in spread["orders"]] == [("p0", "one"), ("p1", "one")]
    assert [spec[2:4] for spec in spread["specs"]] == [("one", "p0"), ("one", "p1")]
    assert spread["events"][2][2] == '{"project":"p1","pool":"one"}'


def test_a_table_shows_what_falls_short() -> None:
    head, line = table([row(figures([10], [100], Target("at least", 1)), {})]).splitlines()
    assert head.split()[:3] == ["row", "engine", "ours"]
    assert line.split()[-8:] == ["huey", "0.10x", "at", "least", "1x", "short", "by", "90%"]
