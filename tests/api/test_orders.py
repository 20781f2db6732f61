"""Listing, showing, cancelling; runs, events and output."""

import asyncio
import json
import re
from typing import Any

import pytest

from standby.core.model import ENDED, OrderState
from standby.core.sighting import Exit
from standby.core.sighting import Exit as Ending
from standby.store.contract import Answer, Verdict
from tests.api.house import House, until

pytestmark = pytest.mark.anyio
UNFINISHED = sorted(set(OrderState) - ENDED)


async def test_pages_follow_each_other_without_gaps_or_repeats_while_new_orders_come_in(home: House) -> None:
    ids = [(await home.submit())["id"] for _ in range(7)]
    seen: list[str] = []
    query = "?limit=3"
    while True:
        page = (await home.get(f"/work-orders{query}")).json()
        seen += [order["id"] for order in page["orders"]]
        if page["next"] is None:
            break
        await home.submit()
        query = f"?limit=3&cursor={page['next']}"
    assert seen == ids[::-1]


async def test_orders_are_filtered_by_state_and_project(home: House) -> None:
    mine = await home.submit(project="mine")
    other = await home.submit()
    await home.walk(other["id"], OrderState.RUNNING)
    by_project = (await home.get("/work-orders?project=mine")).json()["orders"]
    by_state = (await home.get("/work-orders?state=running")).json()["orders"]
    assert [order["id"] for order in by_project] == [mine["id"]]
    assert [order["id"] for order in by_state] == [other["id"]]


async def test_orders_are_found_by_several_states_labels_and_the_beginning_of_an_id(home: House) -> None:
    red = await home.submit(labels={"color": "red", "size": "l=x"})
    blue = await home.submit(labels={"color": "blue"})
    done = await home.submit(labels={"color": "red"})
    await home.walk(done["id"], OrderState.COMPLETED)

    async def found(query: str) -> list[str]:
        return [order["id"] for order in (await home.get(f"/work-orders?{query}")).json()["orders"]]

    assert await found("label=color=red") == [done["id"], red["id"]]
    assert await found("label=color=red&label=size=l=x") == [red["id"]]
    assert await found("state=completed&state=pending&label=color=red") == [done["id"], red["id"]]
    assert await found("state=pending") == [blue["id"], red["id"]]
    assert await found(f"id_prefix={blue['id']}") == [blue["id"]]
    assert await found("id_prefix=0") == [done["id"], blue["id"], red["id"]]


@pytest.mark.parametrize(
    "query",
    [
        "label=red",
        "label=a=b&label=a=c",
        "limit=0",
        "limit=201",
        "limit=x",
        "state=happy",
        "cursor=x",
        "cursor=99999999999999999999",
    ],
)
async def test_a_query_that_cannot_be_meant_is_refused_as_a_problem(home: House, query: str) -> None:
    answer = await home.get(f"/work-orders?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "path", ["/work-orders?cursor=other.5", "/events?after=other.5", "/events/stream?after=other.5"]
)
async def test_a_cursor_of_another_store_is_gone(home: House, path: str) -> None:
    answer = await home.get(path)
    assert answer.status_code == 410
    assert answer.json()["code"] == "other_store"


@pytest.mark.parametrize("path", ["", "/runs", "/events", "/logs"])
async def test_an_order_that_is_not_there_is_not_found(home: House, path: str) -> None:
    answer = await home.get(f"/work-orders/nobody{path}")
    assert answer.status_code == 404
    assert answer.json()["code"] == "no_such_work_order"


@pytest.mark.parametrize("state", OrderState)
async def test_an_order_is_shown_in_every_state(home: House, state: OrderState) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, state)
    order = await home.show(order_id)
    assert order["state"] == state
    assert (order["slot"] is not None) == (state in {"preparing", "running", "stopping"})
    assert (order["gate"] is not None) == (state in {"pending", "waiting_retry"})
    assert (order["retries_left"] == 0) == (state in ENDED)
    assert (order["queue_position"] is not None) == (state == "pending")


