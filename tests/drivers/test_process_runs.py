"""What a process run gets, and that nothing of it stays."""

import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from standby.core.errors import Unreachable
from standby.core.model import Slot, Spec
from standby.drivers.contract import Exit, Seen, Sighting
from standby.drivers.keeper import kernel
from standby.drivers.keeper.memory import Memory
from standby.drivers.process import ProcessDriver

from .rigs import ProcessRig, alive, look, now_ms, pid_in, place, script, start_of, until, wait_for

pytestmark = pytest.mark.anyio

DAEMON = 'trap "" TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600'


@pytest.fixture(params=["auto", "off"])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessRig]:
    """A keeper with control groups (where they can be had) and one without."""
    rig = ProcessRig(tmp_path / "host", cgroups=request.param)
    await rig.driver.open()
    yield rig
    await rig.end()


async def run(rig: ProcessRig, spec: Spec, **env: str) -> tuple[Slot, Exit]:
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", spec, env=env))
    ended: Sighting = await wait_for(rig, rig.driver, slot, "o-1")
    assert ended.exit is not None
    return slot, ended.exit


async def output(rig: ProcessRig) -> list[str]:
    (piece,) = await rig.driver.logs({"o-1": ""})
    return [line.text for line in piece.lines]


async def read_pid(path: Path) -> int:
    await until(path.exists)
    return read_int(path)


async def test_the_servers_secrets_are_not_in_a_runs_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDBY_SECRET_KEY", "hush")
    monkeypatch.setenv("SEEN_BY_ALL", "yes")
    rig = ProcessRig(tmp_path / "host")
    rig.driver = ProcessDriver(rig.directory, now=now_ms, env_allow=("PATH", "SEEN_BY_ALL"), disk_reserve_mb=1)
    await rig.driver.open()
    await run(rig, script("env"), MINE="also")
    env = dict(line.split("=", 1) for line in await output(rig))
    keepers = kernel.environ_of(rig.keeper_pid())
    assert keepers is not None
    assert env["SEEN_BY_ALL"] == "yes"
    assert env["MINE"] == "also"
    assert env["STANDBY_RUN_ID"] == "o-1"
    assert "hush" not in str(env)
    assert b"hush" not in keepers
    await rig.driver.close()
    await rig.end()


async def test_an_order_cannot_pretend_to_be_another_run(keeper: ProcessRig) -> None:
    await run(keeper, script("echo $STANDBY_RUN_ID $STANDBY_NONCE"), STANDBY_RUN_ID="other", STANDBY_NONCE="mine")
    (line,) = await output(keeper)
    assert line.startswith("o-1 ")
    assert not line.endswith("mine")


async def test_a_run_finds_its_payload_in_a_file(keeper: ProcessRig) -> None:
    await run(keeper, Spec(order_id="o", script="cat $STANDBY_PAYLOAD_FILE", payload='{"meeting": "Zürich"}'))
    assert await output(keeper) == ['{"meeting": "Zürich"}']


async def test_a_run_works_in_a_directory_of_its_own_with_no_open_files(keeper: ProcessRig) -> None:
    # counted by the shell alone: a pipe to another command would be open in it for a moment
    count = "n=0; for fd in /proc/$$/fd/*; do [ -e $fd ] && n=$((n + 1)); done; echo $n"
    await run(keeper, script(f"pwd; ls; {count}; readlink /proc/$$/fd/0"))
    folder, *rest = await output(keeper)
    assert folder.endswith("runs/o-1/work")
    assert rest == ["4", "/dev/null"]  # 0, 1, 2 and the script itself


async def test_a_script_with_an_interpreter_line_is_run_by_it(keeper: ProcessRig) -> None:
    await run(keeper, script(f"#!{sys.executable} -IS\nprint(6 * 7)"))
    assert await output(keeper) == ["42"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Spec(order_id="o", command=("no-such-thing",)), "no such command: no-such-thing"),
        (Spec(order_id="o", command=("/etc/passwd",)), "Permission denied"),
        (Spec(order_id="o", script="#!/no/such/interpreter\n"), "interpreter"),
        (Spec(order_id="o", command=("/bin/echo", "a\0b")), "null"),
    ],
)
async def test_what_cannot_be_executed_is_a_start_error(keeper: ProcessRig, spec: Spec, words: str) -> None:
    _, ended = await run(keeper, spec)
    assert ended.start_error is not None
    assert words in ended.start_error
    assert ended.retryable is False  # it would be no better another time


