"""What workers ask and say. They show tokens of their own, each good for one slot, one life of a worker, or one run.

A request writes reports and changes like any other; what they mean for a run is decided by whoever leads its host.
"""

import asyncio
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from msgspec import Raw, Struct
from msgspec.json import encode
from msgspec.structs import replace

from standby.api.needs import KNOWN_PARAMETERS, StoppingNeed, WorldNeed, of_app, wait_any
from standby.api.problems import Problem, invalid
from standby.api.views import Seconds, Time, answer, length, seconds, shown_time
from standby.api.wire import BeatBody, BootBody, OutputBody, ResultBody, parse, result_text
from standby.core import work
from standby.core.model import Order, OrderState, Pool, Slot, Trigger, run_id
from standby.core.work import Offer, Report, Word
from standby.seal import SealBroken
from standby.store.contract import Heard, LogChunk, Work
from standby.world import World

HEARTBEAT_MS: Final = 5_000
BEATS: Final = 4
"""So many heartbeats go into the time after which a worker ends itself."""
WAIT_MOST_S: Final = 60
POOL_KEPT_S: Final = 1.0
BOOT_TRIES: Final = 20
IDLE_POLLS: Final = 3
"""Who waits for work is looked after so much more rarely than a host, as long as there are hints."""
_TOKEN: Final = re.compile(
    r"(?:slot\.(?P<slot>[a-z0-9-]{1,255})|boot\.(?P<home>[a-z0-9-]{1,255})\.(?P<nonce>[A-Za-z0-9_-]{8,64})"
    r"|run\.(?P<run>[a-z0-9-]{1,255}))\.[0-9a-f]{64}"
)

router = APIRouter(tags=["worker"])


class BootView(Struct, frozen=True):
    """What a worker needs from its boot on."""

    slot: str
    boot_token: str
    heartbeat_s: Seconds
    silence_s: Seconds | None
    """So long after its last answered request it ends itself; null: its silence means nothing."""


class AssignmentView(Struct, frozen=True):
    """A run that was handed over."""

    run_id: str
    order_id: str
    attempt: int
    project: str
    pool: str
    command: Sequence[str] | None
    script: str | None
    env: Mapping[str, str]
    payload: Raw
    labels: Mapping[str, str]
    run_timeout_s: Seconds | None
    stop_grace_s: Seconds


class BeatView(Struct, frozen=True):
    """What is wanted of the run."""

    do: Word
    """`go_on`; `stop` (it is forced at `stop_by`); `exit`: the run is over, or somebody else's."""
    stop_by: Time | None
    stop_in_s: Seconds | None


class TakenView(Struct, frozen=True):
    """The result is kept."""

    run_id: str


class StoredView(Struct, frozen=True):
    """How far the output of the run is kept."""

    next: int
    """The number of the line that is expected next."""


class Desk:
    """Workers that wait for work, by slot; rung when their slot has got a run."""

    def __init__(self) -> None:
        self._bells: dict[str, set[asyncio.Event]] = {}

    def hear(self, heard: Heard) -> None:
        """Something was committed."""
        for slot in heard.handed:
            for bell in self._bells.get(slot, ()):
                bell.set()

    @contextmanager
    def bell(self, slot: str) -> Iterator[asyncio.Event]:
        """Rings when this slot gets a run."""
        mine = asyncio.Event()
        bells = self._bells.setdefault(slot, set())
        bells.add(mine)
        try:
            yield mine
        finally:
            bells.discard(mine)
            if not bells and self._bells.get(slot) is bells:
                del self._bells[slot]


class Badge(Struct, frozen=True):
    """Whom a token names; not yet whether it is right."""

    token: str
    slot: str | None
    nonce: str | None
    run: str | None


async def _badge(request: Request) -> Badge:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    found = _TOKEN.fullmatch(token.strip()) if scheme.lower() == "bearer" else None
    if found is None:
        raise _unknown()
    return Badge(found.string, found["slot"] or found["home"], found["nonce"], found["run"])


