"""Orders by the thousand: cancel, run again or purge all that match."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from fastapi import APIRouter, Request, Response
from msgspec import Struct
from msgspec.structs import replace

from standby.api.intake import Intake, Taken, Wish
from standby.api.needs import ActorNeed, WorldNeed, cursor, place_of
from standby.api.problems import Problem
from standby.api.views import answer
from standby.api.wire import BULK_MOST, ManyBody, parse
from standby.core import lifecycle
from standby.core.model import ENDED, Order, OrderState, Trigger
from standby.store.contract import Listed, OrderFilter
from standby.world import World

TRIES: Final = 20
UNFINISHED: Final = frozenset(OrderState) - ENDED

router = APIRouter(tags=["work orders"])
Became = Mapping[str, str]
"""Order id -> its new state, the id of its rerun, or "purged"; those that were refused are left out."""


class DoneView(Struct, frozen=True):
    """What became of one order; null when it was refused, or nothing was to be done yet."""

    id: str
    became: str | None


class ManyView(Struct, frozen=True):
    """What became of the orders that matched; with `more`, send the call again with `next` as its cursor."""

    matched: int
    done: int
    refused: int
    more: bool
    next: str | None
    orders: Sequence[DoneView]


@router.post("/work-orders/cancel")
async def cancel_many(request: Request, world: WorldNeed, actor: ActorNeed) -> Response:
    """Ask for the end of every unfinished order that matches."""
    return await _many(request, world, UNFINISHED, lambda body, found: _cancel(world, actor, body, found))


@router.post("/work-orders/rerun")
async def rerun_many(request: Request, world: WorldNeed, actor: ActorNeed) -> Response:
    """Run every ended order that matches once more, each as a new order; unfinished ones are refused."""
    return await _many(request, world, None, lambda body, found: _rerun(world, actor, body, found))


@router.post("/work-orders/purge")
async def purge_many(request: Request, world: WorldNeed, actor: ActorNeed) -> Response:
    """Remove every ended order that matches, with its spec, env, runs, output, kept answers and events; unfinished ones
    are refused. What stays is one event that says who did it."""
    return await _many(request, world, None, lambda body, found: _purge(world, actor, body, found))


async def _many(
    request: Request,
    world: World,
    states: frozenset[OrderState] | None,
    act: Callable[[ManyBody, Sequence[Listed]], Awaitable[Became]],
) -> Response:
    body, _ = await parse(request, ManyBody, world.config.request_max_kb)
    only = _filter(body)
    before = None if body.cursor is None else place_of(world.store, body.cursor)[0]
    meant = (only.states & states if only.states else states) if states else only.states
    nobody = bool(states) and not meant
    page = await world.store.orders(replace(only, states=meant), 0 if nobody else before, BULK_MOST)
    became = {} if body.dry_run or not page.orders else await act(body, page.orders)
    view = ManyView(
        matched=len(page.orders),
        done=len(became),
        refused=0 if body.dry_run else len(page.orders) - len(became),
        more=page.next is not None,
        next=None if page.next is None else cursor(world.store, page.next),
        orders=[DoneView(each.order.id, became.get(each.order.id)) for each in page.orders],
    )
    return answer(view)


def _filter(body: ManyBody) -> OrderFilter:
    asked = body.filter
    if not (asked.state or asked.pool or asked.project or asked.labels or asked.id_prefix or asked.ids):
        raise Problem(
            422,
            "filter_needed",
            "an empty filter would mean every order there is",
            "name at least one of state, pool, project, labels, id_prefix, ids",
        )
    return OrderFilter(
        states=frozenset(asked.state),
        pool=asked.pool,
        project=asked.project,
        labels=asked.labels,
        id_prefix=asked.id_prefix,
        ids=list(dict.fromkeys(asked.ids)),
    )


async def _cancel(world: World, actor: str, body: ManyBody, found: Sequence[Listed]) -> Became:
    became: dict[str, str] = {}
    left: Sequence[Listed] = found
    for _ in range(TRIES):
        changes = []
        for each in left:
            change = lifecycle.cancel(world.cause(Trigger.REQUEST, actor), each.order, each.spec)
            if change is not None:
                changes.append(replace(change, note={**change.note, "said": body.reason}) if body.reason else change)
            elif each.order.state not in ENDED:
                became[each.order.id] = each.order.state
        verdicts = await world.store.save(changes)
        pairs = list(zip(changes, verdicts, strict=True))
        became |= {change.subject: change.order.state for change, seen in pairs if seen.saved and change.order}
        again = [change.subject for change, verdict in pairs if not verdict.saved]
        if not again:
            break
        left = (await world.store.orders(OrderFilter(ids=again), None, BULK_MOST)).orders
    return became


async def _rerun(world: World, actor: str, body: ManyBody, found: Sequence[Listed]) -> Became:
    intake = Intake(world, actor)
    wishes: dict[str, Wish] = {}
    for each in found:
        try:
            wishes[each.order.id] = await intake.rerun(each, body.reason)
        except Problem:
            continue
    taken = await intake.take(list(wishes.values()))
    return {
        order_id: done.order_id
        for order_id, done in zip(wishes, taken, strict=True)
        if isinstance(done, Taken) and done.answer == "submitted"
    }


async def _purge(world: World, actor: str, body: ManyBody, found: Sequence[Listed]) -> Became:
    ended: list[Order] = [each.order for each in found if each.order.state in ENDED]
    changes = [lifecycle.purge(world.cause(Trigger.REQUEST, actor), order, body.reason) for order in ended]
    verdicts = await world.store.purge(changes)
    return {order.id: "purged" for order, verdict in zip(ended, verdicts, strict=True) if verdict.saved}
