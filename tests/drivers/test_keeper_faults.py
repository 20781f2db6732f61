"""A keeper in trouble: a full disk, no more open files, work that breaks what is around it."""

import asyncio
import contextlib
import errno
import os
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from standby.core.errors import Unreachable
from standby.core.model import Json, Slot, Spec
from standby.drivers.contract import Exit, Seen
from standby.drivers.keeper import kernel, log
from standby.drivers.keeper.wire import LINE_MAX
from standby.drivers.keeper_link import KeeperLink
from standby.drivers.process import BOOT_ID_PATH, ProcessDriver

from .rigs import ProcessRig, alive, look, now_ms, pid_in, place, script, start_of, until, wait_for
from .test_keeper import PIDFD_TELLS_EXIT

pytestmark = pytest.mark.anyio


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[ProcessRig]:
    """A keeper without control groups, so that its journal's records are of known length."""
    rig = ProcessRig(tmp_path / "host", cgroups="off")
    await rig.driver.open()
    yield rig
    await rig.end()


@contextlib.contextmanager
def limited(pid: int, kind: int, soft: int) -> Iterator[None]:
    """The keeper meets a real shortage, which passes."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


def full_disk(rig: ProcessRig, room: int = 0) -> contextlib.AbstractContextManager[None]:
    """No file of the keeper can grow, or its journal only by so many bytes."""
    size = (rig.directory / "journal").stat().st_size + room if room else 0
    return limited(rig.keeper_pid(), resource.RLIMIT_FSIZE, size)


def no_more_open_files(rig: ProcessRig) -> contextlib.AbstractContextManager[None]:
    pid = rig.keeper_pid()
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return limited(pid, resource.RLIMIT_NOFILE, next(fd for fd in range(len(used) + 1) if fd not in used))


def waiting_for(go: Path, code: int) -> Spec:
    """Work for which the keeper needs no file of its own."""
    return Spec(order_id="any", command=("/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; exit {code}"))


async def exit_of(rig: ProcessRig, slot: Slot, run_id: str) -> Exit:
    sighting = await wait_for(rig, rig.driver, slot, run_id)
    assert sighting.exit is not None
    return sighting.exit


async def answers(rig: ProcessRig, slot: Slot, run_id: str) -> list[Seen]:
    """Two looks: whatever was to be done when the first was asked has been tried before the second is answered."""
    return [(await look(rig.driver, slot, run_id)).seen for _ in range(2)]


async def test_a_full_disk_delays_the_news_of_an_end_and_does_not_kill_the_keeper(host: ProcessRig) -> None:
    slot, go, keeper = await place(host.driver), host.directory / "go", host.keeper_pid()
    run = await host.driver.start(slot, start_of(slot, "o", waiting_for(go, 3)))
    with full_disk(host):
        go.touch()
        await until(lambda: not alive(pid_in(run.handle)))
        assert await answers(host, slot, "o-1") == [Seen.READY, Seen.READY]
    assert (await exit_of(host, slot, "o-1")).code == 3
    assert host.keeper_pid() == keeper


async def test_a_record_that_did_not_fit_leaves_nothing_in_the_journal(host: ProcessRig) -> None:
    slot, go = await place(host.driver), host.directory / "go"
    run = await host.driver.start(slot, start_of(slot, "o", waiting_for(go, 3)))
    with full_disk(host, room=5):
        go.touch()
        await until(lambda: not alive(pid_in(run.handle)))
        await answers(host, slot, "o-1")
    assert (await exit_of(host, slot, "o-1")).code == 3
    await host.kill_keeper()
    assert (await look(host.another_driver(), slot, "o-1")).seen is Seen.STOPPED


async def test_an_end_that_cannot_be_written_is_tried_again_calmly(host: ProcessRig) -> None:
    slot, go, pid = await place(host.driver), host.directory / "go", host.keeper_pid()
    run = await host.driver.start(slot, start_of(slot, "o", waiting_for(go, 0)))
    with full_disk(host):
        go.touch()
        await until(lambda: not alive(pid_in(run.handle)))
        await answers(host, slot, "o-1")
        before, began = switches(pid), now_ms()
        await until(lambda: now_ms() - began > 700)
        assert switches(pid) - before <= (now_ms() - began) / 140
    await wait_for(host, host.driver, slot, "o-1")


def switches(pid: int) -> int:
    """How often the process has slept."""
    return int(kernel.read_bytes(f"/proc/{pid}/status").partition(b"voluntary_ctxt_switches:")[2].split()[0])


def test_logging_never_fails_and_a_fault_is_told_once_a_minute(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 1000.0
    monkeypatch.setattr(log, "_now", lambda: at)
    for at in (1000.0, 1001.0, 1059.0, 1061.0):  # noqa: B007 - read by the clock
        log.fault("a test's fault")
    assert capfd.readouterr().err.count("a test's fault") == 2

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.say("to nobody")


async def test_a_keeper_that_cannot_write_its_journal_anew_goes_on_with_the_old_one(host: ProcessRig) -> None:
    slot, go = await place(host.driver), host.directory / "go"
    await host.driver.start(slot, start_of(slot, "o", waiting_for(go, 7)))
    await host.kill_keeper()
    with (host.directory / "journal").open("a") as journal:
        journal.write('{"k":"run","r":"torn-1","n":"0')
    (host.directory / "journal.new").mkdir()
    server = host.another_driver()
    assert (await look(server, slot, "o-1")).seen is Seen.READY
    go.touch()
    ended = await exit_of(host, slot, "o-1")
    assert ended.code == 7 or (ended.lost and not PIDFD_TELLS_EXIT)
    await host.kill_keeper()
    (host.directory / "journal.new").rmdir()
    assert (await look(host.another_driver(), slot, "o-1")).exit == ended


async def test_a_first_keeper_that_cannot_write_its_journal_is_unreachable_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "journal.new").mkdir()
    rig = ProcessRig(tmp_path)
    server = ProcessDriver(tmp_path, now=now_ms, launch_gap_s=0)
    with pytest.raises(Unreachable, match="could not start"):
        await server.open()
    (tmp_path / "journal.new").rmdir()
    await server.open()
    await server.close()
    await rig.end()


async def test_a_start_that_failed_is_over_as_soon_as_that_can_be_written(host: ProcessRig) -> None:
    slot = await place(host.driver)
    intent = len('{"k":"run","r":"o-1","n":"","e":1,"cg":null}\n') + 32
    with full_disk(host, room=intent + 5):
        await host.driver.start(slot, start_of(slot, "o", host.unstartable()))
        assert await answers(host, slot, "o-1") == [Seen.READY, Seen.READY]
    assert "no such command" in str((await exit_of(host, slot, "o-1")).start_error)


async def test_a_run_that_could_not_be_held_at_once_is_not_forgotten(host: ProcessRig) -> None:
    slot, go, keeper = await place(host.driver), host.directory / "go", host.keeper_pid()
    with no_more_open_files(host):
        assert (await host.driver.start(slot, start_of(slot, "o", waiting_for(go, 7)))).seen is Seen.READY
        assert await answers(host, slot, "o-1") == [Seen.READY, Seen.READY]
    go.touch()
    assert (await exit_of(host, slot, "o-1")).code == 7
    assert host.keeper_pid() == keeper


async def test_a_run_that_could_not_be_held_can_be_stopped(host: ProcessRig) -> None:
    slot = await place(host.driver)
    assert slot.incarnation is not None
    with no_more_open_files(host):
        await host.driver.start(slot, start_of(slot, "o", host.lasting()))
    await host.driver.stop(slot, "o-1", slot.incarnation, force=True, epoch=1)
    assert (await exit_of(host, slot, "o-1")).signal == 9


async def test_an_end_without_a_free_file_waits_and_does_not_kill_the_keeper(host: ProcessRig) -> None:
    slot, go, keeper = await place(host.driver), host.directory / "go", host.keeper_pid()
    run = await host.driver.start(slot, start_of(slot, "o", waiting_for(go, 7)))
    with no_more_open_files(host):
        go.touch()
        await until(lambda: not alive(pid_in(run.handle)))
        await answers(host, slot, "o-1")
    assert (await exit_of(host, slot, "o-1")).code == 7
    assert host.keeper_pid() == keeper


async def test_a_keeper_whose_runs_directory_was_removed_makes_it_again(host: ProcessRig) -> None:
    slot, keeper = await place(host.driver), host.keeper_pid()
    (host.directory / "spare").rmdir()
    (host.directory / "runs").rmdir()
    await host.driver.start(slot, start_of(slot, "o", host.ending(4)))
    assert (await exit_of(host, slot, "o-1")).code == 4
    assert host.keeper_pid() == keeper


async def test_a_directory_that_cannot_be_made_is_a_start_error(host: ProcessRig) -> None:
    slot, keeper = await place(host.driver), host.keeper_pid()
    (host.directory / "runs").rmdir()
    (host.directory / "runs").symlink_to("nowhere")
    await host.driver.start(slot, start_of(slot, "o", host.ending(4)))
    assert "cannot start the run" in str((await exit_of(host, slot, "o-1")).start_error)
    assert host.keeper_pid() == keeper
    (host.directory / "runs").unlink()


async def test_what_the_keeper_cannot_make_sense_of_fails_that_question_only(host: ProcessRig) -> None:
    slot = await place(host.driver)
    link = KeeperLink(host.directory, {}, BOOT_ID_PATH, 10, 1)
    wire = await link.ready()
    with pytest.raises(Unreachable, match="could not do it"):
        await wire.ask("list", {})
    order: dict[str, Json] = {"run_id": "o-1", "epoch": 1, "until": kernel.boottime() + 5}
    await wire.ask("start", {**order, "cgroups": False, "disk_reserve_mb": 0})
    assert wire.is_open
    assert (await exit_of(host, slot, "o-1")).start_error is not None
    link.close()


def test_a_process_that_may_not_be_seen_is_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    read = kernel.read_bytes

    def hidden(path: str) -> bytes:
        if path == "/proc/1/stat":
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path)

    monkeypatch.setattr(kernel, "read_bytes", hidden)
    assert kernel.read_proc(1) is None
    assert os.getpid() in kernel.all_procs()


@pytest.mark.parametrize("trick", ["mkfifo ../stdout", "mkdir ../stdout", "ln -s /etc/passwd ../stdout"])
async def test_what_a_run_makes_of_its_output_files_does_not_touch_the_output_of_others(
    host: ProcessRig, trick: str
) -> None:
    slot = await place(host.driver)
    await host.driver.start(slot, start_of(slot, "bad", script(f"rm ../stdout; {trick}; echo oops >&2")))
    await host.driver.start(slot, start_of(slot, "good", host.printing("hello")))
    await exit_of(host, slot, "bad-1")
    await exit_of(host, slot, "good-1")
    async with asyncio.timeout(10):
        bad, good = await host.driver.logs({"bad-1": "", "good-1": ""})
    assert ([line.text for line in bad.lines], bad.closed) == (["oops"], True)
    assert ([line.text for line in good.lines], good.closed) == (["hello"], True)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.EACCES])
async def test_a_keeper_that_cannot_be_launched_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    with pytest.raises(Unreachable, match=os.strerror(number)):
        await ProcessDriver(tmp_path / "host", now=now_ms).open()


async def test_a_directory_that_cannot_be_opened_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unreachable, match="Not a directory"):
        await ProcessDriver(tmp_path / "file" / "host", now=now_ms).open()
    with pytest.raises(Unreachable, match="Not a directory"):
        await ProcessDriver(tmp_path / "file", now=now_ms).identity()


async def test_an_order_too_large_for_the_keeper_cannot_start_and_disturbs_nobody(host: ProcessRig) -> None:
    slot, spec = await place(host.driver), Spec(order_id="any", command=("true",), payload=f'"{"x" * LINE_MAX}"')
    async with asyncio.TaskGroup() as group:
        large = group.create_task(host.driver.start(slot, start_of(slot, "large", spec)))
        other = group.create_task(look(host.driver, slot, "other-1"))
    assert other.result().seen is Seen.FRESH
    assert (large.result().seen, large.result().incarnation) == (Seen.STOPPED, slot.incarnation)
    assert large.result().exit is not None
    assert "payload" in str(large.result().exit)
    assert list(await host.driver.unstored()) == []


async def test_a_large_order_within_the_limit_starts(host: ProcessRig) -> None:
    slot, payload = await place(host.driver), f'"{"x" * (LINE_MAX - 4096)}"'
    spec = Spec(order_id="any", script="wc -c < $STANDBY_PAYLOAD_FILE", payload=payload)
    await host.driver.start(slot, start_of(slot, "o", spec))
    assert (await exit_of(host, slot, "o-1")).code == 0
    (piece,) = await host.driver.logs({"o-1": ""})
    assert piece.lines[0].text.strip() == str(len(payload))


async def test_a_keeper_whose_socket_was_removed_listens_again(host: ProcessRig) -> None:
    keeper, socket = host.keeper_pid(), host.directory / "keeper.sock"
    await host.driver.close()
    socket.unlink()
    await until(socket.exists)
    server = host.another_driver()
    assert await server.keeper_pid() == keeper


async def test_a_keeper_that_lost_its_lock_leaves_the_socket_to_the_next_one(host: ProcessRig) -> None:
    first = host.keeper_pid()
    await host.driver.close()
    (host.directory / "keeper.lock").unlink()
    (host.directory / "keeper.sock").unlink()
    second = await host.another_driver().keeper_pid()
    assert second != first
    await until(lambda: not alive(first))
    assert await host.another_driver().keeper_pid() == second
