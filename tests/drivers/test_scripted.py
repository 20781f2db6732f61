"""The scripted platform: it does what it is told, fences like a keeper, and lies only on request."""

import pytest

from standby.core.errors import Refused, Unreachable
from standby.core.model import Json
from standby.drivers.contract import CommandRefused, Exit, Seen
from standby.drivers.scripted import ScriptedDriver, ScriptedPlatform
from standby.drivers.scripted_run import Copy, Script, parse, planned

from .rigs import ScriptedRig, look, place, slot_named, start_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def seats() -> ScriptedRig:
    return ScriptedRig(seats=True)


async def seen_at(rig: ScriptedRig, *times: int, **what: Json) -> list[Seen]:
    """What looks at these times after the start show."""
    slot = await place(rig.driver)
    began = rig.at
    await rig.driver.start(slot, start_of(slot, "o", rig.doing(**what)))
    result = []
    for time in times:
        rig.at = began + time
        result.append((await look(rig.driver, slot, "o-1")).seen)
    return result


@pytest.mark.parametrize("payload", ["null", "[]", "3", '{"mine": 1}', '{"script": {}}'])
async def test_a_payload_without_a_script_ends_well_at_once(payload: str) -> None:
    assert parse(payload) == Script()


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ('{"script": {"runs_ms": 5}}', "runs_ms"),
        ('{"script": {"run_ms": -5}}', "run_ms"),
        ('{"script": {"exit": "0"}}', "exit"),
        ('{"script": {"lie": "maybe"}}', "maybe"),
        ('{"script": 5}', "object"),
        ("{", "not JSON"),
    ],
)
async def test_a_mistake_in_a_script_is_refused_with_its_place(payload: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        parse(payload)


async def test_a_run_follows_its_script_by_the_clock_alone(seats: ScriptedRig) -> None:
    assert await seen_at(seats, 0, 49, 50, 149, 150, start_ms=50, run_ms=100) == [
        Seen.STARTING,
        Seen.STARTING,
        Seen.READY,
        Seen.READY,
        Seen.STOPPED,
    ]


@pytest.mark.parametrize(
    ("what", "ended"),
    [
        ({"exit": 3}, Exit(code=3, silent=True)),
        ({"exit": 3, "log": ["one line"]}, Exit(code=3)),
        ({"signal": 11}, Exit(signal=11, silent=True)),
        ({"oom": True}, Exit(signal=9, oom=True)),
        ({"start_error": "no image"}, Exit(start_error="no image")),
        ({"unknown": 1}, Exit(start_error="payload.script: Object contains unknown field `unknown`")),
    ],
)
async def test_a_run_ends_as_its_script_says(seats: ScriptedRig, what: dict[str, Json], ended: Exit) -> None:
    slot = await place(seats.driver)
    sighting = await seats.driver.start(slot, start_of(slot, "o", seats.doing(**what)))
    assert sighting.exit == ended


async def test_a_vanished_run_is_absent(seats: ScriptedRig) -> None:
    assert await seen_at(seats, 29, 30, run_ms=None, vanish_after_ms=30) == [Seen.READY, Seen.ABSENT]


async def test_a_late_report_shows_the_past(seats: ScriptedRig) -> None:
    assert await seen_at(seats, 0, 20, 59, 60, run_ms=40, report_late_ms=20) == [
        Seen.FRESH,
        Seen.READY,
        Seen.READY,
        Seen.STOPPED,
    ]


async def test_a_lie_lasts_as_long_as_the_run(seats: ScriptedRig) -> None:
    assert await seen_at(seats, 0, 10, run_ms=10, lie="absent") == [Seen.ABSENT, Seen.STOPPED]


async def test_a_lie_may_begin_later(seats: ScriptedRig) -> None:
    assert await seen_at(seats, 4, 5, 9, 10, run_ms=10, lie="unknown", lie_after_ms=5) == [
        Seen.READY,
        Seen.UNKNOWN,
        Seen.UNKNOWN,
        Seen.STOPPED,
    ]


async def test_a_start_whose_answer_is_lost_took_effect(seats: ScriptedRig) -> None:
    slot = await place(seats.driver)
    with pytest.raises(Unreachable):
        await seats.driver.start(slot, start_of(slot, "o", seats.doing(run_ms=None, unreachable_ms=100)))
    with pytest.raises(Unreachable):
        await seats.driver.unstored()
    seats.at += 100
    assert (await look(seats.driver, slot, "o-1")).seen is Seen.READY


async def test_a_deaf_run_ends_only_by_force(seats: ScriptedRig) -> None:
    slot = await place(seats.driver)
    await seats.driver.start(slot, start_of(slot, "o", seats.doing(run_ms=None, ignore_stop=True)))
    await seats.driver.stop(slot, "o-1", "scripted-1", force=False, epoch=1)
    seats.at += 1000
    assert (await look(seats.driver, slot, "o-1")).seen is Seen.READY
    await seats.driver.stop(slot, "o-1", "scripted-1", force=True, epoch=1)
    assert (await look(seats.driver, slot, "o-1")).exit == Exit(signal=9)


async def test_a_used_place_takes_no_second_run_until_it_is_made_anew() -> None:
    rig = ScriptedRig(seats=False)
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.ending(0)))
    with pytest.raises(CommandRefused, match="used before"):
        await rig.driver.start(slot, start_of(slot, "p", rig.ending(0)))
    await rig.driver.remove(slot)
    anew = await place(rig.driver)
    assert anew.incarnation != slot.incarnation
    await rig.driver.start(anew, start_of(anew, "p", rig.ending(0)))


