"""How long an order will probably wait, what that is worth, and how right it was."""

from pathlib import Path

import pytest

from standby.core import outlook
from standby.core.model import OrderState
from standby.core.sighting import Exit
from tests.api.house import House, View, house, until

pytestmark = pytest.mark.anyio


async def measure(home: House, *lengths_ms: int, **body: object) -> None:
    """Runs of these lengths end."""
    for length_ms in lengths_ms:
        order_id = (await home.submit(**body))["id"]
        await home.walk(order_id, OrderState.RUNNING)
        home.clock.at += length_ms
        await home.finish(order_id, Exit(code=0))
    await home.lead()
    home.look_again()


async def begin(home: House, **body: object) -> str:
    """A run is open."""
    order_id: str = (await home.submit(**body))["id"]
    await home.walk(order_id, OrderState.RUNNING)
    home.look_again()
    return order_id


async def why(home: House, order_id: str) -> View:
    view: View = (await home.get(f"/work-orders/{order_id}/why")).json()
    return view


async def test_the_answer_to_a_submit_has_the_wait_its_range_and_what_that_is_worth(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"slots_max": 1}}) as home:
        await measure(home, *[5_000] * 10)
        assert (await home.submit())["estimated_wait_ms"] == 0
        running = await begin(home)
        home.clock.at += 2_000
        await home.lead()
        home.look_again()
        taken = await home.submit()
        assert taken["estimated_wait_ms"] == 3_000 + 5_000, "one waits before it"
        assert taken["estimate"] == {"low_ms": 8_000, "high_ms": 8_000, "confidence": "fair", "why_none": None}
        assert (await why(home, taken["id"]))["estimated_wait_ms"] == 8_000
        shown = await home.show(taken["id"])
        assert (shown["estimated_wait_ms"], shown["estimate"]) == (8_000, taken["estimate"])
        assert (await home.show(running))["estimate"] is None
        assert {each["estimate"] for each in (await home.get("/work-orders")).json()["orders"]} == {None}


async def test_of_other_projects_only_those_count_whose_turn_comes_before(tmp_path: Path) -> None:
    projects = {"closed": {"running_max": 0}, "heavy": {"weight": 4}}
    async with house(tmp_path, pools={"default": {"slots_max": 1}}, projects=projects) as home:
        await measure(home, *[5_000] * 10)
        await begin(home)
        for project in ("crowd", "closed"):
            for _ in range(30):
                await home.submit(project=project)
        for project, waits_ms in (("default", (5_000, 15_000, 25_000)), ("heavy", (5_000, 15_000, 20_000))):
            for place, wait_ms in enumerate(waits_ms, 1):
                home.clock.at += 1
                await home.lead()
                home.look_again()
                taken = await home.submit(project=project)
                assert (taken["queue_position"], taken["estimated_wait_ms"]) == (place, pytest.approx(wait_ms, abs=9))
                assert (await why(home, taken["id"]))["estimated_wait_ms"] == taken["estimated_wait_ms"]


async def test_the_orders_of_one_request_wait_for_one_another(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"slots_max": 1}}) as home:
        await measure(home, *[5_000] * 10)
        await begin(home)
        await home.submit(project="other")
        home.look_again()
        orders = [{"command": ["true"], "project": project} for project in ("default", "tight", "default")]
        # with a key they are counted before they are saved
        key = {"Idempotency-Key": "k"}
        found = await home.http.post("/api/v1/work-orders/bulk", json={"orders": orders}, headers=key)
        verdicts = found.json()["verdicts"]
        assert [each["order"]["estimated_wait_ms"] for each in verdicts] == [5_000, 10_000, 20_000]


async def test_a_limited_project_waits_for_its_own_runs(tmp_path: Path) -> None:
    async with house(tmp_path, projects={"tight": {"running_max": 1}}) as home:
        await measure(home, *[5_000] * 10)
        await begin(home, project="tight")
        first, second = await home.submit(project="tight"), await home.submit(project="tight")
        assert [first["estimated_wait_ms"], second["estimated_wait_ms"]] == [5_000, 10_000]
        assert (await home.submit())["estimated_wait_ms"] == 0
        found = await why(home, second["id"])
        assert (found["gate"]["name"], found["estimated_wait_ms"]) == ("project_limit", 10_000)


