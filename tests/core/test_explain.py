from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import explain
from standby.core.explain import GateName, House, Line, Start, gate
from standby.core.model import (
    Lease,
    Level,
    Mode,
    Order,
    OrderState,
    Override,
    Pool,
    PoolSettings,
    PressureLimits,
    Project,
    Reason,
    Slot,
    SlotState,
    Template,
    Warmth,
)
from standby.core.sighting import ImageState
from tests.core.test_gate import opened, place, pool_of
from tests.rows import NOW, host, order, pool, slot

LEASE = Lease(host="local", owner="a", epoch=1, until=NOW + 1, renewed_at=NOW)


def _house(**parts: Any) -> House:
    base: dict[str, Any] = {
        "pool": pool(slots_max=1),
        "host": host(memory_mb=300),
        "lease": LEASE,
        "slots": [slot(1)],
        "holders": {},
        "project_open": 0,
        "project_max": None,
        "now": NOW,
    }
    return House(**{**base, **parts})


DRAINED: dict[str, Any] = {"mode": Mode.DRAINING, "mode_actor": "ada"}
SHUT = Project(name="default", mode=Mode.DRAINING)
BY_ADA = {"slots_max": Override(value=0, actor="ada", at=NOW)}
HELD = {slot(1).name: order(OrderState.RUNNING, id="other")}


@pytest.mark.parametrize(
    ("name", "row", "parts"),
    [
        (GateName.RETRY_WAIT, order(OrderState.WAITING_RETRY), {}),
        (GateName.NOT_BEFORE, order(rank=None, due_at=NOW + 9_000), {}),
        (GateName.HOST_NOT_LED, order(), {"lease": None}),
        (GateName.HOST_NOT_LED, order(), {"now": NOW + 1}),
        (GateName.HOST_UNREACHABLE, order(), {"host": host(unreachable_since=NOW - 1, error="gone")}),
        (GateName.HOST_MODE, order(), {"host": host(mode=Mode.DRAINING)}),
        (GateName.POOL_MODE, order(), {"pool": pool(mode=Mode.PAUSED)}),
        (GateName.PRESSURE, order(), {"host": host(pressure=Level.CRITICAL)}),
        (GateName.PROJECT_MODE, order(), {"project": SHUT, "project_open": 2, "project_max": 2}),
        (GateName.PROJECT_LIMIT, order(), {"project_open": 2, "project_max": 2, "project": Project(name="default")}),
        (GateName.SLOTS, order(), {"holders": HELD}),
        (GateName.SLOTS, order(), {"slots": [slot(1, state=SlotState.ERROR)]}),
        (GateName.SLOTS, order(), {"slots": []}),
        (
            GateName.MEMORY,
            order(memory_mb=299),
            {"holders": {"elsewhere": order(OrderState.RUNNING, pool="other", slot="elsewhere", memory_mb=2)}},
        ),
        (GateName.TURN, order(), {}),
    ],
)
def test_each_gate_names_itself(name: GateName, row: Any, parts: dict[str, Any]) -> None:
    found = gate(row, _house(**parts))
    assert found is not None and found.name is name and found.text


