"""Many orders in one request: taken in, cancelled, run again, purged."""

from typing import Any

import pytest

from standby.core import lifecycle, places
from standby.core.model import OrderState, Trigger
from standby.core.sighting import Exit
from tests.api.house import House

pytestmark = pytest.mark.anyio

ORDER: dict[str, Any] = {"command": ["true"]}


async def count(home: House) -> int:
    return len((await home.get("/work-orders?limit=200")).json()["orders"])


async def test_each_order_of_a_bulk_gets_its_own_verdict(home: House) -> None:
    first = await home.submit(dedupe_key="k")
    orders = [
        {**ORDER, "payload": {"n": 1.50}, "labels": {"a": "b"}},
        {**ORDER, "pool": "nowhere"},
        {**ORDER, "unknown": 1},
        {**ORDER, "dedupe_key": "k"},
        {},
        {**ORDER, "env": {"SECRET": "xyzzy"}},
    ]
    answer = await home.post("/work-orders/bulk", {"orders": orders})
    assert answer.status_code == 200
    view = answer.json()
    assert [each["answer"] for each in view["verdicts"]] == [
        "submitted",
        "refused",
        "refused",
        "deduplicated",
        "refused",
        "submitted",
    ]
    assert (view["submitted"], view["deduplicated"], view["refused"]) == (2, 1, 3)
    assert [each["index"] for each in view["verdicts"]] == list(range(6))
    assert view["verdicts"][0]["order"] == {
        **(await home.show(view["verdicts"][0]["order"]["id"])),
        "gate": None,
        "gives_up_in_ms": None,
    }
    assert view["verdicts"][3]["order"]["id"] == first["id"]
    assert "nowhere" in view["verdicts"][1]["problem"]["detail"]
    (wrong,) = view["verdicts"][2]["problem"]["errors"]
    assert wrong["field"] == "unknown" and wrong["message"].startswith("unknown field; ")
    assert "xyzzy" not in answer.text
    assert [each["order"] for each in view["verdicts"][1:3]] == [None, None]


async def test_positions_in_a_bulk_count_its_earlier_orders(home: House) -> None:
    await home.submit()
    view = (await home.post("/work-orders/bulk", {"orders": [ORDER] * 3})).json()
    assert [each["order"]["queue_position"] for each in view["verdicts"]] == [2, 3, 4]


async def test_orders_that_are_meant_together_are_all_taken_in_or_none(home: House) -> None:
    refused = await home.post("/work-orders/bulk", {"orders": [ORDER, {**ORDER, "pool": "x"}], "together": True})
    assert refused.status_code == 422
    assert refused.json()["code"] == "refused_together"
    assert [each["field"] for each in refused.json()["errors"]] == ["orders.1"]
    twice = [{**ORDER, "dedupe_key": "k"}] * 2
    assert (await home.post("/work-orders/bulk", {"orders": twice, "together": True})).status_code == 422
    assert await count(home) == 0
    taken = await home.post("/work-orders/bulk", {"orders": [ORDER] * 3, "together": True})
    assert (taken.status_code, taken.json()["submitted"]) == (201, 3)
    assert await count(home) == 3


@pytest.mark.parametrize("together", [True, False])
async def test_a_bulk_that_is_repeated_with_its_key_changes_nothing(home: House, together: bool) -> None:
    body = {"orders": [ORDER, {**ORDER, "priority": 5}], "together": together}
    first = await home.post("/work-orders/bulk", body, Idempotency_Key="k-1")
    again = await home.post("/work-orders/bulk", body, Idempotency_Key="k-1")
    assert first.json() == again.json()
    assert await count(home) == 2
    other = {"orders": [ORDER, {**ORDER, "priority": 6}], "together": together}
    reused = await home.post("/work-orders/bulk", other, Idempotency_Key="k-1")
    assert reused.status_code == (422 if together else 200)
    assert "idempotency_key_reused" in reused.text
    assert await count(home) == 2


@pytest.mark.parametrize(
    "body", [{"orders": []}, {"orders": [ORDER] * 1001}, {}, [], {"orders": [ORDER], "to": 1}, {"orders": 3}]
)
async def test_a_bulk_that_cannot_be_meant_is_refused(home: House, body: Any) -> None:
    answer = await home.post("/work-orders/bulk", body)
    assert answer.status_code == 422
    assert "1000 orders" in answer.json()["what_to_do"]


@pytest.mark.parametrize("most", [0, 1001])
async def test_a_bulk_of_too_few_or_too_many_orders_is_told_how_many_it_may_have(home: House, most: int) -> None:
    answer = await home.post("/work-orders/bulk", {"orders": [ORDER] * most})
    assert (answer.status_code, answer.json()["detail"]) == (422, f"a bulk has 1 to 1000 orders, this one has {most}")


async def test_a_thousand_orders_fit_into_one_bulk(home: House) -> None:
    view = (await home.post("/work-orders/bulk", {"orders": [ORDER] * 1000})).json()
    assert view["submitted"] == 1000
    assert len({each["order"]["id"] for each in view["verdicts"]}) == 1000


