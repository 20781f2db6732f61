"""The client against the API itself: every answer can be read, and no field of it is lost."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, get_args

import httpx2
import msgspec
import pytest

from standby import AsyncClient, ServerRefused
from standby.client import answers, project_plans, schedules
from standby.client.plans import NewOrder
from standby.core.model import OrderState
from tests.api.house import TOKEN, House, house

pytestmark = pytest.mark.anyio


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        yield made


@pytest.fixture
async def client(home: House) -> AsyncIterator[AsyncClient]:
    transport = httpx2.ASGITransport(app=home.app)
    async with AsyncClient("http://127.0.0.1:8377", TOKEN, transport=transport) as made:
        yield made


def lost(view: Any, kind: Any) -> set[str]:
    """Fields of an answer that have no place in the client's type."""
    if isinstance(view, list):
        (inner, *_) = [each for each in get_args(kind) if each not in (..., type(None))] or [kind]
        return set().union(*(lost(each, inner) for each in view))
    kinds = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    if not isinstance(view, Mapping) or not kinds:
        return set()
    known = {field.encode_name: field.type for field in msgspec.structs.fields(kinds[0])}
    gone = {f"{kinds[0].__name__}.{name}" for name in view if name not in known}
    return gone.union(*(lost(value, known[name]) for name, value in view.items() if name in known))


ANSWERS: dict[str, Any] = {
    "/work-orders": answers.OrderPage,
    "/work-orders/{order}": answers.Order,
    "/pools/default": answers.Pool,
    "/hosts/local": answers.Host,
    "/schedules/nightly": schedules.Schedule,
    "/projects/default": project_plans.Project,
    "/work-orders/{order}/why": answers.Why,
    "/work-orders/{order}/runs": tuple[answers.Run, ...],
    "/work-orders/{order}/events": tuple[answers.Event, ...],
    "/hosts/local/starts": answers.Starts,
    "/slots": tuple[answers.Slot, ...],
    "/keys": tuple[answers.Key, ...],
    "/config": tuple[answers.Setting, ...],
    "/doctor": tuple[answers.Check, ...],
}


@pytest.mark.parametrize("path", ANSWERS)
async def test_no_field_of_an_answer_is_lost(home: House, path: str) -> None:
    order = await home.submit()
    await home.walk(order["id"], OrderState.RUNNING)
    await home.post("/schedules", {"name": "nightly", "cron": "@daily", "order": {"command": ["true"]}})
    await home.post("/schedules/nightly/run")
    view = (await home.get(path.format(order=order["id"]))).json()
    kind: Any = ANSWERS[path]
    if get_args(kind):
        (view,) = [value for value in view.values() if isinstance(value, list)]
        assert view
    assert lost(view, kind) == set()


async def test_what_is_handed_in_can_be_read_followed_and_cancelled(home: House, client: AsyncClient) -> None:
    order = await client.submit(command=["true"], labels={"a": "1"}, payload={"big": 2**70}, run_timeout_s=None)
    assert (order.state, order.payload, order.run_timeout_s) == ("pending", {"big": 2**70}, None)
    again = [await client.submit(command=["true"], idempotency_key="k") for _ in range(2)]
    assert (again[0].id, again[0].replayed, again[1].replayed) == (again[1].id, False, True)
    assert [each.id async for each in client.orders(pool="default")] == [again[0].id, order.id]
    await home.walk(order.id, OrderState.RUNNING)
    assert [run.number for run in await client.runs(order.id)] == [1]
    assert (await client.cancel(order.id, "enough")).state == "stopping"
    kinds = [event.kind async for event in client.events() if event.subject == order.id]
    assert kinds == [event.kind for event in await client.order_events(order.id)]
    assert kinds[-1] == "order.stopping"


async def test_places_are_read_and_their_mode_is_set(home: House, client: AsyncClient) -> None:
    assert (await client.set_pool_mode("default", "pause", "lunch")).mode_reason == "lunch"
    assert [(pool.name, pool.mode) for pool in await client.pools()] == [("default", "paused")]
    assert (await client.set_host_mode("local", "drain")).mode == "draining"
    assert [host.name for host in await client.hosts()] == ["local"]
    assert await client.slots(host="local") == ()


async def test_a_schedule_is_added_changed_paused_run_and_removed(home: House, client: AsyncClient) -> None:
    made = await client.add_schedule("nightly", "@daily", {"command": ["true"], "run_timeout_s": None}, missed="all")
    assert (made.missed, made.next_at, made.order["command"]) == ("all", made.next_ticks[0], ["true"])
    assert (await client.change_schedule("nightly", cron="@hourly", zone="Europe/Berlin")).zone == "Europe/Berlin"
    assert (await client.change_schedule("nightly", order={"script": "date"})).order["script"] == "date"
    assert (await client.set_schedule_mode("nightly", "pause", "night")).mode_reason == "night"
    order = await client.run_schedule("nightly")
    assert (order.schedule, [tick.order for tick in (await client.schedule("nightly")).ticks]) == (
        "nightly",
        [order.id],
    )
    assert [each.name for each in await client.schedules()] == ["nightly"]
    await client.remove_schedule("nightly")
    assert await client.schedules() == ()


