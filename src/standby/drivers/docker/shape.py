"""What a container of ours looks like: its name, labels and limits, and what the engine's list says of it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from standby.core.model import Slot, Template, Warmth
from standby.drivers.contract import Making, Start
from standby.drivers.docker import wrap

LABEL: Final = "standby."
SOCKET: Final = "STANDBY_SOCKET"
"""Names the server's socket for workers: its directory is mounted at the same path."""
LOG: Final = {"Type": "json-file", "Config": {"max-size": "16m", "max-file": "3"}}
"""So much of the output is kept while nobody fetches it; the driver that every engine can read back."""
NEVER: Final = "0001-01-01T00:00:00Z"
REMOVING: Final = "removing"
DEAD: Final = "dead"
"""Its removal began and came to no end: nothing can be relied on in it."""
OVER: Final = ("exited", DEAD)
ALIVE: Final = ("running", "paused", "restarting")


class Container(Struct, frozen=True, kw_only=True):
    """One line of the engine's list."""

    id: str
    name: str
    state: str
    """created, running, paused, restarting, removing, exited or dead."""
    health: str | None
    """starting, healthy or unhealthy; null without a health check."""
    labels: Mapping[str, str]
    made_at: int

    @property
    def slot(self) -> str:
        return self.labels.get(f"{LABEL}slot", "")

    @property
    def generation(self) -> int:
        said = self.labels.get(f"{LABEL}generation", "")
        return int(said) if said.isdigit() else 0

    @property
    def warmth(self) -> str:
        return self.labels.get(f"{LABEL}warmth", "")

    @property
    def worker(self) -> bool:
        return self.labels.get(f"{LABEL}worker") == "yes"

    @property
    def shared(self) -> bool:
        """Whether it lives on when a run in it ends."""
        return self.warmth == Warmth.RUNNING

    @property
    def never_ran(self) -> bool:
        """Whether it was made for one run, and its start was refused or never sent; nobody uses it after that run."""
        return self.warmth == Warmth.COLD and self.state == "created"

    @property
    def ready(self) -> bool:
        """Whether a live one is ready, as its pool says; a heartbeat is not ours to see."""
        healthy = self.labels.get(f"{LABEL}ready") == "healthy" and self.health in (None, "healthy")
        return self.ready_at_once or healthy

    @property
    def ready_at_once(self) -> bool:
        """Whether being started is all that is asked of it."""
        return self.labels.get(f"{LABEL}ready", "running") == "running"

    @property
    def run_id(self) -> str | None:
        """The run it is bound to: by a label where that was known when it was made, else by its name."""
        if run := self.labels.get(f"{LABEL}run"):
            return run
        base = f"{self.slot}.{self.generation}."
        return self.name.removeprefix(base) if not self.shared and self.name.startswith(base) else None


def listed(item: Mapping[str, Any]) -> Container:
    """One entry of GET /containers/json."""
    status = str(item.get("Status", ""))
    health = {"(healthy)": "healthy", "(unhealthy)": "unhealthy", "(health: starting)": "starting"}
    return Container(
        id=item["Id"],
        name=str((item.get("Names") or ["/"])[0]).lstrip("/"),
        state=item["State"],
        health=next((word for text, word in health.items() if text in status), None),
        labels=item.get("Labels") or {},
        made_at=int(item["Created"]) * 1000,
    )


def inspected(about: Mapping[str, Any]) -> Container:
    """The same from GET /containers/{id}/json."""
    state = about["State"]
    return Container(
        id=about["Id"],
        name=str(about["Name"]).lstrip("/"),
        state=state["Status"],
        health=(state.get("Health") or {}).get("Status"),
        labels=about["Config"].get("Labels") or {},
        made_at=0,
    )


def base_name(slot: Slot) -> str:
    """What a container is called before it is bound to a run."""
    return f"{slot.name}.{slot.generation}"


def run_name(slot: str, generation: int, run_id: str) -> str:
    return f"{slot}.{generation}.{run_id}"


def labels_of(owner: Mapping[str, str], slot: Slot, template: Template, run_id: str | None) -> dict[str, str]:
    """Whose it is and what it is for; fixed for its life."""
    own = {
        "pool": slot.pool,
        "slot": slot.name,
        "generation": str(slot.generation),
        "warmth": str(template.warmth),
        "worker": "yes" if template.worker else "no",
        "ready": template.ready,
    }
    if run_id is not None:
        own["run"] = run_id
    return {**owner, **{f"{LABEL}{name}": value for name, value in own.items()}}


def body_of(making: Making, labels: Mapping[str, str]) -> dict[str, Any]:
    """The body of POST /containers/create."""
    template = making.template
    shared = template.warmth is Warmth.RUNNING
    body: dict[str, Any] = {
        "Image": template.image,
        "Labels": labels,
        "Env": [f"{name}={value}" for name, value in making.env.items()],
        "Volumes": {wrap.HOME: {}},
        "HostConfig": _limits(making),
    }
    if template.user is not None:
        body["User"] = template.user
    if shared:
        body |= {"Entrypoint": list(template.command), "Cmd": []} if template.command else {}
        # an engine that stops need not wait for it: a worker fences itself, and nothing else has anything to save
        return body if template.worker else {**body, "StopSignal": "SIGKILL"}
    # an engine that stops, or an operator's `docker stop`, is told apart from a stop of ours by its signal
    start = {"Entrypoint": ["/bin/sh", "-c", wrap.ALONE, "standby", wrap.ONLY_RUN], "Cmd": []}
    return {**body, **start, "OpenStdin": True, "StdinOnce": True, "StopSignal": "SIGUSR1"}


def env_of(start: Start) -> dict[str, str]:
    """What a run finds in its environment beside what its image says."""
    order = start.order
    return {
        **start.env,
        "STANDBY_RUN_ID": start.run_id,
        "STANDBY_ORDER_ID": order.id,
        "STANDBY_PROJECT": order.project,
        "STANDBY_POOL": order.pool,
        "STANDBY_ATTEMPT": str(order.attempt),
    }


def _limits(making: Making) -> dict[str, Any]:
    template, memory = making.template, making.memory_mb << 20
    limits: dict[str, Any] = {
        "Memory": memory,
        "MemorySwap": memory,  # the same: no swap
        "ShmSize": template.shm_mb << 20,
        "ReadonlyRootfs": template.read_only,
        "CapDrop": ["ALL"],
        "CapAdd": list(template.cap_add),
        "NetworkMode": template.network,
        "Binds": [*template.mounts, *_socket(making.env)],
        "LogConfig": LOG,
        "RestartPolicy": {"Name": "no"},
    }
    if template.cpus is not None:
        limits["NanoCpus"] = round(template.cpus * 1e9)
    if template.pids_max is not None:
        limits["PidsLimit"] = template.pids_max
    if template.read_only:
        limits["Tmpfs"] = {"/tmp": "rw,exec,nosuid,nodev,mode=1777"}  # noqa: S108  inside the container
    return limits


def _socket(env: Mapping[str, str]) -> Sequence[str]:
    directory = os.path.dirname(env.get(SOCKET, ""))
    return [f"{directory}:{directory}"] if directory else []


def without_socket(env: Mapping[str, str]) -> dict[str, str]:
    """For an engine on another machine, where the server's socket is not."""
    return {name: value for name, value in env.items() if name != SOCKET}
