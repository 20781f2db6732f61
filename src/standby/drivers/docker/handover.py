"""Work handed to a live container by exec: begun once, asked and ended by its mark, seen to its last process."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from standby.core.errors import Unreachable
from standby.drivers.contract import CommandRefused, Exit, Seen, Start
from standby.drivers.docker import wrap
from standby.drivers.docker.ending import FORGOTTEN, Record, by_code, forgotten, not_begun, records
from standby.drivers.docker.engine import Engine, EngineRefused, Unclear
from standby.drivers.docker.shape import ALIVE, DEAD, Container, env_of

Sight = tuple[Seen, str | None, Exit | None]
TOOL_S: Final = 10.0


class Handover:
    """Runs in containers that outlive them. What it remembers can be read again from the containers."""

    def __init__(self, engine: Engine, kill: Callable[[str], Awaitable[None]]) -> None:
        """`kill` ends a whole container."""
        self._engine, self._kill = engine, kill
        self._known: dict[str, dict[str, str | None]] = {}
        """Container -> its runs -> exec id; null where that is not known, FORGOTTEN where it was said to be."""
        self._ended: dict[str, Exit] = {}

    def made(self, container: str) -> None:
        """It is new: nothing ran there."""
        self._known[container] = {}

    async def runs(self, place: Container) -> list[str]:
        """Runs that began there and were not forgotten."""
        return [run for run, exec_id in (await self._runs(place)).items() if exec_id != FORGOTTEN]

    async def keeps(self, place: Container) -> bool:
        """Whether a run that began there was not forgotten. That none ever began must be found twice: another server
        may have begun one since, and an engine that goes down finds no notes."""
        if not await self._runs(place):
            await self._learn(place)
        return bool(await self.runs(place))

    def keep_only(self, places: set[str]) -> None:
        """Drop what is remembered of containers that are gone."""
        gone = [each for each in self._known if each not in places]
        for container in gone:
            for run in self._known.pop(container):
                self._ended.pop(run, None)

    async def start(self, place: Container, start: Start, until: float) -> Sight:
        """Exec the run, unless it began there before."""
        known = await self._runs(place)
        if start.run_id in known:
            if known[start.run_id] == FORGOTTEN:
                raise CommandRefused(f"run {start.run_id} was forgotten")
            seen = await self.sight(place, start.run_id)
            if seen[0] is not Seen.FRESH:
                return seen
        if place.state != "running":
            raise CommandRefused(f"container {place.id} is {place.state}")
        text = wrap.order_text(start.run_id, start.spec, env_of(start), alone=False)
        in_time(until)
        try:
            exec_id = await self._exec(place.id, wrap.BY_EXEC, start.run_id, stdin=True)
            in_time(until)
            known[start.run_id] = exec_id
            async with self._engine.pipe(f"/exec/{exec_id}/start", body={"Detach": False}) as pipe:
                await pipe.write(text)
        except EngineRefused as refusal:
            known.pop(start.run_id, None)
            if refusal.status == 404:
                raise CommandRefused(f"container {place.id} is gone") from refusal
            return Seen.STOPPED, None, Exit(start_error=str(refusal), place_failed=True)
        seen = await self.sight(place, start.run_id)
        return seen if seen[0] is not Seen.FRESH else (Seen.STARTING, exec_id, None)

    async def stop(self, place: Container, run_id: str, *, force: bool) -> None:
        """Ask its first process, or end all of them; where nothing can be run any more, end the container."""
        if place.state not in ALIVE or run_id in self._ended:
            return
        try:
            if await self._begun(place, run_id):
                await self._tool(place.id, run_id, "kill" if force else "ask")
        except (EngineRefused, Unclear) as refusal:
            if not force:
                raise Unreachable(f"run {run_id} could not be asked to stop: {refusal}") from refusal
            await self._kill(place.id)

    async def forget(self, place: Container, run_id: str) -> bool:
        """Note that nobody will ask for it again. Returns whether its container has nothing left to keep."""
        known, others = await self._runs(place), set(await self.runs(place)) - {run_id}
        if place.state in ALIVE:
            try:
                await self._engine.files("PUT", place.id, wrap.RUNS, forgotten(run_id))
            except EngineRefused as refusal:
                if refusal.status != 404:  # else nothing was ever noted there: there is nothing to forget
                    raise Unclear(f"run {run_id} cannot be forgotten: {refusal}") from refusal
        elif not others:
            return True  # it is forgotten once its container is gone
        known[run_id] = FORGOTTEN
        self._ended.pop(run_id, None)
        return False

    async def sight(self, place: Container, run_id: str) -> Sight:
        """What became of a run there; STOPPED when none of its processes is left."""
        begun = await self._begun(place, run_id)
        exec_id = self._known[place.id].get(run_id)
        if exec_id == FORGOTTEN or (not begun and place.state not in ALIVE):
            return Seen.ABSENT, None, None
        if not begun:
            return Seen.FRESH, None, None
        if run_id not in self._ended:
            alive = place.state in ALIVE
            seen = await (self._sight_alive(place, run_id, exec_id) if alive else self._sight_over(place, run_id))
            if seen[2] is None:
                return seen
            self._ended[run_id] = seen[2]
        return Seen.STOPPED, exec_id, self._ended[run_id]

    async def _sight_alive(self, place: Container, run_id: str, exec_id: str | None) -> Sight:
        exec_id = exec_id or await self._find(place.id, run_id)
        about = None if exec_id is None else await self._engine.get(f"/exec/{exec_id}/json")
        if about is not None and about["Running"]:
            return Seen.READY, exec_id, None
        if about is not None and about["ExitCode"] is None:
            return Seen.FRESH, None, None  # made, and not started (yet)
        code = None if about is None else int(about["ExitCode"])
        if code == 0:
            return Seen.STOPPED, exec_id, Exit(code=0)
        record = (await self._records(place)).get(run_id)
        if record is None:
            if code is None:
                return Seen.FRESH, None, None
            failed = Exit(start_error=f"exec ended with {code} before the run began", place_failed=True)
            return Seen.STOPPED, exec_id, failed
        if "exit" not in record and "error" not in record:
            try:
                if code in (None, wrap.NOT_BEGUN) and await self._tool(place.id, run_id, "probe") == 0:
                    return Seen.READY, None, None  # the engine knows nothing of it any more, or only of a second try
                if await self._tool(place.id, run_id, "kill") != 0:
                    return Seen.UNKNOWN, exec_id, None
                record = (await self._records(place)).get(run_id, record)  # it ended by itself after the first look
            except EngineRefused:  # nothing can be run there any more: only force will end what is left
                return Seen.UNKNOWN, exec_id, None
        return Seen.STOPPED, exec_id, _ending(record)

    async def _sight_over(self, place: Container, run_id: str) -> Sight:
        record = (await self._records(place)).get(run_id)
        if record is None:
            return Seen.ABSENT, None, None
        return Seen.STOPPED, None, _ending(record)

    async def _runs(self, place: Container) -> dict[str, str | None]:
        if place.id not in self._known:
            await self._learn(place)
        return self._known[place.id]

    async def _begun(self, place: Container, run_id: str) -> bool:
        """Whether it began there, or was forgotten; where that is not known another server may have begun it."""
        if run_id not in await self._runs(place) and place.state != "created":
            await self._learn(place)
        return run_id in self._known[place.id]

    async def _learn(self, place: Container) -> None:
        """Who is at work there, and then who left a note: one that just began has none yet."""
        found: dict[str, str | None] = {}
        if place.state in ALIVE:
            found |= await self._at_work(place.id)
        if place.state != "created":
            noted = await self._records(place)
            found = {run: FORGOTTEN if FORGOTTEN in files else None for run, files in noted.items()} | found
        self._known[place.id] = found | self._known.get(place.id, {})

    async def _records(self, place: Container) -> dict[str, Record]:
        try:
            return await records(self._engine, place.id)
        except EngineRefused as refusal:
            if place.state == DEAD:
                return {}
            raise Unclear(f"the runs of container {place.id} cannot be read: {refusal}") from refusal

    async def _find(self, container: str, run_id: str) -> str | None:
        """The exec of a run that another server handed over."""
        exec_id = (await self._at_work(container)).get(run_id)
        if exec_id is not None:
            self._known[container][run_id] = exec_id
        return exec_id

    async def _at_work(self, container: str) -> dict[str, str]:
        """Runs -> execs that are alive."""
        about = await self._engine.get(f"/containers/{container}/json")
        execs = [await self._engine.get(f"/exec/{each}/json") for each in (about or {}).get("ExecIDs") or ()]
        ours = [each for each in execs if each is not None and each["Running"] and _is_run(each["ProcessConfig"])]
        return {each["ProcessConfig"]["arguments"][-1]: each["ID"] for each in ours}

    async def _tool(self, container: str, run_id: str, word: str) -> int | None:
        """Run our tool beside the run and wait for its end; null when it did not come."""
        exec_id = await self._exec(container, wrap.TOOL, run_id, word)
        await self._engine.call("POST", f"/exec/{exec_id}/start", body={"Detach": True})
        until = time.monotonic() + TOOL_S
        while time.monotonic() < until:
            about = await self._engine.get(f"/exec/{exec_id}/json")
            if about is None:
                return None
            if not about["Running"] and about["ExitCode"] is not None:
                return int(about["ExitCode"])
            await asyncio.sleep(0.01)
        return None

    async def _exec(self, container: str, text: str, run_id: str, *words: str, stdin: bool = False) -> str:
        body = {
            "Cmd": ["/bin/sh", "-c", text, "standby", run_id, *words],
            "AttachStdin": stdin,
            "Env": [f"{wrap.MARK}={run_id};"] if stdin else [],
        }
        answer = await self._engine.call("POST", f"/containers/{container}/exec", body=body)
        return str(msgspec.json.decode(answer)["Id"])


def _is_run(process: Mapping[str, Any]) -> bool:
    return bool(process["arguments"][:2] == ["-c", wrap.BY_EXEC])


def _ending(record: Record) -> Exit:
    if "error" in record:
        return Exit(start_error=record["error"], retryable=False)
    if "pid" not in record:
        return not_begun(record)
    if not record.get("exit", "").isdigit():
        return Exit(lost=True, signal=9)
    return by_code(int(record["exit"]), oom="oom" in record)


def in_time(until: float) -> None:
    """Refuse what may not be sent any more."""
    if time.monotonic() >= until:
        raise CommandRefused("too late")
