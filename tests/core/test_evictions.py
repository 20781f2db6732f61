"""Which idle live slots go for an order that only waits for memory, while others are served in the same plan."""

from typing import Any

from standby.core import admit
from standby.core.admit import Plan
from standby.core.model import Mode, Order, OrderState, Pool, SlotState, Warmth
from tests.core.test_gate import CREATED, RUNNING, opened, place, pool_of, room, served, waiting
from tests.rows import NOW, host


def evicted(plan: Plan) -> list[str]:
    return [each.name.removeprefix("standby-pool-") for each in plan.evictions]


def live(name: str, **settings: Any) -> Pool:
    return pool_of(name, Warmth.RUNNING, **settings)


def large(**columns: Any) -> Order:
    """Of a lane of its own, behind the others."""
    return waiting(9, project="large", **columns)


def test_a_slot_that_was_claimed_just_now_does_not_go() -> None:
    slots = [place(1, RUNNING), place(2, RUNNING, last_used_at=4), place(1, CREATED)]
    plan = admit.admit(room(CREATED, RUNNING, slots=slots, on=host(memory_mb=250)), [waiting(1, pool="live"), large()])
    assert [each.slot.name[-1] for each in plan.admissions] == ["1"]
    assert evicted(plan) == ["live-002"]


def test_a_slot_that_goes_is_not_claimed_any_more_but_the_others_are() -> None:
    slots = [place(1, RUNNING), place(2, RUNNING, last_used_at=4), place(1, CREATED)]
    behind = [waiting(number, pool="live", project=str(number)) for number in (10, 11)]
    plan = admit.admit(room(CREATED, RUNNING, slots=slots, on=host(memory_mb=250)), [large(), *behind])
    assert evicted(plan) == ["live-001"]
    assert [(each.order.id, each.slot.name[-1]) for each in plan.admissions] == [("order-10", "2")]


def test_slots_of_a_paused_pool_go_too() -> None:
    paused = pool_of("live", Warmth.RUNNING, mode=Mode.PAUSED)
    plan = admit.admit(
        room(CREATED, paused, slots=[place(1, paused), place(1, CREATED)], on=host(memory_mb=150)), [large()]
    )
    assert evicted(plan) == ["live-001"]


def test_of_its_own_pool_all_go_but_the_one_that_it_would_use() -> None:
    slots = [place(1, RUNNING), place(2, RUNNING, last_used_at=4), place(3, RUNNING, last_used_at=5)]
    plan = admit.admit(room(RUNNING, slots=slots, on=host(memory_mb=300)), [large(pool="live", memory_mb=300)])
    assert evicted(plan) == ["live-002", "live-003"]


def test_those_that_are_kept_warm_go_last_and_the_longest_unused_of_them_first() -> None:
    one, two = live("one", slots_warm=1), live("two", slots_warm=1)
    slots = [
        place(1, one, last_used_at=2),
        place(1, two, last_used_at=1),
        place(1, RUNNING, last_used_at=9),
        place(1, CREATED),
    ]

    def names(memory_mb: int) -> list[str]:
        on = host(memory_mb=300)
        return evicted(admit.admit(room(CREATED, RUNNING, one, two, slots=slots, on=on), [large(memory_mb=memory_mb)]))

    assert names(100) == ["live-001"]
    assert names(200) == ["live-001", "two-001"]
    assert names(300) == ["live-001", "two-001", "one-001"]


def test_while_one_waits_for_memory_places_are_claimed_but_none_is_made() -> None:
    busy = opened(7, OrderState.RUNNING, pool="elsewhere", memory_mb=100)
    full = room(CREATED, slots=[place(1, CREATED)], opened=[busy], on=host(memory_mb=150))
    plan = admit.admit(full, [waiting(1, project="large"), waiting(2, memory_mb=10), waiting(3, memory_mb=10)])
    assert (served(plan), plan.wanted) == (["order-02"], {})


def test_a_used_place_counts_only_for_the_first_who_gets_it() -> None:
    used = [place(1, RUNNING, SlotState.CLEANING)]
    both = [waiting(number, pool="live") for number in (1, 2)]
    plan = admit.admit(room(RUNNING, slots=used, on=host(memory_mb=199)), both)
    assert (plan.wanted, plan.blocked) == ({"live": 1}, True)
    assert admit.admit(room(RUNNING, slots=used, on=host(memory_mb=200)), both).wanted == {"live": 2}


def test_a_plan_opens_again_when_the_first_of_its_rates_does() -> None:
    slow, fast = pool_of("slow", starts_per_minute=1), pool_of("fast", starts_per_minute=60)
    begun = {"slow": NOW, "fast": NOW}
    orders = [waiting(1, pool="fast"), waiting(2, pool="slow", project="b")]
    for each in (orders, orders[::-1]):
        assert admit.admit(room(slow, fast, pool_started=begun), each).opens_at == NOW + 1_000