BadgeNeed = Annotated[Badge, Depends(_badge)]
DeskNeed = Annotated[Desk, of_app("desk")]
Wait = Annotated[float, Query(ge=0, le=WAIT_MOST_S)]


@router.post("/worker/boot")
async def boot_worker(request: Request, world: WorldNeed, badge: BadgeNeed) -> Response:
    """Begin to live in a slot: its token and a nonce (drawn once, by this life) for a boot token. Safe to repeat."""
    await _slot(world, badge, "slot")
    body, _ = await parse(request, BootBody, world.config.request_max_kb)
    for _ in range(BOOT_TRIES):
        slot, held = await _slot(world, badge, "slot")
        pool = await world.store.pool(slot.pool)
        if pool is None or not pool.settings.template.worker:
            raise Problem(409, "no_workers", f"the slots of pool {slot.pool} have no workers", "set worker = true")
        cause = world.cause(Trigger.REQUEST, f"worker:{slot.name}")
        change = work.boot(cause, slot, pool, None if held is None else held.order, body.nonce)
        if change is None or (await world.store.save([change]))[0].saved:
            view = BootView(
                slot=slot.name,
                boot_token=world.seal.boot_token(slot.name, slot.generation, body.nonce),
                heartbeat_s=length(heartbeat_ms(pool)),
                silence_s=seconds(pool.settings.silence_ms),
            )
            return answer(view)
    raise Problem(409, "conflict", f"slot {slot.name} keeps changing", "boot again")


@router.get("/worker/assignment", dependencies=KNOWN_PARAMETERS)
async def fetch_assignment(
    world: WorldNeed, badge: BadgeNeed, desk: DeskNeed, stopping: StoppingNeed, wait_s: Wait = 20
) -> Response:
    """Wait for work: the run, or 204 when there is none for so long. The same run as often as this boot asks, until it
    is over: a reply may be lost. Ask only when nothing is under way. 409: leave, there is nothing to do here."""
    poll_s = world.config.poll_ms / 1000 * (IDLE_POLLS if world.config.hints else 1)
    ends_at = world.clock.monotonic() + wait_s
    with desk.bell(badge.slot or "") as bell:
        while True:
            bell.clear()  # before the question: what comes meanwhile rings again
            found = await _assignment(world, badge)
            left_s = ends_at - world.clock.monotonic()
            if found is not None:
                return answer(found)
            if left_s <= 0 or stopping.is_set():
                return Response(status_code=204)
            await wait_any(stopping, min(left_s, poll_s), bell)


@router.post("/worker/heartbeat")
async def beat(request: Request, world: WorldNeed, badge: BadgeNeed) -> Response:
    """Say that the run is at work, and how far it is. The first one says that it began. The answer is what is wanted
    of it: always obey."""
    order = await _order(world, badge)
    body, _ = await parse(request, BeatBody, world.config.request_max_kb, empty=b"{}")
    run, word = await _wanted(world, badge, order, body.run_id)
    await _note_speaker(world, badge)
    if order is None or word is Word.EXIT:
        return answer(BeatView(do=Word.EXIT, stop_by=None, stop_in_s=None))
    now = world.clock.now()
    report = Report(
        run_id=run,
        boot=badge.nonce or "",
        begun_at=now,
        heartbeat_at=now,
        progress=body.progress,
        text=body.text,
    )
    kept = await world.store.put_report(report, news=order.state is OrderState.PREPARING)
    word = Word.EXIT if work.given_back(kept) else word
    by = order.deadline if word is Word.STOP else None
    return answer(BeatView(word, shown_time(by), seconds(None if by is None else max(0, by - now))))


