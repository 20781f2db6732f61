"""Taking in work orders, one or many: checked wishes become changes, and each is answered after its commit."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from standby import conflicts
from standby.api import queues
from standby.api.auth import ADMINS
from standby.api.problems import Problem, invalid, not_found
from standby.api.standings import AT_ONCE, UNKNOWN, Standing, at_hand, standings
from standby.api.views import OrderView, order_view
from standby.api.wire import RetryBody, SubmitBody
from standby.core import lifecycle, processors, warm
from standby.core.draft import draft, foreign
from standby.core.estimate import Wait
from standby.core.lifecycle import Cause
from standby.core.model import Change, Host, Idempotency, OnConflict, Pool, Retry, Spec, Trigger
from standby.seal import SealBroken
from standby.starts import has_seats
from standby.store.contract import Answer, Listed, StoreDown, Verdict, Work
from standby.world import World

IDEMPOTENCY_MS: Final = 24 * 3_600_000
TRIES: Final = 5
POOL_KEPT_S: Final = 0.2
"""So old may a pool be that an order is taken in with: by so much its time to wait may be off when the pool was just
blocked or opened."""
HOST_KEPT_S: Final = 10.0
"""So old may the size of a host be: it changes when a server starts."""


class Wish(Struct, frozen=True, kw_only=True):
    """An order that somebody wants, checked, without an id yet."""

    project: str
    pool: Pool
    memory_mb: int
    spec: Spec
    env: Mapping[str, str]
    said: str | None = None
    key: str | None = None
    """Its Idempotency-Key."""
    fingerprint: str = ""
    """Tells two bodies with the same key apart."""


class Taken(Struct, frozen=True, kw_only=True):
    """What became of a wish."""

    answer: Literal["submitted", "deduplicated"]
    order_id: str
    text: bytes
    """The order as JSON."""
    replayed: bool = False


class Intake:
    """One request's intake: what it reads again and again is read once."""

    def __init__(self, world: World, actor: str) -> None:
        self._world, self._actor = world, actor
        self._pools: dict[str, Pool] = {}

    # wishes

    async def wish(self, body: SubmitBody, payload: str, key: str | None) -> Wish:
        """What a body asks for, with the pool's defaults where it says nothing; raises Problem."""
        pool = await self._pool_for(body.pool, body.project)
        if body.urgent and self._actor not in ADMINS:
            text = f"only the key named admin may put an order before all lanes, not {self._actor}"
            raise Problem(403, "admin_needed", text, "leave urgent out and give it a smaller priority")
        spec = self._spec(body, pool, payload)
        if body.rerun_of is not None and await self._world.store.order(body.rerun_of) is None:
            raise invalid(f"there is no order {body.rerun_of!r} to run again", "name an order that exists", "rerun_of")
        memory_mb = pool.settings.memory_mb if body.memory_mb is None else body.memory_mb
        self._check_fits(memory_mb, spec.cpus, pool, await self._host(pool.host))
        fingerprint = self.fingerprint(body, payload) if key is not None else ""
        return Wish(
            project=body.project,
            pool=pool,
            memory_mb=memory_mb,
            spec=spec,
            env=body.env,
            key=key,
            fingerprint=fingerprint,
        )

    async def rerun(self, work: Work | Listed, said: str | None) -> Wish:
        """The same order once more; raises Problem for one that has not ended, or whose env cannot be opened."""
        order, spec = work.order, work.spec
        if order.ended_at is None:
            text = f"order {order.id} is {order.state}: only what has ended can be run again"
            raise Problem(409, "not_ended", text, "cancel it first, or wait for its end")
        sealed = (await self._world.store.sealed_env([order.id])).get(order.id) if spec.env_names else None
        try:
            env = self._world.seal.open(order.id, sealed)
        except SealBroken as error:
            raise Problem(409, "env_sealed", str(error), "submit it anew with its env values") from None
        fresh = {"schedule": None, "tick_at": None, "urgent": False}
        spec = replace(spec, rerun_of=order.id, submitted_by=self._actor, **fresh)
        pool = await self._pool_for(order.pool, order.project)
        self._check_fits(order.memory_mb, spec.cpus, pool, await self._host(pool.host))
        return Wish(project=order.project, pool=pool, memory_mb=order.memory_mb, spec=spec, env=env, said=said)

    def fingerprint(self, body: SubmitBody, payload: str) -> str:
        """The same for bodies that mean the same: given fields in one order, the payload as it was sent."""
        given = body.model_dump(mode="json", exclude_unset=True, exclude={"payload"})
        canonical = msgspec.json.encode([given, payload], order="deterministic")
        return self._world.seal.fingerprint(f"{body.project}\n".encode() + canonical)

    async def _pool_for(self, name: str, project: str) -> Pool:
        world, pool = self._world, self._pools.get(name)
        if pool is None:
            key = "pool", name
            pool = world.shared.at_hand(key)
            if pool is None:
                pool = await world.shared.ask(key, lambda: world.store.pool(name), keep_s=POOL_KEPT_S)
            if pool is None:
                names = sorted(each.name for each in await world.store.pools())
                hint = f"use one of: {', '.join(names)}" if names else "the server has no pools yet"
                raise invalid(f"there is no pool {name!r}", hint, "pool")
            self._pools[name] = pool
        if (text := foreign(pool, project)) is not None:
            raise invalid(text, "use another pool, or submit it in that project", "project")
        return pool

    async def _host(self, name: str) -> Host:
        world, key = self._world, ("host", name)
        host: Host | None = world.shared.at_hand(key)
        if host is None:
            host = await world.shared.ask(key, lambda: world.store.host(name), keep_s=HOST_KEPT_S)
        if host is None:
            raise not_found("host", name)
        return host

    def _spec(self, body: SubmitBody, pool: Pool, payload: str) -> Spec:
        if (body.command is None) == (body.script is None):
            text = "exactly one of command and script is needed"
            raise invalid(text, "send a command list or a script text", "command")
        if body.command is not None and not body.command[0]:
            raise invalid("the command's first word is empty", "name the program to run", "command")
        if body.on_conflict is not OnConflict.WAIT and body.concurrency_key is None:
            text = "on_conflict says what to do about others with its concurrency_key, and it has none"
            raise invalid(text, "send a concurrency_key too", "on_conflict")
        defaults, said = pool.settings, body.model_fields_set
        queue_ms = _ms(body.queue_timeout_s) if "queue_timeout_s" in said else defaults.queue_timeout_ms
        if "queue_timeout_s" in said:
            _check_queue_timeout(queue_ms, pool)
        return Spec(
            order_id="",
            command=tuple(body.command or ()),
            script=body.script,
            env_names=tuple(sorted(body.env)),
            payload=payload,
            labels=body.labels,
            priority=body.priority,
            queue_timeout_ms=queue_ms,
            start_timeout_ms=_or(body.start_timeout_s, "start_timeout_s" in said, defaults.start_timeout_ms),
            run_timeout_ms=_ms(body.run_timeout_s) if "run_timeout_s" in said else defaults.run_timeout_ms,
            stop_grace_ms=_or(body.stop_grace_s, "stop_grace_s" in said, defaults.stop_grace_ms),
            retry=_retry(body.retry, defaults.retry),
            not_before=body.not_before,
            dedupe_key=body.dedupe_key,
            concurrency_key=body.concurrency_key,
            on_conflict=body.on_conflict,
            urgent=body.urgent,
            rerun_of=body.rerun_of,
            submitted_by=self._actor,
            cpus=None if body.cpus is None else round(body.cpus, 3),
        )

    def _check_fits(self, memory_mb: int, cpus: float | None, pool: Pool, host: Host) -> None:
        """What can never be started is refused, with the figures."""
        if host.memory_mb is None and host.cpus is None:
            return
        seats = has_seats(self._world, host)
        memory_mb = warm.needed_mb(pool, memory_mb, seats)
        if host.memory_mb is not None and memory_mb > host.memory_mb:
            text = f"memory_mb {memory_mb} is more than the {host.memory_mb} MB that host {host.name} has in all"
            raise invalid(
                text, "ask for less (an order's memory_mb, or its pool's), or use a pool on a larger host", "memory_mb"
            )
        if host.cpus is not None and (needs := processors.needed(pool, cpus, seats)) > host.cpus:
            text = f"cpus {needs:g} is more than the {host.cpus:g} that host {host.name} has in all"
            raise invalid(text, "ask for less (an order's cpus, or its pool's), or use a pool on a larger host", "cpus")

    # changes

    async def take(self, wishes: Sequence[Wish], *, together: bool = False) -> list[Taken | Problem]:
        """Save each wish, or all or none of them; says what became of each, in order."""
        done: list[Taken | Problem | None] = [None] * len(wishes)
        if not queues.unlimited(self._world, wishes):
            done = [*await self._refused(wishes)]
        if together and (refused := next((each for each in done if isinstance(each, Problem)), None)) is not None:
            raise refused
        for _ in range(TRIES):
            left = [place for place, found in enumerate(done) if found is None]
            if not left:
                break
            at = self._world.clock.now()
            asked = [wishes[place] for place in left]
            changes, places, verdicts = await self._save(asked, [self._change(wish, at) for wish in asked], together)
            for place, change, position, verdict in zip(left, changes, places, verdicts, strict=True):
                done[place] = await self._outcome(wishes[place], change, position, verdict)
            if together and any(isinstance(found, Problem) for found in done):
                break  # then none is taken in: those that were held back are not tried alone
        lost = "the order could not be saved: others changed the same rows"
        return [Problem(409, "conflict", lost, "send it again") if found is None else found for found in done]

    async def _refused(self, wishes: Sequence[Wish]) -> Sequence[Taken | Problem | None]:
        """Those for which too many wait already; one that was taken in before is answered as it was then."""
        found: list[Taken | Problem | None] = [*await queues.refusals(self._world, wishes)]
        for place, wish in enumerate(wishes):
            if found[place] is not None and wish.key is not None:
                known = await self.replay(wish.project, wish.key, wish.fingerprint)
                found[place] = found[place] if known is None else known
        return found

    async def _save(
        self, wishes: Sequence[Wish], changes: Sequence[Change], together: bool
    ) -> tuple[Sequence[Change], Sequence[Standing], Sequence[Verdict]]:
        """Save them. A kept answer is saved with its order; the place of any other is counted meanwhile. One that comes
        alone and need not wait is claimed by the same commit."""
        if len(changes) == 1 and (place := self._at_hand(changes[0])) is not None:
            changes = [_with_answer(changes[0], wishes[0], place)]
            verdicts = await self._world.store.save(changes)
            if place is AT_ONCE:
                with suppress(StoreDown):  # it is saved, whoever cannot count it
                    await queues.started(self._world, wishes[0])
            return changes, [place], verdicts
        counting = asyncio.ensure_future(standings(self._world, changes, self._pools))
        try:
            if any(wish.key is not None for wish in wishes):
                kept = zip(changes, wishes, await counting, strict=True)
                changes = [_with_answer(change, wish, place) for change, wish, place in kept]
            save = self._world.store.save
            verdicts = await save(changes, together=True) if together else await save(changes)
        except BaseException:
            counting.cancel()
            raise
        try:
            return changes, await counting, verdicts
        except StoreDown:
            return changes, [UNKNOWN] * len(changes), verdicts  # what is saved is saved, whoever cannot count it

    def _change(self, wish: Wish, at: int) -> Change:
        """The change that takes the order in."""
        ids = self._world.ids
        cause = Cause(id=ids.short(), at=at, trigger=Trigger.REQUEST, actor=self._actor)
        order_id = ids.order(at)
        spec = replace(wish.spec, order_id=order_id)
        order = draft(order_id, at, wish.project, wish.pool.name, wish.memory_mb, spec)
        change = lifecycle.submit(cause, order, spec, wish.pool, self._world.seal.close(order_id, wish.env), None)
        return replace(change, note={**change.note, "said": wish.said}) if wish.said else change

    def _starts_at_once(self, change: Change) -> bool:
        """Whether a leader claims it right behind the change; never one that others may keep from being saved."""
        order, spec = change.order, change.spec
        if order is None or spec is None or order.rank is None or order.dedupe_live is not None:
            return False
        return self._world.arrivals.offer(Work(order, spec))

    def _at_hand(self, change: Change) -> Standing | None:
        """Where one that comes alone will stand, if it starts at once, or if all that tells was read a moment ago."""
        if self._starts_at_once(change):
            return AT_ONCE
        return None if change.order is None else at_hand(self._world, change.order)

    async def _outcome(self, wish: Wish, change: Change, place: Standing, verdict: Verdict) -> Taken | Problem | None:
        """Null when it has to be tried again."""
        if verdict.saved:
            assert change.order is not None and verdict.seq is not None
            if isinstance(place.wait, Wait):
                self._world.estimates.give(change.order.id, change.at, place.wait)
            text, order_id = _answer(change, place), change.order.id
            if wish.spec.on_conflict is not OnConflict.WAIT and await conflicts.settle(
                self._world, self._actor, change.order, wish.spec, verdict.seq
            ):
                work = await self._world.store.order(order_id)
                text = text if work is None else msgspec.json.encode(order_view(work.order, work.spec))
            return Taken(answer="submitted", order_id=order_id, text=text)
        if verdict.answer is not Answer.DUPLICATE:
            return None
        if wish.key is not None:
            replay = await self.replay(wish.project, wish.key, wish.fingerprint)
            if replay is not None:
                return replay
        return await self._deduplicated(wish, verdict.order_id or "")

    async def replay(self, project: str, key: str, fingerprint: str) -> Taken | Problem | None:
        """The first answer to this key once more; a problem when it was used for something else; null when free."""
        kept = await self._world.store.idempotency(project, key)
        if kept is None:
            return None
        old = self._world.clock.now() - IDEMPOTENCY_MS
        if kept.at <= old:
            await self._world.store.prune_idempotency(old + 1, 1_000)
            return None
        if kept.fingerprint != fingerprint:
            text = f"this Idempotency-Key was used for order {kept.order_id} with another body"
            return Problem(409, "idempotency_key_reused", text, "use a new key for a new order")
        return Taken(answer="submitted", order_id=kept.order_id, text=kept.answer.encode(), replayed=True)

    async def _deduplicated(self, wish: Wish, order_id: str) -> Taken | None:
        """The unfinished order that has this dedupe key; null when it is gone."""
        work = await self._world.store.order(order_id)
        if work is None or wish.spec.dedupe_key is None or work.spec.dedupe_key != wish.spec.dedupe_key:
            return None
        position = await self._world.store.position(work.order)
        view: OrderView = replace(order_view(work.order, work.spec, position=position), deduplicated=True)
        return Taken(answer="deduplicated", order_id=order_id, text=msgspec.json.encode(view))