async def test_an_ended_order_is_run_again_with_its_spec_and_its_env(home: House) -> None:
    body = {"env": {"TOKEN": "xyzzy"}, "payload": {"n": 1}, "labels": {"a": "b"}, "priority": 7, "memory_mb": 9}
    first = await home.submit(**body)
    await home.walk(first["id"], OrderState.FAILED)
    answer = await home.post(f"/work-orders/{first['id']}/rerun", {"reason": "the disk was full"})
    assert answer.status_code == 201
    again = answer.json()
    assert answer.headers["location"].endswith(again["id"])
    own = {"id", "rerun_of", "submitted_at", "state_since", "queue_position"}
    assert again["rerun_of"] == first["id"] != again["id"]
    assert {k: v for k, v in again.items() if k not in own} == {k: v for k, v in first.items() if k not in own}
    sealed = await home.store.sealed_env([again["id"]])
    assert home.world.seal.open(again["id"], sealed[again["id"]]) == {"TOKEN": "xyzzy"}
    (event,) = (await home.get(f"/work-orders/{again['id']}/events")).json()["events"]
    assert event["data"]["note"] == {"said": "the disk was full"}
    assert event["actor"] == "tester"


async def test_only_what_has_ended_is_run_again(home: House) -> None:
    order_id = (await home.submit())["id"]
    answer = await home.post(f"/work-orders/{order_id}/rerun")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_ended")
    assert (await home.post("/work-orders/nobody/rerun")).status_code == 404


async def test_a_rerun_of_an_order_whose_dedupe_key_is_in_use_gives_that_one(home: House) -> None:
    first = await home.submit(dedupe_key="k")
    await home.walk(first["id"], OrderState.CANCELLED)
    second = await home.submit(dedupe_key="k")
    answer = await home.post(f"/work-orders/{first['id']}/rerun")
    assert (answer.status_code, answer.json()["id"], answer.json()["deduplicated"]) == (200, second["id"], True)


async def test_an_env_that_cannot_be_opened_is_not_run_again(home: House) -> None:
    order_id = (await home.submit(env={"A": "b"}))["id"]
    await home.walk(order_id, OrderState.COMPLETED)
    home.world.seal._cipher = type(home.world.seal)(b"x" * 32)._cipher
    answer = await home.post(f"/work-orders/{order_id}/rerun")
    assert (answer.status_code, answer.json()["code"]) == (409, "env_sealed")


async def test_why_says_what_holds_an_order_and_what_follows(home: House) -> None:
    await home.lead()
    order_id = (await home.submit())["id"]
    waiting = (await home.get(f"/work-orders/{order_id}/why")).json()
    assert (waiting["gate"]["name"], waiting["position"], waiting["waiting_since"]) == (
        "slots",
        1,
        (await home.show(order_id))["state_since"],
    )
    assert waiting["next"].startswith("it starts when one is made")
    await home.walk(order_id, OrderState.RUNNING)
    running = (await home.get(f"/work-orders/{order_id}/why")).json()
    assert (running["gate"], running["position"], running["waiting_since"]) == (None, None, None)
    assert running["next"].startswith("it does not wait")
    await home.finish(order_id, Exit(code=0))
    assert (await home.get(f"/work-orders/{order_id}/why")).json()["next"].startswith("nothing: it has ended")


async def test_a_waiting_order_says_when_it_is_given_up_and_an_expired_one_what_to_raise(home: House) -> None:
    lease = await home.lead()
    pool = await home.store.pool("default")
    assert pool is not None
    cause = home.world.cause(Trigger.LEASE, "test", (lease.host, lease.epoch))
    await home.store.save([places.unblock(cause, pool)])
    order_id, patient = (await home.submit(queue_timeout_s=60))["id"], (await home.submit(not_before=2**42))["id"]
    home.clock.at += 1_000
    assert (await home.show(order_id))["gives_up_in_ms"] == 59_000
    assert (await home.get(f"/work-orders/{order_id}/why")).json()["gives_up_in_ms"] == 59_000
    assert (await home.show(patient))["gives_up_in_ms"] is None
    assert {each["gives_up_in_ms"] for each in (await home.get("/work-orders")).json()["orders"]} == {None}
    work = await home.store.order(order_id)
    assert work is not None
    await home.store.save([lifecycle.expire(home.world.cause(Trigger.DEADLINE, "test"), work.order)])
    why = (await home.get(f"/work-orders/{order_id}/why")).json()
    assert why["gives_up_in_ms"] is None
    assert why["next"] == "it waited 1m for a slot, its queue_timeout; raise that, or slots_max"


