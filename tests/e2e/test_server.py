"""A real server from the first order to its orderly end."""

import os
import re
import signal
import threading
from pathlib import Path

import httpx2
import pytest

from standby.core.model import EventKind
from tests.e2e.house import House, house, passed, until

SMALL = '[pools.default]\nslots_max = 2\nmemory_mb = 10\nretry_base = "50ms"\n'
SCRIPTED = (
    SMALL
    + '[hosts.local]\ndriver = "process"\n[hosts.stage]\ndriver = "scripted"\nseats = false\nrefuses_creates = 1\n'
    + '[pools.stage]\nhost = "stage"\nretry_base = "50ms"\nslots_max = 1\n'
    + '[hosts.weak]\ndriver = "scripted"\nseats = false\nrefuses_creates = 5\nstarts_max = 1\n'
    + '[pools.weak]\nhost = "weak"\nslots_max = 6\nmemory_mb = 1\n'
    + "[projects.small]\nrunning_max = 1\n"
)


def _one_pool(toml: str) -> str:
    return toml.replace("[pools.default]\n", '[pools.default]\nhost = "local"\n')


def test_an_order_submitted_over_http_runs_by_itself_and_is_seen_everywhere(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=SMALL, **keys) as home:
        home.start()
        order_id = home.submit("sh", "-c", "echo out; echo err >&2; exit 3", labels={"team": "a"}, payload={"n": 1})
        order = home.ended(order_id)
        assert (order["state"], order["reason"], order["exit_code"], order["attempt"]) == ("failed", "exit", 3, 1)
        assert sorted(home.log_lines(order_id)) == ["err", "out"]
        (run,) = home.get(f"/work-orders/{order_id}/runs")["runs"]
        assert run["exit_code"] == 3 and run["peak_memory_kb"] > 0 and run["handle"]
        kinds = [event["kind"] for event in home.get(f"/work-orders/{order_id}/events")["events"]]
        assert kinds[:2] == ["order.submitted", "order.claimed"] and kinds[-1] == "order.failed"
        metrics = httpx2.get(f"{home.url}/metrics", headers={"Authorization": f"Bearer {home.key}"}).text
        assert "standby_" in metrics
        assert httpx2.get(f"{home.url}/").status_code == 200


def test_without_hints_everything_happens_all_the_same(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=SMALL, hints=False, **keys) as home:
        home.start()
        orders = [home.submit("sh", "-c", f"exit {n % 2}") for n in range(10)]
        long = home.submit("sleep", "60")
        home.in_state(long, "running")
        home.call("POST", f"/work-orders/{long}/cancel", {})
        assert [home.ended(order_id)["exit_code"] for order_id in orders] == [0, 1] * 5
        assert home.ended(long)["state"] == "cancelled"


def test_the_same_process_goes_on_when_the_server_is_killed_and_started_again(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml=SMALL) as home:
        home.start()
        gate = tmp_path / "gate"
        order_id = home.submit("sh", "-c", f"echo $$; until [ -e {gate} ]; do sleep 0.05; done; echo bye; exit 7")
        home.in_state(order_id, "running")
        handle = _handle(home)
        home.kill()
        home.start()
        until(lambda: home.get("/hosts/local")["lease"], "somebody leads")
        assert home.order(order_id)["state"] == "running"
        assert _handle(home) == handle
        gate.touch()
        assert home.ended(order_id)["exit_code"] == 7
        assert home.log_lines(order_id) == [handle.partition(":")[0], "bye"]


def _handle(home: House) -> str:
    (slot,) = [slot for slot in home.get("/slots")["slots"] if slot["order"]]
    return str(slot["handle"])


def test_an_orderly_stop_ends_streams_resigns_and_leaves_work_running(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=SMALL, **keys) as home:
        home.start()
        order_id = home.submit("sleep", "60")
        home.in_state(order_id, "running")
        heard = threading.Event()
        following = threading.Thread(target=_follow, args=(f"{home.url}/api/v1/events/stream", home.key, heard))
        following.start()
        assert heard.wait(timeout=30)
        assert home.stop() == 0
        following.join(timeout=10)
        assert not following.is_alive()
        assert len(home.left_over()) == 1
        home.start()
        assert home.order(order_id)["state"] == "running"
        home.call("POST", f"/work-orders/{order_id}/cancel", {})
        assert home.ended(order_id)["state"] == "cancelled"
        until(lambda: not home.left_over(), "nothing is left over")