def _answer(change: Change, place: Standing) -> bytes:
    """The order as JSON, as it is once the change is saved."""
    assert change.order is not None
    assert change.spec is not None
    return msgspec.json.encode(order_view(change.order, change.spec, position=place.position, wait=place.wait))


def _with_answer(change: Change, wish: Wish, place: Standing) -> Change:
    """The change with the answer that is kept for its Idempotency-Key, if it has one."""
    if wish.key is None:
        return change
    kept = Idempotency(
        project=wish.project,
        key=wish.key,
        fingerprint=wish.fingerprint,
        order_id=change.subject,
        answer=_answer(change, place).decode(),
        at=change.at,
    )
    return replace(change, idempotency=kept)


def _check_queue_timeout(queue_ms: int | None, pool: Pool) -> None:
    most = pool.settings.queue_timeout_max_ms
    if most is not None and (queue_ms is None or queue_ms > most):
        text = f"queue_timeout_s is above the {most / 1000:g} s that pool {pool.name} allows"
        raise invalid(text, "ask for less, or raise the pool's queue_timeout_max", "queue_timeout_s")


def _retry(body: RetryBody, default: Retry) -> Retry:
    if not body.model_fields_set:
        return default
    return Retry(
        retries=default.retries if body.retries is None else body.retries,
        base_ms=default.base_ms if body.base_s is None else round(body.base_s * 1000),
        factor=default.factor if body.factor is None else body.factor,
        cap_ms=default.cap_ms if body.cap_s is None else round(body.cap_s * 1000),
        retry_on=default.retry_on if body.retry_on is None else tuple(body.retry_on),
        no_retry_on=default.no_retry_on if body.no_retry_on is None else tuple(body.no_retry_on),
        retry_errors=default.retry_errors if body.retry_errors is None else tuple(body.retry_errors),
        fatal_errors=default.fatal_errors if body.fatal_errors is None else tuple(body.fatal_errors),
    )


def _or(length_s: float, said: bool, default_ms: int) -> int:
    return round(length_s * 1000) if said else default_ms


def _ms(length_s: float | None) -> int | None:
    return None if length_s is None else round(length_s * 1000)
