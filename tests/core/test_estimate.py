"""How long an order will probably wait."""

from itertools import pairwise

import pytest

from standby.core import estimate
from standby.core.estimate import EXACT, NOW, PATHS, Confidence, Lengths, Line, Starts, Wait

ALIKE = Lengths([100] * 60, 60)
SPREAD = Lengths(list(range(10, 1010, 10)), 100)


def line(
    places: int, open_ms: list[int], lengths: Lengths = ALIKE, turn_ms: int = 0, starts: Starts | None = None
) -> Line:
    free = [lengths.left(taken, nth) for nth, taken in enumerate(open_ms)]
    return Line([*free, *[NOW] * (places - len(free))], places, lengths, turn_ms, starts)


def test_what_was_measured_is_the_sorted_lengths_and_nothing_is_nothing() -> None:
    assert estimate.measured([]) is None
    assert estimate.measured([], [5]) is None
    assert estimate.measured([900, 10, 20]) == Lengths([10, 20, 900], 3)


def test_open_runs_count_with_their_probable_length_while_few_have_ended() -> None:
    early = estimate.measured([100] * 10, [100, 400])
    assert early is not None and early.ended == 10 and len(early.ordered) == 12
    assert early.ordered[10] > 100 and early.ordered[11] > 400
    spread = estimate.measured(list(range(10, 110, 10)), [15, 35])
    assert spread is not None and spread.ordered == [10, 20, 30, 40, 50, 60, 60, 70, 80, 80, 90, 100]
    assert estimate.measured([100] * 20, [100, 400]) == Lengths([100] * 20, 20)


@pytest.mark.parametrize(
    ("count", "confidence"),
    [(1, Confidence.POOR), (9, Confidence.POOR), (10, Confidence.FAIR), (49, Confidence.FAIR), (50, Confidence.GOOD)],
)
def test_the_more_was_measured_the_more_an_estimate_is_worth(count: int, confidence: Confidence) -> None:
    lengths = Lengths([100] * count, count)
    assert lengths.confidence is confidence
    assert line(1, [], lengths).wait(0).confidence is confidence
    assert line(1, [30], lengths).wait(0).confidence is confidence


@pytest.mark.parametrize(
    ("ahead", "places", "open_ms", "expected"),
    [
        (0, 2, [], 0),
        (1, 2, [], 0),
        (2, 2, [], 100),
        (5, 2, [], 200),
        (0, 1, [30], 70),
        (1, 1, [30], 170),
        (0, 2, [30, 60], 40),
        (1, 2, [30, 60], 70),
        (2, 2, [30, 60], 140),
        (0, 2, [30], 0),
        (1, 2, [30], 70),
        (EXACT, 1, [], EXACT * 100),
        (EXACT + 1, 1, [], EXACT * 100 + 100),
        (10_000, 4, [], 250_000),
    ],
)
def test_where_all_runs_take_the_same_time_the_wait_is_certain(
    ahead: int, places: int, open_ms: list[int], expected: int
) -> None:
    assert line(places, open_ms).wait(ahead) == Wait(expected, expected, expected, Confidence.GOOD)


def test_of_more_runs_than_places_all_but_the_last_must_end() -> None:
    free = [ALIKE.left(90), ALIKE.left(10)]
    assert Line(free, 1, ALIKE).wait(0).usual_ms == 90
    assert Line([ALIKE.left(10), NOW, NOW], 2, ALIKE).wait(0).usual_ms == 0
    assert Line([ALIKE.left(10), NOW, NOW], 2, ALIKE).wait(1).usual_ms == 90


def test_a_place_that_must_be_made_ready_between_two_runs_costs_that_time_too() -> None:
    assert [line(1, [], turn_ms=7).wait(ahead).usual_ms for ahead in (0, 1, 2)] == [0, 107, 214]
    assert line(1, [], turn_ms=7).wait(EXACT + 10).usual_ms == (EXACT + 10) * 107


def test_what_is_left_of_a_run_is_told_by_the_runs_that_took_longer() -> None:
    left = SPREAD.left(500)
    assert len(left) == PATHS and min(left) == 10 and max(left) >= 490
    assert sorted(left) == list(left)
    assert 245 <= sum(left) / PATHS <= 265
    assert sum(SPREAD.left(900)) / PATHS < 60, "most of those that took 900 end before 1,000"
    assert ALIKE.left(99) == [1] * PATHS
    ways = [SPREAD.left(500, nth) for nth in range(16)]
    assert ways[:8] == ways[8:] and len({tuple(way) for way in ways}) == 8, "two of them are not the same run"


