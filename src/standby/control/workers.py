"""The leader's side of the worker protocol: what workers are given, and what their reports add to a look."""

from collections.abc import Container, Mapping, Sequence
from typing import Final

from standby.control.act import Made
from standby.control.mirror import Mirror
from standby.core import work
from standby.core.judge import Open
from standby.core.model import PoolSettings, Slot, Template, order_of, run_id
from standby.core.sighting import Seen, Sighting
from standby.core.work import Report
from standby.drivers.contract import Making
from standby.store.contract import Heard
from standby.world import World

BOOT_POLL_S: Final = 1.0
"""How often a place whose worker has not reported yet is asked whether it is still there."""


_OVER: Final = (Seen.STOPPED, Seen.ABSENT)


class Workers:
    """What one leader knows of the workers of its host; all of it can be read again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: set[str] = set()
        """Runs of which a worker said something new."""
        self._reports: dict[str, Report] = {}
        """What was said last of open runs, where silence counts; only in a step that has asked for all of them."""
        self._asked_at = 0
        """When they were asked for: of what was said since, nothing is known."""
        self._alike: tuple[PoolSettings | None, Making] = None, Making()
        """Settings without workers, and what all of their slots are made from."""
        self._made: dict[str, tuple[Made, float]] = {}
        """Places that are there and wait for their worker, and since when."""

    # what they are given

    def making(self, slot: Slot, settings: PoolSettings) -> Making:
        """What a slot's place is made from."""
        template, memory_mb = settings.template, settings.memory_mb
        if template.worker:
            return Making(template=template, memory_mb=memory_mb, env=self._env(slot, settings))
        if settings is not self._alike[0]:
            self._alike = settings, Making(template=template, memory_mb=memory_mb, env=self._world.reach)
        return self._alike[1]

    def _env(self, slot: Slot, settings: PoolSettings) -> Mapping[str, str]:
        silence = {} if settings.silence_ms is None else {work.SILENCE_S: f"{settings.silence_ms / 1000:g}"}
        token = self._world.seal.slot_token(slot.name, slot.generation)
        return {**self._world.reach, work.SLOT: slot.name, work.SLOT_TOKEN: token, **silence}

    def run_env(self, run: str, env: Mapping[str, str]) -> Mapping[str, str]:
        """The environment of a run, with what it needs to speak for itself; an address of its own is the order's."""
        return {**self._world.reach, **env, work.RUN_ID: run, work.RUN_TOKEN: self._world.seal.run_token(run)}

    # what they say

    def hint(self, heard: Heard, opened: Container[str]) -> bool:
        """Some workers said something new. Returns whether that matters here."""
        mine = {run for run in heard.reported if order_of(run) in opened}
        self._told |= mine
        return bool(mine)

    async def weigh(self, mirror: Mirror, seen: dict[str, Sighting], *, poll: bool) -> dict[str, Sighting]:
        """The sightings with what workers said of their runs; only reports that can matter are read."""
        ended = [run for run, each in seen.items() if each.seen in _OVER and self._spoke(mirror, run)]
        told, self._told = self._told, set()
        opened = [run for _, run in mirror.open_runs()] if _any(mirror) else []
        residents = [run for run in opened if self._template(mirror, run).worker]
        asked = {*ended, *told, *(_id(run) for run in residents if poll or _given_up(mirror, run))}
        self._reports, self._asked_at = {}, self._world.clock.now()
        if not asked and not residents:
            return seen
        try:
            reports = await self._world.store.reports(sorted(asked)) if asked else {}
        except BaseException:
            self._told |= told
            raise
        self._reports = _counting(mirror, residents, reports) if poll else {}
        runs = residents if not reports else [run for _, run in mirror.open_runs({*reports, *map(_id, residents)})]
        for run in runs:
            key = run_id(run.order)
            template = self._template(mirror, run)
            found = work.sighting(run.order, template, seen.get(key), reports.get(key), mirror.host.dead_at)
            if found is not None:
                seen[key] = found
        return seen

    @property
    def counting(self) -> bool:
        """Whether there are workers whose silence counts, in this step."""
        return bool(self._reports)

    def _spoke(self, mirror: Mirror, run: str) -> bool:
        """Whether somebody may have said something of the run: whoever does is noted in its order's row before."""
        held = mirror.opened.get(order_of(run))
        return held is not None and (
            held.order.boot is not None or mirror.pools[held.order.pool].settings.template.worker
        )

    def silent_since(self, mirror: Mirror, run: Open) -> int | None:
        """When a worker that fences itself was heard last, if that is so long ago that it certainly has ended."""
        report = self._reports.get(run_id(run.order))
        silence_ms = mirror.pools[run.order.pool].settings.silence_ms
        silent = work.silent(run, report, silence_ms, self._asked_at)
        return report.heartbeat_at if silent and report is not None else None

    # slots that wait for their worker

    def settled(self, mirror: Mirror, made: Sequence[Made]) -> list[Made]:
        """What became of slots; a place that waits for its worker is held back until that has reported."""
        done: list[Made] = []
        now = self._world.clock.monotonic()
        waiting, self._made = {**self._made, **{each.slot.name: (each, now) for each in made}}, {}
        for name, (each, since) in waiting.items():
            slot = mirror.slots.get(name)
            if slot is None or each.incarnation is None or not _same(slot, each.slot):
                done.append(each)
            elif work.awaits_boot(mirror.pools[slot.pool], slot):
                self._made[name] = (each, since)
            else:
                done.append(Made(slot, each.incarnation, None))
        return done

    def waits(self, slot: Slot) -> bool:
        """Whether there is nothing to be done about a place but to wait for its worker."""
        made = self._made.get(slot.name)
        return made is not None and self._world.clock.monotonic() - made[1] < BOOT_POLL_S

    def _template(self, mirror: Mirror, run: Open) -> Template:
        return mirror.pools[run.order.pool].settings.template


def _counting(mirror: Mirror, residents: Sequence[Open], reports: Mapping[str, Report]) -> dict[str, Report]:
    """The reports of runs whose worker's silence counts."""
    counting = [run for run in residents if mirror.pools[run.order.pool].settings.silence_ms is not None]
    return {key: reports[key] for run in counting if (key := run_id(run.order)) in reports}


def _id(run: Open) -> str:
    return run_id(run.order)


def _given_up(mirror: Mirror, run: Open) -> bool:
    """Whether an operator's word may end it in this very step."""
    dead_at, until = mirror.host.dead_at, run.order.command_until
    return dead_at is not None and until is not None and until < dead_at


def _any(mirror: Mirror) -> bool:
    """Whether any pool here has workers."""
    return any(pool.settings.template.worker for pool in mirror.pools.values())


def _same(slot: Slot, made: Slot) -> bool:
    """Whether the slot is still as it was when its place was made, but for a worker that reported."""
    return slot.generation == made.generation and slot.state is made.state and slot.state_since == made.state_since
