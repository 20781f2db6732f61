"""What the client sends, reads, repeats and gives up, against a server that is played."""

import asyncio
import inspect
import json
import pydoc
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import httpx2
import pytest

from standby import AsyncClient, Client, ServerRefused, ServerUnreachable
from standby.client import flows, plans, schedules
from standby.client.answers import Bulk, LogEnd, Order
from tests.played import LOST, URL, Played, Streamed, no, ok, order_view

pytestmark = pytest.mark.anyio


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the client slept; it takes no time."""
    slept: list[float] = []

    async def nap(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(asyncio, "sleep", nap)
    return slept


def test_both_clients_have_the_same_methods_with_the_same_words() -> None:
    def methods(kind: type) -> dict[str, str | None]:
        own = {name: value for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}
        return {name: value.__doc__ for name, value in own.items()}

    assert methods(Client) == methods(AsyncClient)
    assert all(methods(Client).values())
    parts = (plans, flows, schedules)
    planned = {name for part in parts for name, value in vars(part).items() if _is_plan(part, value)}
    assert planned - {"given", "sent", "sent_alone", "why_body"} <= set(methods(Client))


def _is_plan(part: Any, value: Any) -> bool:
    public = (
        callable(value) and getattr(value, "__module__", "") == part.__name__ and not value.__name__.startswith("_")
    )
    return public and not isinstance(value, type)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_each_method_has_a_true_signature(kind: type[Client] | type[AsyncClient]) -> None:
    methods, client = {name: value for name, value in vars(kind).items() if not name.startswith("_")}, kind(URL)
    for name, method in methods.items():
        told = inspect.signature(method)
        assert (next(iter(told.parameters)), method.__qualname__) == ("self", f"{kind.__name__}.{name}")
        assert told.return_annotation not in (inspect.Signature.empty, Any)
        assert "self" not in inspect.signature(getattr(client, name)).parameters
    rerun_many, submit, wait = (inspect.signature(methods[name]) for name in ("rerun_many", "submit", "wait"))
    assert list(rerun_many.parameters)[:5] == ["self", "dry_run", "reason", "cursor", "state"]
    assert {"command", "env", "run_timeout_s", "idempotency_key"} <= set(submit.parameters)
    assert (wait.return_annotation, rerun_many.return_annotation) == (Order, Bulk)
    orders = inspect.signature(methods["orders"]).return_annotation
    assert orders == (AsyncIterator if kind is AsyncClient else Iterator)[Order]
    shown = " ".join(pydoc.plain(pydoc.render_doc(kind.submit)).split()).replace("( ", "(")
    assert "submit(self, *, idempotency_key: str | None = None, command: " in shown


async def test_a_client_can_be_played_by_a_mock_that_knows_its_methods() -> None:
    now, later = (mock.create_autospec(kind, instance=True) for kind in (Client, AsyncClient))
    now.wait("id", timeout=3)
    await later.wait("id", timeout=3)
    now.submit(command=["true"], run_timeout_s=3)
    now.rerun_many(state="failed", cursor="c")
    for play, words in (
        (now.wait, {}),
        (now.submit, {"comand": ["true"]}),
        (later.wait, {"order_id": "x", "time": 3}),
    ):
        with pytest.raises(TypeError):
            play(**words)


async def test_an_order_is_read_with_its_types_and_what_is_new_is_ignored() -> None:
    view = order_view(state="completed", payload={"big": 2**70}, from_the_future=1)
    server = Played(ok(view))
    with server.client() as client:
        order = client.order("a/../b")
    async with server.later() as later:
        assert await later.order("a/../b") == order
    assert order.ended
    assert (order.payload, order.submitted_at.utcoffset(), order.command) == ({"big": 2**70}, timedelta(0), ("true",))
    assert server.paths == ["GET /api/v1/work-orders/a%2F%2E%2E%2Fb"] * 2
    assert {each.headers["authorization"] for each in server.asked} == {"Bearer sb_key"}


async def test_a_submit_is_repeated_under_one_key_until_it_is_answered(naps: list[float]) -> None:
    answers = LOST, no(503, retry_after="2"), ok(order_view(), 201)
    now, later = Played(*answers), Played(*answers)
    with now.client() as client:
        assert client.submit(command=["true"], env={"A": "1"}, queue_timeout_s=None).id
    async with later.later() as other:
        assert (await other.submit(command=["true"])).id
    for server in (now, later):
        keys = {each.headers["idempotency-key"] for each in server.asked}
        assert (len(server.asked), len(keys)) == (3, 1)
    assert json.loads(now.asked[0].content) == {"command": ["true"], "env": {"A": "1"}, "queue_timeout_s": None}
    assert naps == [0.1, 2.0, 0.1, 2.0]


async def test_times_and_lengths_are_taken_as_python_has_them() -> None:
    when, server = datetime(2030, 1, 31, 12, tzinfo=UTC), Played(ok(order_view(), 201))
    with server.client() as client:
        retry = {"retries": 2, "retry_on": ["exit"], "base_s": timedelta(minutes=1)}
        client.submit(command=["true"], not_before=when, run_timeout_s=timedelta(hours=1), retry=retry)
        with pytest.raises(ValueError, match="not_before: give it a timezone"):
            client.submit(command=["true"], not_before=when.replace(tzinfo=None))
    many = Played(ok({"verdicts": [], "submitted": 0, "deduplicated": 0, "refused": 0}))
    async with many.later() as later:
        await later.submit_many([{"command": ["true"], "not_before": when, "queue_timeout_s": None}])
    (sent,) = [json.loads(each.content) for each in server.asked]
    assert (sent["not_before"], sent["run_timeout_s"]) == ("2030-01-31T12:00:00+00:00", 3600)
    assert sent["retry"] == {"retries": 2, "retry_on": ["exit"], "base_s": 60}
    (order,) = json.loads(many.asked[0].content)["orders"]
    assert order == {"command": ["true"], "not_before": "2030-01-31T12:00:00+00:00", "queue_timeout_s": None}


def test_a_replay_is_told_from_a_first_answer_only_for_a_key_of_ones_own() -> None:
    server = Played(ok(order_view(), 201, idempotent_replayed="true"))
    with server.client() as client:
        assert client.submit(command=["true"], idempotency_key="mine").replayed
        assert not client.submit(command=["true"]).replayed


@pytest.mark.parametrize(
    ("ask", "tries"),
    [
        (lambda client: client.order("x"), 4),
        (lambda client: client.cancel("x"), 4),
        (lambda client: client.cancel_many(pool="p"), 4),
        (lambda client: client.submit_many([{"command": ["true"]}]), 4),
        (lambda client: client.purge_many(pool="p", dry_run=True), 4),
        (lambda client: client.rerun("x"), 1),
        (lambda client: client.rerun_many(pool="p"), 1),
        (lambda client: client.purge_many(pool="p"), 1),
        (lambda client: client.patch_pool("p", {"slots_max": 1}), 1),
        (lambda client: client.add_key("k"), 1),
    ],
)
def test_only_what_is_safe_is_repeated_and_not_for_ever(
    naps: list[float], ask: Callable[[Client], Any], tries: int
) -> None:
    for answer, error in ((LOST, ServerUnreachable), (no(503), ServerRefused)):
        server = Played(answer)
        with server.client() as client, pytest.raises(error):
            ask(client)
        assert len(server.asked) == tries


def test_a_refusal_is_not_repeated_and_says_what_to_do(naps: list[float]) -> None:
    server = Played(no(404, "no_such_work_order"))
    with server.client() as client, pytest.raises(ServerRefused, match="it is so; do this") as refused:
        client.order("x")
    assert (refused.value.status, refused.value.code, len(server.asked), naps) == (404, "no_such_work_order", 1, [])


def test_a_server_that_asks_for_a_long_pause_is_not_waited_for(naps: list[float]) -> None:
    with Played(no(503, retry_after="3600")).client() as client, pytest.raises(ServerRefused):
        client.order("x")
    assert naps == []


async def test_a_server_that_is_down_is_said_to_refuse_connections(naps: list[float]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        url, words = (
            f"http://127.0.0.1:{taken.getsockname()[1]}",
            r"\(connection refused\); start it with `standby serve`",
        )
        with Client(url) as client, pytest.raises(ServerUnreachable, match=words):
            client.order("x")
        async with AsyncClient(url) as later:
            with pytest.raises(ServerUnreachable, match=words):
                await later.order("x")


async def test_an_address_for_tls_where_none_is_spoken_is_said_so(naps: list[float]) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"https://127.0.0.1:{port}", "k") as later:
            with pytest.raises(ServerUnreachable, match=r"does not answer \(TLS: .*\)"):
                await later.order("x")


def test_what_is_no_answer_of_a_standby_server_is_said_so() -> None:
    with Played(httpx2.Response(200, text="<html>")).client() as client, pytest.raises(ServerRefused, match="Standby"):
        client.order("x")


async def test_an_answer_that_sends_on_is_said_to(naps: list[float]) -> None:
    moved = httpx2.Response(301, headers={"location": "https://standby.example/"})
    words = r"the server answered 301 and sends on to https://standby\.example/; name the address that is meant"
    with Played(moved).client() as client:
        for ask in (lambda: client.order("x"), lambda: next(client.events(follow=True)), lambda: client.wait("x")):
            with pytest.raises(ServerRefused, match=words):
                ask()
    async with Played(moved).later() as later:
        with pytest.raises(ServerRefused, match=words):
            await anext(later.follow("x", 1))
    assert naps == []


async def test_orders_are_read_page_by_page_with_every_filter() -> None:
    pages = [{"orders": [order_view(id=str(n))], "next": "c" if n < 2 else None} for n in range(3)]
    now, later = (Played(*(ok(page) for page in pages)) for _ in range(2))
    which: plans.Which = {"state": ["failed", "cancelled"], "pool": "p", "labels": {"a": "1", "b": "x=y"}}
    with now.client() as client:
        assert [order.id for order in client.orders(**which)] == ["0", "1", "2"]
    async with later.later() as other:
        assert [order.id async for order in other.orders(**which)] == ["0", "1", "2"]
    query = now.asked[0].url.params.multi_items()
    assert sorted(query) == [
        *(("label", "a=1"), ("label", "b=x=y"), ("limit", "200"), ("pool", "p")),
        *(("state", "cancelled"), ("state", "failed")),
    ]
    assert now.asked[1].url.params["cursor"] == "c"


@pytest.mark.parametrize("name", ["ids", "label", "stat"])
def test_a_filter_that_listings_do_not_have_is_refused_and_not_passed_over(name: str) -> None:
    server = Played(ok({"orders": [order_view()], "next": None}))
    which: Any = {name: ["x"]}
    with server.client() as client:
        with pytest.raises(TypeError, match=f"orders are not listed by {name}; there is state, pool"):
            next(client.orders(**which))
        with pytest.raises(TypeError):
            client.orders_page(**which)
    assert not server.asked
    assert name not in inspect.signature(Client.orders).parameters


def test_no_more_orders_are_read_than_asked_for() -> None:
    server = Played(ok({"orders": [order_view()], "next": "c"}))
    with server.client() as client:
        assert len(list(client.orders(limit=2))) == 2
    assert [each.url.params["limit"] for each in server.asked] == ["2", "1"]


async def test_a_wait_ends_with_the_order_or_with_its_time(naps: list[float]) -> None:
    answers = [ok(order_view(state=state)) for state in ("pending", "running", "completed")]
    with Played(*answers).client() as client:
        assert client.wait("x").state == "completed"
    async with Played(*answers).later() as later:
        assert (await later.wait("x")).state == "completed"
    with Played(answers[0]).client() as client, pytest.raises(TimeoutError, match="order x is still pending after 0 s"):
        client.wait("x", timeout=0)


def test_a_server_that_was_there_is_waited_for_and_one_that_never_was_is_not(naps: list[float]) -> None:
    back = Played(ok(order_view(state="running")), LOST, no(503), ok(order_view(state="failed")))
    with back.client() as client:
        assert client.wait("x").state == "failed"
    with Played(LOST).client() as client, pytest.raises(ServerUnreachable):
        client.wait("x")


async def test_a_wait_keeps_its_time_also_while_the_server_is_away(
    naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: sum(naps))
    now, later = (Played(ok(order_view(state="running")), LOST) for _ in range(2))
    with now.client() as client, pytest.raises(TimeoutError, match="the server at http"):
        client.wait("x", timeout=3)
    assert sum(naps) == pytest.approx(3)
    limits = [each.extensions["timeout"] for each in now.asked]
    assert (limits[0], limits[-1]["read"]) == ({"connect": 3, "read": 3, "write": 3, "pool": 3}, 1)
    naps.clear()
    async with later.later() as other:
        with pytest.raises(TimeoutError, match="the server at http"):
            await other.wait("x", timeout=3)
    assert sum(naps) == pytest.approx(3)


def test_a_server_that_stays_away_is_given_up(naps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with Played(ok(order_view(state="running")), LOST).client() as client, pytest.raises(ServerUnreachable):
        client.wait("x")


def event(seq: int) -> str:
    view = {"seq": seq, "at": "2030-01-01T00:00:00Z", "kind": "order.ready", "subject": "x", "from": "preparing"}
    data = json.dumps({**view, "to": "running", "trigger": "look", "actor": "a", "data": {}})
    return f"id: i.{seq}.m{seq}\nevent: order.ready\ndata: {data}\n\n"


async def test_events_are_followed_over_a_broken_connection_without_a_gap(naps: list[float]) -> None:
    hello = "retry: 1000\nid: i.0.m0\nevent: hello\ndata: {}\n\n"
    streams = [
        Streamed(hello, event(1)[:30], event(1)[30:] + event(2) + event(3)[:40], breaks=True),
        Streamed(": still here\n\n", event(3)),
    ]

    def server() -> Played:
        return Played(streams[0], no(503), streams[1])

    now, later = server(), server()
    with now.client() as client:
        followed = client.events(follow=True, kind="order.ready")
        found = [next(followed) for _ in range(3)]
    async with later.later() as other:
        also = []
        async for each in other.events(follow=True, kind="order.ready"):
            also.append(each)
            if len(also) == 3:
                break
    assert found == also
    assert [(each.seq, each.cursor, each.from_state) for each in found][2] == (3, "i.3.m3", "preparing")
    assert "after" not in now.asked[0].url.params
    assert [each.url.params["after"] for each in now.asked[1:]] == ["i.2.m2"] * 2
    assert {each.url.params["kind"] for each in now.asked} == {"order.ready"}


def test_a_place_that_is_gone_ends_the_events_with_what_to_do() -> None:
    with Played(no(410, "pruned")).client() as client, pytest.raises(ServerRefused, match="do this") as refused:
        next(client.events(follow=True, after="i.1.m"))
    assert refused.value.code == "pruned"


def test_events_are_read_page_by_page_to_the_end() -> None:
    views = [json.loads(event(seq).split("data: ")[1]) for seq in (1, 2, 3)]
    pages = [ok({"events": views[:2], "next": "i.2.m"}), ok({"events": views[2:], "next": "i.3.m"})]
    server = Played(*pages, ok({"events": [], "next": "i.3.m"}))
    with server.client() as client:
        assert [each.cursor for each in client.events()] == ["i.1", "i.2.m", "i.3.m"]
    assert [each.url.params["after"] for each in server.asked] == ["0", "i.2.m", "i.3.m"]


def log(**record: Any) -> str:
    return json.dumps({"run": 1, "at": "2030-01-01T00:00:00Z", "stream": "stdout", **record}) + "\n"


def test_output_is_followed_over_a_broken_connection_and_says_what_is_gone(naps: list[float]) -> None:
    first = Streamed('{"dropped": 5, "run": 1}\n', log(line=5, text="a"), "\n", breaks=True)
    second = Streamed(log(line=6, text="b"), '{"end": true, "closed": false, "run": 1, "next": 7}\n')
    server = Played(first, second)
    with server.client() as client:
        *lines, end = client.follow("x", 1)
    assert [(each.text, each.dropped) for each in lines if not isinstance(each, LogEnd)] == [("a", 5), ("b", 0)]
    assert end == LogEnd(run=1, closed=False)
    assert [each.url.params["from"] for each in server.asked] == ["0", "6"]
    assert first.closed and second.closed


async def test_a_line_of_a_stream_ends_with_a_newline_and_with_nothing_else() -> None:
    text = "a\u2028b\u2029c\x85d ä"
    whole = log(line=0, text="TEXT").replace("TEXT", text)
    pieces = [whole[:-8], whole[-8:] + '{"end": true, "closed": true, "run": 1, "next": 1}\n']
    with Played(Streamed(*pieces)).client() as client:
        assert [line.text for line in client.logs("x", run=1, follow=True)] == [text]
    async with Played(Streamed(*pieces)).later() as later:
        assert [line.text async for line in later.logs("x", run=1, follow=True)] == [text]


def test_who_leaves_a_stream_closes_it() -> None:
    stream = Streamed(log(line=0, text="a"), log(line=1, text="b"))
    with Played(stream).client() as client:
        lines = client.logs("x", run=1, follow=True)
        assert next(lines).text == "a"
        lines.close()  # type: ignore[attr-defined]
    assert stream.closed


def loaded(statement: str) -> set[str]:
    """The modules that are there after it."""
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_a_server_brings_no_client() -> None:
    assert "httpx2" not in loaded("import standby.cli.main, standby.cli.serve")


def test_importing_standby_is_light_and_the_client_brings_no_server() -> None:
    assert not {"httpx2", "msgspec", "asyncio"} & loaded("import standby")
    client = loaded("from standby import Client")
    assert not {"asyncio", "pydantic", "rich", "cyclopts", "fastapi"} & client
    ours = {name.split(".")[1] for name in client if name.startswith("standby.")}
    assert ours == {"client", "core"}