@pytest.mark.parametrize("state", UNFINISHED)
async def test_an_unfinished_order_can_be_cancelled_in_every_state_and_again(home: House, state: OrderState) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, state)
    answer = await home.post(f"/work-orders/{order_id}/cancel", {"reason": "no longer needed"})
    again = await home.post(f"/work-orders/{order_id}/cancel")
    assert answer.status_code == again.status_code == 200
    expected = "stopping" if state in {"preparing", "running", "stopping"} else "cancelled"
    assert answer.json()["state"] == again.json()["state"] == expected
    assert answer.json()["reason"] == "cancelled"
    events = (await home.get(f"/work-orders/{order_id}/events")).json()["events"]
    assert "no longer needed" in json.dumps(events[-1])
    assert events[-1]["actor"] == "tester"
    if expected == "stopping":
        await home.finish(order_id, Exit(code=0))
        assert (await home.show(order_id))["state"] == "cancelled"


@pytest.mark.parametrize("state", [OrderState.COMPLETED, OrderState.FAILED])
async def test_cancelling_an_ended_order_changes_nothing(home: House, state: OrderState) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, state)
    before = await home.show(order_id)
    answer = await home.post(f"/work-orders/{order_id}/cancel", {})
    assert answer.status_code == 200
    assert answer.json() == before


async def test_a_cancel_that_meets_other_changes_reads_again_and_wins(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    order_id = (await home.submit())["id"]
    save, conflicts = home.store.save, iter([True] * 3)

    async def contested(changes: Any) -> Any:
        return [Verdict(Answer.CONFLICT)] if next(conflicts, False) else await save(changes)

    monkeypatch.setattr(home.store, "save", contested)
    assert (await home.post(f"/work-orders/{order_id}/cancel")).json()["state"] == "cancelled"


async def test_runs_are_the_ended_ones_and_the_open_one(home: House) -> None:
    order_id = (await home.submit(retry={"base_s": 0}))["id"]
    await home.walk(order_id, OrderState.WAITING_RETRY)
    runs = (await home.get(f"/work-orders/{order_id}/runs")).json()["runs"]
    assert [(run["number"], run["state"], run["reason"]) for run in runs] == [(1, "ended", "lost")]
    other_id = (await home.submit())["id"]
    await home.walk(other_id, OrderState.RUNNING)
    (run,) = (await home.get(f"/work-orders/{other_id}/runs")).json()["runs"]
    assert (run["number"], run["state"], run["ended_at"]) == (1, "running", None)


async def test_events_tell_an_orders_life_in_order(home: House) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, OrderState.COMPLETED)
    first = (await home.get(f"/work-orders/{order_id}/events?limit=2")).json()
    rest = (await home.get(f"/work-orders/{order_id}/events?after={first['next']}")).json()
    kinds = [event["kind"] for event in first["events"] + rest["events"]]
    assert kinds == ["order.submitted", "order.claimed", "order.ready", "order.completed"]


# output


async def _running(home: House) -> str:
    order_id: str = (await home.submit())["id"]
    await home.walk(order_id, OrderState.RUNNING)
    return order_id


async def test_output_is_read_page_by_page_from_a_line_on(home: House) -> None:
    order_id = await _running(home)
    await home.log(order_id, "a", "b", "c")
    await home.log(order_id, "d", "e", first=3, closed=True)
    first = (await home.get(f"/work-orders/{order_id}/logs?limit=2")).json()
    second = (await home.get(f"/work-orders/{order_id}/logs?from={first['next']}")).json()
    assert [line["text"] for line in first["lines"]] == ["a", "b"]
    assert [(line["line"], line["text"]) for line in second["lines"]] == [(2, "c"), (3, "d"), (4, "e")]
    assert (first["closed"], second["closed"]) == (False, True)
    assert first["dropped"] == second["dropped"] == 0


async def test_lines_that_are_no_longer_kept_are_counted(home: House) -> None:
    order_id = await _running(home)
    for number in range(5):
        await home.log(order_id, "x" * 100, "y" * 100, first=2 * number, cap=600)
    page = (await home.get(f"/work-orders/{order_id}/logs")).json()
    assert page["dropped"] == page["lines"][0]["line"] > 0
    assert page["next"] == 10


@pytest.mark.parametrize("silent", [True, False])
async def test_the_log_of_a_run_that_certainly_wrote_nothing_is_closed_with_its_end(home: House, silent: bool) -> None:
    order_id = await _running(home)
    assert (await home.get(f"/work-orders/{order_id}/logs")).json()["closed"] is False
    await home.finish(order_id, Ending(code=0, silent=silent))
    page = (await home.get(f"/work-orders/{order_id}/logs")).json()
    assert (page["lines"], page["closed"]) == ([], silent)


