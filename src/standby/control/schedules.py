"""The step that makes the orders of schedules, done by whichever instance holds its lease."""

import structlog

from standby import zones
from standby.control.lease import Deposed, Hold
from standby.core import ticks
from standby.core.errors import Refused
from standby.core.model import Mode, Schedule, Trigger
from standby.seal import SealBroken
from standby.store.contract import Answer
from standby.ticking import make_tick
from standby.world import World

PAGE = 100
REST_S = 3.0
"""When a look could not be had, or something was saved while it was taken, there is another one after this."""

log = structlog.get_logger()


class ScheduleStep:
    """One bounded step: a tick each for the schedules that are due."""

    def __init__(self, world: World, hold: Hold, actor: str) -> None:
        self._world, self._hold, self._actor = world, hold, actor

    async def step(self) -> float:
        """Make or give up ticks whose time has come. Returns after how many seconds to look again."""
        store, clock = self._world.store, self._world.clock
        # A clock that jumped could make a year of ticks due.
        if not clock.steady or not self._hold.outlives(0):
            return REST_S
        schedules = await store.due_schedules(clock.now(), PAGE)
        for schedule in schedules:
            try:
                answer = await self._tick(schedule)
            except (Refused, SealBroken) as error:
                answer = await self._pause(schedule, str(error))
            if answer is Answer.DEPOSED:
                self._hold.give_up()
                raise Deposed("schedules are kept by somebody else")
        return 0.0 if schedules else until_a_look(clock.now())

    async def _tick(self, schedule: Schedule) -> Answer:
        world, zone = self._world, zones.find(schedule.zone)
        cause = world.cause(Trigger.DUE, self._actor, self._hold.key)
        due = ticks.due(schedule, zone, cause.at)
        if due.tick is not None:
            return (await make_tick(world, cause, schedule, due)).answer
        log.warning("ticks were missed", schedule=schedule.name, missed=due.missed)
        missed = ticks.miss(cause, schedule, due.missed, due.next_at)
        return (await world.store.save([missed], together=True))[0].answer

    async def _pause(self, schedule: Schedule, why: str) -> Answer:
        """What cannot be made would be tried for ever: a person has to see to it."""
        log.error("a schedule is paused", schedule=schedule.name, error=why)
        cause = self._world.cause(Trigger.DUE, self._actor, self._hold.key)
        change = ticks.set_mode(cause, schedule, Mode.PAUSED, why, None)
        assert change is not None
        return (await self._world.store.save([change], together=True))[0].answer


def until_a_look(now: int) -> float:
    """Seconds until ticks can be due that were not: they come with whole minutes. A schedule that was being saved at
    its minute is found a little later."""
    past_s = now % 60_000 / 1000
    return (REST_S if past_s < REST_S else 60.0) - past_s
