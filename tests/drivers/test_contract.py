"""What every driver promises, proved for each of them."""

import anyio
import pytest
from msgspec.structs import replace

from standby.drivers.contract import CommandRefused, Driver, Logs, Seen

from .rigs import LogsRig, Rig, ended_when_asked, look, open_run, place, start_of, wait_for

pytestmark = pytest.mark.anyio


async def test_a_driver_keeps_the_protocols(rig: Rig) -> None:
    driver: Driver = rig.driver
    assert driver.lag_ms >= 0
    await driver.open()


@pytest.mark.needs("logs")
async def test_a_driver_whose_runs_have_output_gives_it(rig: Rig) -> None:
    assert isinstance(rig.driver, Logs)


async def test_the_same_platform_has_one_identity_for_all_servers(rig: Rig) -> None:
    assert await rig.driver.identity() == await rig.another_driver().identity()


async def test_creating_the_same_place_twice_makes_one(rig: Rig) -> None:
    assert (await place(rig.driver)).incarnation == (await place(rig.driver)).incarnation


async def test_a_run_that_was_never_started_is_fresh(rig: Rig) -> None:
    slot = await place(rig.driver)
    sighting = await look(rig.driver, slot, "never-1")
    assert sighting.seen is Seen.FRESH
    assert sighting.exit is None


async def test_a_run_in_a_place_of_another_platform_is_absent(rig: Rig) -> None:
    run = open_run(replace(await place(rig.driver), incarnation="of-another"), "never-1")
    (sighting,) = await rig.driver.observe([run])
    assert sighting.seen is Seen.ABSENT


async def test_a_start_in_a_place_of_another_platform_is_refused(rig: Rig) -> None:
    slot = replace(await place(rig.driver), incarnation="of-another")
    with pytest.raises(CommandRefused):
        await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))


async def test_a_started_run_becomes_ready_and_has_a_handle(rig: Rig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    sighting = await wait_for(rig, rig.driver, slot, "o-1", Seen.READY)
    assert sighting.handle


async def test_an_ended_run_is_stopped_with_its_exit_code(rig: Rig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.ending(7)))
    sighting = await wait_for(rig, rig.driver, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.code == 7


async def test_what_cannot_begin_is_stopped_with_a_start_error(rig: Rig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.unstartable()))
    sighting = await wait_for(rig, rig.driver, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.start_error is not None
    assert "no such" in sighting.exit.start_error or not rig.says_why


async def test_a_sighting_carries_the_time_at_which_it_was_asked(rig: Rig) -> None:
    slot = await place(rig.driver)
    first = await rig.driver.start(slot, start_of(slot, "o", rig.ending(0)))
    last = await wait_for(rig, rig.driver, slot, "o-1")
    assert first.asked_at <= last.asked_at


async def test_the_same_run_id_twice_is_one_copy_and_tells_of_the_first(rig: Rig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    ready = await wait_for(rig, rig.driver, slot, "o-1", Seen.READY)
    again = await rig.another_driver().start(slot, start_of(slot, "o", rig.ending(1), valid_for_ms=0))
    assert (again.seen, again.handle) == (ready.seen, ready.handle)


async def test_an_ended_run_is_not_started_again(rig: Rig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.ending(3)))
    await wait_for(rig, rig.driver, slot, "o-1")
    again = await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    assert again.seen is Seen.STOPPED
    assert again.exit is not None
    assert again.exit.code == 3


async def test_a_late_start_is_refused_and_leaves_nothing(rig: Rig) -> None:
    slot = await place(rig.driver)
    with pytest.raises(CommandRefused, match="too late"):
        await rig.driver.start(slot, start_of(slot, "o", rig.lasting(), valid_for_ms=-5))
    assert (await look(rig.driver, slot, "o-1")).seen is Seen.FRESH


@pytest.mark.needs("epochs")
async def test_a_lower_epoch_may_neither_start_nor_stop(rig: Rig) -> None:
    slot = await place(rig.driver)
    assert slot.incarnation is not None
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting(), epoch=5))
    other = await place(rig.driver, "seat-2")
    with pytest.raises(CommandRefused, match="epoch"):
        await rig.driver.start(other, start_of(other, "p", rig.lasting(), epoch=4))
    with pytest.raises(CommandRefused, match="epoch"):
        await rig.driver.stop(slot, "o-1", slot.incarnation, force=True, epoch=4)
    await wait_for(rig, rig.driver, slot, "o-1", Seen.READY)