async def test_a_project_is_drained_at_once_and_resumed(home: House, client: AsyncClient) -> None:
    await client.submit(command=["true"], project="reports")
    drained = await client.set_project_mode("reports", "drain", "audit", now=True)
    assert (drained.mode, drained.mode_reason, drained.mode_stop_at is not None) == ("draining", "audit", True)
    assert [each.name for each in await client.projects()] == ["reports"]
    await client.set_project_mode("reports", "resume")
    assert (await client.project("reports")).mode == "open"
    assert (await client.set_pool_mode("default", "drain", now=True)).mode_stop_at is not None
    assert (await client.set_host_mode("local", "drain", now=True)).mode_stop_at is not None


async def test_what_is_refused_has_its_name(client: AsyncClient) -> None:
    with pytest.raises(ServerRefused) as refused:
        await client.order("nobody")
    assert (refused.value.status, refused.value.code) == (404, "no_such_work_order")
    with pytest.raises(ServerRefused, match="field"):
        await client.submit(command=["true"], nonsense=1)  # type: ignore[call-arg]


async def test_many_are_handed_in_cancelled_repeated_and_removed(home: House, client: AsyncClient) -> None:
    orders: list[NewOrder] = [{"command": ["true"], "labels": {"a": "1"}}, {"command": []}, {"command": ["true"]}]
    taken = await client.submit_many(orders)
    assert [each.answer for each in taken.verdicts] == ["submitted", "refused", "submitted"]
    assert (taken.verdicts[1].problem or {})["code"] == "invalid_request"
    with pytest.raises(ServerRefused) as refused:
        await client.submit_many(orders, together=True)
    assert refused.value.code == "refused_together"
    looked = await client.cancel_many(labels={"a": "1"}, state="pending", dry_run=True)
    assert (looked.matched, looked.done) == (1, 0)
    done = await client.cancel_many(labels={"a": "1"})
    assert [(each.id, each.became) for each in done.orders] == [(taken.verdicts[0].order.id, "cancelled")]  # type: ignore[union-attr]
    again = await client.rerun(done.orders[0].id, "once more")
    assert again.rerun_of == done.orders[0].id
    assert (await client.rerun_many(ids=[done.orders[0].id])).done == 1
    assert (await client.purge_many(ids=[done.orders[0].id])).orders[0].became == "purged"
    with pytest.raises(ServerRefused) as empty:
        await client.cancel_many()
    assert empty.value.code == "filter_needed"


async def test_a_place_in_the_events_of_another_database_is_refused_with_what_to_do(
    home: House, client: AsyncClient
) -> None:
    await client.submit(command=["true"])
    *_, last = [event async for event in client.events()]
    assert [event async for event in client.events(after=last.cursor)] == []
    with pytest.raises(ServerRefused) as restored:
        [event async for event in client.events(after=f"{last.cursor[:-8]}zzzzzzzz")]
    assert restored.value.code == "restored"


async def test_keys_and_settings_of_pools_are_changed(home: House, client: AsyncClient) -> None:
    made = await client.add_key("ci")
    assert made.key is not None and made.key.endswith(made.last4 or "?")
    assert [key.name for key in await client.keys()] == ["ci", "tester"]
    assert (await client.remove_key("ci")).name == "ci"
    pool = await client.patch_pool("default", {"slots_max": 7, "run_timeout_s": None}, reason="rush")
    assert (pool.slots_max, pool.overrides["slots_max"].reason) == (7, "rush")
    assert "slots_max" not in (await client.patch_pool("default", unset=["slots_max"])).overrides
    assert any(each.value_from == "override" for each in await client.config())


async def test_more_orders_than_one_call_takes_are_each_repeated_once(
    home: House, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standby.api.many.BULK_MOST", 2)
    await client.submit_many([{"command": ["true"]}] * 3)
    await client.cancel_many(pool="default")
    rest = await client.cancel_many(pool="default")
    assert (rest.matched, rest.next) == (1, None)
    first = await client.rerun_many(state="cancelled")
    assert (first.done, first.more, first.next is None) == (2, True, False)
    last = await client.rerun_many(state="cancelled", cursor=first.next)
    assert (last.done, last.more, last.next) == (1, False, None)
    assert len({each.id for each in (*first.orders, *last.orders)}) == 3
