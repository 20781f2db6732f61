"""What an operator does by the command line, against a real server."""

import json
import re
import subprocess
import sys

from tests.cli.conftest import Said, Standby
from tests.e2e.house import House, until

LATER = ("--not-before", "2100-01-01T00:00:00Z")


def test_why_an_order_waits_and_what_happens_next_is_said(at_home: Standby) -> None:
    order_id = at_home("submit", *LATER, "--", "true").out.strip()
    said = at_home("orders", "why", order_id)
    assert said.code == 0
    assert "not_before" in said.out and "next" in said.out
    view = json.loads(at_home("orders", "why", order_id, "--json").out)
    assert (view["id"], view["gate"]["name"]) == (order_id, "not_before")
    assert at_home("orders", "why", "nobody").code == 4


def test_how_an_ended_order_ended_and_why_it_was_not_retried_is_said(at_home: Standby) -> None:
    order_id = at_home("submit", "--wait", "--retries", "2", "--", "sh", "-c", "exit 3").out.split()[0]
    outcome = "failed (exit), exit code 3; not retried: retry_on has no exit"
    for verb in ("why", "show"):
        assert re.search(rf"^outcome +{re.escape(outcome)}$", at_home("orders", verb, order_id).out, re.MULTILINE)
    shown = at_home("orders", "show", order_id).out
    assert re.search(r"^run 1: +ended in \S+ after [0-9]+ m?s \(exit, exit code 3\)$", shown, re.MULTILINE)
    assert re.search(r"order\.failed +leader exit 3$", shown, re.MULTILINE)
    assert json.loads(at_home("orders", "why", order_id, "--json").out).keys() >= {"id", "state", "next"}


def test_retries_that_leave_out_failing_programs_are_spoken_of_at_submit(at_home: Standby) -> None:
    assert "add --retry-on exit" in at_home("submit", "--retries", "2", "--", "true").err
    for words in (("--retries", "2", "--retry-on", "exit"), ("--retries", "2", "--json"), ()):
        assert "--retry-on" not in at_home("submit", *words, "--", "true").err


def test_what_the_output_of_an_order_does_not_say_is_said_beside_it(at_home: Standby) -> None:
    def made(*words: str) -> str:
        return at_home("submit", "--wait", *words).out.split()[0]

    quiet, broken, failed = (
        made("--", "true"),
        made("--retries", "1", "--retry-on", "start_failed", "--", "/no/such"),
        made("--", "sh", "-c", "echo; exit 3"),
    )
    waiting = at_home("submit", *LATER, "--", "true").out.strip()
    nothing = "wrote nothing; it ended with"
    assert at_home("orders", "logs", quiet).err == f"run 1 {nothing} exit code 0\n"
    assert at_home("orders", "logs", broken).err.startswith(f"run 2 {nothing} start_failed: cannot start /no/such")
    first, last = at_home("orders", "logs", "-f", broken).err.splitlines()
    assert first.startswith("run 1 ended with start_failed: ") and first.endswith("; it was tried again")
    assert last.startswith(f"run 2 {nothing} start_failed: ")
    assert at_home("orders", "logs", failed) == (0, "\n", "")
    assert at_home("orders", "logs", "-f", failed) == (0, "\n", "run 1 ended with exit code 3\n")
    assert "no run of it began yet: " in at_home("orders", "logs", waiting).err
    at_home("orders", "cancel", waiting)
    assert "no run of it began: cancelled" in at_home("orders", "logs", "-f", waiting).err


def test_an_empty_list_is_said_to_be_one_and_a_pool_that_is_not_there_is_refused(at_home: Standby) -> None:
    assert at_home("orders", "list", "--label", "nobody=has") == (0, "", "no orders\n")
    pool = at_home("orders", "list", "--pool", "nope")
    assert (pool.code, pool.out) == (4, "")
    assert "there is no pool 'nope'; there are: default" in pool.err
    project = at_home("orders", "list", "--project", "nope")
    assert (project.code, "there is no project 'nope'" in project.err, "no orders" in project.err) == (0, True, True)