async def many(home: House, verb: str, only: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = await home.post(f"/work-orders/{verb}", {"filter": only, **more})
    assert answer.status_code == 200, answer.text
    view: dict[str, Any] = answer.json()
    return view


@pytest.mark.parametrize("verb", ["cancel", "rerun", "purge"])
async def test_nothing_is_done_to_all_orders_by_an_empty_filter(home: House, verb: str) -> None:
    empty: list[dict[str, Any]] = [{}, {"state": [], "labels": {}, "ids": []}]
    for only in empty:
        answer = await home.post(f"/work-orders/{verb}", {"filter": only})
        assert (answer.status_code, answer.json()["code"]) == (422, "filter_needed")
    assert (await home.post(f"/work-orders/{verb}", {})).status_code == 422
    assert (await home.post(f"/work-orders/{verb}", {"filter": {"colour": "red"}})).status_code == 422


async def test_every_unfinished_order_that_matches_is_cancelled(home: House) -> None:
    waiting = await home.submit(labels={"a": "b"})
    running = await home.submit(labels={"a": "b"})
    await home.walk(running["id"], OrderState.RUNNING)
    done = await home.submit(labels={"a": "b"})
    await home.walk(done["id"], OrderState.COMPLETED)
    other = await home.submit()
    tried = await many(home, "cancel", {"labels": {"a": "b"}}, dry_run=True)
    assert (tried["matched"], tried["done"], tried["refused"], tried["more"]) == (2, 0, 0, False)
    assert (await home.show(waiting["id"]))["state"] == "pending"
    view = await many(home, "cancel", {"labels": {"a": "b"}}, reason="enough")
    assert (view["matched"], view["done"], view["refused"], view["more"]) == (2, 2, 0, False)
    assert view["orders"] == [
        {"id": running["id"], "became": "stopping"},
        {"id": waiting["id"], "became": "cancelled"},
    ]
    events = (await home.get(f"/work-orders/{running['id']}/events")).json()["events"]
    assert events[-1]["data"]["note"]["said"] == "enough"
    assert (await home.show(other["id"]))["state"] == "pending"
    assert (await many(home, "cancel", {"state": ["completed"]}))["matched"] == 0


async def test_a_cancel_of_more_than_a_thousand_orders_says_that_there_are_more(home: House) -> None:
    for _ in range(2):
        await home.post("/work-orders/bulk", {"orders": [ORDER] * 501})
    view = await many(home, "cancel", {"state": ["pending"]})
    assert (view["matched"], view["done"], view["more"]) == (1000, 1000, True)
    rest = await many(home, "cancel", {"state": ["pending"]}, cursor=view["next"])
    assert (rest["matched"], rest["done"], rest["more"]) == (2, 2, False)


async def test_every_ended_order_that_matches_is_run_again(home: House) -> None:
    ids = [(await home.submit(project="p"))["id"] for _ in range(3)]
    await home.walk(ids[0], OrderState.FAILED)
    await home.walk(ids[1], OrderState.COMPLETED)
    view = await many(home, "rerun", {"project": "p"}, reason="again")
    assert (view["matched"], view["done"], view["refused"]) == (3, 2, 1)
    became = {each["id"]: each["became"] for each in view["orders"]}
    assert became[ids[2]] is None
    assert (await home.show(became[ids[0]]))["rerun_of"] == ids[0]
    only_failed = await many(home, "rerun", {"project": "p", "state": ["failed"]})
    assert (only_failed["matched"], only_failed["done"]) == (1, 1)


async def test_a_purge_leaves_nothing_but_its_event(home: House) -> None:
    body = {"command": ["true"], "env": {"A": "xyzzy"}, "labels": {"secret": "plugh"}}
    answer = await home.post("/work-orders", body, Idempotency_Key="once")
    order_id = answer.json()["id"]
    await home.walk(order_id, OrderState.COMPLETED)
    await home.log(order_id, "some output", closed=True)
    running = (await home.submit())["id"]
    await home.walk(running, OrderState.RUNNING)
    view = await many(home, "purge", {"ids": [order_id, running, "nobody"]}, reason="a leak")
    assert view["orders"] == [{"id": running, "became": None}, {"id": order_id, "became": "purged"}]
    assert (view["matched"], view["done"], view["refused"]) == (2, 1, 1)
    for path in ("", "/runs", "/events", "/logs", "/why"):
        assert (await home.get(f"/work-orders/{order_id}{path}")).status_code == 404
    assert await home.store.sealed_env([order_id]) == {}
    assert await home.store.runs(order_id) == []
    assert await home.store.log_tails([f"{order_id}-1"]) == {}
    assert await home.store.idempotency("default", "once") is None
    (event,) = (await home.get(f"/events?subject={order_id}")).json()["events"]
    assert (event["kind"], event["from"], event["to"]) == ("order.purged", "completed", None)
    assert (event["actor"], event["data"]["note"]) == ("tester", {"said": "a leak"})
    assert "plugh" not in (await home.get("/events?limit=1000")).text
    assert (await many(home, "purge", {"ids": [order_id]}))["matched"] == 0


async def test_a_group_that_is_refused_for_one_used_key_saves_none_of_the_others(home: House) -> None:
    first = await home.post("/work-orders/bulk", {"orders": [ORDER], "together": True}, Idempotency_Key="k")
    assert first.status_code == 201
    others = {"orders": [{**ORDER, "priority": 6}, ORDER, ORDER], "together": True}
    refused = await home.post("/work-orders/bulk", others, Idempotency_Key="k")
    assert (refused.status_code, refused.json()["code"]) == (422, "refused_together")
    assert len((await home.get("/work-orders")).json()["orders"]) == 1
