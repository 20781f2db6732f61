"""The keeper with real processes: whoever dies, the work and what is known of it survive."""

import contextlib
import os
import platform
import signal
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from standby.core.errors import Unreachable
from standby.drivers.contract import CommandRefused, Seen
from standby.drivers.keeper import kernel
from standby.drivers.process import ProcessDriver

from .rigs import ProcessRig, alive, look, now_ms, open_run, pid_in, place, script, start_of, until, wait_for

pytestmark = pytest.mark.anyio

PIDFD_TELLS_EXIT = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)


@pytest.fixture
async def strangers() -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Processes that a test starts beside the keeper; ended and reaped with it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


async def test_the_keeper_outlives_its_server_and_is_nobodys_child(keeper: ProcessRig) -> None:
    proc = kernel.read_proc(keeper.keeper_pid())
    assert proc is not None
    assert proc.sid != os.getsid(0)
    assert proc.ppid != os.getpid()
    await keeper.driver.close()
    assert alive(keeper.keeper_pid())


async def test_a_second_keeper_leaves_at_once(keeper: ProcessRig) -> None:
    pid = await keeper.driver.keeper_pid()
    folder = Path(kernel.__file__).parent
    command = ["python3", "-I", "-S", str(folder), str(keeper.directory), "/proc/sys/kernel/random/boot_id"]
    assert (await anyio.run_process(command, check=False)).returncode == 3
    assert await keeper.another_driver().keeper_pid() == pid


async def test_only_its_user_may_talk_to_the_keeper(keeper: ProcessRig) -> None:
    assert stat.S_IMODE((keeper.directory / "keeper.sock").stat().st_mode) == 0o600
    assert stat.S_IMODE(keeper.directory.stat().st_mode) == 0o700


async def test_a_directory_with_a_very_long_path_has_a_keeper_too(tmp_path: Path) -> None:
    rig = ProcessRig(tmp_path / ("d" * 100) / ("e" * 100))
    await rig.driver.open()
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.ending(2)))
    await wait_for(rig, rig.driver, slot, "o-1")
    await rig.end()


async def test_the_keeper_is_small(keeper: ProcessRig) -> None:
    status = kernel.read_bytes(f"/proc/{keeper.keeper_pid()}/status")
    assert int(status.partition(b"VmRSS:")[2].split()[0]) <= 16 * 1024


async def test_a_dead_keeper_is_replaced_and_keeps_its_identity(keeper: ProcessRig) -> None:
    identity = await keeper.driver.identity()
    await keeper.kill_keeper()
    assert await keeper.another_driver().identity() == identity


async def test_a_keeper_that_keeps_dying_is_not_started_in_a_storm(keeper: ProcessRig) -> None:
    server = ProcessDriver(keeper.directory, now=now_ms, launch_gap_s=3600)
    await keeper.kill_keeper()
    await server.open()
    await keeper.kill_keeper()
    with pytest.raises(Unreachable):
        await server.identity()
    with pytest.raises(Unreachable, match="a moment ago"):
        await server.open()


async def test_a_frozen_keeper_is_unreachable(keeper: ProcessRig) -> None:
    server = ProcessDriver(keeper.directory, now=now_ms, timeout_s=2)
    await server.open()
    os.kill(keeper.keeper_pid(), signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable):
            await server.unstored()
    finally:
        os.kill(keeper.keeper_pid(), signal.SIGCONT)
        await server.close()