def test_an_order_is_meant_by_the_beginning_of_its_id_as_long_as_no_other_has_it(at_home: Standby) -> None:
    one, two = (at_home("submit", "--wait", "--", "echo", "hello").out.split()[0] for _ in range(2))
    short = one[:24]
    assert json.loads(at_home("orders", "show", short, "--json").out)["id"] == one
    assert json.loads(at_home("orders", "why", short.upper(), "--json").out)["id"] == one
    assert at_home("orders", "logs", short).out == at_home("orders", "logs", "-f", short).out == "hello\n"
    assert at_home("orders", "cancel", short).code == at_home("orders", "wait", short, two).code == 0
    assert f"order {one} is repeated as" in at_home("orders", "rerun", short).err
    assert json.loads(at_home("orders", "cancel", short, two, "--json").out)["matched"] == 0
    many = at_home("orders", "show", one[:2])
    assert (many.code, "more than one order" in many.err) == (4, True)
    for words in (("show", "nope"), ("cancel", "nope"), ("wait", "nope"), ("show", ""), ("logs", "0" * 26)):
        unknown = at_home("orders", *words)
        assert (unknown.code, unknown.out) == (4, "")
        assert unknown.err == f"standby: there is no order {words[1]!r}; see: standby orders list\n"


def test_several_orders_are_waited_for_and_the_first_failure_counts(at_home: Standby) -> None:
    made = [at_home("submit", "--", "sh", "-c", f"exit {code}").out.strip() for code in (0, 5, 6)]
    said = at_home("orders", "wait", *made)
    assert said.code == 5
    assert all(f"order {each} " in said.err for each in made)


def test_an_order_is_shown_with_what_was_asked_of_it(at_home: Standby) -> None:
    words = ("--priority", "7", "--payload", '{"a": [1]}', "--dedupe-key", "shown", "--run-timeout", "90s")
    order_id = at_home("submit", *LATER, *words, "--", "true").out.strip()
    lines = at_home("orders", "show", order_id).out.splitlines()
    shown = {name: value.strip() for name, value in (line.split(None, 1) for line in lines)}
    assert (shown["priority"], shown["payload"], shown["dedupe_key"]) == ("7", '{"a": [1]}', "shown")
    assert (shown["run_timeout_s"], "stop_grace_s" in shown, "memory_mb" in shown) == ("90.0", False, False)
    assert at_home("orders", "cancel", order_id).code == 0


def test_an_ended_order_is_repeated_and_an_unfinished_one_is_not(at_home: Standby, home: House) -> None:
    ended = at_home("submit", "--wait", "--env", "A=1", "--", "sh", "-c", 'test "$A" = 1').out.split()[0]
    again = at_home("orders", "rerun", ended, "--reason", "once more")
    assert again.code == 0
    assert home.ended(again.out.strip())["rerun_of"] == ended
    assert home.order(again.out.strip())["state"] == "completed"
    waiting = at_home("submit", *LATER, "--", "true").out.strip()
    assert at_home("orders", "rerun", waiting).code == 4


def test_many_orders_are_found_cancelled_repeated_and_removed_by_a_filter(at_home: Standby) -> None:
    made = [at_home("submit", *LATER, "--label", "batch=one", "--", "true").out.strip() for _ in range(3)]
    which = ("--label", "batch=one", "--project", "default")
    looked = at_home("orders", "cancel", *which, "--dry-run")
    assert (looked.code, sorted(looked.out.split())) == (0, made)
    ended = at_home("orders", "cancel", *which, "--yes", "--reason", "too many", "--json")
    assert json.loads(ended.out)["done"] == 3
    listed = json.loads(at_home("orders", "list", *which, "--state", "cancelled", "--state", "failed", "--json").out)
    assert {order["id"] for order in listed["orders"]} == set(made)
    gone = at_home("orders", "purge", *made[:2])
    assert "2 match, 2 removed" in gone.err
    assert at_home("orders", "show", made[0]).code == 4
    assert [order["id"] for order in json.loads(at_home("orders", "list", *which, "--json").out)["orders"]] == made[2:]
    assert at_home("orders", "purge", *which, "--yes").code == 0


