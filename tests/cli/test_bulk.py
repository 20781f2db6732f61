"""What touches many orders: asked about first, said in figures, handed in line by line."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standby.client import blocking
from tests.cli.conftest import Standby
from tests.played import Played, no, ok, order_view

FOUND = {"matched": 3, "done": 0, "refused": 1, "more": False, "orders": [{"id": "a", "became": None}]}
DONE = {**FOUND, "done": 2, "orders": [{"id": "a", "became": "stopping"}, {"id": "b", "became": "cancelled"}]}

Play = Callable[..., Played]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Let the command line talk to a played server."""

    def play(*answers: Any) -> Played:
        server = Played(*answers)
        monkeypatch.setattr(blocking, "Client", lambda url, key, said: server.client())
        return server

    return play


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bodies(server: Played) -> list[Any]:
    return [json.loads(each.content) for each in server.asked]


@pytest.mark.parametrize("verb", ["cancel", "rerun", "purge"])
def test_a_filter_takes_no_effect_without_a_terminal_or_a_yes(standby: Standby, play: Play, verb: str) -> None:
    server = play(ok(DONE))
    refused = standby("orders", verb, "--pool", "p")
    assert (refused.code, refused.out, server.asked) == (2, "", [])
    assert "--dry-run" in refused.err and "--yes" in refused.err
    sure = standby(
        "orders", verb, "--pool", "p", "--state", "failed", "--state", "cancelled", "--label", "a=b", "--yes"
    )
    assert (sure.code, sure.out) == (0, "a stopping\nb cancelled\n")
    assert server.paths == [f"POST /api/v1/work-orders/{verb}"]
    only = {"state": ["failed", "cancelled"], "pool": "p", "labels": {"a": "b"}}
    assert bodies(server) == [{"filter": only, "dry_run": False, "reason": None}]


