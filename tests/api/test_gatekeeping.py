"""Keys, problems, health, numbers."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog

from standby.api.auth import ensure_first_key, hashed
from standby.core.model import OrderState
from standby.store.contract import Key, StoreDown
from standby.store.sqlite import SqliteStore
from tests.api.house import TOKEN, House, house, until

pytestmark = pytest.mark.anyio
CLOSED = [
    "/api/v1/work-orders",
    "/api/v1/pools",
    "/api/v1/events/stream",
    "/api/v1/openapi.json",
    "/metrics",
    "/nowhere",
]


@pytest.fixture
async def stranger(home: House) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=home.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8377") as http:
        yield http


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize("header", [None, "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN])
async def test_everything_is_closed_without_a_known_key(
    stranger: httpx2.AsyncClient, path: str, header: str | None
) -> None:
    answer = await stranger.get(path, headers={} if header is None else {"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    unknown = header == f"Bearer {TOKEN}x"
    assert answer.json()["code"] == ("key_unknown" if unknown else "key_needed")
    assert ("see docs/operating.md" in answer.json()["what_to_do"]) == unknown
    assert TOKEN not in answer.text


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/favicon.ico", "/static/app.js", "/static/style.css"])
async def test_health_and_the_page_need_no_key(stranger: httpx2.AsyncClient, path: str) -> None:
    assert (await stranger.get(path)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/static/../pages.py", "/static/%2e%2e/pages.py", "/static/pages.py", "/static//etc/passwd"]
)
async def test_the_page_serves_only_its_own_files(stranger: httpx2.AsyncClient, path: str) -> None:
    assert (await stranger.get(path)).status_code in (401, 404)


async def test_a_new_key_works_within_a_moment(home: House, stranger: httpx2.AsyncClient) -> None:
    from standby.store.contract import Key

    await home.store.add_key(Key(name="late", hash=hashed("sb_late"), created_at=home.clock.at))

    async def let_in() -> bool:
        answer = await stranger.get("/api/v1/pools", headers={"Authorization": "Bearer sb_late"})
        return answer.status_code == 200

    assert await until(let_in, "the new key is known")


async def test_without_keys_this_machine_may_ask_but_no_foreign_page(tmp_path: Path) -> None:
    async with house(tmp_path, auth=False) as open_house:
        assert (await open_house.get("/pools")).status_code == 200
        assert (await open_house.submit())["submitted_by"] == "local"
        own = await open_house.get("/pools", headers={"Origin": "http://127.0.0.1:8377"})
        foreign = await open_house.get("/pools", headers={"Origin": "https://example.com"})
        rebound = await open_house.get("/pools", headers={"Host": "evil.example.com:8377"})
        assert [own.status_code, foreign.status_code, rebound.status_code] == [200, 403, 403]
        for nonsense in ({"Host": "["}, {"Host": "[::1"}, {"Origin": "http://["}):
            assert (await open_house.get("/pools", headers=nonsense)).status_code == 403


async def test_the_first_key_is_made_once_written_for_its_owner_only_and_stored_as_a_hash(tmp_path: Path) -> None:
    store = SqliteStore.in_memory()
    token = await ensure_first_key(store, tmp_path, 1)
    assert token is not None
    file = tmp_path / "admin.key"
    assert file.read_text().strip() == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (key,) = await store.keys()
    assert (key.name, key.hash) == ("admin", hashed(token))
    assert await ensure_first_key(store, tmp_path, 2) is None
    await store.close()


async def test_a_first_key_whose_storing_was_interrupted_is_taken_up_again(tmp_path: Path) -> None:
    lost, store = SqliteStore.in_memory(), SqliteStore.in_memory()
    first = await ensure_first_key(lost, tmp_path, 1)
    assert await ensure_first_key(store, tmp_path, 2) == first
    await lost.close()
    await store.close()


async def test_of_servers_that_start_at_once_only_the_one_whose_key_counts_keeps_it(tmp_path: Path) -> None:
    store, homes = SqliteStore.in_memory(), [tmp_path / name for name in ("one", "two", "three")]
    for home in homes:
        home.mkdir()

    async def none_yet() -> list[Key]:
        return []

    with pytest.MonkeyPatch.context() as before:
        before.setattr(store, "keys", none_yet)  # all of them looked before the first one wrote
        tokens = [await ensure_first_key(store, home, 1) for home in homes]
    (key,) = await store.keys()
    kept = {home.name: file.read_text().strip() for home in homes if (file := home / "admin.key").exists()}
    assert [hashed(token) for token in kept.values()] == [key.hash]
    assert [token for token in tokens if token is not None] == list(kept.values())
    await store.close()


async def test_every_answer_carries_the_headers_that_browsers_obey(home: House, stranger: httpx2.AsyncClient) -> None:
    for answer in [await stranger.get("/"), await stranger.get("/api/v1/pools"), await home.get("/pools")]:
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


# when things go wrong


async def _down(*_: Any, **__: Any) -> Any:
    raise StoreDown("the disk is gone")


async def test_a_store_that_is_down_is_said_with_a_time_to_come_back(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home.store, "pools", _down)
    monkeypatch.setattr(home.store, "save", _down)
    monkeypatch.setattr(home.store, "now", _down)
    for answer in [
        await home.get("/pools"),
        await home.post("/work-orders", {"command": ["a"]}),
        await home.http.get("/readyz"),
    ]:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert answer.headers["content-type"] == "application/problem+json"
        assert "disk" not in answer.text
    assert (await home.http.get("/healthz")).status_code == 200


async def test_a_mistake_of_ours_is_a_problem_without_its_insides(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> Any:
        raise RuntimeError("secret insides")

    monkeypatch.setattr(home.store, "pools", broken)
    answer = await home.get("/pools")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal_error"
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/api/v1/work-orders", "GET, POST"),
        ("/api/v1/work-orders/cancel", "POST"),
        ("/api/v1/pools/x", "GET, PATCH"),
        ("/", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(home: House, path: str, allow: str) -> None:
    answer = await home.http.put(path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allow


async def test_whoever_hangs_up_in_the_middle_of_a_body_is_no_fault_of_the_server(home: House) -> None:
    parts = iter([{"type": "http.request", "body": b'{"command":', "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/work-orders", "query_string": b"", "headers": headers}
    with structlog.testing.capture_logs() as said:
        await home.app(scope, receive, send)
    assert (sent[0]["status"], said) == (400, [])


async def test_a_stopping_server_is_not_ready(home: House) -> None:
    assert (await home.http.get("/readyz")).json()["status"] == "ready"
    home.app.state.stopping.set()
    assert (await home.http.get("/readyz")).status_code == 503


# numbers


async def test_numbers_are_counted_from_the_events_by_pool_and_outcome_without_ids(home: House) -> None:
    done, failed, waiting = [(await home.submit())["id"] for _ in range(3)]
    home.clock.at += 2_000
    await home.walk(done, OrderState.COMPLETED)
    await home.walk(failed, OrderState.FAILED)

    async def counted() -> str | None:
        text = (await home.http.get("/metrics")).text
        return text if 'standby_orders_ended_total{outcome="failed",pool="default"} 1.0' in text else None

    text: str = await until(counted, "the events are counted")
    assert 'standby_orders_submitted_total{pool="default"} 3.0' in text
    assert 'standby_orders_ended_total{outcome="completed",pool="default"} 1.0' in text
    assert 'standby_orders_unfinished{pool="default",state="pending"} 1.0' in text
    assert 'standby_queue_wait_seconds_sum{pool="default"} 4.0' in text
    assert 'standby_run_duration_seconds_count{pool="default"} 2.0' in text
    assert 'standby_slots{pool="default",state="idle"} 2.0' in text
    assert 'standby_host_led{host="local"} 1.0' in text
    assert not any(order_id in text for order_id in (done, failed, waiting))


async def test_the_metrics_outlive_a_store_that_is_away(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as away:
        away.setattr(home.store, "events", _down)
        await home.submit()
        await asyncio.sleep(0)

    async def counted() -> bool:
        return 'submitted_total{pool="default"} 1.0' in (await home.http.get("/metrics")).text

    assert await until(counted, "counting goes on")
