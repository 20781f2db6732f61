"""Events by page and as a stream: filters, cursors that notice pruning and restored databases."""

import asyncio
import json
from typing import Any

import pytest

from tests.api.house import House

pytestmark = pytest.mark.anyio


async def read_stream(home: House, path: str, most: int, **headers: str) -> list[dict[str, str]]:
    """The first events of a stream, each as its fields; the greeting comes first."""
    found: list[dict[str, str]] = []
    scope_path = f"/api/v1{path}"
    query = scope_path.partition("?")[2]
    done = asyncio.Event()

    async def receive() -> Any:
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        blocks = [block for block in message.get("body", b"").decode().split("\n\n") if block]
        found.extend(dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":") for block in blocks)
        if len(found) >= most:
            done.set()

    scope = {
        "type": "http",
        "method": "GET",
        "path": scope_path.partition("?")[0],
        "raw_path": scope_path.encode(),
        "query_string": query.encode(),
        "headers": [(b"authorization", home.http.headers["authorization"].encode()), (b"host", b"127.0.0.1:8377")]
        + [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8377),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    async with asyncio.timeout(10):
        await home.app(scope, receive, send)
    return found[:most]


async def test_the_newest_events_are_read_from_the_end_of_the_history(home: House) -> None:
    first, second, third = [(await home.submit())["id"] for _ in range(3)]
    await home.post(f"/work-orders/{first}/cancel")
    every = (await home.get("/events")).json()

    async def newest(query: str) -> list[tuple[str, str]]:
        page = (await home.get(f"/events?newest=true&{query}")).json()
        assert page["next"] == (every["next"] if "subject" not in query else page["next"])
        return [(event["kind"], event["subject"]) for event in page["events"]]

    assert await newest("limit=2") == [("order.submitted", third), ("order.cancelled", first)]
    assert await newest("limit=2&kind=order.submitted") == [("order.submitted", second), ("order.submitted", third)]
    assert await newest(f"limit=1&subject={second}") == [("order.submitted", second)]
    assert len(await newest("limit=1000")) == len(every["events"])
    place = every["events"][-2]["seq"]
    assert await newest(f"limit=9&after={place}") == [("order.cancelled", first)]
    last = (await home.get(f"/events?newest=true&after={every['next']}")).json()
    assert last == {"events": [], "next": every["next"]}


async def test_events_are_filtered_by_kind_and_subject(home: House) -> None:
    first, second = (await home.submit())["id"], (await home.submit())["id"]
    await home.post(f"/work-orders/{first}/cancel")
    found = (await home.get("/events?kind=order.cancelled&kind=order.submitted")).json()["events"]
    assert [(event["kind"], event["subject"]) for event in found] == [
        ("order.submitted", first),
        ("order.submitted", second),
        ("order.cancelled", first),
    ]
    of_first = (await home.get(f"/events?subject={first}&kind=order.cancelled")).json()["events"]
    assert [event["kind"] for event in of_first] == ["order.cancelled"]
    assert (await home.get("/events?kind=order.danced")).status_code == 422


async def test_pages_of_a_kind_follow_each_other_however_rare_it_is(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standby.api.feed.BATCH", 2)
    monkeypatch.setattr("standby.api.feed.WALK_MOST", 4)
    ids = [(await home.submit())["id"] for _ in range(9)]
    await home.post(f"/work-orders/{ids[0]}/cancel")
    after, kinds = "0", []
    while True:
        page = (await home.get(f"/events?kind=order.cancelled&after={after}")).json()
        kinds += [event["kind"] for event in page["events"]]
        if page["next"] == after:
            break
        after = page["next"]
    assert kinds == ["order.cancelled"]


async def test_a_cursor_names_its_event_and_one_of_a_restored_database_is_gone(home: House) -> None:
    await home.submit()
    cursor = (await home.get("/events")).json()["next"]
    store, seq, mark = cursor.split(".")
    assert mark == await home.store.mark(int(seq))
    assert (await home.get(f"/events?after={cursor}")).status_code == 200
    assert (await home.get(f"/events?after={store}.{seq}")).status_code == 200
    assert (await home.get(f"/events?after={seq}")).status_code == 200
    for stale in (f"{store}.{seq}.00000000", f"{store}.{int(seq) + 7}.{mark}"):
        for path in ("/events", "/events/stream"):
            answer = await home.get(f"{path}?after={stale}")
            assert (answer.status_code, answer.json()["code"]) == (410, "restored")
            assert "after=0" in answer.json()["what_to_do"]


async def test_a_stream_of_some_kinds_goes_on_after_its_last_id(home: House) -> None:
    first = (await home.submit())["id"]
    await home.post(f"/work-orders/{first}/cancel")
    await home.submit()
    hello, submitted, again = await read_stream(home, "/events/stream?after=0&kind=order.submitted", 3)
    assert hello["event"] == "hello"
    assert json.loads(submitted["data"])["subject"] == first
    assert again["event"] == "order.submitted"
    _, after = await read_stream(home, "/events/stream?kind=order.submitted", 2, last_event_id=submitted["id"])
    assert after["id"] == again["id"]


async def test_a_cursor_from_before_the_pruned_events_is_gone_and_the_metrics_say_how_much_is(home: House) -> None:
    await home.submit()
    first, second = [(await home.get(f"/events?limit={limit}")).json()["next"] for limit in (1, 2)]
    await home.store.prune_events(home.clock.at + 1, 2)
    for stale in (first, first.rpartition(".")[0], "1"):
        for path in ("/events", "/events/stream"):
            answer = await home.get(f"{path}?after={stale}")
            assert (answer.status_code, answer.json()["code"]) == (410, "pruned")
    assert [event["seq"] for event in (await home.get("/events?after=0")).json()["events"]] == [3]
    assert [event["seq"] for event in (await home.get(f"/events?after={second}")).json()["events"]] == [3]
    home.clock.at += 5_000
    text = (await home.http.get("/metrics")).text
    assert 'standby_history_pruned_total{what="events"} 2.0' in text
    assert "standby_oldest_event_age_seconds 5.0" in text
