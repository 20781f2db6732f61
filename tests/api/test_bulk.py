"""Many orders in one request: taken in, cancelled, run again, purged."""

from typing import Any

import pytest

from standby.core.model import OrderState
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
    }
    assert view["verdicts"][3]["order"]["id"] == first["id"]
    assert "nowhere" in view["verdicts"][1]["problem"]["detail"]
    assert view["verdicts"][2]["problem"]["errors"] == [{"field": "unknown", "message": "unknown field"}]
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
    assert waiting["next"].startswith("it starts when a slot comes free")
    await home.walk(order_id, OrderState.RUNNING)
    running = (await home.get(f"/work-orders/{order_id}/why")).json()
    assert (running["gate"], running["position"], running["waiting_since"]) == (None, None, None)
    assert running["next"].startswith("it does not wait")
    await home.finish(order_id, Exit(code=0))
    assert (await home.get(f"/work-orders/{order_id}/why")).json()["next"].startswith("nothing: it has ended")


async def test_a_wait_is_estimated_from_what_runs_took(home: House) -> None:
    unknown = (await home.submit())["id"]
    assert (await home.show(unknown))["estimated_wait_ms"] is None
    for length_ms in (3_000, 5_000, 9_000):
        order_id = (await home.submit())["id"]
        await home.walk(order_id, OrderState.RUNNING)
        home.clock.at += length_ms
        await home.finish(order_id, Exit(code=0))
    running = (await home.submit())["id"]
    await home.walk(running, OrderState.RUNNING)
    home.clock.at += 2_000
    home.clock.skipped_s += 60
    await home.lead()
    assert (await home.get(f"/work-orders/{unknown}/why")).json()["estimated_wait_ms"] == 0
    assert (await home.show(running))["estimated_wait_ms"] is None