async def test_the_signal_that_ended_a_run_is_recorded(keeper: ProcessRig) -> None:
    _, ended = await run(keeper, script("kill -SEGV $$"))
    assert (ended.code, ended.signal) == (None, signal.SIGSEGV)


async def test_peak_memory_and_cpu_time_are_recorded(keeper: ProcessRig) -> None:
    work = "import time; data = b'x' * 60_000_000\nwhile time.process_time() < 0.1: pass"
    _, ended = await run(keeper, Spec(order_id="o", command=(sys.executable, "-IS", "-c", work)))
    assert ended.peak_memory_kb is not None
    assert 60_000 < ended.peak_memory_kb < 200_000
    assert ended.cpu_ms is not None
    assert 100 <= ended.cpu_ms < 5_000


@pytest.mark.parametrize("how", ["setsid", "env -i setsid"])
async def test_a_double_forked_child_is_gone_when_its_run_is_stopped(host: ProcessRig, how: str) -> None:
    """Also one that left the session and cleared its environment."""
    pid_file = host.directory / "daemon"
    daemon = DAEMON.format(pid=pid_file)
    _, ended = await run(host, script(f"({how} sh -c '{daemon}' > /dev/null 2>&1 &)\n{wait_until(pid_file)}\nexit 5"))
    assert ended.code == 5
    assert not alive(await read_pid(pid_file))


async def test_asking_reaches_the_whole_tree_once_and_force_ends_the_deaf(host: ProcessRig) -> None:
    pid_file, slot = host.directory / "daemon", await place(host.driver)
    assert slot.incarnation is not None
    daemon = DAEMON.format(pid=pid_file)
    text = f"""
        trap 'echo asked' TERM
        (setsid sh -c '{daemon}' > /dev/null 2>&1 &)
        {wait_until(pid_file)}
        echo ready
        while :; do sleep 0.05; done
        """
    await host.driver.start(slot, start_of(slot, "o", script(textwrap.dedent(text))))
    await until(lambda: (host.directory / "runs/o-1/stdout").read_text() == "ready\n")
    for _ in range(3):
        await host.driver.stop(slot, "o-1", slot.incarnation, force=False, epoch=1)
    await until(lambda: (host.directory / "runs/o-1/stdout").read_text() == "ready\nasked\n")
    assert (await look(host.driver, slot, "o-1")).seen is Seen.READY
    await host.driver.stop(slot, "o-1", slot.incarnation, force=True, epoch=1)
    ended = await wait_for(host, host.driver, slot, "o-1")
    assert ended.exit is not None
    assert ended.exit.signal == signal.SIGKILL
    assert (host.directory / "runs/o-1/stdout").read_text() == "ready\nasked\n"


async def test_the_tree_of_a_run_is_ended_by_the_next_keeper_too(host: ProcessRig) -> None:
    pid_file, slot = host.directory / "daemon", await place(host.driver)
    assert slot.incarnation is not None
    daemon = DAEMON.format(pid=pid_file)
    started = await host.driver.start(
        slot, start_of(slot, "o", script(f"(setsid sh -c '{daemon}' > /dev/null 2>&1 &)\nexec sleep 600"))
    )
    await until(pid_file.exists)
    await host.kill_keeper()
    server = host.another_driver()
    await server.stop(slot, "o-1", slot.incarnation, force=True, epoch=1)
    await wait_for(host, server, slot, "o-1")
    assert not alive(await read_pid(pid_file))
    assert not alive(pid_in(started.handle))


async def test_another_runs_daemon_is_left_alone(host: ProcessRig) -> None:
    pid_file, slot = host.directory / "daemon", await place(host.driver)
    daemon = DAEMON.format(pid=pid_file)
    text = f"(env -i setsid sh -c '{daemon}' > /dev/null 2>&1 &)\nexec sleep 600"
    await host.driver.start(slot, start_of(slot, "other", script(text)))
    await until(pid_file.exists)
    await run(host, script("(sleep 600 &) ; exit 0"))
    assert alive(await read_pid(pid_file))


