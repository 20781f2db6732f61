"""Taking in a work order: checked, one change, answered after its commit. Safe to repeat with an Idempotency-Key."""

from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from standby.api.needs import ActorNeed, WorldNeed
from standby.api.problems import Problem, invalid, not_found
from standby.api.views import answer, order_view
from standby.api.wire import RetryBody, SubmitBody, parse, payload_text
from standby.core import lifecycle
from standby.core.model import Change, Idempotency, Order, OrderState, Pool, Retry, Spec, Trigger
from standby.store.contract import Answer
from standby.world import World

IDEMPOTENCY_MS: Final = 24 * 3_600_000
TRIES: Final = 5

router = APIRouter(tags=["work orders"])
_SCHEMA: Final = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": SubmitBody.model_json_schema()}}}
}


@router.post("/work-orders", status_code=201, openapi_extra=_SCHEMA)
async def submit(request: Request, world: WorldNeed, actor: ActorNeed) -> Response:
    """Take in a work order; 201 with the order, 200 with the one that is there when its dedupe key is in use."""
    body, raw = await parse(request, SubmitBody, world.config.request_max_kb)
    key = _idempotency_key(request)
    fingerprint = world.seal.fingerprint(f"{body.project}\n".encode() + _canonical(body, raw))
    if key is not None and (replay := await _replay(world, body.project, key, fingerprint)):
        return replay
    pool = await _pool(world, body)
    spec = await _spec(world, body, pool, actor, payload_text(raw))
    for _ in range(TRIES):
        change, text = await _change(world, body, spec, pool, actor)
        if key is not None:
            kept = Idempotency(
                project=body.project,
                key=key,
                fingerprint=fingerprint,
                order_id=change.subject,
                answer=text.decode(),
                at=change.at,
            )
            change = replace(change, idempotency=kept)
        (verdict,) = await world.store.save([change])
        if verdict.saved:
            return answer(text, 201, {"Location": f"/api/v1/work-orders/{change.subject}"})
        if verdict.answer is Answer.DUPLICATE:
            if key is not None and (replay := await _replay(world, body.project, key, fingerprint)):
                return replay
            if verdict.order_id is not None and (found := await _deduplicated(world, verdict.order_id, body)):
                return found
    raise Problem(409, "conflict", "the order could not be saved: others changed the same rows", "send it again")


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
        raise Problem(
            422, "bad_idempotency_key", "the Idempotency-Key cannot be used", "send 1 to 255 ASCII characters"
        )
    return key


def _canonical(body: SubmitBody, raw: bytes) -> bytes:
    """The same for bodies that mean the same: given fields in one order, the payload as it was sent."""
    given = body.model_dump(mode="json", exclude_unset=True, exclude={"payload"})
    return msgspec.json.encode([given, payload_text(raw)], order="deterministic")


async def _replay(world: World, project: str, key: str, fingerprint: str) -> Response | None:
    """The first answer once more; 409 when the key was used for something else; null when it is free."""
    kept = await world.store.idempotency(project, key)
    if kept is None:
        return None
    old = world.clock.now() - IDEMPOTENCY_MS
    if kept.at <= old:
        await world.store.prune_idempotency(old + 1, 1_000)
        return None
    if kept.fingerprint != fingerprint:
        raise Problem(
            409,
            "idempotency_key_reused",
            f"this Idempotency-Key was used for order {kept.order_id} with another body",
            "use a new key for a new order",
        )
    return answer(kept.answer.encode(), 201, {"Idempotent-Replayed": "true"})


async def _deduplicated(world: World, order_id: str, body: SubmitBody) -> Response | None:
    """The unfinished order that has this dedupe key; null when it is gone."""
    work = await world.store.order(order_id)
    if work is None or body.dedupe_key is None or work.spec.dedupe_key != body.dedupe_key:
        return None
    position = await world.store.position(work.order)
    return answer(replace(order_view(work.order, work.spec, position=position), deduplicated=True))


async def _pool(world: World, body: SubmitBody) -> Pool:
    pool = await world.store.pool(body.pool)
    if pool is None:
        names = sorted(each.name for each in await world.store.pools())
        text = f"there is no pool {body.pool!r}"
        raise invalid(text, f"use one of: {', '.join(names)}" if names else "the server has no pools yet", "pool")
    return pool


