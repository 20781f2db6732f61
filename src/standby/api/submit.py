"""Submitting work orders, one or many, and running one again. Safe to repeat with an Idempotency-Key."""

from collections.abc import Sequence
from typing import Final, Literal, cast

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Raw, Struct
from pydantic import ValidationError

from standby.api.intake import Intake, Taken, Wish
from standby.api.needs import ActorNeed, WorldNeed
from standby.api.orders import find
from standby.api.problems import Problem, ProblemView, cut, from_validation, invalid
from standby.api.views import OrderView, answer
from standby.api.wire import BULK_MOST, ReasonBody, SubmitBody, header, need_json, parse, payload_text, read_body

KEY_SEPARATOR: Final = "\t"
"""No Idempotency-Key has it, so the orders of a bulk have keys that no single one can have."""

router = APIRouter(tags=["work orders"])


class _Bulk(Struct, frozen=True, forbid_unknown_fields=True):
    orders: list[Raw]
    together: bool = False


class VerdictView(Struct, frozen=True):
    """What became of one order of a bulk."""

    index: int
    answer: Literal["submitted", "deduplicated", "refused"]
    order: OrderView | None
    problem: ProblemView | None


class BulkView(Struct, frozen=True):
    """What became of each order of a bulk, and how many of each there are."""

    verdicts: Sequence[VerdictView]
    submitted: int
    deduplicated: int
    refused: int


@router.post("/work-orders", status_code=201)
async def submit(request: Request, world: WorldNeed, actor: ActorNeed) -> Response:
    """Take in a work order; 201 with the order, 200 with the one that is there when its dedupe key is in use."""
    body, raw = await parse(request, SubmitBody, world.config.request_max_kb)
    intake = Intake(world, actor)
    key, payload = _idempotency_key(request), payload_text(raw)
    known = None if key is None else await intake.replay(body.project, key, intake.fingerprint(body, payload))
    return _one(known or (await intake.take([await intake.wish(body, payload, key)]))[0])


@router.post("/work-orders/bulk")
async def submit_bulk(request: Request, world: WorldNeed, actor: ActorNeed) -> Response:
    """Take in up to 1,000 orders: each for itself (200 with a verdict for each), or with `together` all or none (201,
    or 422 and nothing is saved)."""
    bodies, together = await _bulk(request, world.config.request_max_kb)
    intake, key = Intake(world, actor), _idempotency_key(request)
    wishes = [await _wish(intake, raw, index, key) for index, raw in enumerate(bodies)]
    wishes = _once(wishes) if together else wishes
    good = [wish for wish in wishes if isinstance(wish, Wish)]
    if together and len(good) < len(wishes):
        raise _refused_together(wishes)
    taken = iter(await intake.take(good, together=together))
    found = [next(taken) if isinstance(wish, Wish) else wish for wish in wishes]
    if together and any(isinstance(each, Problem) for each in found):
        raise _refused_together(found)
    return answer(_bulk_view(found), 201 if together else 200)


@router.post("/work-orders/{order_id}/rerun", status_code=201)
async def rerun_order(request: Request, world: WorldNeed, actor: ActorNeed, order_id: str) -> Response:
    """The same order once more, as a new one that names this one in `rerun_of`; 200 with the order that is there when
    its dedupe key is in use."""
    body, _ = await parse(request, ReasonBody, world.config.request_max_kb, empty=b"{}")
    intake = Intake(world, actor)
    wish = await intake.rerun(await find(world, order_id), body.reason)
    return _one((await intake.take([wish]))[0])


async def _bulk(request: Request, most_kb: int) -> tuple[list[bytes], bool]:
    """The orders of a bulk, each as it was sent, and whether all or none are meant: each is checked for itself."""
    need_json(request)
    raw = await read_body(request, most_kb)
    try:
        bulk = msgspec.json.decode(raw, type=_Bulk)
        text = f"a bulk has 1 to {BULK_MOST} orders, this one has {len(bulk.orders)}"
        if 1 <= len(bulk.orders) <= BULK_MOST:
            return [bytes(each) for each in bulk.orders], bulk.together
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = cut(f"the body cannot be used: {error}", 300)
    hint = f'send {{"orders": [...], "together": false}} with 1 to {BULK_MOST} orders'
    raise invalid(text, hint, "orders")


def _one(found: Taken | Problem) -> Response:
    if isinstance(found, Problem):
        raise found
    if found.answer == "deduplicated":
        return answer(found.text, 200)
    more = {"Idempotent-Replayed": "true"} if found.replayed else {}
    return answer(found.text, 201, {"Location": f"/api/v1/work-orders/{found.order_id}", **more})


async def _wish(intake: Intake, raw: bytes, index: int, key: str | None) -> Wish | Problem:
    try:
        body = SubmitBody.model_validate_json(raw)
        own = None if key is None else f"{key}{KEY_SEPARATOR}{index}"
        return await intake.wish(body, payload_text(raw), own)
    except ValidationError as error:
        return from_validation(error, SubmitBody)
    except Problem as problem:
        return problem


def _once(wishes: Sequence[Wish | Problem]) -> list[Wish | Problem]:
    """Two orders with one dedupe key cannot both be taken in: the second one is refused."""
    seen: set[tuple[str, str]] = set()
    found: list[Wish | Problem] = []
    for wish in wishes:
        key = None if isinstance(wish, Problem) or not wish.spec.dedupe_key else (wish.project, wish.spec.dedupe_key)
        twice = key is not None and key in seen
        found.append(invalid("its dedupe key is used twice", "use each key once", "dedupe_key") if twice else wish)
        seen |= {key} if key else set()
    return found


def _bulk_view(found: Sequence[Taken | Problem]) -> BulkView:
    verdicts = [
        VerdictView(index, "refused", None, each.view())
        if isinstance(each, Problem)
        else VerdictView(index, each.answer, cast(OrderView, Raw(each.text)), None)
        for index, each in enumerate(found)
    ]
    words = [verdict.answer for verdict in verdicts]
    return BulkView(verdicts, words.count("submitted"), words.count("deduplicated"), words.count("refused"))


def _refused_together(found: Sequence[Wish | Taken | Problem]) -> Problem:
    """422 with the problems by index; nothing was saved."""
    problems = [(index, each) for index, each in enumerate(found) if isinstance(each, Problem)]
    errors = [{"field": f"orders.{index}", "message": f"{each.code}: {each.detail}"[:500]} for index, each in problems]
    text = f"{len(problems)} of {len(found)} orders cannot be taken in, so none was"
    return Problem(422, "refused_together", text, "correct the named orders and send all of them again", errors=errors)


def _idempotency_key(request: Request) -> str | None:
    key = header(request, b"idempotency-key")
    if key is not None and not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
        text = "the Idempotency-Key cannot be used"
        raise Problem(422, "bad_idempotency_key", text, "send 1 to 255 ASCII characters")
    return key
