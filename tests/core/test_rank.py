"""An order's place in its lane."""

from standby.core.rank import is_urgent, rank
from tests.rows import NOW, order, spec


def test_a_point_of_priority_is_worth_a_second_of_waiting() -> None:
    assert [rank(spec(priority=priority), NOW) - NOW for priority in (-2, 0, 3)] == [-2_000, 0, 3_000]


def test_urgent_orders_go_before_all_others_and_among_themselves_by_rank() -> None:
    first, next_ = rank(spec(urgent=True, priority=-5), NOW), rank(spec(urgent=True), NOW)
    assert first < next_ < 0
    ranks = [first, next_, -1, 0, 1, rank(spec(), NOW), None]
    assert [is_urgent(order(rank=each)) for each in ranks] == [True] * 3 + [False] * 4