async def _change(world: World, body: SubmitBody, spec: Spec, pool: Pool, actor: str) -> tuple[Change, bytes]:
    """The change that takes the order in, and the answer that will be true once it is saved."""
    cause = world.cause(Trigger.REQUEST, actor)
    order_id = world.ids.order(cause.at)
    draft = Order(
        id=order_id,
        project=body.project,
        pool=pool.name,
        memory_mb=pool.settings.memory_mb if body.memory_mb is None else body.memory_mb,
        submitted_at=cause.at,
        state=OrderState.PENDING,
        state_since=cause.at,
        dedupe_live=None if body.dedupe_key is None else f"{body.project}:{body.dedupe_key}",
    )
    spec = replace(spec, order_id=order_id)
    change = lifecycle.submit(cause, draft, spec, pool, world.seal.close(order_id, body.env), None)
    assert change.order is not None
    rank = change.order.rank
    position = None if rank is None else await world.store.position_at(pool.name, body.project, rank)
    return change, msgspec.json.encode(order_view(change.order, spec, position=position))


async def _spec(world: World, body: SubmitBody, pool: Pool, actor: str, payload: str) -> Spec:
    """What was asked, with the pool's defaults where nothing was said."""
    if (body.command is None) == (body.script is None):
        raise invalid("exactly one of command and script is needed", "send a command list or a script text", "command")
    if body.command is not None and not body.command[0]:
        raise invalid("the command's first word is empty", "name the program to run", "command")
    if body.rerun_of is not None and await world.store.order(body.rerun_of) is None:
        raise invalid(f"there is no order {body.rerun_of!r} to run again", "name an order that exists", "rerun_of")
    await _check_memory(world, body, pool)
    defaults, said = pool.settings, body.model_fields_set
    queue_ms = _ms(body.queue_timeout_s) if "queue_timeout_s" in said else defaults.queue_timeout_ms
    if "queue_timeout_s" in said:
        _check_queue_timeout(queue_ms, pool)
    run_ms = _ms(body.run_timeout_s) if "run_timeout_s" in said else defaults.run_timeout_ms
    start_ms = round(body.start_timeout_s * 1000) if "start_timeout_s" in said else defaults.start_timeout_ms
    grace_ms = round(body.stop_grace_s * 1000) if "stop_grace_s" in said else defaults.stop_grace_ms
    return Spec(
        order_id="",
        command=tuple(body.command or ()),
        script=body.script,
        env_names=tuple(sorted(body.env)),
        payload=payload,
        labels=body.labels,
        priority=body.priority,
        queue_timeout_ms=queue_ms,
        start_timeout_ms=start_ms,
        run_timeout_ms=run_ms,
        stop_grace_ms=grace_ms,
        retry=_retry(body.retry, defaults.retry),
        not_before=body.not_before,
        dedupe_key=body.dedupe_key,
        rerun_of=body.rerun_of,
        submitted_by=actor,
    )


async def _check_memory(world: World, body: SubmitBody, pool: Pool) -> None:
    if body.memory_mb is None:
        return
    host = await world.store.host(pool.host)
    if host is None:
        raise not_found("host", pool.host)
    if host.memory_mb is not None and body.memory_mb > host.memory_mb:
        text = f"memory_mb {body.memory_mb} is more than the {host.memory_mb} MB that host {host.name} has in all"
        raise invalid(text, "ask for less, or use a pool on a larger host", "memory_mb")


def _check_queue_timeout(queue_ms: int | None, pool: Pool) -> None:
    most = pool.settings.queue_timeout_max_ms
    if most is not None and (queue_ms is None or queue_ms > most):
        text = f"queue_timeout_s is above the {most / 1000:g} s that pool {pool.name} allows"
        raise invalid(text, "ask for less, or raise the pool's queue_timeout_max", "queue_timeout_s")


def _retry(body: RetryBody, default: Retry) -> Retry:
    return Retry(
        retries=default.retries if body.retries is None else body.retries,
        base_ms=default.base_ms if body.base_s is None else round(body.base_s * 1000),
        factor=default.factor if body.factor is None else body.factor,
        cap_ms=default.cap_ms if body.cap_s is None else round(body.cap_s * 1000),
        retry_on=default.retry_on if body.retry_on is None else tuple(body.retry_on),
        no_retry_on=default.no_retry_on if body.no_retry_on is None else tuple(body.no_retry_on),
    )


def _ms(length_s: float | None) -> int | None:
    return None if length_s is None else round(length_s * 1000)
