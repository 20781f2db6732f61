"""A real server and a real engine: orders as containers, from the submit to nothing left."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine import BOX, RunningEngine, shared_engine

from .house import House, until

pytestmark = pytest.mark.docker

SLEEPS = ["/bin/sleep", "1000000"]


class Boxes:
    """A server with one pool of containers, under an installation of its own."""

    def __init__(self, directory: Path, engine: RunningEngine, warmth: str, **keys: object) -> None:
        self.engine, self.installation = engine, f"e2e-{uuid.uuid4().hex[:12]}"
        command = SLEEPS if warmth == "running" else []
        pool = {"image": BOX, "warmth": warmth, "command": command, "network": "none", "memory_mb": 64, **keys}
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in pool.items())
        toml = f'[hosts.engine]\ndriver = "docker"\nendpoint = "{engine.unix}"\n[pools.boxes]\n{lines}\n'
        self.house = House(directory, toml=toml, installation=self.installation)

    def submit(self, *command: str, **body: Any) -> str:
        return self.house.submit(*command, pool="boxes", **body)

    def containers(self) -> list[dict[str, Any]]:
        """What the engine has of ours."""
        filters = json.dumps({"label": [f"standby.installation={self.installation}"]})
        with self.engine.client() as client:
            found: list[dict[str, Any]] = client.get("/containers/json", params={"all": 1, "filters": filters}).json()
            return found

    def drain(self) -> None:
        """Give all slots up, and see that nothing is left on the engine."""
        self.house.call("POST", "/pools/boxes/drain", {"reason": "enough"})
        until(lambda: self.containers() == [], "no container is left")

    def close(self) -> None:
        self.house.close()
        with self.engine.client() as client:
            for each in self.containers():
                client.delete(f"/containers/{each['Id']}", params={"force": 1, "v": 1})


@pytest.fixture(params=["created", "running", "cold"])
def boxes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Boxes]:
    made = Boxes(tmp_path, shared_engine(), request.param)
    try:
        made.house.start()
        yield made
    finally:
        made.close()


def test_an_order_runs_in_a_container_and_leaves_nothing(boxes: Boxes) -> None:
    script = 'echo "$GREETING $STANDBY_ATTEMPT"; cat $STANDBY_PAYLOAD_FILE; exit 7'
    order = boxes.submit(script=script, env={"GREETING": "hello"}, payload={"a": 1}, retry={"retries": 0})
    ended = boxes.house.ended(order)
    assert (ended["state"], ended["exit_code"]) == ("failed", 7)
    assert boxes.house.log_lines(order) == ["hello 1", '{"a":1}']
    boxes.drain()


def test_a_killed_server_finds_its_container_again(boxes: Boxes) -> None:
    order = boxes.submit(script="echo begun; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo went on; exit 3")
    boxes.house.in_state(order, "running")
    boxes.house.kill()
    (live,) = [each for each in boxes.containers() if each["State"] == "running"]
    with boxes.engine.client() as client:
        made = client.post(f"/containers/{live['Id']}/exec", json={"Cmd": ["/bin/touch", "/tmp/go"]}).json()
        client.post(f"/exec/{made['Id']}/start", json={"Detach": True})
    boxes.house.start()
    ended = boxes.house.ended(order)
    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("failed", 3, 1)
    assert boxes.house.log_lines(order) == ["begun", "went on"]
    boxes.drain()
