"""What operators do to a real server: bulks, reruns, settings by hand, purges."""

from pathlib import Path

from tests.e2e.house import house, until

SMALL = '[pools.default]\nslots_max = 1\nmemory_mb = 10\nretry_base = "50ms"\n'


def test_a_bulk_runs_with_more_slots_set_by_hand_also_after_a_restart(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=SMALL, **keys) as home:
        home.start()
        gate = tmp_path / "gate"
        script = f"until [ -e {gate} ]; do sleep 0.05; done"
        orders = [{"script": script, "labels": {"batch": "b"}} for _ in range(3)]
        answer = home.call("POST", "/work-orders/bulk", {"orders": orders, "together": True})
        assert answer.status_code == 201, answer.text
        ids = [each["order"]["id"] for each in answer.json()["verdicts"]]
        home.in_state(ids[0], "running")
        assert home.get(f"/work-orders/{ids[2]}/why")["gate"]["name"] == "slots"
        patched = home.call("PATCH", "/pools/default", {"set": {"slots_max": 3}, "reason": "in a hurry"})
        assert patched.status_code == 200, patched.text
        for order_id in ids:
            home.in_state(order_id, "running")
        home.kill()
        home.start()
        assert home.get("/pools/default")["slots_max"] == 3
        gate.touch()
        assert {home.ended(order_id)["state"] for order_id in ids} == {"completed"}
        again = home.call("POST", "/work-orders/rerun", {"filter": {"labels": {"batch": "b"}}}).json()
        assert again["done"] == 3
        for each in again["orders"]:
            assert home.ended(each["became"])["rerun_of"] == each["id"]


def test_a_purged_order_leaves_nothing_on_a_real_host(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=SMALL, **keys) as home:
        home.start()
        order_id = home.submit("sh", "-c", "echo secret words")
        home.ended(order_id)
        purged = home.call("POST", "/work-orders/purge", {"filter": {"ids": [order_id]}, "reason": "a leak"}).json()
        assert purged["orders"] == [{"id": order_id, "became": "purged"}]
        assert home.call("GET", f"/work-orders/{order_id}").status_code == 404
        runs = home.state / "hosts" / "local" / "runs"
        until(lambda: not list(runs.glob(f"{order_id}*")), "the host forgets the run too")
        (event,) = home.get(f"/events?subject={order_id}")["events"]
        assert event["kind"] == "order.purged"
        assert home.ended(home.submit("true"))["state"] == "completed"


def test_a_host_is_measured_and_the_doctor_is_content(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml=SMALL) as home:
        home.start()
        reading = until(lambda: home.get("/hosts/local")["reading"], "the host was measured")
        assert reading["memory_total_mb"] > reading["memory_available_mb"] > 0
        assert reading["disk_free_mb"] > 0
        until(lambda: all(each["ok"] is not False for each in home.get("/doctor")["checks"]), "all is well")