def test_at_a_terminal_the_person_is_asked_with_the_figure(
    standby: Standby, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = play(ok(FOUND), ok(DONE))
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    no_thanks = standby("orders", "cancel", "--pool", "p")
    assert "2 orders match." in no_thanks.err and "nothing was done" in no_thanks.err
    assert [body["dry_run"] for body in bodies(server)] == [True]
    server = play(ok(FOUND), ok(DONE))
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    agreed = standby("orders", "cancel", "--pool", "p", "--reason", "late")
    assert [(body["dry_run"], body["reason"]) for body in bodies(server)] == [(True, None), (False, "late")]
    assert "3 match, 2 asked to end, 1 cannot be" in agreed.err


def test_a_dry_run_only_looks(standby: Standby, play: Play) -> None:
    server = play(ok({**FOUND, "more": True, "next": "c"}), ok(FOUND))
    said = standby("orders", "purge", "--state", "failed", "--dry-run")
    assert (said.code, said.out) == (0, "a\na\n")
    assert "6 match, nothing was done" in said.err
    assert [(body["dry_run"], body.get("cursor")) for body in bodies(server)] == [(True, None), (True, "c")]


@pytest.mark.parametrize("verb", ["cancel", "rerun", "purge"])
def test_each_order_of_many_pages_is_touched_once(
    standby: Standby, play: Play, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    server = play(ok({**DONE, "more": True, "next": "c1"}), ok({**DONE, "more": True, "next": "c2"}), ok(DONE))
    said = standby("orders", verb, "--state", "failed", "--yes", "--json")
    whole = json.loads(said.out)
    assert (said.code, whole["matched"], whole["done"], whole["next"], len(whole["orders"])) == (0, 9, 6, None, 6)
    assert [body.get("cursor") for body in bodies(server)] == [None, "c1", "c2"]
    assert "so far" not in said.err
    play(ok({**DONE, "more": True, "next": "c1"}), ok(DONE))
    monkeypatch.setattr(sys, "stderr", seen := Terminal())
    standby("orders", verb, "--state", "failed", "--yes")
    assert "3 orders so far\r" in seen.getvalue() and "6 match" in seen.getvalue()


def test_what_was_done_is_told_when_a_later_page_fails(standby: Standby, play: Play) -> None:
    play(ok({**DONE, "more": True, "next": "c"}), no(503))
    said = standby("orders", "rerun", "--state", "failed", "--yes")
    assert (said.code, said.out) == (4, "a stopping\nb cancelled\n")
    assert "3 match, 2 repeated, 1 cannot be; there are more, which were not reached" in said.err


def test_orders_are_named_by_ids_or_by_a_filter_never_both_never_neither(standby: Standby, play: Play) -> None:
    server = play(ok(DONE))
    assert standby("orders", "cancel").code == 2
    assert standby("orders", "purge", "a", "--pool", "p").code == 2
    assert server.asked == []
    standby("orders", "purge", "a" * 26, "b" * 26, "--json")
    assert bodies(server)[0]["filter"] == {"ids": ["a" * 26, "b" * 26]}


def test_what_is_removed_for_ever_is_named_by_whole_ids(standby: Standby, play: Play) -> None:
    server = play(ok(DONE))
    said = standby("orders", "purge", "a" * 26, "01m7")
    assert (said.code, server.asked) == (2, [])
    assert "'01m7' is not a whole id" in said.err


@pytest.mark.parametrize("verb", ["rerun", "purge"])
def test_a_named_order_that_is_not_there_is_no_success(standby: Standby, play: Play, verb: str) -> None:
    play(ok({**DONE, "matched": 1, "refused": 0, "done": 1, "orders": [{"id": "a" * 26, "became": "b"}]}))
    said = standby("orders", verb, "a" * 26, "z" * 26)
    assert (said.code, said.out) == (4, f"{'a' * 26} b\n")
    assert f"there is no order {'z' * 26!r}; see: standby orders list" in said.err
    assert standby("orders", verb, "a" * 26, "a" * 26).code == 0


def test_an_order_named_by_the_beginning_of_its_id_is_there(standby: Standby, play: Play) -> None:
    page = ok({"orders": [order_view(id="a" * 26)], "next": None})
    play(page, page, ok({**DONE, "orders": [{"id": "a" * 26, "became": "b"}]}))
    assert standby("orders", "rerun", "aa", "aaa").code == 0


def test_one_order_is_repeated_as_a_new_one(standby: Standby, play: Play) -> None:
    old = "0" * 26
    server = play(ok(order_view(id="new", rerun_of=old), 201))
    said = standby("orders", "rerun", old, "--reason", "once more")
    assert (said.code, said.out, server.paths) == (0, "new\n", [f"POST /api/v1/work-orders/{old}/rerun"])


def test_a_long_list_is_read_in_pages(standby: Standby, play: Play) -> None:
    page, last = ([order_view(id=f"{name}{number}") for number in range(200)] for name in "ab")
    server = play(ok({"orders": page, "next": "c"}), ok({"orders": last[:50], "next": "d"}))
    said = standby("orders", "list", "--limit", "250", "--json")
    found = json.loads(said.out)
    assert (len(found["orders"]), found["next"]) == (250, "d")
    assert [each.url.params["limit"] for each in server.asked] == ["200", "50"]


def test_what_may_come_is_said_as_a_guess_and_what_is_null_not_at_all(standby: Standby, play: Play) -> None:
    why = {"id": "0" * 26, "state": "pending", "next": "it starts", "gives_up_in_ms": 252_900}
    guess = {"low_ms": 0, "high_ms": 95_000, "confidence": "fair", "why_none": None}
    play(ok({**why, "estimated_wait_ms": 500, "estimate": guess}))
    said = " ".join(standby("orders", "why", why["id"]).out.split())
    assert "starts in about 1 s (0 s to 1 min 35 s, a fair guess) gives up in 4 min 12 s" in said
    none = {"low_ms": None, "high_ms": None, "confidence": "none", "why_none": "nothing is measured yet"}
    play(ok({**why, "estimated_wait_ms": None, "estimate": none}))
    said = " ".join(standby("orders", "why", why["id"]).out.split())
    assert "starts nobody can say when: nothing is measured yet" in said
    play(ok({**why, "estimated_wait_ms": None, "gives_up_in_ms": None}))
    assert not {"starts", "about", "gives"} & set(
        standby("orders", "why", why["id"]).out.replace("it starts", "").split()
    )


def test_why_names_what_is_lacking_and_who_has_it(standby: Standby, play: Play) -> None:
    gate = {"name": "memory", "text": "needs 9 MB", "needed": 9, "free": 3, "holders": ["one", "two"], "stuck": False}
    play(ok({"id": "0" * 26, "state": "pending", "next": "it starts", "gate": gate}))
    said = " ".join(standby("orders", "why", "0" * 26).out.split())
    assert "waits for needs 9 MB gate memory needs 9, 3 free held by one, two" in said


@pytest.mark.parametrize(("said", "removed"), [("n\n", False), ("y\n", True)])
def test_the_key_in_use_is_asked_about_before_it_is_removed(
    standby: Standby, play: Play, monkeypatch: pytest.MonkeyPatch, said: str, removed: bool
) -> None:
    key = {"name": "ci", "created_at": "2030-01-01T00:00:00Z", "last4": "3456"}
    server = play(ok({"keys": [key]}), ok(key))
    monkeypatch.setattr(sys, "stdin", Terminal(said))
    words = ("--url", "http://127.0.0.1:1", "--key", "sb_123456")
    answer = standby("keys", "remove", "ci", *words)
    assert (answer.code, "nothing was done" in answer.err) == (0, not removed)
    assert ("DELETE /api/v1/keys/ci" in server.paths) is removed
    assert "sb_123456" not in answer.err


def verdicts(*answers: str) -> dict[str, Any]:
    """What the server says of as many orders."""
    problem = {"detail": "no command", "what_to_do": "send one"}
    each = [
        {"index": at, "answer": answer, "order": None, "problem": problem}
        if answer == "refused"
        else {"index": at, "answer": answer, "order": order_view(id=f"o{at}"), "problem": None}
        for at, answer in enumerate(answers)
    ]
    counts = {name: answers.count(name) for name in ("submitted", "deduplicated", "refused")}
    return {"verdicts": each, **counts}


def test_orders_of_a_file_are_handed_in_and_each_refusal_names_its_line(
    standby: Standby, play: Play, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"command": ["a"]}\n\n{"command": []}\n{"command": ["c"], "dedupe_key": "c"}\n')
    server = play(ok(verdicts("submitted", "refused", "deduplicated")))
    said = standby("orders", "submit", "--file", str(file), "--idempotency-key", "k")
    assert (said.code, said.out) == (4, "o0\no2\n")
    assert "line 3: no command; send one" in said.err and "line 4: order o2 is there already" in said.err
    assert "2 of 3 orders taken in" in said.err
    assert server.asked[0].headers["idempotency-key"] == "k"
    assert [order["command"] for order in bodies(server)[0]["orders"]] == [["a"], [], ["c"]]


def test_a_long_file_goes_in_parts_each_with_a_key_of_its_own(
    standby: Standby, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"command": ["true", str(number)]}) for number in range(2_300)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    parts = [ok(verdicts(*["submitted"] * size)) for size in (1_000, 1_000, 300)]
    server = play(*parts)
    assert standby("orders", "submit", "--file", "-", "--idempotency-key", "k").code == 0
    assert [len(body["orders"]) for body in bodies(server)] == [1_000, 1_000, 300]
    assert [each.headers["idempotency-key"] for each in server.asked] == ["k-0", "k-1", "k-2"]


@pytest.mark.parametrize("text", ['{"command"', "[1]", "", '{"command": ["a"]}\nnot json'])
def test_a_file_that_cannot_be_read_as_orders_is_refused_before_anything_is_sent(
    standby: Standby, play: Play, tmp_path: Path, text: str
) -> None:
    file, server = tmp_path / "orders.jsonl", play(ok(verdicts()))
    file.write_text(text)
    said = standby("orders", "submit", "--file", str(file))
    assert (said.code, server.asked) == (2, [])
    assert str(file) in said.err


def test_what_is_wrong_with_a_file_is_said_once(standby: Standby, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text('{"command": ["a"]}\n{"command": ["b" }')
    wrong = standby("orders", "submit", "--file", "orders.jsonl")
    assert wrong.err == "standby: orders.jsonl:2: not JSON: Expecting ',' delimiter (column 18)\n"
    missing = standby("orders", "submit", "--file", "none.jsonl")
    assert missing.err == "standby: --file: none.jsonl cannot be read: No such file or directory\n"


def test_all_or_none_names_the_lines_that_are_in_the_way(standby: Standby, play: Play, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('\n{"command": ["a"]}\n{"command": []}\n')
    problem = {"code": "refused_together", "detail": "none", "errors": [{"field": "orders.1", "message": "empty"}]}
    play(ok(problem, 422))
    said = standby("orders", "submit", "--file", str(file), "--together")
    assert said.code == 4
    assert "line 3: empty" in said.err


def test_settings_of_a_pool_are_written_as_in_the_configuration(standby: Standby, play: Play) -> None:
    server = play(no(422))
    words = ("slots_max=5", "run_timeout=none", "queue_timeout=2m", "retry_on=exit, oom", "retries=0")
    assert standby("pools", "set", "default", *words, "--unset", "stop_grace", "--reason", "busy").code == 4
    assert (server.paths, server.asked[0].method) == (["PATCH /api/v1/pools/default"], "PATCH")
    chosen = {
        "slots_max": 5,
        "run_timeout_s": None,
        "queue_timeout_s": 120.0,
        "retry_on": ["exit", "oom"],
        "retries": 0,
    }
    assert bodies(server) == [{"set": chosen, "unset": ["stop_grace_s"], "reason": "busy"}]
    for wrong in [(), ("slots_max",), ("run_timeout=soon",)]:
        assert standby("pools", "set", "default", *wrong).code == 2