@pytest.mark.parametrize(
    ("text", "row", "parts"),
    [
        ("its last run ended with lost; queued again in 5 s", order(OrderState.WAITING_RETRY), {}),
        (
            "its last run ended with lost; queued again in 1 s",
            order(OrderState.WAITING_RETRY, due_at=NOW + 1_000),
            {},
        ),
        (
            "its last run ended with lost; queued again at the next step",
            order(OrderState.WAITING_RETRY, due_at=NOW + 999),
            {},
        ),
        (
            "its last run ended with lost; queued again at the next step",
            order(OrderState.WAITING_RETRY, due_at=NOW - 60_000),
            {},
        ),
        ("it asked to wait", order(rank=None, due_at=NOW + 9_000), {}),
        ("no server leads host local: start one that reaches it", order(), {"lease": None}),
        (
            "host local cannot be asked since 600 s: no answer",
            order(),
            {"host": host(unreachable_since=NOW - 600_000, error="no answer")},
        ),
        (
            "host local is draining by ada for 0 s (moving): resume it to go on",
            order(),
            {"host": host(**DRAINED, mode_reason="moving", mode_since=NOW + 9)},
        ),
        (
            "pool default is draining by ada for 119 s: resume it to go on",
            order(),
            {"pool": pool(**DRAINED, mode_since=NOW - 119_999)},
        ),
        (
            "project default is paused by ada for 2 min (audit): resume it to go on",
            order(),
            {
                "project": Project(
                    name="default", mode=Mode.PAUSED, mode_actor="ada", mode_reason="audit", mode_since=NOW - 120_000
                )
            },
        ),
        (
            "pool default is draining by ada for 2 h: resume it to go on",
            order(),
            {"pool": pool(**DRAINED, mode_since=NOW - 7_200_000)},
        ),
        (
            "pool default is draining by ada for 3 days (tests): resume it to go on",
            order(),
            {"pool": pool(**DRAINED, mode_reason="tests", mode_since=NOW - 3 * 86_400_000)},
        ),
        ("project default has 2 open runs and may have 2", order(), {"project_open": 2, "project_max": 2}),
        ("the only slot of pool default is taken", order(), {"holders": HELD}),
        (
            "the only slot of pool default is in error",
            order(),
            {"slots": [slot(1, state=SlotState.ERROR)]},
        ),
        (
            "all 2 slots of pool default are taken, 1 of them in error",
            order(),
            {"slots": [slot(1), slot(2, state=SlotState.ERROR)], "holders": HELD},
        ),
        (
            "all 2 slots of pool default are taken",
            order(),
            {
                "pool": pool(slots_max=2),
                "slots": [slot(1), slot(2)],
                "holders": {**HELD, slot(2).name: order(OrderState.RUNNING, id="more")},
            },
        ),
        (
            "pool default has slots_max = 0 (set by the configuration): nothing starts",
            order(),
            {"pool": pool(slots_max=0), "slots": []},
        ),
        (
            "pool default has slots_max = 0 (set by ada): nothing starts",
            order(),
            {"pool": pool(slots_max=0, overrides=BY_ADA), "holders": HELD},
        ),
        (
            "2 slots are busy, 1 is allowed; it starts when fewer than 1 are busy",
            order(),
            {"slots": [slot(1), slot(2)], "holders": {**HELD, slot(2).name: order(OrderState.RUNNING, id="more")}},
        ),
        (
            "3 slots are busy, 2 are allowed; it starts when fewer than 2 are busy",
            order(),
            {
                "pool": pool(slots_max=2),
                "slots": [slot(n) for n in (1, 2, 3, 4)],
                "holders": {slot(n).name: order(OrderState.RUNNING) for n in (1, 2, 3)},
            },
        ),
        (
            "needs 299 MB; 298 of 300 MB on host local are free",
            order(memory_mb=299),
            {"holders": {"elsewhere": order(OrderState.RUNNING, pool="other", slot="elsewhere", memory_mb=2)}},
        ),
        (
            "needs 256 MB; 0 of 300 MB on host local are free",
            order(),
            {"holders": {"elsewhere": order(OrderState.RUNNING, pool="other", slot="elsewhere", memory_mb=400)}},
        ),
        ("pool default is making a slot", order(), {"slots": []}),
        ("it is served as soon as its turn comes", order(memory_mb=300), {}),
    ],
)
def test_each_gate_says_in_words_what_is_missing_and_what_to_do(text: str, row: Any, parts: dict[str, Any]) -> None:
    found = gate(row, _house(**parts))
    assert found is not None and found.text == text


def test_an_order_that_asked_to_wait_says_until_when() -> None:
    found = gate(order(rank=None, due_at=NOW + 9_000), _house())
    assert found is not None and found.opens_at == NOW + 9_000


def test_the_first_shut_gate_is_named_when_several_are() -> None:
    shut: dict[str, Any] = {
        "lease": None,
        "host": host(unreachable_since=NOW, mode=Mode.PAUSED, memory_mb=1, pressure=Level.CRITICAL),
        "pool": pool(mode=Mode.PAUSED, slots_max=0),
        "project_open": 1,
        "project_max": 1,
        "slots": [],
    }
    opened: list[tuple[GateName, dict[str, Any]]] = [
        (GateName.HOST_NOT_LED, {"lease": LEASE}),
        (GateName.HOST_UNREACHABLE, {"host": host(mode=Mode.PAUSED, memory_mb=1, pressure=Level.CRITICAL)}),
        (GateName.HOST_MODE, {"host": host(memory_mb=1, pressure=Level.CRITICAL)}),
        (GateName.POOL_MODE, {"pool": pool(slots_max=0)}),
        (GateName.PRESSURE, {"host": host(memory_mb=1)}),
        (GateName.PROJECT_LIMIT, {"project_open": 0}),
        (GateName.SLOTS, {"slots": [slot(1)], "pool": pool(slots_max=1)}),
        (GateName.MEMORY, {"host": host()}),
    ]
    for name, opens in opened:
        found = gate(order(), _house(**shut))
        assert found is not None and found.name is name
        shut |= opens
    assert getattr(gate(order(), _house(**shut)), "name", None) is GateName.TURN


