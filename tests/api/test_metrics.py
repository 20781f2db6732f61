"""Numbers for Prometheus: each event counts once, whatever happens to the store, and every scrape is whole."""

import asyncio
from typing import Any

import httpx2
import pytest

from standby.store.contract import StoreDown
from tests.api.house import House, until

pytestmark = pytest.mark.anyio


async def numbers(home: House, *lines: str) -> str | None:
    """The metrics, once they have all of these lines."""
    text = (await home.http.get("/metrics")).text
    return text if all(f"{line}\n" in text for line in lines) else None


async def test_what_was_counted_before_the_store_went_away_is_not_counted_again(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (await home.submit())["id"]
    await until(lambda: numbers(home, 'standby_orders_submitted_total{pool="default"} 1.0'), "the first is counted")
    home.app.state.metrics._seen.clear()  # as if it had been there before this server
    order, trouble = home.store.order, asyncio.Event()

    async def later(*_: Any) -> Any:
        raise StoreDown("away")

    async def away_once(order_id: str) -> Any:
        if order_id == old and not trouble.is_set():
            trouble.set()
            raise StoreDown("away again, in the middle of a batch")
        return await order(order_id)

    with pytest.MonkeyPatch.context() as away:
        away.setattr(home.store, "events", later)
        await home.submit()
        await home.post(f"/work-orders/{old}/cancel")
        monkeypatch.setattr(home.store, "order", away_once)
    await trouble.wait()
    ended = 'standby_orders_ended_total{outcome="cancelled",pool="default"} 1.0'
    text = await until(lambda: numbers(home, ended), "the end is counted")
    assert 'standby_orders_submitted_total{pool="default"} 2.0\n' in text


async def test_a_submit_is_counted_without_reading_its_order(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await until(lambda: numbers(home, "standby_last_event_seq 2.0"), "the server is up")
    asked: list[str] = []

    async def note(order_id: str) -> None:
        asked.append(order_id)

    monkeypatch.setattr(home.store, "order", note)
    await home.submit()
    await until(lambda: numbers(home, 'standby_orders_submitted_total{pool="default"} 1.0'), "it is counted")
    assert asked == []


async def test_scrapes_at_the_same_time_miss_nothing(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await home.submit()
    counts, leases = home.store.counts, home.store.leases
    scrapes: list[asyncio.Task[httpx2.Response]] = []

    async def slow() -> Any:
        await asyncio.gather(*scrapes[:1])  # so slow that the first one is answered meanwhile
        return await counts()

    async def crossed() -> Any:
        if len(scrapes) == 1:
            monkeypatch.setattr(home.store, "counts", slow)
            scrapes.append(asyncio.create_task(home.http.get("/metrics")))
            for _ in range(100):
                await asyncio.sleep(0)  # it gets as far as it can
        return await leases()

    monkeypatch.setattr(home.store, "leases", crossed)
    scrapes.append(asyncio.create_task(home.http.get("/metrics")))
    whole = 'standby_orders_unfinished{pool="default",state="pending"} 1.0\n'
    for each in range(2):
        assert whole in (await scrapes[each]).text


async def test_every_host_says_whether_it_is_led_and_nothing_else_does(home: House) -> None:
    await home.store.take_lease("*", "leader", 10_000)  # of the steps that belong to no host
    text = (await home.http.get("/metrics")).text
    assert _led(text) == ['standby_host_led{host="local"} 0.0'], "nobody ever led it"
    await home.lead()
    text = (await home.http.get("/metrics")).text
    assert _led(text) == ['standby_host_led{host="local"} 1.0']


def _led(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("standby_host_led{")]
