"""What estimates are made of, and how right they were, as a server remembers it."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from standby import estimates
from standby.core.estimate import Confidence, Wait
from standby.core.outlook import Took
from standby.estimates import Error, Estimates, Record
from standby.store.contract import Length, Store

pytestmark = pytest.mark.anyio


class Told:
    """A store that only tells lengths, and what it was asked for."""

    def __init__(self) -> None:
        self.last, self.asked, self.found = 0, list[tuple[int, int]](), list[Length]()

    async def last_seq(self) -> int:
        return self.last

    async def lengths(self, after: int, last: int) -> Sequence[Length]:
        self.asked.append((after, last))
        return self.found


def run(length_ms: int, start_ms: int | None = None) -> Length:
    return Length("p", length_ms, start_ms, False, length_ms, "a")


async def took(known: Estimates, store: Any) -> Took:
    return (await known.took(cast("Store", store))).get("p", Took())


async def test_the_past_is_read_once_and_then_only_what_is_new() -> None:
    known, store = Estimates(), Told()
    assert await took(known, store) == Took()
    assert store.asked == [], "nothing happened yet"
    store.last, store.found = 40_000, [run(5, 1), run(7), Length("p", 9, None, True, 9, None)]
    assert await took(known, store) == Took([5, 7], [1], [9], [(5, "a"), (7, "a")])
    store.last, store.found = 40_010, [run(8, 2)]
    assert await took(known, store) == Took([5, 7, 8], [1, 2], [9], [(5, "a"), (7, "a"), (8, "a")])
    assert await took(known, store) == Took([5, 7, 8], [1, 2], [9], [(5, "a"), (7, "a"), (8, "a")])
    assert store.asked == [(35_000, 40_000), (40_000, 40_010)]


async def test_a_server_that_has_just_started_looks_back_further_but_not_for_ever() -> None:
    known, store = Estimates(), Told()
    store.last = 40_000
    await took(known, store)
    assert store.asked == [(40_000 - estimates.FIRST_LOOK, 40_000)]


async def test_only_the_last_runs_are_remembered() -> None:
    known, store = Estimates(), Told()
    store.last, store.found = 9, [run(number) for number in range(estimates.REMEMBERED + 3)]
    assert (await took(known, store)).runs == list(range(3, estimates.REMEMBERED + 3))


WAIT = Wait(10_000, 5_000, 20_000, Confidence.GOOD)


@pytest.mark.parametrize(
    ("waited_ms", "off_ms", "held"),
    [
        (10_000, 0, True),
        (4_000, -6_000, True),
        (3_999, -6_001, False),
        (21_000, 11_000, True),
        (21_001, 11_001, False),
    ],
)
def test_an_error_is_how_much_longer_the_wait_was_and_a_second_beyond_the_range_is_nothing(
    waited_ms: int, off_ms: int, held: bool
) -> None:
    known = Estimates()
    known.give("one", 1_000, WAIT)
    assert known.settle("one", "p", 1_000 + waited_ms) == Error(off_ms, held)
    assert known.settle("one", "p", 99_000) is None, "a retry is not measured"
    assert known.record("p") == Record(1, abs(off_ms), float(held))


def test_the_record_of_a_pool_is_the_median_and_the_share_that_held() -> None:
    known = Estimates()
    assert known.record("p") is None
    for number, waited_ms in enumerate((10_000, 12_000, 90_000, 4_500)):
        known.give(str(number), 0, WAIT)
        known.settle(str(number), "p", waited_ms)
    assert known.record("p") == Record(4, 5_500, 0.75)
    assert known.record("other") is None


def test_an_order_that_ended_or_is_one_too_many_is_not_measured() -> None:
    known = Estimates()
    known.give("ended", 0, WAIT)
    known.forget("ended")
    known.forget("unknown")
    for number in range(estimates.GIVEN + 1):
        known.give(str(number), 0, WAIT)
    assert [known.settle(each, "p", 1) for each in ("ended", "0")] == [None, None]
    assert known.settle("1", "p", 1) is not None