async def test_removing_a_place_ends_what_runs_in_it_and_an_old_name_removes_nothing() -> None:
    rig = ScriptedRig(seats=False)
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    await rig.driver.remove(slot_named(slot.name, "an-older-one"))
    assert len(rig.platform.alive(rig.at)) == 1
    await rig.driver.remove(slot)
    assert (await look(rig.driver, slot, "o-1")).seen is Seen.ABSENT
    assert rig.platform.alive(rig.at) == []


async def test_a_command_delivered_late_is_refused(seats: ScriptedRig) -> None:
    slot = await place(seats.driver)
    start = start_of(slot, "o", seats.lasting())
    with pytest.raises(CommandRefused, match="too late"):
        seats.platform.start(start, slot.incarnation, until=seats.at, now=seats.at + 1)


async def test_a_new_platform_is_another_one(seats: ScriptedRig) -> None:
    slot = await place(seats.driver)
    await seats.driver.start(slot, start_of(slot, "o", seats.lasting()))
    other = ScriptedDriver(ScriptedPlatform("scripted-2"), now=lambda: seats.at)
    assert (await look(other, slot, "o-1")).seen is Seen.ABSENT


@pytest.mark.parametrize(
    "script",
    [
        Script(run_ms=None),
        Script(create_ms=2, start_ms=1, run_ms=2),
        Script(start_ms=2, start_error="no"),
        Script(run_ms=None, vanish_after_ms=4),
        Script(run_ms=None, ignore_stop=True),
    ],
)
@pytest.mark.parametrize("cut", [{}, {"asked_at": 12}, {"forced_at": 13}, {"removed_at": 10}])
async def test_a_run_is_alive_exactly_while_a_look_finds_it_starting_or_ready(
    script: Script, cut: dict[str, int]
) -> None:
    copy = Copy(
        run_id="o-1",
        order_id="o",
        incarnation="p",
        script=script,
        commanded_at=10,
        start_until=20,
        planned=planned(script, 10),
        **cut,
    )

    for at in range(8, 20):
        assert copy.alive(at) is (copy.look(at)[0] in (Seen.STARTING, Seen.READY))


async def test_ended_runs_are_forgotten_beside_a_live_one_and_nothing_is_kept_once_no_start_can_arrive(
    seats: ScriptedRig,
) -> None:
    slot, ending = await place(seats.driver), seats.doing(run_ms=0)
    for order_id, spec in {"a": ending, "b": seats.lasting(), "c": ending}.items():
        await seats.driver.start(slot, start_of(slot, order_id, spec))
    with pytest.raises(CommandRefused, match=r"still alive: b-1$"):
        await seats.driver.forget(["a-1", "b-1", "c-1", "unknown-1"])
    forgotten = seats.platform.forgotten
    assert list(seats.platform.copies) == ["b-1"]
    assert ("a-1" in forgotten, "b-1" in forgotten, "c-1" in forgotten, len(forgotten)) == (True, False, True, 2)
    seats.at += 15_001
    await seats.driver.forget([])
    assert not forgotten


async def test_a_start_of_a_forgotten_run_is_refused_for_as_long_as_it_can_arrive(seats: ScriptedRig) -> None:
    slot, ending = await place(seats.driver), seats.doing(run_ms=0)
    forgotten: list[tuple[int, str]] = []
    for step in range(40):
        await seats.driver.start(slot, start_of(slot, f"o{step}", ending))
        await seats.driver.forget([f"o{step}-1"])
        forgotten.append((seats.at, f"o{step}"))
        for at, order_id in forgotten:
            if seats.at <= at + 10_000:
                with pytest.raises(CommandRefused, match="is over and was forgotten"):
                    await seats.driver.start(slot, start_of(slot, order_id, ending))
        seats.at += 900
    assert len(seats.platform.forgotten) < 40
