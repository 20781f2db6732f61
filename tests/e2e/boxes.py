"""A server whose pool is containers of a real engine, under an installation of its own."""

import json
import os
import shutil
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import standby.worker
from tests.engine import BOX, RunningEngine

from .house import House, until

SLEEPS = ["/bin/sleep", "1000000"]


class Boxes:
    """A server with one pool of containers, and what the engine has of it."""

    def __init__(
        self, directory: Path, engine: RunningEngine, warmth: str, timings: Mapping[str, Any] | None = None, **keys: Any
    ) -> None:
        self.engine, self.installation = engine, f"e2e-{uuid.uuid4().hex[:12]}"
        command = SLEEPS if warmth == "running" else []
        pool = {"image": BOX, "warmth": warmth, "command": command, "network": "none", "memory_mb": 64, **keys}
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in pool.items())
        toml = f'[hosts.engine]\ndriver = "docker"\nendpoint = "{engine.unix}"\n[pools.boxes]\n{lines}\n'
        self.house = House(directory, toml=toml, installation=self.installation, **(timings or {}))

    def submit(self, *command: str, **body: Any) -> str:
        return self.house.submit(*command, pool="boxes", **body)

    def containers(self) -> list[dict[str, Any]]:
        """What the engine has of ours."""
        filters = json.dumps({"label": [f"standby.installation={self.installation}"]})
        with self.engine.client() as client:
            found: list[dict[str, Any]] = client.get("/containers/json", params={"all": 1, "filters": filters}).json()
            return found

    def slots(self) -> list[dict[str, Any]]:
        """What the server says of its slots."""
        found: list[dict[str, Any]] = self.house.get("/slots")["slots"]
        return found

    def drain(self) -> None:
        """Give all slots up, and see that nothing is left on the engine."""
        self.house.call("POST", "/pools/boxes/drain", {"reason": "enough"})
        until(lambda: self.containers() == [] or self._stuck(), "no container is left")
        if self._stuck():
            self.engine.unmount()
            until(lambda: self.containers() == [], "no container is left after the engine was helped")

    def _stuck(self) -> bool:
        """Whether the engine, stopped at a bad moment before, cannot remove what is left (moby issue 45510)."""
        errors = [slot["error"] or "" for slot in self.slots()]
        return bool(errors) and all("device or resource busy" in error for error in errors)

    def close(self) -> None:
        self.house.close()
        with self.engine.client() as client:
            for each in self.containers():
                client.delete(f"/containers/{each['Id']}", params={"force": 1, "v": 1})


def machine() -> list[str]:
    """Mounts that bring this machine's programs and its Python into a container."""
    own = os.path.realpath(sys.base_prefix)
    wanted = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", *([] if own.startswith("/usr") else [own])]
    return [f"{path}:{path}:ro" for path in wanted if os.path.exists(path)]


def resident(directory: Path) -> dict[str, Any]:
    """The keys of a pool whose containers have a worker in them: this machine's Python, and one file."""
    place = directory / "worker"
    place.mkdir()
    shutil.copy(standby.worker.__file__, place / "worker.py")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = os.path.join(os.path.realpath(sys.base_prefix), "bin", version)
    return {
        "worker": True,
        "command": [python, "-I", f"{place}/worker.py"],
        "mounts": [*machine(), f"{place}:{place}:ro"],
    }