@pytest.mark.parametrize("state", [OrderState.RUNNING, OrderState.COMPLETED, OrderState.STOPPING])
def test_an_order_that_does_not_wait_has_no_gate(state: OrderState) -> None:
    assert gate(order(state), _house()) is None


@pytest.mark.parametrize("state", OrderState)
def test_what_follows_is_said_for_every_state_and_every_gate(state: OrderState) -> None:
    texts = [explain.what_follows(order(state), None)]
    texts += [explain.what_follows(order(state), explain.Gate(name, "")) for name in explain.GateName]
    assert all(text and not text.endswith(".") for text in texts)
    waits = state in (OrderState.PENDING, OrderState.WAITING_RETRY)
    assert all(text.startswith(("it does not wait", "nothing: ")) != waits for text in texts)


def test_what_follows_depends_on_how_far_an_order_is_and_on_the_gate_that_holds_it() -> None:
    turn = explain.Gate(GateName.TURN, "")
    said = {state: explain.what_follows(order(state), None) for state in OrderState}
    assert said[OrderState.PENDING] == said[OrderState.WAITING_RETRY] == "it starts as soon as it can"
    assert said[OrderState.PREPARING].startswith("it does not wait: its start was sent")
    assert said[OrderState.RUNNING].startswith("it does not wait: it runs until it ends")
    assert said[OrderState.STOPPING].startswith("it does not wait: it was asked to end")
    assert said[OrderState.FAILED].startswith("nothing: it has ended")
    assert explain.what_follows(order(), turn) == "it starts with the next step, after those before it"


def test_a_pool_without_slots_says_how_to_get_some() -> None:
    shut = gate(order(), _house(pool=pool(slots_max=0), slots=[]))
    assert explain.what_follows(order(), shut) == (
        "nothing happens by itself; raise it: standby pools set default slots_max=N"
    )


def test_a_pool_with_more_busy_slots_than_it_may_have_says_when_it_goes_on() -> None:
    slots = [slot(1), slot(2)]
    full = gate(order(), _house(slots=slots, holders={each.name: order(OrderState.RUNNING) for each in slots}))
    assert explain.what_follows(order(), full) == "it starts when fewer than 1 are busy and those before it are served"


def test_the_last_start_and_the_first_four_in_flight_are_told() -> None:
    of = pool_of(slots_max=9)
    rare = host(start_gap_ms=7_200_000)
    begun = opened(2, commanded_at=NOW - 3_600_000)
    found = _said(_crowded(place(1, of), place(2, of), of=of, holders=(begun,), host=rare))
    assert found == (GateName.STARTS, "the last start on host local was 3600 s ago, and two are 7200 s apart")
    runs = tuple(opened(number, commanded_at=NOW - 9 + number) for number in range(2, 7))
    many = _said(_crowded(place(1, of), of=of, holders=runs, host=host(starts_max=5)))[1]
    assert many.endswith("are in flight (order open-2, order open-3, order open-4, order open-5)")


def test_a_slot_that_has_to_go_first_is_not_told_as_processors_that_are_missing() -> None:
    of = pool_of(slots_max=1)
    going = _crowded(place(1, of, SlotState.CLEANING, template="other"), of=of, host=host(cpus=1.0))
    assert _said(going, order(cpus=1.0)) == (GateName.SLOTS, "pool default is making a slot")


def test_an_order_that_waited_too_long_says_what_to_raise() -> None:
    ended = order(OrderState.FAILED, reason=Reason.QUEUE_TIMEOUT)
    said = explain.what_follows(ended, None, queue_timeout="5m")
    assert said == "it waited 5m for a slot, its queue_timeout; raise that, or slots_max"