async def test_who_needs_no_key_does_not_wait_for_those_who_do(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"slots_max": 2}}) as home:
        await measure(home, *[5_000] * 10)
        await begin(home, concurrency_key="one")
        home.clock.at += 1_000
        await begin(home)
        home.clock.at += 1_000
        for _ in range(9):
            await home.submit(concurrency_key="one")
        await home.lead()
        home.look_again()
        taken = await home.submit()
        assert taken["estimated_wait_ms"] == 4_000, "the first place goes to the next one with the key"
        assert (await why(home, taken["id"]))["estimated_wait_ms"] == 4_000
        behind = await home.submit()
        home.look_again()
        assert (await why(home, behind["id"]))["estimated_wait_ms"] == 9_000


async def test_nobody_can_say_how_long_an_order_waits_for_its_concurrency_key(home: House) -> None:
    await measure(home, *[5_000] * 10)
    running = await begin(home, concurrency_key="k")
    taken = await home.submit(concurrency_key="k")
    assert taken["estimated_wait_ms"] is None
    assert taken["estimate"]["why_none"] == f"order {running} runs with the same concurrency key, k"
    assert (await home.show(taken["id"]))["estimate"] == taken["estimate"]
    first = await home.submit(concurrency_key="l")
    assert first["estimated_wait_ms"] == 0
    second = await home.submit(concurrency_key="l")
    assert second["estimate"]["why_none"] == f"order {first['id']} is before it with the same concurrency key, l"


@pytest.mark.parametrize("headers", [{}, {"Idempotency_Key": "k"}])
async def test_a_fault_in_an_estimate_costs_no_order(
    home: House, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(outlook, "line", broken)
    answer = await home.post("/work-orders", {"command": ["true"]}, **headers)
    assert (answer.status_code, answer.json()["estimated_wait_ms"]) == (201, None)
    assert "the server's log says why" in answer.json()["estimate"]["why_none"]


async def test_who_waits_for_memory_waits_for_the_runs_that_hold_it(tmp_path: Path) -> None:
    pools = {"default": {"memory_mb": 600}, "other": {}}
    async with house(tmp_path, pools=pools) as home:
        await measure(home, *[5_000] * 10)
        running = await begin(home)
        await home.new_slot()
        taken = await home.submit()
        assert taken["estimated_wait_ms"] == 5_000
        gate = (await why(home, taken["id"]))["gate"]
        assert (gate["name"], gate["needed"], gate["free"], gate["holders"]) == ("memory", 600, 424, [running])


async def test_nobody_of_a_lane_goes_before_its_first_who_waits_for_memory_and_that_is_said(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"memory_mb": 600}, "other": {}}) as home:
        await measure(home, *[5_000] * 10)
        running = await begin(home)
        first = (await home.submit())["id"]
        home.look_again()
        small = await home.submit(memory_mb=100)
        assert small["estimated_wait_ms"] == 5_000
        found = await why(home, small["id"])
        gate = found["gate"]
        assert (gate["name"], gate["holders"], found["estimated_wait_ms"]) == ("memory", [running], 5_000)
        assert gate["text"].startswith(f"order {first}, the first of its lane, needs 600 MB; 424 of 1024 MB")
        listed = (await home.get("/work-orders?state=pending")).json()["orders"]
        assert [each["gate"]["text"] for each in listed] == [gate["text"], (await why(home, first))["gate"]["text"]]
        assert (await home.submit(memory_mb=100, project="other"))["estimated_wait_ms"] == 0, "it goes before them"


