"""The example's meeting bots on a (fake) Coolify: the flow that Standby was made for, with a real server."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.coolify_fake import TOKEN, Container, FakeCoolify
from tests.e2e.house import House, until
from tests.e2e.test_coolify import cloud

EXAMPLE = Path(__file__).parents[2] / "examples" / "meeting-bots"
view: Callable[[dict[str, Any]], dict[str, Any]] = runpy.run_path(str(EXAMPLE / "view.py"))["bot"]


def attend(container: Container) -> None:
    """The example's bot, as long as its container runs."""
    bot = subprocess.Popen([sys.executable, EXAMPLE / "bot.py"], env={"PATH": os.environ["PATH"], **container.env})
    while bot.poll() is None:
        if container.stopped.wait(0.05):
            bot.kill()
    bot.wait()


@pytest.fixture
def fake() -> Iterator[FakeCoolify]:
    made = FakeCoolify(worker=attend)
    made.up_ms = made.done_ms = made.pull_ms = 50
    made.stop_ms = made.delete_ms = 100
    made.status_ms = 300
    with made.serving():
        yield made
    assert made.violations == []


@pytest.fixture
def home(tmp_path: Path, fake: FakeCoolify) -> Iterator[House]:
    house = cloud(tmp_path / "house", fake, 'retries = 0\nfatal_errors = ["NoSuchMeeting"]\n')
    yield house.start({"STANDBY_HOSTS_CLOUD_TOKEN": TOKEN})
    house.close()


def order(home: House, meeting: str, minutes: int, **more: Any) -> dict[str, Any]:
    payload = {"meeting": f"https://meet.example/{meeting}", "minutes": minutes}
    answer = home.call("POST", "/work-orders", {"command": ["bot"], "payload": payload, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def line(fake: FakeCoolify) -> str:
    """What Coolify's own page shows beside the one application."""
    (app,) = fake.apps.values()
    return str(app.fields.get("description"))


def test_bots_are_queued_deployed_in_the_same_application_and_seen_all_the_way(home: House, fake: FakeCoolify) -> None:
    first = order(home, "long", 900)
    until(lambda: view(home.order(first["id"]))["status"] == "IN_CALL", "the first bot is in its meeting", 90)
    busy = rf"\[BUSY\] Order {first['id']} - \d{{4}}-\d\d-\d\dT[\d:.]+Z"
    until(lambda: re.fullmatch(busy, line(fake)) is not None, "Coolify's page says so")

    impatient = order(home, "soon", 1, queue_timeout_s=5)
    second = order(home, "nobody", 1)
    assert (view(impatient)["status"], view(impatient)["queue_position"]) == ("QUEUED", 1)
    assert (view(second)["status"], view(second)["queue_position"]) == ("QUEUED", 2)
    late = view(home.ended(impatient["id"]))
    assert (late["status"], late["why"]) == ("FATAL", "queue_timeout")

    home.call("POST", f"/work-orders/{first['id']}/cancel")
    assert view(home.ended(first["id"], 90))["status"] == "CANCELLED"
    gone = view(home.ended(second["id"], 120))
    assert (gone["status"], gone["why"]) == ("FATAL", "there is no meeting at 'https://meet.example/nobody'")
    done = view(home.ended(order(home, "abc", 2)["id"], 120))
    assert (done["status"], done["result"]) == ("DONE", {"heard_minutes": 2, "left_early": False})
    order(home, "def", 300)
    last = order(home, "ghi", 1)
    assert isinstance(last["estimated_wait_ms"], int), "what bots took so far tells how long one will wait"

    assert len(fake.sent("POST", "/applications/dockerimage")) == 1, "one application served them all"
    home.call("POST", "/work-orders/cancel", {"filter": {"state": ["pending", "preparing", "running"]}})
    idle = r"\[IDLE\] Available - Last used: \d{4}-\d\d-\d\dT[\d:.]+Z"
    until(lambda: re.fullmatch(idle, line(fake)) is not None, "Coolify's page says so")
