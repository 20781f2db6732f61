"""What a seed means: the shape of a house, the faults it knows, and a list of actions."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from standby.core.model import Reason, Retry

ACTIONS: Final = 150

ALWAYS: Final[Mapping[str, float]] = {
    "tick": 25,
    "work": 10,
    "step": 6,
    "submit": 9,
    "burst": 0.5,
    "lead": 4,
    "cancel": 3,
}
SOMETIMES: Final[Mapping[str, float]] = {
    "mode": 2,
    "limits": 1,
    "jump": 4,
    "leap": 1.5,
    "resign": 1.5,
    "crash": 2,
    "freeze": 2.5,
    "stall": 4,
    "die inside": 2.5,
    "down inside": 2.5,
    "unsure": 3,
    "outage": 1.5,
    "unreachable": 2,
    "partition": 1.5,
    "refuse creates": 1.5,
    "rebirth": 0.7,
    "burn": 0.4,
    "kill": 1.5,
    "vanish": 1.5,
    "lose a place": 1.5,
    "leave a stray": 1.0,
    "template": 0.7,
    "lose the images": 0.5,
    "refuse pulls": 0.7,
    "reset breakers": 0.7,
    "unsteady": 1,
}
"""Each seed knows about half of them."""
CALL_FAULTS: Final = (
    "slow answer",
    "late",
    "twice",
    "lost answer",
    "lost request",
    "hang",
    "slow look",
    "failed look",
    "old runs too",
    "slow save",
)
"""What can happen to a driver call, and to a save."""
WORKER_FAULTS: Final = ("lost question", "lost reply", "late question", "question twice")
"""What can happen to what a resident worker asks."""
WITH_WORKERS: Final[Mapping[str, float]] = {
    "worker dies": 1,
    "place ends": 0.7,
    "second worker": 1.5,
    "part workers": 1,
    "submit": 3,
    "cancel": 1,
    "work": 3,
}
"""What happens more often where workers live."""


class HostShape(Struct, frozen=True, kw_only=True):
    name: str
    seats: bool
    lag_ms: int
    memory_mb: int | None
    starts_max: int | None = None
    start_gap_ms: int = 0
    create_ms: int = 0
    pull_ms: int | None = None
    """Null: every image is there."""
    measured: bool = False
    cpus: float | None = None


class PoolShape(Struct, frozen=True, kw_only=True):
    name: str
    host: str
    slots_max: int
    memory_mb: int
    project: str | None = None
    more: Mapping[str, Any] = {}
    """Other keys of its configuration: how warm its slots are, and how long they serve."""


class Shape(Struct, frozen=True, kw_only=True):
    """Everything about a house that does not change by itself."""

    instances: int
    hosts: Sequence[HostShape]
    pools: Sequence[PoolShape]
    projects: Mapping[str, int | None]
    weights: Mapping[str, int] = {}
    hints: bool
    faults: Mapping[str, float]
    """Driver call fault -> how likely."""
    scheduled: bool = False
    """It has a schedule."""


class Action(Struct, frozen=True):
    """One thing that happens; `salt` is all the chance it needs."""

    kind: str
    salt: int


def draw(seed: int, actions: int = ACTIONS) -> tuple[Shape, list[Action]]:
    """The house and the history of a seed."""
    chance = Random(seed)
    shape = _shape(chance)
    weights = dict(ALWAYS)
    for kind, weight in SOMETIMES.items():
        if chance.random() < 0.5:
            weights[kind] = weight * chance.uniform(0.3, 2.5)
    kinds = chance.choices(list(weights), list(weights.values()), k=actions)
    todo = [Action(kind, chance.getrandbits(63)) for kind in ["lead", "submit", *kinds]]
    return _with_workers(_with_limits(shape, Random(f"{seed} limits")), todo, Random(f"{seed} workers"))


def _with_limits(shape: Shape, chance: Random) -> Shape:
    """Some houses have pools with limits of their own, and projects that weigh more than others."""
    pools = [replace(pool, more={**pool.more, **_limits(chance)}) for pool in shape.pools]
    return replace(shape, pools=pools, weights={"a": 1, "b": chance.choice([1, 1, 2, 5])})


def _limits(chance: Random) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if chance.random() < 0.25:
        more["running_max"] = chance.choice([1, 2])
    if chance.random() < 0.15:
        more["starts_per_minute"] = chance.choice([30, 120])
    return more


def _with_workers(shape: Shape, todo: list[Action], chance: Random) -> tuple[Shape, list[Action]]:
    """Some houses have pools whose slots are lived in."""
    solid = {host.name for host in shape.hosts if not host.seats}
    lived_in = [pool.name for pool in shape.pools if pool.host in solid and chance.random() < 0.5]
    if not lived_in:
        return shape, todo
    pools = [_lived_in(pool, chance) if pool.name in lived_in else pool for pool in shape.pools]
    faults = {fault: chance.choice([0.03, 0.1, 0.3]) for fault in WORKER_FAULTS if chance.random() < 0.45}
    kinds = {kind: weight for kind, weight in WITH_WORKERS.items() if chance.random() < 0.7}
    for kind in chance.choices(list(kinds), list(kinds.values()), k=len(todo) // 4) if kinds else ():
        todo.insert(chance.randrange(2, len(todo) + 1), Action(kind, chance.getrandbits(63)))
    return replace(shape, pools=pools, faults={**shape.faults, **faults}), todo


def _lived_in(pool: PoolShape, chance: Random) -> PoolShape:
    lives = {"warmth": "running", "worker": True, "silence": chance.choice(["none", "none", "3s", "8s"])}
    return replace(pool, more={**pool.more, **lives})


def _shape(chance: Random) -> Shape:
    hosts = []
    for number in range(chance.choice([1, 1, 2])):
        seats = chance.random() < 0.5
        lag_ms = chance.choice([0, 0, 300]) if seats else chance.choice([0, 500, 1_000])
        memory_mb = chance.choice([None, 100, 200, 300])
        gate: dict[str, Any] = {
            "starts_max": chance.choice([None, None, 1, 2]),
            "start_gap_ms": chance.choice([0, 0, 0, 700]),
            "create_ms": chance.choice([0, 0, 300, 4_000]),
            "pull_ms": chance.choice([None, None, 0, 2_500]),
        }
        gate = {} if seats and chance.random() < 0.7 else gate
        hosts.append(HostShape(name=f"h{number + 1}", seats=seats, lag_ms=lag_ms, memory_mb=memory_mb, **gate))
    pools = [
        _pool(chance, f"p{number + 1}", hosts[number % len(hosts)])
        for number in range(max(len(hosts), chance.choice([1, 1, 2, 3])))
    ]
    faults = {fault: chance.choice([0.03, 0.1, 0.2, 0.5]) for fault in CALL_FAULTS if chance.random() < 0.45}
    return Shape(
        instances=chance.choice([1, 2, 2, 3]),
        hosts=hosts,
        pools=pools,
        projects={"a": chance.choice([None, 1, 2]), "b": chance.choice([None, None, 1])},
        hints=chance.random() < 0.5,
        faults=faults,
    )


def _pool(chance: Random, name: str, host: HostShape) -> PoolShape:
    slots_max = chance.choice([1, 1, 2, 3])
    more: dict[str, Any] = {"start_timeout": "20s"}
    project = None
    if not host.seats:
        more["warmth"] = chance.choice(["created", "created", "running", "running", "cold"])
        more["slots_warm"] = chance.choice([0, 0, 1, slots_max])
        more["idle_ttl"] = chance.choice(["2s", "30s", "none"])
        more["pick"] = chance.choice(["lru", "lru", "mru"])
        if chance.random() < 0.2:
            more["max_uses"] = chance.choice([1, 2])
        if chance.random() < 0.2:
            more["max_age"] = chance.choice(["10s", "1m"])
        if chance.random() < 0.4:
            project = "a"
            more |= {"project": project, "reset": "none"}
    memory_mb = chance.choice([50, 100])
    return PoolShape(name=name, host=host.name, slots_max=slots_max, memory_mb=memory_mb, project=project, more=more)


def script(chance: Random, lag_ms: int) -> dict[str, Any]:
    """What an order does once it is started."""
    told: dict[str, Any] = {
        "start_ms": chance.choice([0, 0, 0, 50, 800, 3_000]),
        "run_ms": chance.choice([0, 0, 100, 1_000, 4_000, None]),
    }
    match chance.randrange(10):
        case 0:
            told["start_error"] = "no such image"
            told["place_failed"] = chance.random() < 0.5
        case 1:
            told["oom"] = True
        case 2:
            told["signal"] = chance.choice([6, 11])
        case 3 | 4:
            told["exit"] = chance.choice([1, 7])
        case 5:
            told["vanish_after_ms"] = chance.choice([10, 900])
        case _:
            pass
    if chance.random() < 0.2:
        told["ignore_stop"] = True
    elif chance.random() < 0.3:
        told["stop_ms"] = chance.choice([50, 1_500, 8_000])
    if chance.random() < 0.06:
        told["lie"] = chance.choice(["unknown", "starting"])
        if chance.random() < 0.5:  # it was seen at work before
            told |= {
                "lie_after_ms": told["start_ms"] + chance.choice([50, 900]),
                "run_ms": chance.choice([4_000, None]),
            }
    if lag_ms and chance.random() < 0.5:
        told["report_late_ms"] = chance.randrange(lag_ms + 1)
    if chance.random() < 0.04:
        told["unreachable_ms"] = chance.choice([500, 6_000])
    return told


def wishes(chance: Random) -> dict[str, Any]:
    """How long an order is willing to wait for what, and how often it is tried."""
    retry = Retry(
        retries=chance.choice([0, 1, 1, 2]),
        base_ms=chance.choice([200, 200, 1_000, 3_000]),
        retry_on=tuple(chance.sample([Reason.EXIT, Reason.OOM, Reason.TIMEOUT], chance.choice([0, 1, 3]))),
        no_retry_on=chance.choice([(), (), (), (Reason.LOST,), (Reason.START_FAILED,)]),
    )
    return {
        "retry": retry,
        "priority": chance.choice([100, 100, 90, 200]),
        "queue_timeout_ms": chance.choice([None, None, None, 3_000, 20_000]),
        "start_timeout_ms": chance.choice([1_000, 6_000, 20_000]),
        "run_timeout_ms": chance.choice([1_500, 8_000]),
        "stop_grace_ms": chance.choice([0, 500, 4_000]),
    }
