"""A real server and a real engine: orders as containers, from the submit to nothing left."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from standby import worker
from tests.engine import PYTHON, load_python, shared_engine

from .boxes import Boxes

pytestmark = pytest.mark.docker


@pytest.fixture(params=["created", "running", "cold"])
def boxes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Boxes]:
    made = Boxes(tmp_path, shared_engine(), request.param)
    try:
        made.house.start()
        yield made
    finally:
        made.close()


def test_an_order_runs_in_a_container_and_leaves_nothing(boxes: Boxes) -> None:
    script = 'echo "$GREETING $STANDBY_ATTEMPT"; cat $STANDBY_PAYLOAD_FILE; test -S $STANDBY_SOCKET && exit 7'
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


def script_of(code: int) -> tuple[str, ...]:
    return "/bin/sh", "-c", f"exit {code}"


def test_a_resident_worker_without_a_network_serves_one_order_after_the_other(tmp_path: Path) -> None:
    engine = shared_engine()
    load_python(engine)
    shutil.copy(worker.__file__, tmp_path / "worker.py")
    made = Boxes(
        tmp_path / "h",
        engine,
        "running",
        image=PYTHON,
        command=["/usr/bin/python3", "/standby/worker.py"],
        mounts=[f"{tmp_path}/worker.py:/standby/worker.py:ro"],
        worker=True,
        project="default",
        reset="none",
        slots_max=1,
    )
    try:
        made.house.start()
        ended = [
            made.house.ended(made.submit("/bin/sh", "-c", f"exit {code}", retry={"retries": 0})) for code in (0, 3)
        ]
        assert [(order["state"], order["exit_code"]) for order in ended] == [("completed", 0), ("failed", 3)]
        assert len(made.containers()) == 1
        made.drain()
    finally:
        made.close()