@router.post("/worker/output")
async def tell_output(request: Request, world: WorldNeed, badge: BadgeNeed) -> Response:
    """Keep lines that the run wrote; safe to repeat. Lines that do not follow what is kept are ignored: the answer says
    which one is expected. 409: the run is over, or its output is read from its place."""
    order = await _order(world, badge)
    body, _ = await parse(request, OutputBody, world.config.request_max_kb)
    run, word = await _wanted(world, badge, order, body.run_id)
    if order is None or word is Word.EXIT:
        raise Problem(409, "run_over", "the run is over, or somebody else's", "exit: there is nothing left to tell")
    if not (await _pool(world, order.pool)).settings.template.worker:
        text = f"the output of runs in pool {order.pool} is read from their places"
        raise Problem(409, "output_is_read", text, "write it to standard output")
    chunk = LogChunk(
        run_id=run,
        first=body.first,
        count=len(body.lines),
        body=encode([(world.clock.now(), line.stream, line.text) for line in body.lines]).decode(),
        cursor="",
        closed=body.closed,
        bytes=sum(len(line.text.encode()) + 1 for line in body.lines),
    )
    tails = await world.store.append_logs([chunk], world.config.log_cap_mb * 2**20)
    return answer(StoredView(next=tails[run].next_line if run in tails else 0))


@router.post("/worker/result")
async def tell_result(request: Request, world: WorldNeed, badge: BadgeNeed) -> Response:
    """Say how the run ended, when everything of it has ended. The first result counts. 409: the run is over already, or
    somebody else's."""
    order = await _order(world, badge)
    body, raw = await parse(request, ResultBody, world.config.request_max_kb, empty=b"{}")
    run, word = await _wanted(world, badge, order, body.run_id)
    if word is Word.EXIT:
        raise Problem(409, "run_over", "the run is over, or somebody else's", "exit: there is nothing left to tell")
    await _note_speaker(world, badge)
    now, error = world.clock.now(), body.error
    report = Report(
        run_id=run,
        boot=badge.nonce or "",
        begun_at=now,
        heartbeat_at=now,
        progress=body.progress,
        text=body.text,
        ended_at=now,
        exit_code=body.exit_code if error is not None else body.exit_code or 0,
        error_name=None if error is None else error.name,
        error=None if error is None else error.text,
        retryable=None if error is None else error.retryable,
        result=result_text(raw),
    )
    await world.store.put_report(report, news=True)
    return answer(TakenView(run_id=run))