async def test_where_a_label_tells_how_long_runs_take_the_wait_goes_by_the_labels_of_those_ahead(
    tmp_path: Path,
) -> None:
    short, long = {"labels": {"kind": "short"}}, {"labels": {"kind": "long"}}
    async with house(tmp_path, pools={"default": {"slots_max": 1}}) as home:
        await measure(home, *[5_000] * 10, **short)
        runs = (await home.get("/pools/default")).json()["lengths"]
        assert runs == {"count": 10, "usual_ms": 5_000, "label": None, "usual_ms_by_label": {}}
        await measure(home, *[100_000] * 10, **long)
        await begin(home, **short)
        assert (await home.submit(**long))["estimated_wait_ms"] == 5_000, "a short one is at work"
        home.look_again()
        assert (await home.submit(**short))["estimated_wait_ms"] == 105_000, "and a long one is next"
        home.look_again()
        last = await home.submit()
        assert last["estimated_wait_ms"] == 110_000
        assert (await why(home, last["id"]))["estimated_wait_ms"] == 110_000
        runs = (await home.get("/pools/default")).json()["lengths"]
        assert (runs["label"], runs["usual_ms_by_label"]) == ("kind", {"long": 100_000, "short": 5_000})


async def test_there_is_no_estimate_before_a_run_ended_and_it_says_so(home: House) -> None:
    await home.lead()
    taken = await home.submit()
    none = "nothing is measured yet: no run of pool default has ended lately"
    assert taken["estimated_wait_ms"] is None
    assert taken["estimate"] == {"low_ms": None, "high_ms": None, "confidence": "none", "why_none": none}
    assert (await why(home, taken["id"]))["estimate"]["why_none"] == none


async def test_nobody_can_say_how_long_a_person_takes(home: House) -> None:
    waiting = (await home.submit())["id"]
    assert (await why(home, waiting))["estimate"]["why_none"].startswith("no server leads host local")
    await measure(home, 5_000)
    assert (await home.submit())["estimated_wait_ms"] == 0
    await home.post("/pools/default/pause", {"reason": "lunch"})
    home.look_again()
    for found in (await home.submit(), await why(home, waiting)):
        assert found["estimated_wait_ms"] is None
        assert found["estimate"]["why_none"] == "pool default is paused by tester for 0 s (lunch): resume it to go on"
    assert (await why(home, waiting))["gate"]["stuck"]
    await home.post("/pools/default/resume", {})
    assert (await why(home, waiting))["estimated_wait_ms"] == 0
    await home.http.patch("/api/v1/pools/default", json={"set": {"slots_max": 0}})
    home.look_again()
    for found in (await home.submit(), await why(home, waiting)):
        assert found["estimate"]["why_none"] == "pool default has slots_max = 0 (set by tester): nothing starts"


async def test_an_order_that_asked_for_a_time_has_no_estimate(home: House) -> None:
    taken = await home.submit(not_before=2**42)
    assert taken["estimate"] is None and (await why(home, taken["id"]))["estimate"] is None


async def test_what_was_measured_is_found_again_by_a_server_that_has_just_started(home: House) -> None:
    await measure(home, *[5_000] * 10)
    store = home.world.store
    async with house(Path(home.world.config.state_dir) / "other", store=store) as other:
        other.clock.at = home.clock.at
        assert (await other.submit())["estimate"]["confidence"] == "fair"


async def test_how_far_an_estimate_was_off_is_counted_when_its_order_starts(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"slots_max": 1}}) as home:
        await measure(home, *[5_000] * 10)
        assert (await home.get("/pools/default")).json()["estimates"] is None
        running = await begin(home)
        late, gone = (await home.submit())["id"], (await home.submit())["id"]
        await home.post(f"/work-orders/{gone}/cancel")
        home.clock.at += 9_000
        await home.finish(running, Exit(code=0))
        await home.walk(late, OrderState.RUNNING)

        async def counted() -> str | None:
            text = (await home.http.get("/metrics")).text
            return text if 'standby_wait_estimates_total{held="no",pool="default"} 1.0' in text else None

        text = await until(counted, "the error is counted")
        assert 'standby_wait_estimate_error_seconds_sum{pool="default"} 4.0' in text
        view = (await home.get("/pools/default")).json()["estimates"]
        assert view == {"started": 2, "off_ms": 4_000, "held": 0.5}, "the first one started at once, as it was told"
