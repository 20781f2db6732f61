"""The command line against a real server: data on stdout, words on stderr, honest exit codes."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.conftest import POOL, Standby
from tests.e2e.house import House, house, until


def test_submit_prints_the_id_and_nothing_else_on_stdout(at_home: Standby) -> None:
    said = at_home("submit", "--", "true")
    assert said.code == 0
    assert len(said.out.split()) == 1
    assert "taken in" in said.err
    assert at_home("orders", "wait", said.out.strip()).code == 0


def test_the_exit_code_of_a_waited_for_order_is_its_own(at_home: Standby) -> None:
    assert at_home("submit", "--wait", "--", "sh", "-c", "exit 7").code == 7
    assert at_home("submit", "--wait", "--", "true").code == 0
    assert at_home("submit", "--wait", "--run-timeout", "100ms", "--", "sleep", "60").code not in (0, 2, 3, 4)


def test_followed_output_goes_to_the_stream_it_came_from(at_home: Standby) -> None:
    said = at_home("submit", "--follow", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert said.code == 3
    assert said.out == "out\n"
    assert "err" in said.err.splitlines()


def test_a_script_env_payload_and_labels_reach_the_work(
    at_home: Standby, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "from here")
    (tmp_path / "script").write_text('echo "$MINE and $GIVEN"\n')
    (tmp_path / "payload").write_text('{"big": 123456789012345678901234567890}')
    said = at_home(
        *("submit", "--follow", "--json", "--script", str(tmp_path / "script"), "--env", "MINE", "--env", "GIVEN=a=b"),
        *("--payload", f"@{tmp_path / 'payload'}", "--label", "team=x", "--priority", "-5"),
    )
    records = [json.loads(line) for line in said.out.splitlines()]
    assert [record["text"] for record in records[:-1]] == ["from here and a=b"]
    assert records[-1]["payload"] == {"big": 123456789012345678901234567890}
    assert (records[-1]["labels"], records[-1]["priority"]) == ({"team": "x"}, -5)
    assert records[-1]["env_names"] == ["GIVEN", "MINE"]


def test_the_same_idempotency_key_hands_an_order_in_once(at_home: Standby) -> None:
    first, again = (at_home("submit", "--idempotency-key", "cli-1", "--", "true") for _ in range(2))
    assert first.out == again.out
    assert "taken in before" in again.err
    other = at_home("submit", "--idempotency-key", "cli-1", "--", "false")
    assert other.code == 4
    assert "another body" in other.err


def test_a_script_can_come_from_stdin(at_home: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("echo from stdin\n"))
    assert at_home("submit", "--follow", "--script", "-").out == "from stdin\n"


@pytest.mark.parametrize("way", ["--wait", "--follow"])
def test_who_stays_is_told_why_runs_fail_and_that_they_are_tried_again(at_home: Standby, way: str) -> None:
    retry = ("--retries", "1", "--retry-on", "start_failed")
    said = at_home("submit", way, *retry, "--json", "--", "/no/such/program")
    assert said.code == 1
    assert "run 1 ended with start_failed: cannot start /no/such/program" in said.err
    assert re.search("it (is|was) tried again", said.err)
    assert "failed (start_failed): cannot start /no/such/program" in said.err
    shown = at_home("orders", "show", json.loads(said.out.splitlines()[-1])["id"]).out
    assert re.search(r"^run 2: +ended in \S+ \(start_failed\): cannot start /no/such/program", shown, re.MULTILINE)


def test_a_failing_program_is_retried_only_when_asked_and_who_waits_is_told_so(at_home: Standby) -> None:
    once = at_home("submit", "--wait", "--retries", "1", "--", "sh", "-c", "exit 3")
    assert once.code == 3
    assert "failed (exit), exit code 3; not retried: retry_on has no exit" in once.err
    twice = at_home("submit", "--wait", "--retries", "1", "--retry-on", "exit", "--", "sh", "-c", "exit 3")
    assert twice.code == 3
    assert re.search("run 1 ended with exit code 3; it (is|was) tried again", twice.err)
    assert "failed (exit), exit code 3; no retries left (it had 1)" in twice.err
    never = at_home("submit", "--wait", "--retries", "1", "--", "/no/such/program")
    assert "is missing; not retried: it would fail again, and retry_on has no start_failed" in never.err


def test_an_order_can_be_put_off_by_a_length_of_time(at_home: Standby) -> None:
    order = json.loads(at_home("submit", "--not-before", "10m", "--json", "--", "true").out)
    wait = datetime.fromisoformat(order["not_before"]) - datetime.fromisoformat(order["submitted_at"])
    assert 590 < wait.total_seconds() < 601
    assert at_home("orders", "cancel", order["id"]).code == 0


def test_the_reason_of_a_cancel_is_shown(at_home: Standby) -> None:
    order_id = at_home("submit", "--not-before", "2100-01-01T00:00:00Z", "--", "true").out.strip()
    at_home("orders", "cancel", order_id, "--reason", "not needed")
    assert "not needed" in at_home("orders", "show", order_id).out


def test_a_cancel_of_what_had_ended_already_says_so(at_home: Standby) -> None:
    order_id = at_home("submit", "--wait", "--", "true").out.split()[0]
    assert at_home("orders", "cancel", order_id).err == f"order {order_id} had ended already: completed\n"


def test_events_of_nobody_are_said_to_be_none(at_home: Standby) -> None:
    assert at_home("events", "--subject", "nobody") == (0, "", "no events of this kind or subject\n")


def test_hints_are_for_a_command_line(at_home: Standby, home: House) -> None:
    assert "standby orders list" in at_home("orders", "show", "nobody").err
    assert "standby schedules list" in at_home("schedules", "show", "nobody").err
    stranger = at_home("pools", "--key", "sb_wrong", "--url", home.url).err
    assert "--key" in stranger
    assert "Authorization" not in stranger


@pytest.mark.parametrize("words", [("--wait",), ("--follow",)])
def test_who_stays_sits_out_a_restart_of_the_server(tmp_path: Path, words: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with house(tmp_path / "house", state=tmp_path / "house" / ".standby", toml=POOL, port=port) as home:
        home.start()
        script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; exit 7"
        command = [sys.executable, "-m", "standby.cli.main", "submit", *words, "--", "sh", "-c", script]
        with subprocess.Popen(command, cwd=home.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as staying:
            assert staying.stderr is not None
            order_id = staying.stderr.readline().split()[1].decode()
            home.in_state(order_id, "running")
            home.kill()
            home.start()
            (tmp_path / "go").touch()
            out, err = staying.communicate(timeout=60)
        assert staying.returncode == 7, (out, err)


def test_a_deduplicated_order_is_said_to_be_there_already(at_home: Standby) -> None:
    first, again = (at_home("submit", "--dedupe-key", "cli", "--", "sleep", "60") for _ in range(2))
    assert first.out == again.out
    assert "already" in again.err
    assert at_home("orders", "cancel", first.out.strip()).code == 0


def test_orders_are_listed_shown_read_and_cancelled(at_home: Standby) -> None:
    order_id = at_home("submit", "--wait", "--project", "shown", "--", "sh", "-c", "echo one; echo two").out.split()[0]
    listed = json.loads(at_home("orders", "list", "--project", "shown", "--json").out)
    assert [order["id"] for order in listed["orders"]] == [order_id]
    assert order_id in at_home("orders", "list", "--project", "shown").out
    shown = json.loads(at_home("orders", "show", order_id, "--json").out)
    assert (shown["state"], len(shown["runs"])) == ("completed", 1)
    assert "order.completed" in at_home("orders", "show", order_id).out
    assert at_home("orders", "logs", "-f", order_id).out == "one\ntwo\n"
    assert at_home("orders", "logs", order_id, "--from", "1").out == "two\n"
    assert at_home("orders", "cancel", order_id).code == 0


def test_a_run_is_not_listed_with_how_the_one_before_it_ended(at_home: Standby, home: House) -> None:
    script = '[ "$STANDBY_ATTEMPT" != 1 ] || exit 66; exec sleep 60'
    words = ("--retries", "1", "--retry-on", "exit", "--label", "test=again")
    order_id = at_home("submit", *words, "--", "sh", "-c", script).out.strip()
    until(lambda: home.order(order_id)["attempt"] == 2, "it runs again")
    home.in_state(order_id, "running")
    listed = at_home("orders", "list", "--label", "test=again").out
    at_home("orders", "cancel", order_id)
    assert "running" in listed
    assert not re.search(r"exit 66$", listed, re.MULTILINE)


def test_what_a_run_says_of_itself_is_shown(at_home: Standby) -> None:
    say = 'curl -s -H "Authorization: Bearer $STANDBY_RUN_TOKEN" -H "Content-Type: application/json"'
    error = '{"error":{"name":"OutOfDate","text":"it is too old"},"progress":0.5,"text":"half of it","result":[1]}'
    script = f"{say} -d '{error}' $STANDBY_URL/api/v1/worker/result; exit 3"
    ended = at_home("submit", "--wait", "--", "sh", "-c", script)
    assert (ended.code, "not retried: nobody says so for OutOfDate" in ended.err) == (3, True)
    shown = at_home("orders", "show", ended.out.split()[0]).out
    for text in ("50%: half of it", "OutOfDate: it is too old", "[1]", "run 1:  ended", "(OutOfDate, exit code 3)"):
        assert text in shown


def test_pools_are_paused_and_resumed_and_places_listed(at_home: Standby) -> None:
    paused = at_home("pools", "pause", "default", "--reason", "test", "--json")
    assert json.loads(paused.out)["mode"] == "paused"
    assert "paused" in at_home("pools").out
    assert at_home("pools", "resume", "default").code == 0
    assert json.loads(at_home("pools", "list", "--json").out)["pools"][0]["mode"] == "open"
    assert json.loads(at_home("hosts", "--json").out)["hosts"][0]["name"] == "local"
    assert "local" in at_home("hosts", "list").out
    assert at_home("slots", "--pool", "default").code == 0
    assert at_home("hosts", "declare-dead", "local", "--reason", "x").code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("orders", "show", "nobody"),
        ("orders", "cancel", "nobody"),
        ("orders", "logs", "nobody"),
        ("pools", "pause", "nope"),
        ("submit", "--pool", "nope", "--", "true"),
        ("submit", "--memory-mb", "99999999", "--", "true"),
        ("--key", "sb_wrong", "--url"),
    ],
)
def test_what_is_not_there_or_refused_ends_with_4_and_a_reason(
    at_home: Standby, home: House, words: tuple[str, ...]
) -> None:
    words = ("pools", *words, home.url) if words[0] == "--key" else words
    said = at_home(*words)
    assert said.code == 4
    assert said.out == ""
    assert said.err.startswith("standby: ")
    assert "Traceback" not in said.err


def test_leaving_a_wait_leaves_the_order_running(home: House) -> None:
    command = [sys.executable, "-m", "standby", "submit", "--wait", "--", "sleep", "60"]
    with subprocess.Popen(
        command, cwd=home.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as waiting:
        assert waiting.stdout is not None
        order_id = waiting.stdout.readline().strip()
        home.in_state(order_id, "running")
        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 130
    assert "goes on" in err
    assert "Traceback" not in err
    assert home.order(order_id)["state"] == "running"
    home.call("POST", f"/work-orders/{order_id}/cancel")
    until(lambda: home.order(order_id)["state"] == "cancelled", "it is cancelled")