@pytest.mark.needs("exits")
async def test_an_asked_run_ends_by_a_signal(rig: Rig) -> None:
    slot = await place(rig.driver)
    assert slot.incarnation is not None
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    await wait_for(rig, rig.driver, slot, "o-1", Seen.READY)
    sighting = await ended_when_asked(rig, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.signal == 15


@pytest.mark.needs("exits")
async def test_a_forced_run_is_killed(rig: Rig) -> None:
    slot = await place(rig.driver)
    assert slot.incarnation is not None
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    await rig.driver.stop(slot, "o-1", slot.incarnation, force=True, epoch=1)
    sighting = await wait_for(rig, rig.driver, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.signal == 9


async def test_stopping_what_is_not_there_is_success(rig: Rig) -> None:
    slot = await place(rig.driver)
    assert slot.incarnation is not None
    await rig.driver.stop(slot, "never-1", slot.incarnation, force=True, epoch=1)
    await rig.driver.stop(slot, "never-1", "of-another", force=False, epoch=1)


async def test_removing_a_place_twice_is_success(rig: Rig) -> None:
    slot = await place(rig.driver)
    await rig.driver.remove(slot)
    await rig.driver.remove(slot)


async def test_work_goes_on_when_the_server_leaves(rig: Rig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    ready = await wait_for(rig, rig.driver, slot, "o-1", Seen.READY)
    await rig.driver.close()
    next_server = rig.another_driver()
    await next_server.open()
    assert (await look(next_server, slot, "o-1")).handle == ready.handle


async def test_each_named_run_gets_one_sighting_in_order(rig: Rig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    names = ["a-1", "o-1", "b-1"]
    assert [s.run_id for s in await rig.driver.observe([open_run(slot, name) for name in names])] == names


@pytest.mark.needs("logs")
async def test_output_is_given_once_line_by_line_and_then_closed(rig: LogsRig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.printing("one", "two")))
    texts: list[str] = []
    cursor = ""
    with anyio.fail_after(20):
        closed = False
        while not closed:
            (piece,) = await rig.driver.logs({"o-1": cursor})
            texts += [line.text for line in piece.lines]
            cursor, closed = piece.cursor, piece.closed
            if not closed:
                await wait_for(rig, rig.driver, slot, "o-1")
    assert texts == ["one", "two"]
    (after,) = await rig.driver.logs({"o-1": cursor})
    assert (list(after.lines), after.closed) == ([], True)


@pytest.mark.needs("logs", "memory")
async def test_a_run_is_kept_until_it_is_forgotten_and_never_started_again(rig: LogsRig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.ending(0)))
    await wait_for(rig, rig.driver, slot, "o-1")
    assert list(await rig.driver.unstored()) == ["o-1"]
    await rig.driver.forget(["o-1"])
    assert list(await rig.driver.unstored()) == []
    assert (await look(rig.driver, slot, "o-1")).seen is Seen.ABSENT
    with pytest.raises(CommandRefused, match="forgotten"):
        await rig.driver.start(slot, start_of(slot, "o", rig.ending(0)))


@pytest.mark.needs("logs")
async def test_forgetting_refuses_live_runs_and_keeps_them(rig: LogsRig) -> None:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    with pytest.raises(CommandRefused, match="o-1"):
        await rig.driver.forget(["o-1", "unknown-1"])
    assert list(await rig.driver.unstored()) == ["o-1"]