async def test_a_run_survives_the_death_of_the_keeper_and_its_exit_is_still_seen(keeper: ProcessRig) -> None:
    slot, go = await place(keeper.driver), keeper.directory / "go"
    await keeper.driver.start(slot, start_of(slot, "o", script(f"until [ -e {go} ]; do sleep 0.02; done; exit 7")))
    handle = (await look(keeper.driver, slot, "o-1")).handle
    await keeper.kill_keeper()
    server = keeper.another_driver()
    again = await look(server, slot, "o-1")
    assert (again.seen, again.handle) == (Seen.READY, handle)
    go.touch()
    sighting = await wait_for(keeper, server, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.code == 7 if PIDFD_TELLS_EXIT else sighting.exit.code == 7 or sighting.exit.lost


async def test_a_run_that_ends_while_no_keeper_lives_is_over_and_its_exit_is_lost(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    pid = pid_in((await keeper.driver.start(slot, start_of(slot, "o", keeper.lasting()))).handle)
    await keeper.driver.close()
    await keeper.kill_keeper()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: kernel.read_proc(pid) is None)
    sighting = await wait_for(keeper, keeper.another_driver(), slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.lost


async def test_an_end_that_was_noted_survives_the_keeper(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    await keeper.driver.start(slot, start_of(slot, "o", keeper.ending(9)))
    before = await wait_for(keeper, keeper.driver, slot, "o-1")
    await keeper.kill_keeper()
    assert (await look(keeper.another_driver(), slot, "o-1")).exit == before.exit


async def test_a_run_is_spawned_once_however_often_it_is_started(keeper: ProcessRig) -> None:
    slot, count = await place(keeper.driver), keeper.directory / "count"
    start = start_of(slot, "o", script(f"echo x >> {count}"))
    servers = [keeper.driver, keeper.another_driver(), keeper.another_driver()]
    async with anyio.create_task_group() as group:
        for server in servers * 3:
            group.start_soon(server.start, slot, start)
    await wait_for(keeper, keeper.driver, slot, "o-1")
    await keeper.kill_keeper()
    again = await keeper.another_driver().start(slot, start)
    assert again.seen is Seen.STOPPED
    assert count.read_text() == "x\n"


async def test_a_keeper_killed_in_the_middle_of_starts_tells_the_truth_afterwards(keeper: ProcessRig) -> None:
    slot, count = await place(keeper.driver), keeper.directory / "count"
    count.touch()
    run_ids = [f"o{number}-1" for number in range(400)]

    async def start(number: int) -> None:
        with contextlib.suppress(Unreachable):
            await keeper.driver.start(slot, start_of(slot, f"o{number}", script(f"echo o{number}-1 >> {count}")))

    async with anyio.create_task_group() as group:
        for number in range(len(run_ids)):
            group.start_soon(start, number)
        await until(lambda: count.read_text().count("\n") >= 20)
        await keeper.kill_keeper()
    server = keeper.another_driver()

    async def settled() -> bool:
        return all(s.seen is not Seen.READY for s in await server.observe([open_run(slot, r) for r in run_ids]))

    await keeper.wait(settled)
    ran = count.read_text().split()
    for sighting in await server.observe([open_run(slot, run_id) for run_id in run_ids]):
        times = ran.count(sighting.run_id)
        assert times <= 1
        assert times == 0 or sighting.seen is Seen.STOPPED
        assert sighting.exit is None or sighting.exit.code is None or times == 1
    assert len(ran) < len(run_ids)


async def test_the_highest_epoch_survives_the_keeper(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    assert slot.incarnation is not None
    await keeper.driver.stop(slot, "any-1", slot.incarnation, force=False, epoch=9)
    await keeper.kill_keeper()
    with pytest.raises(CommandRefused, match="epoch"):
        await keeper.another_driver().start(slot, start_of(slot, "o", keeper.lasting(), epoch=8))


async def test_an_intent_without_a_process_is_lost_and_never_spawned(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    await keeper.kill_keeper()
    keeper.append_to_journal({"k": "run", "r": "o-1", "n": "0123456789abcdef", "e": 1, "cg": None})
    sighting = await wait_for(keeper, keeper.another_driver(), slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.lost
    again = await keeper.driver.start(slot, start_of(slot, "o", keeper.lasting()))
    assert again.seen is Seen.STOPPED


async def test_an_intent_whose_process_was_spawned_is_adopted(
    keeper: ProcessRig, strangers: list[subprocess.Popen[bytes]]
) -> None:
    slot, nonce = await place(keeper.driver), os.urandom(16).hex()
    await keeper.kill_keeper()
    keeper.append_to_journal({"k": "run", "r": "o-1", "n": nonce, "e": 1, "cg": None})
    strangers.append(
        subprocess.Popen(["/bin/sleep", "600"], env={"STANDBY_NONCE": nonce}, start_new_session=True)  # noqa: ASYNC220
    )
    server = keeper.another_driver()
    sighting = await look(server, slot, "o-1")
    assert sighting.seen is Seen.READY
    assert pid_in(sighting.handle) == strangers[0].pid
    strangers[0].kill()  # it stays a zombie until the test ends, and a zombie is not alive
    ended = await wait_for(keeper, server, slot, "o-1")
    assert ended.exit is not None
    assert ended.exit.signal == signal.SIGKILL


async def test_a_reused_pid_fools_nobody(keeper: ProcessRig, strangers: list[subprocess.Popen[bytes]]) -> None:
    slot = await place(keeper.driver)
    await keeper.kill_keeper()
    strangers.append(subprocess.Popen(["/bin/sleep", "600"], start_new_session=True))  # noqa: ASYNC220
    pid = strangers[0].pid
    keeper.append_to_journal(
        {"k": "run", "r": "o-1", "n": "f" * 32, "e": 1, "cg": None}, {"k": "up", "r": "o-1", "pid": pid, "st": 1}
    )
    server = keeper.another_driver()
    assert slot.incarnation is not None
    await server.stop(slot, "o-1", slot.incarnation, force=True, epoch=1)
    sighting = await wait_for(keeper, server, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.lost
    assert alive(pid)


async def test_after_a_reboot_every_open_run_is_over_and_lost(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("first\n")
    rig = ProcessRig(tmp_path / "host", cgroups="off", boot_id_path=str(boot))
    await rig.driver.open()
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "ended", rig.ending(4)))
    await wait_for(rig, rig.driver, slot, "ended-1")
    pid = pid_in((await rig.driver.start(slot, start_of(slot, "open", rig.lasting()))).handle)
    await rig.kill_keeper()
    boot.write_text("second\n")
    server = rig.another_driver()
    ended, opened = await look(server, slot, "ended-1"), await look(server, slot, "open-1")
    assert ended.exit is not None
    assert ended.exit.code == 4
    assert opened.exit is not None
    assert opened.exit.lost
    os.kill(pid, signal.SIGKILL)  # the reboot was only pretended
    await rig.end()


async def test_a_torn_last_line_of_the_journal_is_dropped(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    await keeper.driver.start(slot, start_of(slot, "o", keeper.ending(6)))
    before = await wait_for(keeper, keeper.driver, slot, "o-1")
    await keeper.kill_keeper()
    with (keeper.directory / "journal").open("a") as journal:
        journal.write('{"k":"run","r":"torn-1","n":"0')
    server = keeper.another_driver()
    assert (await look(server, slot, "o-1")).exit == before.exit
    assert (await look(server, slot, "torn-1")).seen is Seen.FRESH


@pytest.mark.parametrize("damage", ["missing", "garbled"])
async def test_a_lost_journal_means_another_keeper_and_nothing_left_alive(keeper: ProcessRig, damage: str) -> None:
    slot = await place(keeper.driver)
    pid = pid_in((await keeper.driver.start(slot, start_of(slot, "o", keeper.lasting()))).handle)
    await keeper.kill_keeper()
    journal = keeper.directory / "journal"
    if damage == "missing":
        journal.unlink()
    else:
        journal.write_text("what is this?\n" + journal.read_text())
    server = keeper.another_driver()
    assert await server.identity() != slot.incarnation
    assert (await look(server, slot, "o-1")).seen is Seen.ABSENT
    assert not alive(pid)


async def test_the_journal_stays_short_when_runs_are_forgotten(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    run_ids = [f"o{number}-1" for number in range(40)]
    for number in range(40):
        await keeper.driver.start(slot, start_of(slot, f"o{number}", script("#" * 10)))
    for run_id in run_ids:
        await wait_for(keeper, keeper.driver, slot, run_id)
    await keeper.driver.forget(run_ids)
    await keeper.kill_keeper()
    await keeper.another_driver().open()
    records = (keeper.directory / "journal").read_text().splitlines()
    assert not [line for line in records if '"k":"run"' in line]
    assert list((keeper.directory / "runs").iterdir()) == []
    assert not list((keeper.directory / "trash").glob("*"))


async def test_a_directory_serves_again_only_if_its_run_left_nothing_in_it(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    texts = {"tidy": "echo secret", "messy": "echo secret > left", "sly": "rmdir ../work; ln -s / ../work"}
    for name, text in texts.items():
        await keeper.driver.start(slot, start_of(slot, name, script(text)))
        await wait_for(keeper, keeper.driver, slot, f"{name}-1")
    await keeper.driver.forget([f"{name}-1" for name in texts])
    assert len(list((keeper.directory / "spare").iterdir())) == 1
    await keeper.driver.start(slot, start_of(slot, "next", script("find .. -type f | sort; ls -A")))
    await wait_for(keeper, keeper.driver, slot, "next-1")
    assert list((keeper.directory / "spare").iterdir()) == []
    left = (keeper.directory / "runs/next-1/stdout").read_text().splitlines()
    assert left == ["../script", "../stderr", "../stdout"]


async def test_starts_are_refused_below_the_disk_reserve_and_can_be_repeated(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    with pytest.raises(CommandRefused, match="disk"):
        await keeper.another_driver(disk_reserve_mb=1 << 40).start(slot, start_of(slot, "o", keeper.lasting()))
    assert (await look(keeper.driver, slot, "o-1")).seen is Seen.FRESH
    assert (await keeper.driver.start(slot, start_of(slot, "o", keeper.lasting()))).seen is Seen.READY


async def test_a_run_id_that_is_a_path_is_refused(keeper: ProcessRig) -> None:
    slot = await place(keeper.driver)
    with pytest.raises(CommandRefused, match="id"):
        await keeper.driver.start(slot, start_of(slot, "../../escape", keeper.lasting()))


async def test_a_change_wakes_whoever_watches(keeper: ProcessRig) -> None:
    slot, server = await place(keeper.driver), keeper.another_driver()
    await server.open()
    changes = server.changes()
    await keeper.driver.start(slot, start_of(slot, "o", keeper.ending(0)))
    with anyio.fail_after(20):
        while (await look(server, slot, "o-1")).seen is not Seen.STOPPED:
            await anext(changes)
    await changes.aclose()
