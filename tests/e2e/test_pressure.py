"""A real server whose host is measured full: it says so everywhere, takes nothing new, and goes on after the calm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2

from tests.e2e.house import House, house, until

HOST = """
[hosts.stage]
driver = "scripted"
pressure_calm = "1s"
reading_file = "{reading}"
[pools.default]
host = "stage"
slots_max = 10
memory_mb = 1
"""


def _says(path: Path, available_mb: int) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"memory_total_mb": 1_000, "memory_available_mb": available_mb}))
    draft.replace(path)


def _command(home: House, *words: str) -> str:
    env = {**os.environ, "STANDBY_URL": home.url, "STANDBY_KEY": home.key, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-m", "standby.cli.main", *words], env=env, capture_output=True, check=True)
    return done.stdout.decode()


def test_a_full_host_takes_nothing_new_says_why_and_goes_on_after_the_calm(tmp_path: Path, engine: str | None) -> None:
    reading = tmp_path / "reading.json"
    _says(reading, 70)
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=HOST.format(reading=reading), **keys) as home:
        home.start()
        until(lambda: home.get("/hosts/stage")["pressure"] == "critical", "the host is full")
        waiting = home.submit(command=["-"])
        gate = home.in_state(waiting, "pending")["gate"]
        assert gate["name"] == "pressure" and "93% of the memory is used (limit 90%)" in gate["text"]
        host = home.get("/hosts/stage")
        assert (host["measured"], host["reading"]["memory_available_mb"]) == (True, 70)
        assert "critical for" in _command(home, "hosts") and "pressure" in _command(home, "orders", "why", waiting)
        text = httpx2.get(f"{home.url}/metrics", headers={"Authorization": f"Bearer {home.key}"}).text
        assert 'standby_host_pressure{host="stage"} 2.0' in text
        assert 'standby_host_memory_used_ratio{host="stage"} 0.93' in text
        assert home.order(waiting)["state"] == "pending"
        _says(reading, 900)
        assert home.ended(waiting)["state"] == "completed"
        levels = [each["data"]["host"]["pressure"] for each in home.events() if each["kind"] == "host.pressure"]
        assert levels[:2] == ["critical", "warning"]


BUSY = """
[hosts.local]
cpus = 1
[pools.default]
slots_max = 10
memory_mb = 1
cpus = 0.6
"""


def test_processors_are_counted_and_a_pool_that_takes_more_memory_than_it_declares_is_pointed_out(
    tmp_path: Path,
) -> None:
    with house(tmp_path / "house", toml=BUSY) as home:
        home.start()
        first = home.submit(
            sys.executable, "-S", "-c", "taken = bytearray(b'x') * (20 << 20); import time; time.sleep(600)"
        )
        home.in_state(first, "running")
        second = home.submit("true")
        gate = until(lambda: home.order(second)["gate"], "it waits")
        assert (gate["name"], gate["text"]) == ("cpus", "needs 0.6 processors; 0.4 of 1 on host local are free")
        assert "0.6 of 1" in _command(home, "hosts", "show", "local")
        small = _command(home, "submit", "--project", "other", "--cpus", "0.4", "--", "true").strip()
        assert home.ended(small)["state"] == "completed", "it takes less than its pool says"
        assert " cpus 0.4 " in " ".join(_command(home, "orders", "show", small).split())
        home.call("POST", f"/work-orders/{first}/cancel", {})
        assert home.ended(second)["state"] == "completed"
        until(lambda: (home.get("/pools/default")["peaks"] or {}).get("most_mb", 0) > 20, "it is pointed out")
        assert "runs took more memory than declared" in _command(home, "pools")