def test_a_run_that_outlasted_nearly_all_others_takes_a_share_of_its_time_longer() -> None:
    once, twice = SPREAD.left(1_000), SPREAD.left(2_000)
    assert once[0] >= 0 and once[-1] > once[PATHS // 2] > once[0]
    assert all(abs(b - 2 * a) <= 1 for a, b in zip(once, twice, strict=True))
    stuck = ALIKE.left(1_000)
    assert 0 < stuck[PATHS // 2] < 100, "where all are alike it should have ended"
    wild = Lengths([1] * 90 + [10_000] * 10, 100).left(20_000)
    assert wild[PATHS // 2] == pytest.approx(20_000, rel=0.05), "at the most as long again"
    assert Lengths([5], 1).left(10)[PATHS // 2] == pytest.approx(4.2, abs=1)
    assert Lengths([5], 1).left(1_000)[0] == 4
    assert Lengths([5, 5], 2).left(10)[PATHS // 2] == 0
    hundred = Lengths(range(1, 101), 100)
    assert max(hundred.left(92)) == 8, "eight that took longer tell"
    assert max(hundred.left(93)) == 31, "seven do not"
    assert Lengths([1, 1, 1, 1, 50, 60], 6).left(10)[PATHS // 2] == 1, "nor do two of six"
    assert Lengths([0, 0, 9, 9], 4).left(5)[0] == 4, "half of all took longer: they tell"


def test_the_range_holds_eight_of_ten_and_gets_wider_with_the_line() -> None:
    played = line(1, [0], SPREAD)
    first = played.wait(0)
    assert first.usual_ms == pytest.approx(505, abs=20)
    assert first.low_ms == pytest.approx(105, abs=20) and first.high_ms == pytest.approx(905, abs=20)
    waits = [played.wait(ahead) for ahead in (0, 1, 5, 50, EXACT, EXACT + 50, 5_000)]
    assert all(b.usual_ms > a.usual_ms and b.high_ms - b.low_ms > a.high_ms - a.low_ms for a, b in pairwise(waits))
    assert waits[3].usual_ms == pytest.approx(51 * 505, rel=0.02)
    assert waits[-1].usual_ms == pytest.approx(5_001 * 505, rel=0.01)
    assert all(each.low_ms >= 0 for each in waits)


def test_with_few_measured_runs_the_range_of_a_long_line_is_wider() -> None:
    few = line(1, [0], Lengths(SPREAD.ordered, 10)).wait(50)
    many = line(1, [0], SPREAD).wait(50)
    assert few.usual_ms == many.usual_ms
    assert few.high_ms - few.low_ms > 2 * (many.high_ms - many.low_ms)


def test_of_all_paths_the_median_is_told_and_the_range_of_eight_in_ten() -> None:
    comes_free, certain = [10_000 + 100 * path for path in range(PATHS)], Lengths([100] * 60, 10**9)
    assert Line([comes_free], 1, certain).wait(0) == Wait(13_150, 10_550, 15_750, Confidence.GOOD)
    assert Line([comes_free], 1, certain).wait(1) == Wait(13_250, 10_650, 15_850, Confidence.GOOD)


def test_after_a_single_measured_run_the_range_is_twice_as_wide() -> None:
    once = Lengths([100], 1)
    assert Line([[10_000 + 100 * path for path in range(PATHS)]], 1, once).wait(1) == Wait(
        13_250, 13_250 - 2 * 2_600, 13_250 + 2 * 2_600, Confidence.POOR
    )
    assert Line([[100 * path for path in range(PATHS)]], 1, once).wait(1).low_ms == 0, "never less than nothing"


def test_a_line_of_runs_of_all_lengths_has_these_waits() -> None:
    played = line(3, [5, 400, 90], SPREAD)
    found = [(each.low_ms, each.usual_ms, each.high_ms) for each in map(played.wait, (0, 1, 9, EXACT + 50))]
    assert found == [(27, 162, 433), (135, 380, 627), (1_247, 1_690, 2_282), (46_259, 51_794, 56_467)]
    guessed = played.wait(EXACT + 50, guessed=5.0)
    assert (guessed.low_ms, guessed.usual_ms, guessed.high_ms) == (46_142, 51_794, 56_606)


def test_the_same_rows_give_the_same_estimate_in_whatever_order_it_is_asked() -> None:
    one, other = line(3, [5, 400, 90], SPREAD), line(3, [5, 400, 90], SPREAD)
    assert [one.wait(ahead) for ahead in range(30)] == [other.wait(ahead) for ahead in range(29, -1, -1)][::-1]


def test_who_has_a_place_still_waits_for_a_permit() -> None:
    starts = Starts([0, 30], 50)
    waits = [line(5, [], starts=starts).wait(ahead).usual_ms for ahead in range(6)]
    assert waits == [0, 30, 50, 80, 100, 130]
    busy = line(1, [40], starts=Starts([0], 50))
    assert [busy.wait(ahead).usual_ms for ahead in range(3)] == [60, 160, 260]
    assert line(100, [], starts=Starts([0], 50)).wait(EXACT + 10).usual_ms == (EXACT + 10) * 50


def test_two_starts_are_a_gap_apart() -> None:
    spaced = line(5, [], starts=Starts([], 0, gap_ms=30))
    assert [spaced.wait(ahead).usual_ms for ahead in range(4)] == [0, 30, 60, 90]
    assert spaced.wait(EXACT + 10).usual_ms == (EXACT + 10) * 30
    both = line(5, [], starts=Starts([0], 50, gap_ms=30))
    assert [both.wait(ahead).usual_ms for ahead in range(3)] == [0, 50, 100]


def test_who_stands_in_two_lines_waits_for_the_slower_one() -> None:
    slow = line(1, [])
    both = Line([NOW, NOW], 2, ALIKE, beside=line(1, []))
    assert [both.wait(ahead) for ahead in range(3)] == [slow.wait(ahead) for ahead in range(3)]
    assert both.wait(50, guessed=10.0) == slow.wait(50, guessed=10.0)
    assert both.rate_ms == slow.rate_ms == 100


def test_one_that_waits_for_two_things_waits_for_the_later_and_knows_no_more_than_of_the_less_known() -> None:
    short, long = Wait(10, 5, 90, Confidence.FAIR), Wait(20, 4, 30, Confidence.GOOD)
    assert short.and_then(long) == long.and_then(short) == Wait(20, 5, 90, Confidence.FAIR)
