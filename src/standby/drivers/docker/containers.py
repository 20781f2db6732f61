"""The containers of one installation and host: listed, made, bound to a run, signalled and taken away, by their ids."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from standby.core.errors import Unreachable
from standby.core.model import Slot
from standby.drivers.contract import CommandRefused, Making
from standby.drivers.docker import wrap
from standby.drivers.docker.ending import open_home
from standby.drivers.docker.engine import Anchor, Engine, EngineRefused, Unclear
from standby.drivers.docker.shape import (
    LABEL,
    OVER,
    REMOVING,
    Container,
    body_of,
    inspected,
    labels_of,
    listed,
    run_name,
)

RECENT_S: Final = 5.0
REMOVED_S: Final = 2.0
"""What the list calls "removing" for longer than this is asked whether it is."""
AGAIN_S: Final = 30.0
"""After this it is tried again to remove what the engine failed to remove and nobody waits for: it takes it seconds."""
TAKEN: Final = 409
ROOT: Final = ("", "0", "root", "0:0", "root:root")


class Containers:
    """What carries our labels."""

    def __init__(self, engine: Engine, anchor: Anchor, owner: Mapping[str, str]) -> None:
        self._engine, self._anchor, self._owner = engine, anchor, owner
        self._labels: Sequence[str] = [f"{name}={value}" for name, value in owner.items()]
        self._known: tuple[int, float, list[Container]] = (-1, 0.0, [])
        self._removing: dict[str, float] = {}
        """Containers that are being removed, and since when."""
        self._not_removed: dict[str, float] = {}
        """Containers that nobody needs and the engine failed to remove, and when that was."""

    def outdated(self) -> None:
        """What is known by heart is not true any more."""
        self._known = (-1, 0.0, [])

    async def every(self, **labels: str) -> list[Container]:
        """All of them, or those with these labels too; half a list is Unreachable."""
        extra = [f"{LABEL}{name}={value}" for name, value in labels.items()]
        filters = msgspec.json.encode({"label": [*self._labels, *extra]}).decode()
        found = await self._engine.get("/containers/json", all=1, filters=filters)
        if not isinstance(found, list):
            raise Unreachable("the engine's list of containers cannot be read")
        listing = [listed(item) for item in found]
        now = time.monotonic()
        removing = {each.id: self._removing.get(each.id, now) for each in listing if each.state == REMOVING}
        if not labels:
            self._removing = removing
        return [
            await self._after_all(each) if removing.get(each.id, now) <= now - REMOVED_S else each for each in listing
        ]

    async def _after_all(self, place: Container) -> Container:
        """The list goes on saying "removing" after a removal failed; the container itself does not."""
        try:
            about = msgspec.json.decode(await self._engine.call("GET", f"/containers/{place.id}/json"))
        except EngineRefused:  # it is gone, or half of it
            return place
        return replace(place, state=about["State"]["Status"])

    async def recent(self) -> list[Container]:
        """A list that was asked after the last event, or a moment ago: good enough to find output."""
        moved, at, known = self._known
        if moved == self._anchor.moved and time.monotonic() - at < RECENT_S:
            return known
        moved, at = self._anchor.moved, time.monotonic()
        self._known = (moved, at, await self.every())
        return self._known[2]

    async def of(self, slot: Slot) -> list[Container]:
        """What is there under a slot's name, of any generation."""
        return await self.every(slot=slot.name)

    async def make(self, slot: Slot, making: Making, name: str, run_id: str | None) -> tuple[Container, bool]:
        """Make one and start nothing; or the one that has this name already. And whether it is new."""
        if making.template.image is None:
            raise CommandRefused("the pool names no image")
        labels = labels_of(self._owner, slot, making.template, run_id)
        try:
            answer = await self._engine.call("POST", "/containers/create", {"name": name}, body_of(making, labels))
            made = msgspec.json.decode(answer)["Id"]
            about = await self._engine.get(f"/containers/{made}/json")
            if about is None:
                raise Unreachable(f"container {made} vanished while it was made")
            if about["Config"].get("User", "") not in ROOT:
                await self._engine.files("PUT", made, wrap.HOME, open_home())
        except EngineRefused as refusal:
            there = [each for each in await self.of(slot) if each.name == name] if refusal.status == TAKEN else []
            if not there:
                raise CommandRefused(str(refusal)) from refusal
            return there[0], False
        return inspected(about), True

    async def enliven(self, place: Container) -> str | None:
        """Start a container that is to live; its id once it is ready."""
        if place.state == "created":
            try:
                await self._engine.call("POST", f"/containers/{place.id}/start")
            except EngineRefused as refusal:
                await self.delete(place.id)
                raise CommandRefused(str(refusal)) from refusal
        about = await self._engine.get(f"/containers/{place.id}/json")
        if about is None:
            return None
        state = about["State"]
        if state["Status"] in OVER:
            await self.delete(place.id)
            raise CommandRefused(f"its container ended at once, with exit code {state['ExitCode']}")
        ready = inspected(about)
        return place.id if ready.ready or ready.worker else None

    async def signal(self, container: str, signal: str) -> None:
        """Send a signal to its first process; that it is not alive is success."""
        try:
            await self._engine.call("POST", f"/containers/{container}/kill", {"signal": signal})
        except EngineRefused as refusal:
            if refusal.status not in (404, 409):  # gone, or not running: what was asked is so
                raise Unreachable(f"{signal} did not reach container {container}: {refusal}") from refusal

    async def kill(self, container: str) -> None:
        """End everything in it, and see that it is over."""
        await self.signal(container, "SIGKILL")
        try:
            await self._engine.call("POST", f"/containers/{container}/wait")
        except EngineRefused as refusal:
            if refusal.status != 404:
                raise Unreachable(f"the end of container {container} was not seen: {refusal}") from refusal

    async def delete(self, container: str) -> None:
        """Take it away with its volume, whatever it does; absence is success."""
        try:
            await self._engine.remove(container)
        except EngineRefused as refusal:
            if refusal.status not in (404, 409):  # gone, or being removed
                raise Unclear(f"container {container} cannot be removed: {refusal}") from refusal

    async def drop(self, container: str) -> None:
        """Take away what nobody needs any more; what the engine failed to remove is not tried again for a while."""
        if self._not_removed.get(container, float("-inf")) + AGAIN_S > time.monotonic():
            return
        try:
            await self.delete(container)
            self._not_removed.pop(container, None)
        except Unclear:
            self._not_removed[container] = time.monotonic()
            raise

    async def bind(self, place: Container, run_id: str) -> None:
        """From now on the container's name says which run it is for."""
        name = run_name(place.slot, place.generation, run_id)
        try:
            await self._engine.call("POST", f"/containers/{place.id}/rename", {"name": name})
        except EngineRefused as refusal:
            raise CommandRefused(f"container {place.id} cannot be bound to {run_id}: {refusal}") from refusal
