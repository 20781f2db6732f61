"""A real server with a Coolify host: the fake Coolify runs workers that speak the real protocol."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.drivers.coolify_fake import PROJECT, SERVER, TOKEN, Container, FakeCoolify
from tests.e2e.house import House, until

POOL = '[pools.default]\nimage = "bot:1"\nworker = true\nmemory_mb = 10\nslots_max = 1\nrun_timeout = "5m"\n'


def work(container: Container) -> None:
    """A worker that does what its order's payload says, until its container is stopped."""
    with httpx2.Client(base_url=f"{container.env['STANDBY_URL']}/api/v1/worker", timeout=10) as http:
        token = container.env["STANDBY_SLOT_TOKEN"]
        boot = http.post("/boot", json={"nonce": uuid4().hex}, headers={"Authorization": f"Bearer {token}"})
        if boot.status_code != 200:
            return  # the slot has a newer generation
        http.headers["Authorization"] = f"Bearer {boot.json()['boot_token']}"
        while not container.stopped.is_set():
            try:
                answer = http.get("/assignment", params={"wait_s": 0.5})
                if answer.status_code == 200:
                    _run(http, answer.json(), container)
            except httpx2.TransportError:
                container.stopped.wait(0.1)  # the server is down: it comes back


def _run(http: httpx2.Client, run: dict[str, object], container: Container) -> None:
    payload = run["payload"]
    assert isinstance(payload, dict)
    about = {"run_id": run["run_id"]}
    http.post("/heartbeat", json=about)
    gate = payload.get("gate")
    while gate is not None and not Path(gate).exists() and not container.stopped.is_set():
        container.stopped.wait(0.05)
    if not container.stopped.is_set():
        http.post("/result", json={**about, "exit_code": payload["exit"], "result": {"env": run["env"]}})


@pytest.fixture
def fake() -> Iterator[FakeCoolify]:
    made = FakeCoolify(worker=work)
    made.up_ms = made.done_ms = made.pull_ms = 50
    made.stop_ms = made.delete_ms = 100
    made.status_ms = 300
    with made.serving():
        yield made
    assert made.violations == []


def cloud(directory: Path, fake: FakeCoolify, pool: str = "") -> House:
    host = f'[hosts.cloud]\ndriver = "coolify"\nurl = "{fake.url}"\nlag = "1s"\n'
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    toml = f'{host}project = "{PROJECT}"\nserver = "{SERVER}"\n{POOL}{pool}'
    return House(directory, toml=toml, port=port)


def test_orders_run_in_one_application_of_coolify_by_the_word_of_its_worker(tmp_path: Path, fake: FakeCoolify) -> None:
    home = cloud(tmp_path / "house", fake)
    env = {"STANDBY_HOSTS_CLOUD_TOKEN": TOKEN}
    try:
        home.start(env)
        gate = tmp_path / "gate"
        first = home.submit("bot", payload={"exit": 3, "gate": str(gate)}, env={"WHO": "first"})
        running = home.in_state(first, "running")
        second = home.submit("bot", payload={"exit": 0})
        home.kill()
        gate.touch()
        home.start(env)
        ended = home.ended(first)
        assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("failed", 3, 1)
        assert home.ended(second, 90)["state"] == "completed"
        (app,) = fake.apps.values()
        assert running["slot"] == app.name
        assert len(fake.sent("POST", "/applications/dockerimage")) == 1
        assert len(fake.deployments) == 2
        runs = home.get(f"/work-orders/{first}/runs")["runs"]
        # a worker may speak before the platform was looked at, and its word alone names no deployment
        assert [run["handle"] or fake.deployments[0].uuid for run in runs] == [fake.deployments[0].uuid]
        assert all("first" not in str(sent) for sent in fake.requests), (
            "what an order is given goes to its worker alone"
        )
    finally:
        home.close()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN.encode() not in written


def test_a_resident_worker_on_coolify_gets_its_order_at_once_and_its_line_is_kept(
    tmp_path: Path, fake: FakeCoolify, figure: Callable[[str], None]
) -> None:
    home = cloud(tmp_path / "house", fake, 'warmth = "running"\nslots_warm = 1\n')
    try:
        home.start({"STANDBY_HOSTS_CLOUD_TOKEN": TOKEN})
        until(lambda: _idle(home), "a slot is warm", 90)
        gate = tmp_path / "gate"
        began = time.monotonic()
        order = home.submit("bot", payload={"exit": 0, "gate": str(gate)})
        home.in_state(order, "running")
        figure(f"Coolify (fake), resident worker: submit to running seen in {(time.monotonic() - began) * 1000:.0f} ms")
        (app,) = fake.apps.values()
        until(lambda: str(app.fields.get("description")).startswith(f"[BUSY] Order {order} - 20"), "its line says busy")
        gate.touch()
        assert home.ended(order)["state"] == "completed"
        assert len(fake.deployments) == 1, "nothing was deployed for the order"
    finally:
        home.close()


def _idle(home: House) -> bool:
    slots = home.get("/slots?pool=default")["slots"]
    return [slot["state"] for slot in slots] == ["idle"]
