"""What a container tells of the run in it: fresh, starting, ready or ended, and how."""

from standby.drivers.contract import Exit, Seen
from standby.drivers.docker import wrap
from standby.drivers.docker.ending import ending, records
from standby.drivers.docker.engine import Engine, EngineRefused, Unclear
from standby.drivers.docker.handover import Handover, Sight
from standby.drivers.docker.shape import ALIVE, NEVER, OVER, REMOVING, Container


class Sights:
    """Looks into containers, one at a time."""

    def __init__(self, engine: Engine, handover: Handover) -> None:
        self._engine, self._handover = engine, handover

    async def of(self, place: Container, run_id: str) -> Sight:
        """What became of a run in a container, as that was listed."""
        if place.shared and not place.worker and place.state != REMOVING:
            return await self._handover.sight(place, run_id)
        if place.state in ALIVE and place.worker:
            return Seen.STARTING, None, None  # its worker will say more
        if not place.shared and place.run_id not in (None, run_id):
            return Seen.ABSENT, None, None
        match place.state:
            case "created":
                return await self._created(place)
            case "running" | "paused" | "restarting":
                return Seen.READY if place.ready else Seen.STARTING, place.id, None
            case "exited" | "dead":
                return await self._over(place)
            case _:
                return Seen.UNKNOWN, place.id, None

    async def _created(self, place: Container) -> Sight:
        """Never started: or the engine tried, and could not."""
        about = await self._engine.get(f"/containers/{place.id}/json")
        if about is None:
            return Seen.ABSENT, None, None
        if about["State"]["Status"] != "created" or not about["State"]["Error"]:
            return (Seen.FRESH if about["State"]["Status"] == "created" else Seen.UNKNOWN), None, None
        return Seen.STOPPED, place.id, Exit(start_error=about["State"]["Error"], place_failed=True)

    async def _over(self, place: Container) -> Sight:
        about = await self._engine.get(f"/containers/{place.id}/json")
        if about is None or about["State"]["StartedAt"] == NEVER:  # or somebody began to remove it before it began
            return Seen.ABSENT, None, None
        state = about["State"]
        if state["Status"] not in OVER:
            return Seen.UNKNOWN, place.id, None
        if place.worker:
            return Seen.STOPPED, place.id, Exit(lost=not state["OOMKilled"], oom=bool(state["OOMKilled"]))
        if int(state["ExitCode"]) < wrap.RECORDED:
            return Seen.STOPPED, place.id, ending(state, None)
        try:
            record = (await records(self._engine, place.id)).get(wrap.ONLY_RUN)
        except EngineRefused as refusal:
            if state["Dead"]:
                return Seen.STOPPED, place.id, Exit(lost=True)
            raise Unclear(f"the end of {place.run_id} cannot be read: {refusal}") from refusal
        if record is None:
            why = state["Error"] or f"it could not begin in its container: exit code {state['ExitCode']}"
            return Seen.STOPPED, place.id, Exit(start_error=why, place_failed=True)
        return Seen.STOPPED, place.id, ending(state, record)
