"""What a look at all places says: what is gone, and what belongs to nobody."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import strays
from standby.core.model import OrderState, SlotState, Warmth
from standby.core.sighting import Place
from tests.core.test_gate import CREATED, opened, place, pool_of, room
from tests.rows import NOW

LATER = NOW + strays.STRAY_GAP_MS
OLD = NOW - strays.STRAY_AGE_MS


def found(incarnation: str, slot: str = "standby-pool-old-001", **columns: Any) -> Place:
    base: dict[str, Any] = {"usable": True, "made_at": OLD, "asked_at": NOW}
    return Place(slot=slot, incarnation=incarnation, **{**base, **columns})


def test_an_idle_slot_whose_place_is_not_in_two_lists_is_gone() -> None:
    idle = place(1, CREATED, state_since=NOW - 1_000)
    at = room(CREATED, slots=[idle])
    first = strays.compare(at, [], NOW, {}, 0)
    assert (first.vanished, first.suspects) == ([], {"default#1": NOW})
    second = strays.compare(at, [], NOW + 1, first.suspects, 0)
    assert (second.vanished, second.suspects) == ([(idle, "its place is gone")], {})
    sound = found("default#2", "standby-pool-default-002")
    two = room(CREATED, slots=[place(2, CREATED), idle])
    assert strays.compare(two, [sound], NOW + 1, first.suspects, 0).vanished == [(idle, "its place is gone")]
    back = strays.compare(at, [found("default#1", idle.name)], NOW + 1, first.suspects, 0)
    assert (back.vanished, back.suspects) == ([], {})


def test_a_place_that_is_seen_unable_to_serve_is_believed_at_once() -> None:
    idle = place(1, CREATED)
    spoilt = found("default#1", idle.name, usable=False)
    result = strays.compare(room(CREATED, slots=[idle]), [spoilt], NOW, {}, 0)
    assert result.vanished == [(idle, "its place cannot serve any more")]


def test_a_list_asked_before_the_slot_could_be_in_it_says_nothing() -> None:
    new = place(1, CREATED, state_since=NOW - 500)
    at = room(CREATED, slots=[new])
    assert strays.compare(at, [], NOW, {"default#1": 1}, 500).vanished == []
    assert len(strays.compare(at, [], NOW + 1, {"default#1": 1}, 500).vanished) == 1


@pytest.mark.parametrize("state", [state for state in SlotState if state is not SlotState.IDLE])
def test_only_idle_slots_that_nobody_holds_and_that_are_things_can_be_gone(state: SlotState) -> None:
    suspects = {"default#1": 1}
    assert strays.compare(room(CREATED, slots=[place(1, CREATED, state)]), [], NOW, suspects, 0).vanished == []
    idle = place(1, CREATED)
    held: list[dict[str, Any]] = [{"opened": [opened(1)]}, {"ending": [opened(1)]}]
    for run in held:
        assert strays.compare(room(CREATED, slots=[idle], **run), [], NOW, suspects, 0).vanished == []
    cold = pool_of(warmth=Warmth.COLD)
    assert strays.compare(room(cold, slots=[place(1, cold)]), [], NOW, suspects, 0).vanished == []


def test_a_stray_is_seen_twice_and_old_before_it_goes() -> None:
    stray = found("lost#1")
    at = room(CREATED, slots=[place(1, CREATED)])
    mine = found("default#1", "standby-pool-default-001")
    first = strays.compare(at, [stray, mine], NOW, {}, 0)
    assert (first.strays, first.suspects) == ([], {"lost#1": NOW})
    early = strays.compare(at, [stray, mine], LATER - 1, first.suspects, 0)
    assert (early.strays, early.suspects) == ([], {"lost#1": NOW})
    assert strays.compare(at, [stray, mine], LATER, early.suspects, 0).strays == [stray]
    young = replace(stray, made_at=LATER - strays.STRAY_AGE_MS + 1)
    assert strays.compare(at, [young, mine], LATER, first.suspects, 0).strays == []
    grown = replace(stray, made_at=LATER - strays.STRAY_AGE_MS)
    assert strays.compare(at, [grown, mine], LATER, first.suspects, 0).strays == [grown]


def test_what_a_slot_or_a_run_knows_is_no_stray() -> None:
    suspects = dict.fromkeys(("a", "b", "c"), 0)
    listed = [found(name, "standby-pool-default-001") for name in suspects]
    run = opened(2, OrderState.RUNNING, slot="elsewhere", incarnation="b", handle="c")
    slots = [place(1, CREATED, incarnation="a")]
    either: list[dict[str, Any]] = [{"opened": [run]}, {"ending": [run]}]
    for runs in either:
        assert strays.compare(room(CREATED, slots=slots, **runs), listed, LATER, suspects, 0).strays == []
    assert strays.compare(room(CREATED, slots=slots), listed, LATER, suspects, 0).strays == listed[1:]


def test_a_broken_slot_shields_nothing_that_was_left_under_its_name() -> None:
    broken = place(1, CREATED, SlotState.ERROR)
    at = room(CREATED, slots=[broken])
    left = found("left#7", broken.name)
    known = found("default#1", broken.name)
    assert strays.compare(at, [left, known], LATER, {"left#7": NOW, "default#1": NOW}, 0).strays == [left]


@pytest.mark.parametrize("state", list(SlotState))
def test_while_a_slot_is_made_or_taken_away_nothing_under_its_name_is_a_stray(state: SlotState) -> None:
    other = found("other", "standby-pool-default-001")
    at = room(CREATED, slots=[place(1, CREATED, state)])
    result = strays.compare(at, [other], LATER, {"other": 0}, 0)
    assert result.strays == ([other] if state in (SlotState.IDLE, SlotState.ERROR) else [])
    held = replace(at, opened=[opened(1)])
    assert strays.compare(held, [other], LATER, {"other": 0}, 0).strays == []


@pytest.mark.parametrize(
    ("count", "all_", "swept"), [(3, 3, 3), (4, 4, 0), (4, 19, 0), (4, 20, 4), (5, 24, 0), (5, 25, 5)]
)
def test_a_sweep_of_more_than_a_fifth_refuses(count: int, all_: int, swept: int) -> None:
    slots = [place(number, CREATED) for number in range(all_ - count)]
    listed = [found(f"lost#{number}") for number in range(count)]
    listed += [found(f"default#{number}", slot.name) for number, slot in enumerate(slots)]
    suspects = {f"lost#{number}": 0 for number in range(count)}
    result = strays.compare(room(CREATED, slots=slots), listed, LATER, suspects, 0)
    assert (len(result.strays), result.refused, result.vanished) == (swept, 0 if swept else count, [])
    assert result.suspects == suspects
