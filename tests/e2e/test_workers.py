"""Real workers and a real server: the client, a program in shell, the socket, and what they do when nobody answers."""

import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import standby.worker
from standby.seal import Seal
from tests.e2e.house import Answer, House, house, until

ROOT = Path(__file__).parents[2]
POOL = """
[hosts.local]
[pools.default]
host = "local"
[hosts.far]
driver = "scripted"
seats = false
[pools.bots]
host = "far"
slots_max = 1
worker = true
warmth = "running"
stop_grace = "5s"
"""
PROGRAM = """
import sys, time
from worker import Failed, Worker

def meet(job):
    job.progress(0.5, "half of it")
    if job.payload == "nobody":
        raise Failed("NoSuchMeeting", "nobody is there", retryable=False)
    if job.payload == "wait":
        job.stopping.wait()
        sys.exit(7)
    return {"met": job.payload}

Worker().run(meet)
"""


class Home:
    """A server whose pool has one slot, and a place for its worker."""

    def __init__(self, server: House, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.socket = Path(server.state / "worker" / "api.sock")
        self._served: set[int] = set()

    def env(self, *, by_socket: bool = False) -> Mapping[str, str]:
        """What the platform would give to the worker of what is being made in the slot now."""
        seal = Seal(bytes.fromhex((self.server.state / "seal.key").read_text()))
        slot = until(self._made, "a slot waits for its worker")
        token = seal.slot_token(slot["name"], slot["generation"])
        reach = {"STANDBY_SOCKET": str(self.socket)} if by_socket else {"STANDBY_URL": self.server.url}
        return {"PATH": os.environ["PATH"], "STANDBY_SLOT_TOKEN": token, **reach}

    @contextmanager
    def worker(self, *argv: str, env: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
        """A worker as a process of its own."""
        process = subprocess.Popen(argv, env=env, cwd=self.directory, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            finally:
                process.kill()

    def _made(self) -> Answer | None:
        """The slot, when it is of a generation that had no worker yet."""
        slots = self.server.get("/slots?pool=bots")["slots"]
        if not slots or slots[0]["state"] not in ("creating", "cleaning") or slots[0]["generation"] in self._served:
            return None
        self._served.add(slots[0]["generation"])
        slot: Answer = slots[0]
        return slot


@contextmanager
def at_home(directory: Path, toml: str = POOL, **keys: str) -> Iterator[Home]:
    with house(directory, toml=toml, **keys) as server:
        server.start()
        yield Home(server, directory)


@pytest.fixture
def home(short_path: Path) -> Iterator[Home]:
    with at_home(short_path) as found:
        yield found


def test_the_client_runs_what_each_order_says_and_leaves_when_its_slot_is_made_anew(home: Home) -> None:
    marks = home.directory / "marks"
    script = (
        f'echo "$MARK $STANDBY_RUN_ID $(cat $STANDBY_PAYLOAD_FILE) ${{STANDBY_SLOT_TOKEN:-none}}" > {marks}; exit 3'
    )
    first = home.server.submit(pool="bots", script=script, env={"MARK": "secret"}, payload={"a": 1})
    second = home.server.submit("true", pool="bots")
    with home.worker(sys.executable, "-m", "standby.worker", env=home.env(by_socket=True)) as worker:
        order = home.server.ended(first)
        assert (order["state"], order["exit_code"], order["reason"]) == ("failed", 3, "exit")
        assert marks.read_text() == f'secret {first}-1 {{"a": 1}} none\n'
        assert worker.wait(timeout=30) == 0
    with home.worker(sys.executable, "-m", "standby.worker", "--", "sh", "-c", "exit 4", env=home.env()):
        assert home.server.ended(second)["exit_code"] == 4


def test_what_an_order_writes_in_a_resident_worker_is_its_output_and_nobody_elses(home: Home) -> None:
    many = 3_000
    loud = f"i=0; while [ $i -lt {many} ]; do echo $i; i=$((i+1)); done; echo err >&2; printf last"
    order_id = home.server.submit("sh", "-c", loud, pool="bots")
    with home.worker(sys.executable, "-m", "standby.worker", env=home.env(by_socket=True)):
        home.server.ended(order_id)
    found: list[Answer] = []
    closed = False
    while not closed:
        page = home.server.get(f"/work-orders/{order_id}/logs?from={len(found)}&limit=10000")
        found += page["lines"]
        closed = page["closed"]
    out = [line["text"] for line in found if line["stream"] == "stdout"]
    assert out == [*map(str, range(many)), "last"]
    assert [line["text"] for line in found if line["stream"] == "stderr"] == ["err"]


def test_work_is_handed_over_with_either_database(short_path: Path, engine: str | None) -> None:
    with at_home(short_path, **({} if engine is None else {"database": engine})) as home:
        ids = [home.server.submit("sh", "-c", f"exit {code}", pool="bots") for code in (3, 0)]
        for _ in ids:
            with home.worker(sys.executable, "-m", "standby.worker", env=home.env()) as worker:
                assert worker.wait(timeout=60) == 0
        assert [home.server.ended(order_id)["exit_code"] for order_id in ids] == [3, 0]


def test_one_file_is_enough_and_progress_results_and_errors_are_seen(home: Home) -> None:
    shutil.copy(standby.worker.__file__, home.directory / "worker.py")
    (home.directory / "bot.py").write_text(PROGRAM)
    argv = (sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(home.directory)!r}); import bot")

    well = home.server.submit("-", pool="bots", payload="us")
    with home.worker(*argv, env=home.env()):
        order = home.server.ended(well)
    assert (order["state"], order["worker"]["result"]) == ("completed", {"met": "us"})
    assert (order["worker"]["progress"], order["worker"]["text"]) == (0.5, "half of it")

    badly = home.server.submit("-", pool="bots", payload="nobody")
    with home.worker(*argv, env=home.env()):
        order = home.server.ended(badly)
    assert (order["state"], order["reason"]) == ("failed", "error")
    assert order["worker"]["error"] == {"name": "NoSuchMeeting", "text": "nobody is there", "retryable": False}
    (run,) = home.server.get(f"/work-orders/{badly}/runs")["runs"]
    assert (run["error_name"], run["error"]) == ("NoSuchMeeting", "nobody is there")

    stopped = home.server.submit("-", pool="bots", payload="wait")
    with home.worker(*argv, env=home.env()):
        home.server.in_state(stopped, "running")
        home.server.call("POST", f"/work-orders/{stopped}/cancel")
        order = home.server.ended(stopped)
    assert (order["state"], order["exit_code"]) == ("cancelled", 7)


@pytest.mark.parametrize("by_socket", [False, True])
def test_a_worker_in_shell_and_curl_works(home: Home, by_socket: bool) -> None:
    seen = home.directory / "seen"
    order_id = home.server.submit("-", pool="bots", payload={"link": "x"})
    argv = ("sh", str(ROOT / "examples" / "worker.sh"), "sh", "-c", f"cat > {seen}; exit 5")
    with home.worker(*argv, env=home.env(by_socket=by_socket)) as worker:
        assert home.server.ended(order_id)["exit_code"] == 5
        assert f'"run_id":"{order_id}-1"' in seen.read_text()
        assert worker.wait(timeout=30) == 0


def test_a_cancelled_order_is_stopped_by_the_worker_in_shell(home: Home) -> None:
    order_id = home.server.submit("-", pool="bots")
    argv = ("sh", str(ROOT / "examples" / "worker.sh"), "sleep", "600")
    with home.worker(*argv, env=home.env()):
        home.server.in_state(order_id, "running")
        home.server.call("POST", f"/work-orders/{order_id}/cancel")
        order = home.server.ended(order_id)
    assert (order["state"], order["exit_code"]) == ("cancelled", 143)


def test_the_meeting_bots_of_the_example_go_through_all_their_words(short_path: Path) -> None:
    view = runpy.run_path(str(ROOT / "examples" / "meeting-bots" / "view.py"))["bot"]
    policy = 'retry_errors = ["LobbyTimeout"]\nretries = 1\nretry_base = "10ms"\n'
    with at_home(short_path, POOL + policy) as home:
        argv = (sys.executable, str(ROOT / "examples" / "meeting-bots" / "bot.py"))
        meetings = [{"meeting": f"https://meet.example/{name}", "minutes": 3} for name in ("abc", "nobody", "lobby")]
        ids = [home.server.submit("bot", pool="bots", payload=meeting) for meeting in meetings]
        waiting = home.server.order(ids[1])
        assert (view(waiting)["status"], view(waiting)["queue_position"]) == ("QUEUED", 2)
        for _ in range(4):  # three bots, and the second try of one
            with home.worker(*argv, env=home.env()) as worker:
                worker.wait(timeout=30)
        done, nobody, lobby = (view(home.server.ended(order_id)) for order_id in ids)
        assert (done["status"], done["result"]) == ("DONE", {"heard_minutes": 3, "left_early": False})
        assert (nobody["status"], nobody["why"]) == ("FATAL", "there is no meeting at 'https://meet.example/nobody'")
        assert (lobby["status"], lobby["why"]) == ("FATAL", "nobody let the bot in")
        assert [home.server.order(order_id)["attempt"] for order_id in ids] == [1, 1, 2]


def test_the_socket_serves_workers_and_nobody_else(home: Home) -> None:
    asked = [
        subprocess.run(
            ["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", "--unix-socket", home.socket, f"http://x/{path}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for path in ("api/v1/worker/assignment", "api/v1/work-orders", "", "healthz")
    ]
    assert asked == ["401", "404", "404", "404"]
    assert home.socket.stat().st_mode & 0o777 == 0o666
    assert home.socket.parent.stat().st_mode & 0o777 == 0o755


def test_a_worker_that_fences_itself_ends_with_all_its_work_when_nobody_answers(short_path: Path) -> None:
    with at_home(short_path, POOL + 'silence = "2s"\n') as home:
        pid_file = home.directory / "pid"
        script = f"(setsid sh -c 'echo $$ > {pid_file}; exec sleep 600' &) ; exec sleep 600"
        order_id = home.server.submit(pool="bots", script=script)
        with home.worker(sys.executable, "-m", "standby.worker", env=home.env()) as worker:
            home.server.in_state(order_id, "running")
            left = until(lambda: (pid_file.exists() and pid_file.read_text().strip()) or None, "it has begun")
            home.server.send(signal.SIGSTOP)
            try:
                assert worker.wait(timeout=30) == 75
                assert not Path(f"/proc/{left}").exists()
            finally:
                home.server.send(signal.SIGCONT)


def test_a_process_run_tells_its_progress_and_the_name_of_its_error(home: Home) -> None:
    say = 'curl -s -H "Authorization: Bearer $STANDBY_RUN_TOKEN" -H "Content-Type: application/json" -d'
    said = '{"error":{"name":"OutOfDate","text":"by itself","retryable":false}}'
    url = "$STANDBY_URL/api/v1/worker"
    script = f"""{say} '{{"progress":0.25}}' {url}/heartbeat; {say} '{said}' {url}/result; exit 9"""
    order = home.server.ended(home.server.submit(script=script))
    assert (order["state"], order["reason"], order["exit_code"]) == ("failed", "error", 9)
    assert (order["worker"]["progress"], order["worker"]["error"]["name"]) == (0.25, "OutOfDate")