async def test_an_order_that_never_ran_has_no_output(home: House) -> None:
    order_id = (await home.submit())["id"]
    page = (await home.get(f"/work-orders/{order_id}/logs")).json()
    assert (page["run"], page["lines"], page["closed"]) == (None, [], False)
    assert (await home.get(f"/work-orders/{order_id}/logs?run=1")).status_code == 422


async def test_followed_output_ends_when_the_log_is_closed_and_can_be_taken_up_again(home: House) -> None:
    order_id = await _running(home)
    await home.log(order_id, "a")
    following = asyncio.create_task(home.get(f"/work-orders/{order_id}/logs?follow=true"))
    await home.log(order_id, "b", first=1)
    await home.log(order_id, "c", first=2, closed=True)
    records = [json.loads(line) for line in (await following).text.splitlines()]
    assert [record.get("text") for record in records] == ["a", "b", "c", None]
    assert records[-1] == {"end": True, "closed": True, "run": 1, "next": 3}
    resumed = (await home.get(f"/work-orders/{order_id}/logs?follow=true&from=2")).text.splitlines()
    assert [json.loads(line).get("text") for line in resumed] == ["c", None]


async def test_followed_output_is_a_server_sent_stream_if_asked_for(home: House) -> None:
    order_id = await _running(home)
    await home.log(order_id, "a\nb", closed=True)
    answer = await home.get(f"/work-orders/{order_id}/logs?follow=true", headers={"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, end, rest = answer.text.split("\n\n")
    assert first.startswith("id: 1.1\ndata: {")
    assert json.loads(first.partition("data: ")[2])["text"] == "a\nb"
    assert '"end":true' in end
    assert rest == ""


async def test_a_server_sent_stream_of_output_goes_on_after_the_last_event_seen(home: House) -> None:
    order_id = await _running(home)
    await home.log(order_id, "a", "b", "c", closed=True)
    path, sse = f"/work-orders/{order_id}/logs?follow=true", {"Accept": "text/event-stream"}
    resumed = await home.get(path, headers={**sse, "Last-Event-ID": "1.2"})
    assert re.findall(r'"text":"(.*?)"', resumed.text) == ["c"]
    assert (await home.get(path, headers={**sse, "Last-Event-ID": "soon"})).status_code == 422
    assert (await home.get(path, headers={**sse, "Last-Event-ID": "2.0"})).status_code == 422, "there was one run"


async def test_the_last_lines_can_be_asked_for(home: House) -> None:
    order_id = await _running(home)
    await home.log(order_id, "a", "b", "c", closed=True)
    page = (await home.get(f"/work-orders/{order_id}/logs?tail=2")).json()
    assert [line["text"] for line in page["lines"]] == ["b", "c"]
    followed = await home.get(f"/work-orders/{order_id}/logs?tail=1&follow=true")
    assert [json.loads(line).get("text") for line in followed.text.splitlines()] == ["c", None]
    assert (await home.get(f"/work-orders/{order_id}/logs?tail=9")).json()["from"] == 0


async def test_output_that_is_stored_long_after_the_end_is_followed_to_its_end(home: House) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, OrderState.COMPLETED)
    home.clock.at += 60_000
    following = asyncio.create_task(home.get(f"/work-orders/{order_id}/logs?follow=true"))
    for number in range(3):
        await _read_to_the_end(home)
        home.clock.skipped_s += 3
        await home.log(order_id, f"late {number}", first=number, closed=number == 2)
    records = [json.loads(line) for line in (await following).text.splitlines()]
    assert [record.get("text") for record in records] == ["late 0", "late 1", "late 2", None]
    assert records[-1]["closed"] is True


async def test_following_a_run_whose_platform_has_no_output_ends_after_its_end(home: House) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, OrderState.COMPLETED)
    following = asyncio.create_task(home.get(f"/work-orders/{order_id}/logs?follow=true"))
    await _read_to_the_end(home)
    assert not following.done()
    await _leader_lives_on(home, 5)
    (record,) = (await following).text.splitlines()
    assert json.loads(record)["closed"] is False