@pytest.mark.parametrize(
    ("row", "place", "left_ms"),
    [
        (order(queue_due=NOW + 300_000), pool(), 300_000),
        (order(queue_due=NOW + 300_000), pool(blocked_ms=7_000), 307_000),
        (order(queue_due=NOW + 300_000), pool(blocked_since=NOW - 60_000), 360_000),
        (order(queue_due=NOW - 1), pool(), 0),
        (order(queue_due=None), pool(), None),
        (order(rank=None, due_at=NOW + 9_000, queue_due=None), pool(), None),
        (order(OrderState.RUNNING), pool(), None),
    ],
)
def test_a_waiting_order_says_how_long_until_it_is_given_up(row: Any, place: Any, left_ms: int | None) -> None:
    assert explain.gives_up_in_ms(row, _house(pool=place)) == left_ms


def test_the_time_until_an_order_is_given_up_stands_while_its_pool_is_blocked() -> None:
    row, place = order(queue_due=NOW + 300_000), pool(blocked_since=NOW)
    houses = [_house(pool=place, now=NOW + passed_ms) for passed_ms in (0, 1, 99_000)]
    assert [explain.gives_up_in_ms(row, each) for each in houses] == [300_000] * 3


def _crowded(*slots: Slot, of: Pool | None = None, holders: tuple[Order, ...] = (), **parts: Any) -> House:
    """A host of containers, with one pool."""
    of = of or pool_of()
    held = {each.slot: each for each in holders if each.slot is not None}
    mine = [each for each in slots if each.pool == of.name]
    base: dict[str, Any] = {"pool": of, "host": host(), "pools": {of.name: of}, "slots": mine, "host_slots": slots}
    base["seats"] = False
    return _house(**{**base, "holders": held, **parts})


def _said(house: House, row: Order | None = None) -> tuple[GateName, str]:
    found = gate(row or order(memory_mb=100), house)
    assert found is not None
    return found.name, found.text


def test_who_waits_for_a_start_is_told_how_many_are_in_flight_who_they_are_and_its_place() -> None:
    of, live = pool_of(), pool_of("live", Warmth.RUNNING)
    runs = (
        opened(2, commanded_at=NOW - 5),
        opened(3, OrderState.RUNNING),
        opened(4, pool="live", slot="standby-pool-live-001"),
    )
    making = place(9, of, SlotState.CREATING, state_since=NOW - 9)
    cold = pool_of("cold", Warmth.COLD)
    seat = place(8, cold, SlotState.CREATING)
    both = {"pools": {"default": of, "live": live, "cold": cold}, "host": host(starts_max=2)}
    house = _crowded(place(1, of), making, seat, of=of, holders=runs, **both)
    assert explain.starts(house.room) == [
        Start(slot=making.name, order=None, since=NOW - 9),
        Start(slot="standby-pool-default-002", order="open-2", since=NOW - 5),
    ]
    text = f"2 of 2 starts on host local are in flight (slot {making.name}, order open-2)"
    assert _said(house) == (GateName.STARTS, text)
    placed = _crowded(place(1, of), making, of=of, holders=runs, line=Line(3, 7), **both)
    assert _said(placed) == (GateName.STARTS, f"{text}; it is number 3 of 7 that wait")
    none = _crowded(place(1, of), of=of, host=host(starts_max=0))
    assert _said(none) == (GateName.STARTS, "host local has starts_max = 0: nothing starts")
    room = _crowded(place(1, of), making, of=of, holders=runs, **{**both, "host": host(starts_max=3)})
    assert _said(room)[0] is GateName.TURN
    handed = _crowded(place(1, live), making, of=live, holders=runs[:1], **both)
    assert _said(handed)[0] is GateName.TURN


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "image a:1 is not on host local yet"),
        ({"pulling_since": NOW}, "image a:1 is being pulled to host local"),
        ({"pulling_since": NOW, "progress": "3 %"}, "image a:1 is being pulled to host local: 3 %"),
        ({"error": "denied"}, "image a:1 could not be pulled to host local (denied); it is tried again"),
    ],
)
def test_who_waits_for_an_image_is_told_how_far_it_is(state: dict[str, Any], text: str) -> None:
    image = ImageState(host="local", image="a:1", at=NOW, present=False, **state)
    assert _said(_crowded(of=pool_of(image="a:1"), image=image)) == (GateName.IMAGE, text)


