"""Handing in work orders."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standby.api import standings
from standby.core.model import OrderState
from tests.api.house import House, house

pytestmark = pytest.mark.anyio
DAY_MS = 24 * 3_600_000


async def test_an_order_is_taken_in_with_the_defaults_of_its_pool_and_its_place_in_the_queue(home: House) -> None:
    await home.submit()
    answer = await home.post("/work-orders", {"command": ["echo", "hello"], "labels": {"team": "a"}})
    order = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/api/v1/work-orders/{order['id']}"
    assert order["state"] == "pending"
    assert order["queue_position"] == 2
    assert order["command"] == ["echo", "hello"]
    assert order["queue_timeout_s"] == 300
    assert order["retry"]["retries"] == 3
    assert order["submitted_by"] == "tester"
    assert order["submitted_at"] == "2023-11-14T22:13:20.000Z"
    shown = await home.show(order["id"])
    assert {**shown, "gate": None, "gives_up_in_ms": None} == order
    assert shown["gate"]["name"] == "host_not_led"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "command"),
        ({"command": ["a"], "script": "b"}, "command"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": ["a\0b"]}, "command.0"),
        ({"command": "true"}, "command"),
        ({"command": [1]}, "command.0"),
        ({"script": ""}, "script"),
        ({"command": ["a"], "comand": 1}, "comand"),
        ({"command": ["a"], "priority": "1"}, "priority"),
        ({"command": ["a"], "priority": 1.5}, "priority"),
        ({"command": ["a"], "priority": 10**9}, "priority"),
        ({"command": ["a"], "pool": "nope"}, "pool"),
        ({"command": ["a"], "project": "No Name"}, "project"),
        ({"command": ["a"], "queue_timeout_s": 601}, "queue_timeout_s"),
        ({"command": ["a"], "queue_timeout_s": None}, "queue_timeout_s"),
        ({"command": ["a"], "queue_timeout_s": -1}, "queue_timeout_s"),
        ({"command": ["a"], "start_timeout_s": None}, "start_timeout_s"),
        ({"command": ["a"], "memory_mb": 1025}, "memory_mb"),
        ({"command": ["a"], "retry": {"retry_on": ["cancelled"]}}, "retry.retry_on"),
        ({"command": ["a"], "retry": {"retry_on": ["bad luck"]}}, "retry.retry_on.0"),
        ({"command": ["a"], "retry": {"tries": 3}}, "retry.tries"),
        ({"command": ["a"], "not_before": "tomorrow"}, "not_before"),
        ({"command": ["a"], "not_before": "2030-01-01T00:00:00"}, "not_before"),
        ({"command": ["a"], "rerun_of": "nobody"}, "rerun_of"),
        ({"command": ["a"], "env": {"A B": "x"}}, "env.A B"),
        ({"command": ["a"], "labels": {"a": "x" * 256}}, "labels.a"),
    ],
)
async def test_a_body_that_cannot_be_meant_is_refused_with_the_name_of_the_field(
    home: House, body: Any, field: str
) -> None:
    answer = await home.post("/work-orders", body)
    problem = answer.json()
    assert answer.status_code == 422, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "code", "detail", "what_to_do", "errors"} == problem.keys()
    assert problem["errors"][0]["field"] == field


async def test_orders_of_one_moment_have_places_behind_each_other_and_their_lane_is_counted_once(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standings, "PLACE_KEPT_S", 60.0)
    await home.submit()
    home.look_again()
    counted, count = list[str](), home.world.store.position_at

    async def position_at(pool: str, project: str, rank: int, order_id: str) -> int:
        counted.append(order_id)
        return await count(pool, project, rank, order_id)

    home.world.store.position_at = position_at  # type: ignore[method-assign]
    orders = await asyncio.gather(*(home.submit() for _ in range(5)))
    orders.append(await home.submit())
    assert [order["queue_position"] for order in sorted(orders, key=lambda order: order["id"])] == [2, 3, 4, 5, 6, 7]
    assert len(counted) == 1


async def test_the_refusal_of_an_unknown_pool_names_the_pools_there_are(home: House) -> None:
    problem = (await home.post("/work-orders", {"command": ["a"], "pool": "nope"})).json()
    assert "default" in problem["what_to_do"]


async def test_the_refusal_of_too_much_memory_names_the_figures(home: House) -> None:
    problem = (await home.post("/work-orders", {"command": ["a"], "memory_mb": 2000})).json()
    assert "2000" in problem["detail"]
    assert "1024" in problem["detail"]


async def test_a_pool_of_one_project_refuses_the_orders_of_others(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"project": "ours"}}) as home:
        refused = await home.post("/work-orders", {"command": ["a"], "project": "theirs"})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "project"
        assert (await home.submit(project="ours"))["pool"] == "default"


async def test_null_run_timeout_is_unlimited_and_a_left_out_one_is_the_pools(home: House) -> None:
    assert (await home.submit(run_timeout_s=None))["run_timeout_s"] is None
    assert (await home.submit())["run_timeout_s"] == 3600
    assert (await home.submit(run_timeout_s=0.25))["run_timeout_s"] == 0.25


@pytest.mark.parametrize("time", ["2023-11-14T23:13:20Z", "2023-11-15T00:13:20+01:00", 1_700_003_600_000])
async def test_an_order_with_a_time_of_its_own_waits_for_it_without_a_place_in_the_queue(
    home: House, time: str | int
) -> None:
    order = await home.submit(not_before=time)
    assert order["queue_position"] is None
    assert order["not_before"] == order["due_at"] == "2023-11-14T23:13:20.000Z"
    gate = (await home.show(order["id"]))["gate"]
    assert gate["name"] == "not_before"
    assert gate["opens_at"] == order["due_at"]
    assert gate["opens_at"] in gate["text"]


async def test_env_values_are_shown_nowhere_and_open_only_with_the_seal(home: House) -> None:
    order = await home.submit(env={"TOKEN": "hunter2", "B": "x"})
    assert order["env_names"] == ["B", "TOKEN"]
    seen = [
        (await home.get(path)).text
        for path in ("/work-orders", f"/work-orders/{order['id']}", f"/work-orders/{order['id']}/events", "/events")
    ]
    assert not any("hunter2" in text for text in seen)
    sealed = (await home.store.sealed_env([order["id"]]))[order["id"]]
    assert b"hunter2" not in sealed
    assert home.world.seal.open(order["id"], sealed) == {"TOKEN": "hunter2", "B": "x"}


@pytest.mark.parametrize("body", [{"env": {"A": "hunter2\0"}}, {"env": {"A": ["hunter2"]}}, {"env": "hunter2"}])
async def test_a_refusal_never_repeats_a_value(home: House, body: Any) -> None:
    answer = await home.post("/work-orders", {"command": ["a"], **body})
    assert answer.status_code == 422
    assert "hunter2" not in answer.text


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(payload=_json, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
async def test_a_payload_comes_back_as_the_very_text_that_was_sent(
    home: House, payload: Any, ascii_only: bool, indent: int | None
) -> None:
    try:
        text = json.dumps(payload, ensure_ascii=ascii_only, indent=indent)
        raw = b'{"command": ["true"], "payload": ' + text.encode() + b"}"
    except UnicodeEncodeError:
        return
    answer = await home.send(raw)
    assert answer.status_code == 201, answer.text
    work = await home.store.order(answer.json()["id"])
    assert work is not None
    assert work.spec.payload == text
    assert f'"payload":{text}' in (await home.get(f"/work-orders/{work.order.id}")).text


@pytest.mark.parametrize(
    "text", ["1e400", "123456789012345678901234567890", "1.10", '{"b":1,"a":2}', '"\\u0041"', "-0.0", '{"a":1,"a":2}']
)
async def test_numbers_key_order_and_escapes_of_a_payload_are_kept(home: House, text: str) -> None:
    answer = await home.send(f'{{"payload": {text} , "script": "x"}}'.encode())
    assert f'"payload":{text}' in answer.text, answer.text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"command": ["a"], "payload": NaN}',
        b'{"command": ["a"], "payload": "\xff"}',
        b'{"command": ["a"], "payload": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"command": ["a"], "payload": "\\ud800"}',
    ],
)
async def test_what_is_not_json_or_too_deep_is_refused(home: House, raw: bytes) -> None:
    answer = await home.send(raw)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid_request"


async def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_its_size(tmp_path: Path) -> None:
    async with house(tmp_path, request_max_kb=2) as small:
        fits = await small.send(b'{"command": ["a"]' + b" " * 1_500 + b"}")
        over = await small.send(b'{"command": ["a"]' + b" " * 3_000 + b"}")

        async def parts() -> Any:
            for _ in range(100):
                yield b" " * 1_000

        url, headers = "/api/v1/work-orders", {"Content-Type": "application/json"}
        streamed = await small.http.post(url, content=parts(), headers=headers)
        assert [fits.status_code, over.status_code, streamed.status_code] == [201, 413, 413]


async def test_a_body_that_is_not_called_json_is_refused(home: House) -> None:
    answer = await home.http.post("/api/v1/work-orders", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415


# once is once


async def test_the_same_idempotency_key_gives_the_first_answer_again_and_makes_one_order(home: House) -> None:
    body = {"command": ["a"], "env": {"A": "1"}, "payload": {"x": 1}}
    first = await home.post("/work-orders", body, Idempotency_Key="k1")
    await home.submit()
    again = await home.post("/work-orders", dict(reversed(body.items())), Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert len((await home.get("/work-orders")).json()["orders"]) == 2


@pytest.mark.parametrize("change", [{"command": ["b"]}, {"env": {"A": "2"}}, {"payload": {"x": 1.0}}, {"priority": 1}])
async def test_an_idempotency_key_used_for_another_body_is_refused(home: House, change: Any) -> None:
    body = {"command": ["a"], "env": {"A": "1"}, "payload": {"x": 1}}
    await home.post("/work-orders", body, Idempotency_Key="k1")
    other = await home.post("/work-orders", {**body, **change}, Idempotency_Key="k1")
    assert other.status_code == 409
    assert other.json()["code"] == "idempotency_key_reused"


async def test_two_projects_may_use_the_same_idempotency_key(home: House) -> None:
    one = await home.post("/work-orders", {"command": ["a"]}, Idempotency_Key="k")
    two = await home.post("/work-orders", {"command": ["a"], "project": "two"}, Idempotency_Key="k")
    assert one.status_code == two.status_code == 201
    assert one.json()["id"] != two.json()["id"]


async def test_many_submits_at_once_with_one_idempotency_key_make_one_order(home: House) -> None:
    answers = await asyncio.gather(
        *(home.post("/work-orders", {"command": ["a"]}, Idempotency_Key="k") for _ in range(20))
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1


async def test_an_idempotency_key_is_free_again_after_a_day(home: House) -> None:
    first = await home.post("/work-orders", {"command": ["a"]}, Idempotency_Key="k")
    home.clock.at += DAY_MS - 1
    held = await home.post("/work-orders", {"command": ["b"]}, Idempotency_Key="k")
    home.clock.at += 1
    freed = await home.post("/work-orders", {"command": ["b"]}, Idempotency_Key="k")
    assert [first.status_code, held.status_code, freed.status_code] == [201, 409, 201]


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_an_unusable_idempotency_key_is_refused(home: House, key: str) -> None:
    assert (await home.post("/work-orders", {"command": ["a"]}, Idempotency_Key=key)).status_code == 422


async def test_while_an_order_is_unfinished_its_dedupe_key_means_that_order(home: House) -> None:
    first = await home.submit(dedupe_key="nightly")
    again = await home.post("/work-orders", {"command": ["other"], "dedupe_key": "nightly"})
    assert again.status_code == 200
    assert again.json()["id"] == first["id"]
    assert again.json()["deduplicated"] is True
    other_project = await home.post("/work-orders", {"command": ["x"], "dedupe_key": "nightly", "project": "b"})
    assert other_project.status_code == 201
    await home.walk(first["id"], OrderState.COMPLETED)
    after = await home.post("/work-orders", {"command": ["other"], "dedupe_key": "nightly"})
    assert after.status_code == 201


async def test_many_submits_at_once_with_one_dedupe_key_make_one_order(home: House) -> None:
    answers: list[httpx2.Response] = await asyncio.gather(
        *(home.post("/work-orders", {"command": ["a"], "dedupe_key": "k"}) for _ in range(20))
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_a_rerun_names_the_order_it_repeats(home: House) -> None:
    first = await home.submit()
    assert (await home.submit(rerun_of=first["id"]))["rerun_of"] == first["id"]