async def test_what_a_run_wrote_last_is_followed_although_it_was_quiet_for_long_before_its_end(home: House) -> None:
    order_id = await _running(home)
    following = asyncio.create_task(home.get(f"/work-orders/{order_id}/logs?follow=true"))
    await _read_to_the_end(home)
    home.clock.skipped_s += 6
    await home.finish(order_id, Exit(code=0))
    await _read_to_the_end(home)
    await home.log(order_id, "done", closed=True)
    records = [json.loads(line) for line in (await following).text.splitlines()]
    assert [record.get("text", record.get("closed")) for record in records] == ["done", True]


async def test_output_that_a_dead_leader_left_behind_is_waited_for_until_the_next_one_had_time(home: House) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, OrderState.COMPLETED)
    following = asyncio.create_task(home.get(f"/work-orders/{order_id}/logs?follow=true"))
    await _read_to_the_end(home)
    home.clock.at += 10_000
    home.clock.skipped_s += 10
    await _read_to_the_end(home)
    assert await home.store.take_lease("local", "next", 10_000) is not None
    await home.store.renew_leases("next", ["local"], 10_000)
    await _read_to_the_end(home)
    await home.log(order_id, "left behind", closed=True)
    records = [json.loads(line) for line in (await following).text.splitlines()]
    assert [record.get("text", record.get("closed")) for record in records] == ["left behind", True]


async def test_output_of_a_host_that_nobody_leads_any_more_is_not_waited_for_for_ever(home: House) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, OrderState.COMPLETED)
    following = asyncio.create_task(home.get(f"/work-orders/{order_id}/logs?follow=true"))
    await _read_to_the_end(home)
    home.clock.skipped_s += 14
    await _read_to_the_end(home)
    home.clock.skipped_s += 11  # two leases, and the time that a leader has
    assert '"closed":false' in (await following).text


async def _leader_lives_on(home: House, seconds: int) -> None:
    """So much time passes, and the leader renews its lease."""
    home.clock.at += seconds * 1_000
    await home.store.renew_leases("leader", ["local"], 10_000)
    home.clock.skipped_s += seconds


async def _read_to_the_end(home: House) -> None:
    """Let a stream of output look at the store as it is now."""
    tails, looks = home.store.log_tails, 0

    async def counted(run_ids: Any) -> Any:
        nonlocal looks
        looks += 1
        return await tails(run_ids)

    home.store.log_tails = counted  # type: ignore[method-assign]
    await until(lambda: looks >= 2, "the stream has looked twice")
    home.store.log_tails = tails  # type: ignore[method-assign]


async def test_streams_end_when_the_server_stops(home: House) -> None:
    order_id = await _running(home)
    streams = [
        asyncio.create_task(home.get("/events/stream")),
        asyncio.create_task(home.get(f"/work-orders/{order_id}/logs?follow=true")),
    ]
    await asyncio.sleep(0)
    home.app.state.stopping.set()
    answers = await asyncio.wait_for(asyncio.gather(*streams), 5)
    assert [answer.status_code for answer in answers] == [200, 200]


# the feed


async def test_the_stream_gives_events_as_they_happen_and_goes_on_after_the_last_one_seen(home: House) -> None:
    streaming = asyncio.create_task(home.get("/events/stream?after=0"))
    order = await home.submit()
    await _settled(home, streaming)
    blocks = (await streaming).text.strip().split("\n\n")
    last = blocks[-1].splitlines()
    assert last[1] == "event: order.submitted"
    assert json.loads(last[2].removeprefix("data: "))["subject"] == order["id"]
    resumed = await home.get("/events/stream", headers={"Last-Event-ID": last[0].removeprefix("id: ")})
    assert "order.submitted" not in resumed.text


async def _settled(home: House, streaming: "asyncio.Task[Any]") -> None:
    """Let the stream read what is there, then stop the server."""
    feed = home.store.events
    reads = 0

    async def counted(*args: Any) -> Any:
        nonlocal reads
        found = await feed(*args)
        reads += not found
        return found

    home.store.events = counted  # type: ignore[method-assign, assignment]
    await until(lambda: reads >= 2, "the stream has read to the end")
    home.app.state.stopping.set()


async def test_events_are_paged_with_a_place_to_go_on_from(home: House) -> None:
    await home.submit()
    everything = (await home.get("/events?limit=1000")).json()
    last = (await home.get(f"/events?after={everything['next']}")).json()
    assert everything["events"][-1]["kind"] == "order.submitted"
    assert last == {"events": [], "next": everything["next"]}