def _follow(url: str, key: str, heard: threading.Event) -> None:
    with httpx2.stream("GET", url, headers={"Authorization": f"Bearer {key}"}, timeout=30) as stream:
        heard.set()
        try:
            for _ in stream.iter_bytes():
                pass
        except httpx2.TransportError:
            return


def test_a_second_server_on_the_same_sqlite_file_is_refused(tmp_path: Path) -> None:
    with house(tmp_path / "house") as home:
        home.start()
        rival = House(tmp_path / "rival", state=home.state)
        with pytest.raises(AssertionError, match="the server ended"):
            rival.start()
        assert "already" in rival.tail() or "another" in rival.tail()
        assert "Traceback" not in rival.tail()


def test_a_secret_reaches_the_run_and_nothing_else(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml=SMALL) as home:
        home.start(env={"STANDBY_TEST_SERVERS_OWN": "server-secret"})
        text = 'test "${#TOKEN}" = 13 && test -z "$STANDBY_TEST_SERVERS_OWN"'
        order_id = home.submit("sh", "-c", text, env={"TOKEN": "hunter2-value"})
        assert home.ended(order_id)["exit_code"] == 0
        order = home.call("GET", f"/work-orders/{order_id}").text
        assert "TOKEN" in order and "hunter2" not in order
        logged = [
            line for line in home.tail().splitlines() if line.startswith("{")
        ]  # the rest is said once, to a person
        shown = home.call("GET", "/events?after=0&limit=200").text + "".join(logged)
        assert "hunter2" not in shown and home.key not in shown
        stored = b"".join(path.read_bytes() for path in home.state.glob("*.db*"))
        assert b"hunter2" not in stored


ELSEWHERE = {
    "order.extended": "tests/control/test_deploy_gate.py",
    "slot.booted": "tests/api/test_worker.py",
    "slot.cleaning": "tests/control/test_strays.py",
    "slot.stuck": "tests/e2e/test_docker_kill.py",
    "pool.backpressure": "tests/e2e/test_fairness.py",
    "project.overridden": "tests/core/test_places.py",
    "project.backpressure": "tests/api/test_limits.py",
    "host.swept": "tests/control/test_strays.py",
    "host.alarmed": "tests/control/test_strays.py",
    "host.pressure": "tests/e2e/test_pressure.py",
    "host.calming": "tests/control/test_pressure.py",
    "schedule.missed": "tests/control/test_schedules.py",
}
"""What takes hours, a resident worker, a full machine or queue, or places that vanish: where it is played."""


def test_every_kind_of_event_has_a_producer_in_the_running_server(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml=_one_pool(SCRIPTED)) as home:
        home.start()
        _broken(home)
        say = 'curl -s -H "Authorization: Bearer $STANDBY_RUN_TOKEN" -d "{}" -H "Content-Type: application/json"'
        home.ended(home.submit(script=f"{say} $STANDBY_URL/api/v1/worker/heartbeat"))
        home.ended(home.submit("no-such-command", retry={"retries": 1, "retry_on": ["start_failed"]}))
        slow = home.submit("sh", "-c", "trap '' TERM; sleep 60 & wait; sleep 60", run_timeout_s=2, stop_grace_s=10)
        home.in_state(slow, "stopping")
        home.call("POST", f"/work-orders/{slow}/cancel", {})
        home.ended(home.submit(pool="stage", command=["-"], payload={"script": {"start_ms": 300, "run_ms": 300}}))
        assert home.call("POST", "/hosts/stage/declare-dead", {"reason": "test", "confirm": "stage"}).status_code == 409
        home.submit(pool="stage", command=["-"], payload={"script": {"run_ms": None, "unreachable_ms": 4_000}})
        until(lambda: home.get("/hosts/stage")["unreachable_since"], "the platform is away")
        home.call("POST", "/pools/default/pause", {"reason": "test"})
        home.call("POST", "/pools/default/resume", {})
        assert home.call("POST", "/hosts/stage/declare-dead", {"reason": "test", "confirm": "stage"}).status_code == 200
        home.call("POST", "/hosts/stage/drain", {"reason": "test"})
        _scheduled(home)
        _unreachable(home)
        _recommanded(home)
        home.call("PATCH", "/pools/stage", {"set": {"stop_grace_s": 5}})
        gone = home.ended(home.submit("true"))["id"]
        home.call("POST", "/work-orders/purge", {"filter": {"ids": [gone]}})
        kinds = {str(kind) for kind in EventKind} - ELSEWHERE.keys()
        home.ended(slow)
        until(lambda: "slot.gone" in _kinds(home), "the drained host gave up its slots")
        assert kinds - _kinds(home) == set()


