"""What is measured on the hosts of some houses: it jumps, flaps and goes missing. They count processors, too."""

from random import Random
from typing import Final

from msgspec.structs import replace

from sim.plan import ACTIONS as ACTIONS_MOST
from sim.plan import Action, Shape, draw
from sim.schedules import with_schedule
from standby.core.model import Host, Level
from standby.core.sighting import Pressure, Reading

CALM: Final = Reading(memory_total_mb=1_000, memory_available_mb=600, disk_free_mb=9_999)
READINGS: Final = (
    CALM,
    Reading(memory_total_mb=1_000, memory_available_mb=150),
    Reading(memory_total_mb=1_000, memory_available_mb=20),
    Reading(memory_total_mb=1_000, memory_available_mb=600, pressure=Pressure(memory_some_avg10=40)),
    Reading(memory_total_mb=1_000, memory_available_mb=600, pressure=Pressure(memory_full_avg10=40)),
    Reading(memory_total_mb=1_000, memory_available_mb=600, disk_free_mb=1),
    Reading(),
)
FAULTS: Final = ("slow reading", "lost reading")
ACTIONS: Final = {"reading": 3.0, "flap": 1.0, "long calm": 0.7}


def drawn(seed: int, actions: int = ACTIONS_MOST) -> tuple[Shape, list[Action]]:
    """The house and the history of a seed, with what is measured and scheduled in it."""
    shape, todo = with_readings(*draw(seed, actions), Random(f"{seed} readings"))
    return with_schedule(shape, todo, Random(f"{seed} schedule"))


def with_readings(shape: Shape, todo: list[Action], chance: Random) -> tuple[Shape, list[Action]]:
    """Some houses are measured, and have processors to give."""
    if chance.random() < 0.6:
        return shape, todo
    hosts = [replace(host, measured=True, cpus=chance.choice([None, 1.5, 2.0])) for host in shape.hosts]
    pools = [
        replace(pool, more={**pool.more, "cpus": chance.choice([0.5, 1.0, 1.5])}) if chance.random() < 0.5 else pool
        for pool in shape.pools
    ]
    faults = {fault: chance.choice([0.1, 0.3]) for fault in FAULTS if chance.random() < 0.5}
    for kind in chance.choices(list(ACTIONS), list(ACTIONS.values()), k=len(todo) // 8):
        todo.insert(chance.randrange(2, len(todo) + 1), Action(kind, chance.getrandbits(63)))
    return replace(shape, hosts=hosts, pools=pools, faults={**shape.faults, **faults}), todo


def allowed(host: Host) -> int | None:
    """How many starts may be in flight on a host of that level, said once more in other words."""
    match host.pressure, host.starts_max:
        case Level.CRITICAL, _:
            return 0
        case Level.WARNING, None | 1 | 2 | 3:
            return 1
        case Level.WARNING, int(most):
            return most // 2
        case _, most:
            return most
