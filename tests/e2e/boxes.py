"""A real server with a pool of containers on a real engine."""

import json
import uuid
from pathlib import Path
from typing import Any

from tests.engine import BOX, RunningEngine

from .house import House, until

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
