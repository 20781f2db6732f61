"""Who goes before an order when lanes take turns, and how long that takes."""

from collections.abc import Mapping

import pytest

from standby.core import crowd
from standby.core.crowd import Keyed, Queue, Standing
from standby.core.estimate import NOW, PATHS, Confidence, Lengths, Line, Wait, measured
from standby.core.model import Order, OrderState
from tests import rows


def lengths_of(length_ms: int) -> Lengths:
    """All runs take as long."""
    lengths = measured([length_ms] * 60)
    assert lengths is not None
    return lengths


def line(places: int = 1) -> Line:
    """Places that are free; each run takes a second."""
    return Line([NOW] * places, places, lengths_of(1_000))


def ahead(queues: Mapping[str, Queue], position: int = 1, *, weight: int = 1, urgent: bool = False) -> int:
    """How many go before the order of project "a" that stands there."""
    standing = Standing("a", position, weight, urgent)
    return crowd.wait(line(), queues, standing).usual_ms // 1_000


def test_alone_an_order_waits_for_those_of_its_own_lane() -> None:
    assert [ahead({"a": Queue(9)}, position) for position in (1, 2, 9)] == [0, 1, 8]


def test_a_long_lane_delays_a_short_one_by_its_turns_and_not_by_its_length() -> None:
    assert ahead({"b": Queue(10_000)}) == 0
    assert [ahead({"b": Queue(10_000)}, position) for position in (2, 3)] == [2, 4]
    assert ahead({name: Queue(10_000) for name in "bcde"}) == 2, "half of the lanes have their turn before it"


def test_a_short_lane_delays_a_long_one_by_its_length() -> None:
    assert ahead({"b": Queue(3), "c": Queue(2)}, 100) == 99 + 5


def test_a_heavier_lane_has_more_turns() -> None:
    assert ahead({"b": Queue(10_000, weight=3)}, 11) == 10 + 32
    assert ahead({"b": Queue(10_000)}, 31, weight=3) == 30 + 10


def test_urgent_orders_go_before_all_lanes_and_wait_only_for_one_another() -> None:
    assert ahead({"b": Queue(10_000, urgent=4)}) == 4
    assert ahead({"a": Queue(1), "b": Queue(10_000, urgent=4)}, urgent=True) == 4
    assert ahead({"b": Queue(10_000)}, urgent=True) == 0
    assert ahead({"b": Queue(10_000, urgent=4)}, 3, urgent=True) == 2 + 4


def test_orders_that_come_meanwhile_to_a_shorter_lane_go_before_a_longer_one() -> None:
    quarter = Queue(0, rate=0.25 / 1_000)
    assert ahead({"b": quarter}, 61) == 80, "of four that are served one came later"
    assert ahead({"a": quarter}, 61) == 60, "but not those of its own lane"
    assert ahead({"b": Queue(0, rate=0.3 / 1_000)}, 2) == 1, "less than half of one is none"
    assert ahead({"b": Queue(0, rate=9.0)}, 61) == 120, "never more than it has turns"
    assert ahead({"b": Queue(100, rate=9.0)}, 61) == 120
    assert ahead({"b": Queue(50, rate=9.0)}, 61) == 120, "those who stand there already have their turns too"
    assert ahead({"b": Queue(0, weight=2, rate=0.5 / 1_000)}, 61) == 120, "and more come while it waits for those"


def test_those_who_wait_for_a_key_do_not_go_before_an_order_that_needs_none() -> None:
    behind = [Keyed(20, held_ms=500)]
    busy = Line([[500] * PATHS, [200] * PATHS], 2, lengths_of(1_000))
    wait = crowd.wait(busy, {"a": Queue(20, keyed=behind)}, Standing("a", 21))
    assert (wait.low_ms, wait.usual_ms, wait.high_ms) == (200, 200, 200), "the other place comes free before the key"
    wait = crowd.wait(busy, {"b": Queue(20, keyed=behind)}, Standing("a", 1))
    assert wait.usual_ms == 200


def test_each_time_a_key_comes_free_the_next_one_that_waits_for_it_goes_before() -> None:
    only = Line([[500] * PATHS], 1, lengths_of(1_000))
    for keyed in ([Keyed(20, held_ms=500)], [Keyed(12, held_ms=500), Keyed(8)]):
        wait = crowd.wait(only, {"a": Queue(21, keyed=keyed)}, Standing("a", 22))
        assert wait.usual_ms == 500 + 21 * 1_000
    four = Line([[500] * PATHS] * 4, 4, lengths_of(1_000))
    wait = crowd.wait(four, {"a": Queue(60, keyed=[Keyed(30, held_ms=500)])}, Standing("a", 61))
    assert wait.usual_ms == 500 + 10 * 1_000, "a fourth of what is served meanwhile has the key"


def test_of_another_lane_those_who_wait_for_a_key_take_no_more_turns_than_it_has() -> None:
    only = Line([[500] * PATHS], 1, lengths_of(1_000))
    wait = crowd.wait(only, {"b": Queue(20, weight=2, keyed=[Keyed(20, held_ms=500)])}, Standing("a", 4))
    assert wait.usual_ms == 500 + (3 + 7) * 1_000


def test_those_who_get_a_key_and_those_who_come_share_the_turns_of_their_lane() -> None:
    assert ahead({"b": Queue(5, rate=10 / 1_000, keyed=(Keyed(5),))}, 11) == 10 + 10


def test_when_keys_come_free_is_not_known_and_makes_the_range_wider() -> None:
    standing = Standing("a", 10)
    sure = crowd.wait(line(), {"a": Queue(9)}, standing)
    unsure = crowd.wait(line(), {"a": Queue(9, keyed=(Keyed(4),))}, standing)
    assert sure.low_ms == sure.high_ms
    assert unsure.low_ms < unsure.usual_ms < unsure.high_ms


def test_how_many_come_meanwhile_is_not_known_and_makes_the_range_wider() -> None:
    told = crowd.wait(line(), {"b": Queue(20)}, Standing("a", 61))
    guessed = crowd.wait(line(), {"b": Queue(0, rate=0.25 / 1_000)}, Standing("a", 61))
    assert told.usual_ms == guessed.usual_ms
    assert told.low_ms == told.high_ms
    assert guessed.low_ms < guessed.usual_ms < guessed.high_ms
    assert guessed == Wait(80_000, 63_733, 96_267, Confidence.GOOD)


def test_what_a_project_sends_is_told_by_its_last_runs() -> None:
    assert crowd.rates([(0, "a"), (10, "a"), (20, "b"), (30, "a")], 100) == {"a": 0.02, "b": 0.01}
    assert crowd.rates([(5, "a"), (5, "b")], 5) == pytest.approx({"b": 1.0})
    assert crowd.rates([(5, "a")], 9) == {}


def test_ready_orders_stand_in_the_order_of_their_lanes_turns() -> None:
    def ready(name: str, rank: int) -> Order:
        return rows.order(OrderState.PENDING, id=name, project=name[0], rank=rank)

    waiting = [ready("a1", 20), ready("a3", 10), ready("a2", 30), ready("b1", 40), ready("b2", 50), ready("c1", -5)]
    served = [order.id for order in crowd.in_turn(waiting, {})]
    assert served == ["c1", "a3", "b1", "a1", "b2", "a2"]
    assert [order.id for order in crowd.in_turn(waiting, {"a": 3})] == ["c1", "a3", "a1", "a2", "b1", "b2"]
    urgent = [ready("d1", -3), ready("c2", -4), ready("c1", -5)]
    assert [order.id for order in crowd.in_turn(urgent, {})] == ["c1", "c2", "d1"], "urgent ones only by rank"