async def test_orphans_that_end_early_leave_no_zombies(keeper: ProcessRig) -> None:
    pid_file, slot = keeper.directory / "orphan", await place(keeper.driver)
    text = f"(sh -c 'echo $$ > {pid_file}' &)\nexec sleep 600"
    await keeper.driver.start(slot, start_of(slot, "o", script(text)))
    pid = await read_pid_when_whole(pid_file)
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


async def read_pid_when_whole(path: Path) -> int:
    await until(lambda: path.exists() and path.read_text().endswith("\n"))
    return read_int(path)


def read_int(path: Path) -> int:
    return int(path.read_text())


def wait_until(path: Path) -> str:
    return f"until [ -e {path} ]; do sleep 0.02; done"


async def test_a_server_variable_that_is_no_text_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", os.fsdecode(b"\xff\xfe"))
    driver = ProcessDriver(tmp_path, now=now_ms)
    assert "LANG" not in driver._env
    assert "PATH" in driver._env


GREEDY = [sys.executable, "-c", "import time; held = bytearray(200 << 20); print('held', flush=True); time.sleep(600)"]


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[ProcessRig]:
    """A keeper that holds runs to their memory."""
    probe = Memory(f"standby-probe-{os.getpid()}")
    if probe.make("any", 64) is None:
        pytest.skip("this machine lets us make no group that limits memory")
    probe.remove_all()
    rig = ProcessRig(tmp_path / "host", cgroups="limit")
    await rig.driver.open()
    yield rig
    await rig.end()


async def test_a_run_that_takes_more_memory_than_it_declared_is_killed_and_that_is_told_apart(
    limited: ProcessRig,
) -> None:
    slot = await place(limited.driver)
    greedy = Spec(order_id="any", command=tuple(GREEDY))
    await limited.driver.start(slot, start_of(slot, "greedy", greedy, memory_mb=64))
    await limited.driver.start(slot, start_of(slot, "killed", script("kill -9 $$"), memory_mb=64))
    ended = await wait_for(limited, limited.driver, slot, "greedy-1")
    killed = await wait_for(limited, limited.driver, slot, "killed-1")
    assert ended.exit is not None and killed.exit is not None
    assert (ended.exit.oom, ended.exit.signal) == (True, signal.SIGKILL)
    assert (killed.exit.oom, killed.exit.signal) == (False, signal.SIGKILL)
    assert ended.exit.peak_memory_kb is not None and 32 << 10 < ended.exit.peak_memory_kb <= 64 << 10


async def test_a_run_within_its_memory_is_left_alone_and_its_peak_is_that_of_its_whole_tree(
    limited: ProcessRig,
) -> None:
    slot = await place(limited.driver)
    tree = script(f"{sys.executable} -c 'held = bytearray(40 << 20)' & wait; exit 3")
    await limited.driver.start(slot, start_of(slot, "fits", tree, memory_mb=128))
    ended = await wait_for(limited, limited.driver, slot, "fits-1")
    assert ended.exit is not None
    assert (ended.exit.oom, ended.exit.code) == (False, 3)
    assert ended.exit.peak_memory_kb is not None and ended.exit.peak_memory_kb > 40 << 10


async def test_a_keeper_that_was_killed_still_tells_that_memory_was_the_reason(limited: ProcessRig) -> None:
    slot = await place(limited.driver)
    wait = (
        f"while [ ! -e {limited.directory}/go ]; do sleep 0.01; done; exec {sys.executable} {limited.directory}/eat.py"
    )
    (limited.directory / "eat.py").write_text("held = bytearray(200 << 20)")
    await limited.driver.start(slot, start_of(slot, "o", script(wait), memory_mb=64))
    await limited.kill_keeper()
    await limited.wait(_answers(limited))
    (limited.directory / "go").touch()
    ended = await wait_for(limited, limited.driver, slot, "o-1")
    assert ended.exit is not None and ended.exit.oom


def _answers(rig: ProcessRig) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        try:
            await rig.driver.identity()
        except Unreachable:
            return False
        return True

    return check