def test_an_image_matters_only_where_something_is_to_be_made_of_it() -> None:
    image = ImageState(host="local", image="a:1", at=NOW, present=False)
    of, cold = pool_of(image="a:1"), pool_of(warmth=Warmth.COLD, image="a:1")
    assert _said(_crowded(place(1, of), of=of, image=image))[0] is GateName.TURN
    assert _said(_crowded(place(1, of, SlotState.CREATING), of=of, image=image))[0] is GateName.SLOTS
    assert _said(_crowded(place(1, cold), of=cold, image=image))[0] is GateName.IMAGE
    there = ImageState(host="local", image="a:1", at=NOW, present=True)
    assert _said(_crowded(of=of, image=there)) == (GateName.SLOTS, "pool default is making a slot")


def test_an_open_breaker_is_told_with_its_last_error_and_what_to_do() -> None:
    of, live = pool_of(failures=5, broken_at=NOW), pool_of("live", Warmth.RUNNING, failures=5, broken_at=NOW)
    text = "pool default makes no slots since 5 of them failed without a success"
    assert _said(_crowded(of=of)) == (GateName.BREAKER, text)
    bad = place(1, of, SlotState.ERROR, error="no room")
    found = gate(order(), _crowded(bad, place(2, of), of=of))
    assert found is not None and found.text == f"{text}, the last with: no room"
    assert found.follows == "one is tried every 5 minutes; sooner: standby pools reset-breaker default"
    assert _said(_crowded(place(1, live), of=live))[0] is GateName.TURN
    assert _said(_crowded(place(1, live, SlotState.CREATING), of=live))[0] is GateName.SLOTS, "it is being tried"


def test_slots_that_are_being_made_or_of_another_template_are_told_apart_from_taken_ones() -> None:
    of = pool_of(slots_max=2)
    making = [place(1, of, SlotState.CREATING), place(2, of, SlotState.CLEANING)]
    assert _said(_crowded(*making, of=of)) == (GateName.SLOTS, "pool default is making 2 slots")
    old = [place(1, of, template="other"), place(2, of, SlotState.ERROR)]
    assert _said(_crowded(*old, of=of)) == (GateName.SLOTS, "all 2 slots of pool default are taken, 1 of them in error")


def test_idle_live_slots_count_in_the_memory_that_is_told() -> None:
    live = pool_of("live", Warmth.RUNNING)
    of = pool_of()
    house = _crowded(place(1, live), place(1, of), of=of, host=host(memory_mb=150), pools={"default": of, "live": live})
    assert _said(house) == (GateName.MEMORY, "needs 100 MB; 50 of 150 MB on host local are free")


def test_who_failed_with_deploy_timeout_is_told_what_that_is() -> None:
    ended = order(OrderState.FAILED, reason=Reason.DEPLOY_TIMEOUT)
    assert explain.what_follows(ended, None) == (
        "it could have been served, but no start came through for deploy_timeout; see the host's starts"
    )
    for name in (GateName.STARTS, GateName.IMAGE, GateName.BREAKER):
        assert explain.what_follows(order(), explain.Gate(name, "")).startswith("it ")


def test_who_waits_for_a_calm_is_told_what_was_measured_since_when_and_what_that_means() -> None:
    cause = "93% of the memory is used (limit 90%)"
    full = host(pressure=Level.CRITICAL, pressure_since=NOW - 3_600_000, pressure_cause=cause)
    shut = gate(order(), _house(host=full, measured_at=NOW))
    assert shut is not None and shut.follows is None
    assert shut.text == f"host local is under critical pressure since 3600 s ({cause}): nothing new is started"
    calming = replace(full, calm_since=NOW - 10_000, limits=PressureLimits(calm_ms=3_610_000))
    calm = gate(order(), _house(host=calming, measured_at=NOW - 30_000))
    assert calm is not None and (calm.name, calm.text) == (GateName.PRESSURE, shut.text)
    assert calm.follows == "what is measured is calm: the level ends in 3600 s if it stays so"


@pytest.mark.parametrize("measured_at", [None, NOW - 30_001])
def test_who_waits_for_a_host_that_is_not_measured_any_more_is_told_so(measured_at: int | None) -> None:
    full = host(pressure=Level.CRITICAL, pressure_since=NOW, pressure_cause="full", calm_since=NOW)
    shut = gate(order(), _house(host=full, measured_at=measured_at))
    assert shut is not None and shut.text.endswith("; nothing is measured there now, so that it stays as it is")


