"""Why an order waits and how long it will, asked of a real server by HTTP and by the command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2

from tests.e2e.house import Answer, House, house, until

ONE_SLOT = "[pools.default]\nslots_max = 1\nmemory_mb = 10\n"


def said(home: House, *words: str) -> str:
    """What the command line says, on one line."""
    env = {**os.environ, "STANDBY_URL": home.url, "STANDBY_KEY": home.key}
    command = [sys.executable, "-m", "standby.cli.main", *words]
    return " ".join(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split())


def test_a_waiting_order_says_who_holds_its_slot_and_when_it_starts_and_how_right_that_was(
    tmp_path: Path, engine: str | None
) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=ONE_SLOT, **keys) as home:
        home.start()
        first = home.call("POST", "/work-orders", {"command": ["true"]}).json()
        assert first["estimate"]["confidence"] == "none" and first["estimate"]["why_none"]
        for order_id in (first["id"], *(home.submit("sleep", "0.1") for _ in range(3))):
            assert home.ended(order_id)["state"] == "completed"
        gate = tmp_path / "gate"
        holder = home.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        home.in_state(holder, "running")
        waiting = home.submit("true")

        def guessed() -> Answer | None:
            found = home.get(f"/work-orders/{waiting}/why")
            return found if found["estimated_wait_ms"] is not None else None

        why = until(guessed, "what the first ones took is known")
        assert (why["gate"]["name"], why["gate"]["holders"], why["position"]) == ("slots", [holder], 1)
        assert why["estimate"]["low_ms"] <= why["estimated_wait_ms"] <= why["estimate"]["high_ms"]
        text = said(home, "orders", "why", waiting)
        assert f"held by {holder}" in text and "a poor guess)" in text
        last = home.call("POST", "/work-orders", {"command": ["true"]}).json()
        assert last["estimate"]["confidence"] == "poor"
        gate.touch()
        for order_id in (holder, waiting, last["id"]):
            assert home.ended(order_id)["state"] == "completed"
        until(lambda: home.get("/pools/default")["estimates"], "how right it was is known")
        assert "within their range" in said(home, "pools", "show", "default")
        metrics = httpx2.get(f"{home.url}/metrics", headers={"Authorization": f"Bearer {home.key}"}, timeout=30).text
        assert 'standby_wait_estimate_error_seconds_count{pool="default"}' in metrics


def test_an_order_is_told_to_wait_for_its_turn_and_not_for_another_projects_whole_queue(
    tmp_path: Path, engine: str | None
) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=ONE_SLOT, **keys) as home:
        home.start()
        for _ in range(4):
            home.ended(home.submit("sleep", "0.1"))
        gate = tmp_path / "gate"
        holder = home.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        home.in_state(holder, "running")
        crowd = [{"project": "crowd", "command": ["true"]}] * 60
        home.call("POST", "/work-orders/bulk", {"orders": crowd})
        waiting = home.submit("true")

        def ahead() -> float | None:
            """How much longer the last of the crowd is told to wait."""
            first = home.get(f"/work-orders/{waiting}/why")["estimated_wait_ms"]
            last = home.get("/work-orders?project=crowd&limit=1")["orders"][0]["id"]
            later = home.get(f"/work-orders/{last}/why")
            assert later["position"] == 60
            return later["estimated_wait_ms"] - first if first is not None else None

        assert until(ahead, "what the first ones took is known") > 50 * 100
        gate.touch()
        assert home.ended(waiting)["state"] == "completed"


def test_where_a_label_tells_how_long_runs_take_estimates_go_by_it_and_the_command_line_says_so(
    tmp_path: Path, engine: str | None
) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml="[pools.default]\nslots_max = 4\nmemory_mb = 10\n", **keys) as home:
        home.start()
        kinds = [("quick", ["true"]), ("slow", ["sleep", "1"])]
        orders = [{"labels": {"kind": kind}, "command": command} for kind, command in kinds for _ in range(10)]
        for each in home.call("POST", "/work-orders/bulk", {"orders": orders}).json()["verdicts"]:
            home.ended(each["order"]["id"])

        def told() -> Answer | None:
            found = home.get("/pools/default")["lengths"]
            return found if found and found["count"] == 20 else None

        runs = until(told, "all lengths are known")
        assert runs["label"] == "kind"
        assert runs["usual_ms_by_label"]["quick"] < runs["usual_ms_by_label"]["slow"]
        assert re.search(r"runs take .* kind=quick: \S+ m?s kind=slow: \S+ m?s", said(home, "pools", "show", "default"))


def test_an_order_of_a_paused_pool_says_that_nothing_happens_by_itself(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml=ONE_SLOT) as home:
        home.start()
        until(lambda: home.get("/hosts/local")["lease"], "somebody leads the host")
        home.call("POST", "/pools/default/pause", {"reason": "lunch"})
        waiting = home.submit("true")
        why = home.get(f"/work-orders/{waiting}/why")
        assert (why["gate"]["name"], why["gate"]["stuck"]) == ("pool_mode", True)
        said_why = r"pool default is paused by admin for \d+ s \(lunch\): resume it to go on"
        assert re.fullmatch(said_why, why["estimate"]["why_none"])
        assert "next nothing happens by itself; it goes on when somebody resumes" in said(
            home, "orders", "why", waiting
        )
        home.call("POST", "/pools/default/resume", {})
        assert home.ended(waiting)["state"] == "completed"
