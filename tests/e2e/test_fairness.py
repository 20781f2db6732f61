"""Turns, limits, keys and full queues of a real server with real processes."""

from pathlib import Path

import httpx2

from tests.e2e.house import House, house, until

TOML = "[pools.default]\nslots_max = 2\nmemory_mb = 10\nqueue_max = 40\n\n[projects.b]\nweight = 2\n"


def _gate(home: House, order_id: str) -> str | None:
    gate = home.get(f"/work-orders/{order_id}/why")["gate"]
    return None if gate is None else str(gate["name"])


def _refused(home: House) -> httpx2.Response | None:
    answer = home.call("POST", "/work-orders", {"command": ["true"]})
    return answer if answer.status_code == 429 else None


def _claimed(home: House) -> list[str]:
    return [event["subject"] for event in home.events() if event["kind"] == "order.claimed"]


def test_projects_take_turns_and_an_urgent_order_goes_first(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=TOML, **keys) as home:
        home.start()
        assert home.call("POST", "/pools/default/pause").status_code == 200
        many = [home.submit("true", project="a") for _ in range(20)]
        few = [home.submit("true", project="b") for _ in range(4)]
        urgent = home.submit("true", project="a", urgent=True)
        assert home.call("POST", "/pools/default/resume").status_code == 200
        assert {home.ended(each)["state"] for each in [*many, *few, urgent]} == {"completed"}
        order = _claimed(home)
        assert order[0] == urgent
        assert max(order.index(each) for each in few) <= 8, "two of b for each one of a"
        assert [each for each in order if each in many] == many


def test_limits_set_by_hand_hold_orders_back_until_they_are_raised(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=TOML, **keys) as home:
        home.start()
        assert home.call("PATCH", "/pools/default", {"set": {"running_max": 0}}).status_code == 200
        order_id = home.submit("true")
        until(lambda: _gate(home, order_id) == "pool_limit", "the pool's limit is the reason")
        assert home.call(
            "PATCH", "/pools/default", {"set": {"starts_per_minute": 0}, "unset": ["running_max"]}
        ).is_success
        until(lambda: _gate(home, order_id) == "start_rate", "the start rate is the reason")
        assert home.call("PATCH", "/projects/default", {"set": {"running_max": 0}, "reason": "no more"}).is_success
        until(lambda: _gate(home, order_id) == "project_limit", "the project's limit is the reason")
        home.kill()
        home.start()
        assert home.get("/projects/default")["overrides"]["running_max"]["reason"] == "no more"
        assert home.call("PATCH", "/projects/default", {"unset": ["running_max"]}).is_success
        assert home.call("PATCH", "/pools/default", {"unset": ["starts_per_minute"]}).is_success
        assert home.ended(order_id)["state"] == "completed"


def test_a_key_is_one_at_a_time_and_a_full_queue_refuses(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=TOML, **keys) as home:
        home.start()
        door = tmp_path / "door"
        script = f"until [ -e {door} ]; do sleep 0.05; done"
        first = home.submit(script=script, concurrency_key="k")
        home.in_state(first, "running")
        second = home.submit("true", concurrency_key="k")
        until(lambda: _gate(home, second) == "concurrency_key", "the key is the reason")
        given_up = home.submit("true", concurrency_key="k", on_conflict="cancel_new")
        assert home.order(given_up)["state"] == "cancelled"
        home.submit(script=script, concurrency_key="other")
        orders = [{"command": ["true"]} for _ in range(60)]
        verdicts = home.call("POST", "/work-orders/bulk", {"orders": orders}).json()
        assert verdicts["submitted"] + verdicts["refused"] == 60 and 30 <= verdicts["submitted"] <= 40
        # what was counted may be half a second old, so there may be room for a few more
        refused = until(lambda: _refused(home), "the queue is full")
        assert refused.json()["code"] == "queue_full" and int(refused.headers["retry-after"]) >= 1
        assert [event["kind"] for event in home.events()].count("pool.backpressure") == 1
        door.touch()
        taken = [each["order"]["id"] for each in verdicts["verdicts"] if each["order"] is not None]
        assert {home.ended(each)["state"] for each in [first, second, *taken]} == {"completed"}
        order = _claimed(home)
        assert order.index(first) < order.index(second)


def test_a_new_order_of_a_key_ends_the_one_that_runs(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml=TOML.replace("slots_max = 2", "slots_max = 1")) as home:
        home.start()
        old = home.submit("sleep", "600", concurrency_key="k")
        home.in_state(old, "running")
        new = home.submit("true", concurrency_key="k", on_conflict="cancel_old")
        assert home.ended(old)["state"] == "cancelled"
        assert home.ended(new)["state"] == "completed"