def test_at_warning_the_starts_that_are_left_are_told_but_a_live_slot_needs_none() -> None:
    tight = host(starts_max=4, pressure=Level.WARNING, pressure_since=NOW, pressure_cause="tight")
    of, live = pool_of(), pool_of(warmth=Warmth.RUNNING)
    begun = opened(2, commanded_at=NOW - 1_999)
    name, text = _said(_crowded(place(1, of), place(2, of), of=of, holders=(begun,), host=tight, measured_at=NOW))
    assert name is GateName.PRESSURE
    assert text.endswith("(tight): 1 of 2 starts are in flight, and they are 2 s apart")
    begun = opened(2, commanded_at=NOW - 2_000)
    later = _crowded(place(1, of), place(2, of), of=of, holders=(begun,), host=tight, measured_at=NOW)
    assert _said(later)[0] is GateName.TURN
    assert _said(_crowded(place(1, live), of=live, host=tight, measured_at=NOW))[0] is GateName.TURN


def test_an_order_of_a_closed_project_does_not_give_up() -> None:
    row = order(queue_due=NOW + 5_000)
    assert explain.gives_up_in_ms(row, _house(project=Project(name="default"))) == 5_000
    assert explain.gives_up_in_ms(row, _house(project=SHUT)) is None


def test_who_waits_for_processors_is_told_how_many_are_needed_and_free() -> None:
    of = pool(settings=PoolSettings(slots_max=2, template=Template(cpus=1.5)))
    run = order(OrderState.RUNNING, id="r", memory_mb=1)
    parts = {"pool": of, "pools": {"default": of}, "slots": [slot(1), slot(2)], "holders": {slot(2).name: run}}
    found = gate(order(), _house(**parts, host=host(cpus=2.0)))
    assert found is not None and (found.name, found.text) == (
        GateName.CPUS,
        "needs 1.5 processors; 0.5 of 2 on host local are free",
    )
    assert getattr(gate(order(), _house(**parts, host=host(cpus=3.0))), "name", None) is GateName.TURN
    own = gate(order(cpus=0.75), _house(**parts, host=host(cpus=2.0)))
    assert own is not None and own.text == "needs 0.75 processors; 0.5 of 2 on host local are free"
    assert getattr(gate(order(cpus=0.5), _house(**parts, host=host(cpus=2.0))), "name", None) is GateName.TURN


@pytest.mark.parametrize(
    ("needs", "of", "text", "free"),
    [
        ({"memory_mb": 300}, {"memory_mb": 200}, "300 MB, more than the 200 MB", 190),
        ({"memory_mb": 300}, {"memory_mb": 5}, "300 MB, more than the 5 MB", 0),
        ({"cpus": 2.0}, {"cpus": 1.0}, "2 processors, more than the 1", None),
    ],
)
def test_an_order_that_can_never_fit_says_so_also_while_all_slots_are_taken(
    needs: Any, of: Any, text: str, free: int | None
) -> None:
    run = order(OrderState.RUNNING, id="r", memory_mb=10)
    full = {"pool": pool(slots_max=1), "slots": [slot(1)], "holders": {slot(1).name: run}}
    found = gate(order(**needs), _house(**full, host=host(**of)))
    assert found is not None and (found.stuck, found.free) == (True, free)
    assert found.text == f"needs {text} that host local has in all: it can never start"
    all_ = gate(order(**{"memory_mb": 1, **of}), _house(**full, host=host(**of)))
    assert all_ is not None and all_.name is GateName.SLOTS, "all that the host has is not too much"


def test_a_pool_that_may_have_no_slots_says_so_also_while_one_is_still_being_made() -> None:
    making = [slot(1, state=SlotState.CREATING)]
    found = gate(order(), _house(pool=pool(slots_max=0), slots=making, host_slots=making))
    assert found is not None and found.stuck and "slots_max = 0" in found.text


def test_an_order_of_a_live_pool_needs_what_a_place_there_takes() -> None:
    live = pool_of(slots_max=2, warmth=Warmth.RUNNING)
    takes = live.settings.memory_mb
    parts: dict[str, Any] = {"pool": live, "pools": {"default": live}, "slots": [], "seats": False}
    for most, stuck in ((takes - 1, True), (takes, False)):
        used = order(OrderState.RUNNING, id="r", pool="other", memory_mb=1)
        other = {"other": pool("other")}
        house = _house(**{**parts, "pools": {"default": live, **other}}, host=host(memory_mb=most), holders={"x": used})
        found = gate(order(memory_mb=0), house)
        assert found is not None and (found.name, found.stuck, found.needed) == (GateName.MEMORY, stuck, takes)