def test_the_kinds_that_are_produced_elsewhere_are_spoken_of_there() -> None:
    root = Path(__file__).parents[2]
    silent = {kind for kind, file in ELSEWHERE.items() if not _speaks((root / file).read_text(), kind)}
    assert silent == set()


def _speaks(text: str, kind: str) -> bool:
    return kind in text or re.search(rf"K(ind)?\.{kind.upper().replace('.', '_')}\b", text) is not None


def _broken(home: House) -> None:
    """Five orders on a host that makes one place at a time, and makes none: until somebody resets the breaker."""
    slowly = {"pool": "weak", "command": ["-"], "payload": {"script": {"start_ms": 500}}}
    taken = home.call("POST", "/work-orders/bulk", {"orders": [slowly] * 5}).json()["verdicts"]
    weak = [each["order"]["id"] for each in taken]
    until(lambda: home.get("/pools/weak")["broken_since"], "its breaker is open")
    home.call("POST", "/pools/weak/reset-breaker", {"reason": "mended"})
    home.ended(weak[0])


def _scheduled(home: House) -> None:
    """Everything that somebody can do to a schedule, and to a project."""
    body = {"name": "yearly", "cron": "@yearly", "order": {"command": ["true"]}}
    home.call("POST", "/schedules", body)
    home.call("PATCH", "/schedules/yearly", {"missed": "skip"})
    home.call("POST", "/schedules/yearly/pause", {"reason": "test"})
    home.ended(home.call("POST", "/schedules/yearly/run").json()["id"])
    home.call("DELETE", "/schedules/yearly")
    for verb in ("pause", "resume"):
        home.call("POST", f"/projects/default/{verb}", {"reason": "test"})


def _kinds(home: House) -> set[str]:
    return {event["kind"] for event in home.events()}


def _unreachable(home: House) -> None:
    keeper = home.keeper_pid()
    os.kill(keeper, signal.SIGSTOP)
    try:
        until(lambda: home.get("/hosts/local")["unreachable_since"], "the host is unreachable", 40)
    finally:
        os.kill(keeper, signal.SIGCONT)
    until(lambda: home.get("/hosts/local")["unreachable_since"] is None, "the host is back")


def _recommanded(home: House) -> None:
    """Kill the server between a claim and its start: freeze the keeper, so that the start cannot arrive in time."""
    for _ in range(20):
        if _killed_before_a_start(home):
            return
    raise AssertionError("the keeper was being looked at whenever it was frozen")


def _killed_before_a_start(home: House) -> bool:
    """False when the leader was looking at the keeper just then, so that it claims nothing before it answers."""
    keeper = home.keeper_pid()
    os.kill(keeper, signal.SIGSTOP)
    try:
        order_id = home.submit("true")
        waited = passed(1)
        claimed = until(lambda: home.order(order_id)["state"] == "preparing" or (waited() and "not"), "claimed or not")
        if claimed is True:
            home.kill()
            home.start()
            until(passed(1.5), "the start is too late")
    finally:
        os.kill(keeper, signal.SIGCONT)
    home.ended(order_id)
    return claimed is True