def heartbeat_ms(pool: Pool) -> int:
    """How often the workers of a pool are to be heard."""
    silence_ms = pool.settings.silence_ms
    return HEARTBEAT_MS if silence_ms is None else min(HEARTBEAT_MS, silence_ms // BEATS)


async def _assignment(world: World, badge: Badge) -> AssignmentView | None:
    """The run of this boot, if there is one; a worker that fences itself is noted before it gets it."""
    slot, held = await _slot(world, badge, "boot")
    pool, nonce, now = await _pool(world, slot.pool), badge.nonce or "", world.clock.now()
    order, report = None if held is None else held.order, None
    if order is not None and order.boot == nonce:
        report = (await world.store.reports([run_id(order)])).get(run_id(order))
    offered = work.offer(slot, pool, order, nonce, report, now)
    if offered is Offer.LEAVE:
        raise Problem(409, "leave", "another worker lives in this slot, or this one was silent for too long", "exit")
    if held is None or offered is Offer.WAIT:
        return None
    noted = Report(run_id=run_id(held.order), boot=nonce, heartbeat_at=now)
    if offered is Offer.TAKE:
        if pool.settings.silence_ms is not None:
            await world.store.put_report(noted, news=False)
        return await _handed(world, held)
    await world.store.put_report(replace(noted, ended_at=now), news=True)
    return None


async def _handed(world: World, held: Work) -> AssignmentView | None:
    order, spec = held.order, held.spec
    sealed = await world.store.sealed_env([order.id]) if spec.env_names else {}
    try:
        env = world.seal.open(order.id, sealed.get(order.id))
    except SealBroken as error:
        now = world.clock.now()
        broken = Report(
            run_id=run_id(order),
            boot=order.boot or "",
            heartbeat_at=now,
            ended_at=now,
            error_name="SealBroken",
            error=str(error),
            retryable=False,
        )
        await world.store.put_report(broken, news=True)
        return None
    return AssignmentView(
        run_id=run_id(order),
        order_id=order.id,
        attempt=order.attempt,
        project=order.project,
        pool=order.pool,
        command=list(spec.command) or None,
        script=spec.script,
        env=env,
        payload=Raw(spec.payload.encode()),
        labels=spec.labels,
        run_timeout_s=seconds(spec.run_timeout_ms),
        stop_grace_s=length(spec.stop_grace_ms),
    )


async def _order(world: World, badge: Badge) -> Order | None:
    """The order that whoever shows this token may speak of; 401 for a token that is not right."""
    if badge.run is None:
        _, held = await _slot(world, badge, "boot")
        return None if held is None else held.order
    if not hmac.compare_digest(badge.token, world.seal.run_token(badge.run)):
        raise _unknown()
    found = await world.store.order(badge.run.rpartition("-")[0])
    return None if found is None else found.order


async def _note_speaker(world: World, badge: Badge) -> None:
    """A run that speaks for itself is noted in its order's row, once: only then its leader looks for what it said."""
    for _ in range(BOOT_TRIES):
        found = None if badge.run is None else await world.store.order(badge.run.rpartition("-")[0])
        if found is None or badge.run != run_id(found.order):
            return
        if (await _pool(world, found.order.pool)).settings.template.worker:
            return  # what is said of those is always looked for
        cause = world.cause(Trigger.REQUEST, f"worker:{found.order.slot}")
        change = work.speaks(cause, found.order)
        if change is None or (await world.store.save([change]))[0].saved:
            return
    raise Problem(409, "conflict", f"run {badge.run} keeps changing", "say it again")


async def _wanted(world: World, badge: Badge, order: Order | None, named: str | None) -> tuple[str, Word]:
    """The run that is spoken of, and what is wanted of it."""
    run = badge.run or named
    if run is None:
        raise invalid("a boot token needs the run_id of the assignment", "send it", "run_id")
    if order is None:
        return run, Word.EXIT
    fenced = await _fenced(world, await _pool(world, order.pool), run)
    return run, work.word(order, run, badge.nonce, fenced=fenced)


async def _fenced(world: World, pool: Pool, run: str) -> bool:
    silence_ms = pool.settings.silence_ms
    if silence_ms is None:
        return False
    report = (await world.store.reports([run])).get(run)
    return work.fenced(report, silence_ms, world.clock.now())


async def _pool(world: World, name: str) -> Pool:
    """The pool, perhaps as it was a moment ago: what matters here changes rarely."""
    pool = await world.shared.ask(("worker's pool", name), lambda: world.store.pool(name), keep_s=POOL_KEPT_S)
    if pool is None:
        raise Problem(409, "leave", f"there is no pool {name} any more", "exit")
    return pool


async def _slot(world: World, badge: Badge, kind: str) -> tuple[Slot, Work | None]:
    """The slot that the token is of, and the order in it; 401 for a token of another generation, or none of ours."""
    seat = await world.store.seat(badge.slot) if badge.slot is not None else None
    if seat is None or (badge.nonce is None) is (kind == "boot"):
        raise _unknown()
    slot, _ = seat
    if badge.nonce is None:
        right = world.seal.slot_token(slot.name, slot.generation)
    else:
        right = world.seal.boot_token(slot.name, slot.generation, badge.nonce)
    if not hmac.compare_digest(badge.token, right):
        raise _unknown()
    return seat


def _unknown() -> Problem:
    text = "the token is not one of this server's workers, or its slot is another one by now"
    return Problem(401, "token_unknown", text, "exit, or start anew", headers={"WWW-Authenticate": "Bearer"})