def test_orders_of_a_file_are_handed_in_together_or_each_for_itself(at_home: Standby, home: House) -> None:
    file = home.directory / "orders.jsonl"
    lines = [{"command": ["true"], "labels": {"file": "1"}}, {"command": []}, {"command": ["true"]}]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    together = at_home("orders", "submit", "--file", str(file), "--together")
    assert (together.code, together.out) == (4, "")
    assert "line 2: " in together.err
    assert json.loads(at_home("orders", "list", "--label", "file=1", "--json").out)["orders"] == []
    each = at_home("orders", "submit", "--file", str(file))
    assert (each.code, len(each.out.split())) == (4, 2)
    assert all(home.ended(order_id)["state"] == "completed" for order_id in each.out.split())


def test_events_are_followed_and_taken_up_where_one_stopped(at_home: Standby, home: House) -> None:
    order_id = at_home("submit", "--wait", "--", "true").out.split()[0]
    first = at_home("events", "--subject", order_id, "--kind", "order.submitted", "--json")
    assert [json.loads(line)["subject"] for line in first.out.splitlines()] == [order_id]
    place = first.err.split()[-1]
    command = [sys.executable, "-m", "standby.cli.main", "events", "--follow", "--after", place, "--json"]
    command += ["--kind", "order.completed"]
    with subprocess.Popen(command, cwd=home.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as followed:
        assert followed.stdout is not None
        later = home.submit("true")
        seen: list[str] = []
        try:
            while later not in seen:
                seen.append(json.loads(followed.stdout.readline())["subject"])
        finally:
            followed.kill()
    assert seen[0] == order_id
    newest = at_home("events", "--json", "--limit", "2", "--subject", order_id).out.splitlines()
    assert newest == at_home("events", "--json", "--subject", order_id).out.splitlines()[-2:]
    assert at_home("events", "--limit", "1001").code == 2
    strange = at_home("events", "--after", f"{place[:-8]}zzzzzzzz")
    assert strange.code == 4
    assert "Traceback" not in strange.err


def test_a_pool_is_set_by_hand_over_its_configuration_and_back(at_home: Standby) -> None:
    assert at_home("pools", "set", "default", "slots_max=3", "run_timeout=2h", "--reason", "rush").code == 0
    shown = at_home("pools", "show", "default").out
    assert "slots_max = 3 by admin" in shown and "rush" in shown
    settings = {each["name"]: each for each in json.loads(at_home("config", "show", "--json").out)["settings"]}
    assert settings["pools.default.slots_max"]["from"] == "override"
    assert settings["pools.default.memory_mb"]["from"] == "file"
    for name in ("retries", "retry_base_s", "retry_factor", "retry_cap_s", "retry_on", "no_retry_on"):
        assert name in shown.split()
    assert at_home("pools", "set", "default", "run_timeout_s=1h", "retry_base_s=1m").code == 0
    shown = at_home("pools", "show", "default").out
    assert "run_timeout_s = 3600" in shown and "retry_base_s = 60" in shown
    unset = ("slots_max", "run_timeout", "retry_base_s")
    assert at_home("pools", "set", "default", *(word for name in unset for word in ("--unset", name))).code == 0
    assert "by admin" not in at_home("pools", "show", "default").out
    for wrong in ("nonsense=1", "slots_max=many", "slots_max=-1"):
        assert at_home("pools", "set", "default", wrong).code == 4


def test_a_host_is_shown_with_its_reading_and_its_starts(at_home: Standby) -> None:
    host = json.loads(at_home("hosts", "show", "local", "--json").out)
    assert (host["name"], host["pools"]) == ("local", ["default"])
    assert "default" in at_home("hosts", "show", "local").out
    assert json.loads(at_home("hosts", "starts", "local", "--json").out)["maximum"] is None
    assert "0 in flight (no limit), 0 waiting" in at_home("hosts", "starts", "local").err
    assert "makes slots again" in at_home("pools", "reset-breaker", "default", "--reason", "mended").err
    assert at_home("hosts", "show", "nowhere").code == at_home("hosts", "starts", "nowhere").code == 4


def test_a_key_is_made_shown_once_lets_in_and_is_taken_away(at_home: Standby, home: House) -> None:
    made = at_home("keys", "add", "ci")
    key = made.out.strip()
    until(lambda: at_home("pools", "--key", key, "--url", home.url).code == 0, "the key lets in")
    listed = at_home("keys")
    assert "ci" in listed.out.split() and key not in listed.out
    assert at_home("keys", "add", "ci").code == 4
    assert at_home("keys", "remove", "ci").code == 0
    until(lambda: at_home("pools", "--key", key, "--url", home.url).code == 4, "the key is refused")
    own = at_home("keys", "remove", "admin")
    assert (own.code, "--yes" in own.err) == (2, True)
    assert at_home("keys", "remove", "admin", "--yes").code == 4


def test_a_server_in_order_is_said_to_be(at_home: Standby) -> None:
    def well(*words: str) -> Said | None:
        said = at_home("doctor", *words)
        print(said.out)  # the last one is shown with a test that fails
        return said if said.code == 0 else None

    assert "bad" not in until(well, "somebody leads, and all is well").out.split()
    view = json.loads(until(lambda: well("--json"), "all is well").out)
    assert view["ok"] is True
    assert len(view["server"]) > 3


def test_a_schedule_is_added_shown_paused_run_and_removed(at_home: Standby, home: House) -> None:
    made = at_home("schedules", "add", "hello", "--cron", "30 2 * * mon-fri", "--zone", "Europe/Berlin", "--", "true")
    assert (made.code, made.out, "schedule hello ticks at 20" in made.err) == (0, "", True)
    assert "hello" in at_home("schedules").out and "30 2 * * mon-fri" in at_home("schedules", "list").out
    order_id = at_home("schedules", "run", "hello").out.strip()
    assert home.ended(order_id)["schedule"] == "hello"
    shown = at_home("schedules", "show", "hello").out
    assert order_id in shown and "Europe/Berlin" in shown
    assert "schedule hello is paused" in at_home("schedules", "pause", "hello", "--reason", "night").err
    assert json.loads(at_home("schedules", "show", "hello", "--json").out)["mode_reason"] == "night"
    assert at_home("schedules", "resume", "hello").code == 0
    assert at_home("schedules", "remove", "hello").code == 0
    assert at_home("schedules", "show", "hello").code == 4


def test_a_schedule_is_changed_in_its_times_or_in_its_order_as_a_whole(at_home: Standby) -> None:
    at_home("schedules", "add", "hello", "--cron", "@daily", "--env", "WORD=secret", "--", "true")
    later = at_home("schedules", "change", "hello", "--cron", "@hourly", "--zone", "Europe/Berlin")
    assert (later.code, "schedule hello ticks at 20" in later.err) == (0, True)
    said = json.loads(at_home("schedules", "change", "hello", "--missed", "all", "--json").out)
    assert (said["cron"], said["zone"], said["missed"]) == ("@hourly", "Europe/Berlin", "all")
    assert (said["order"]["command"], said["order"]["env_names"]) == (["true"], ["WORD"]), "its order stays"
    said = json.loads(at_home("schedules", "change", "hello", "--priority", "5", "--json", "--", "date").out)
    assert (said["order"]["command"], said["order"]["priority"]) == (["date"], 5)
    assert (said["cron"], said["order"]["env_names"]) == ("@hourly", []), "its order is another one, its times stay"


def test_a_change_of_a_schedule_that_cannot_be_meant_is_refused_with_what_to_do(at_home: Standby) -> None:
    at_home("schedules", "add", "hello", "--cron", "@daily", "--", "true")
    wrong = at_home("schedules", "change", "hello", "--cron", "61 * * * *")
    assert (wrong.code, "minute: '61' is not a value; use 0 to 59" in wrong.err) == (4, True)
    part = at_home("schedules", "change", "hello", "--priority", "5")
    assert (part.code, "an order is changed as a whole: give a command after `--`" in part.err) == (2, True)
    nothing = at_home("schedules", "change", "hello")
    assert (nothing.code, "there is nothing to change" in nothing.err) == (4, True)
    assert at_home("schedules", "change", "nobody", "--cron", "@daily").code == 4


def test_a_schedule_that_cannot_be_meant_is_refused_with_what_to_do(at_home: Standby) -> None:
    wrong = at_home("schedules", "add", "wrong", "--cron", "61 * * * *", "--", "true")
    assert (wrong.code, "minute: '61' is not a value; use 0 to 59" in wrong.err) == (4, True)
    assert at_home("schedules", "add", "wrong", "--cron", "@daily").code == 2


def test_an_order_waits_for_a_length_of_time(at_home: Standby) -> None:
    order_id = at_home("submit", "--in", "10m", "--", "true").out.strip()
    assert "not_before" in at_home("orders", "why", order_id).out
    assert at_home("orders", "cancel", order_id).code == 0


def test_a_project_is_paused_drained_and_resumed(at_home: Standby) -> None:
    order_id = at_home("submit", *LATER, "--project", "reports", "--", "true").out.strip()
    assert "project reports is paused" in at_home("projects", "pause", "reports", "--reason", "audit").err
    listed = at_home("projects").out
    assert "reports" in listed and "audit" in listed
    assert at_home("projects", "drain", "reports", "--now").code == 0
    found = json.loads(at_home("projects", "list", "--json").out)["projects"]
    assert [(each["name"], each["mode_stop_at"] is not None) for each in found] == [("reports", True)]
    assert "project reports is open" in at_home("projects", "resume", "reports").err
    assert at_home("projects", "pause", "nobody").code == 4
    assert at_home("orders", "cancel", order_id).code == 0


def test_a_projects_share_and_limits_are_set_shown_and_given_back(at_home: Standby) -> None:
    set_ = at_home("projects", "set", "shares", "weight=3", "queue_max=none", "running_max=2", "--reason", "big day")
    assert (set_.code, "project shares: weight=3" in set_.err) == (0, True)
    shown = at_home("projects", "show", "shares").out
    assert "weight = 3 by admin" in shown and "big day" in shown
    assert "shares" in at_home("projects").out
    view = json.loads(at_home("projects", "set", "shares", "--unset", "running_max", "--json").out)
    assert (view["running_max"], view["weight"]) == (None, 3)
    assert at_home("projects", "set", "shares").code == 2
    wrong = at_home("projects", "set", "shares", "weight=0")
    assert (wrong.code, "weight" in wrong.err) == (4, True)


def test_an_order_with_a_concurrency_key_can_give_way(at_home: Standby) -> None:
    words = (*LATER, "--concurrency-key", "nightly", "--on-conflict", "cancel_new")
    one, two = (at_home("submit", *words, "--", "true").out.strip() for _ in range(2))
    assert json.loads(at_home("orders", "show", two, "--json").out)["state"] == "cancelled"
    assert "nightly" in at_home("orders", "show", one).out
    assert at_home("orders", "cancel", one).code == 0
    urgent = at_home("submit", "--urgent", "--wait", "--", "true")
    assert urgent.code == 0
