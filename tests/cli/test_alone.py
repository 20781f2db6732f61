"""What the command line does without a server, and how a server starts and stops."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import httpx2
import msgspec
import pytest
from cyclopts import App
from rich.console import Console

from standby import __version__
from standby.cli import table
from standby.cli.events import event_table
from standby.cli.follow import print_record
from standby.cli.main import ORDERS, app
from standby.cli.talk import say
from standby.client.address import find_address
from standby.client.answers import Event, LogEnd
from standby.client.errors import ServerUnreachable
from tests.cli.conftest import Standby
from tests.e2e.house import House, house


@pytest.mark.parametrize(
    "words",
    [
        ("submit",),
        ("submit", "--script", "missing.sh"),
        ("submit", "--payload", "{", "--", "true"),
        ("submit", "--env", "NOT_SET_ANYWHERE", "--", "true"),
        ("submit", "--label", "x", "--", "true"),
        ("submit", "--queue-timeout", "soon", "--", "true"),
        ("submit", "--priority", "high", "--", "true"),
        ("submit", "--nonsense", "--", "true"),
        ("submit", "--retry-on", "exit,omm", "--", "true"),
        ("submit", "--not-before", "soon", "--", "true"),
        ("submit", "--not-before", "2030-01-31T12:00:00", "--", "true"),
        ("orders", "list", "--state", "faild"),
        ("orders", "list", "--limit", "0"),
        ("orders", "logs", "01", "--run", "0"),
        ("events", "--limit", "0"),
        ("orders", "cancel", "--state", "faild", "--yes"),
        ("logs", "01"),
        ("nonsense",),
        ("orders", "show"),
        ("hosts", "declare-dead", "local", "--reason", "x", "--confirm", "other"),
        ("serve", "--port", "70000"),
        ("serve", "--config", "missing.toml"),
        ("config", "check", "--config", "missing.toml"),
        ("submit", "--env", "A=1", "B=2", "--", "true"),
        ("orders", "list", "--url", "http://["),
        ("orders", "list", "--url", "http://127.0.0.1:port"),
        ("orders", "list", "--url", "http://127.0.0.1:70000"),
        ("orders", "list", "--url", "127.0.0.1:8377"),
        ("orders", "list", "--url", "http://127.0.0.1:1", "--key", "sb_é"),
        ("submit", "--url", "http://127.0.0.1:1", "--idempotency-key", "é", "--", "true"),
        ("db", "status", "--database", "postgresql://db:port/work"),
        ("orders", "show", "\udcff"),
    ],
)
def test_what_was_not_meant_ends_with_2_in_words(standby: Standby, words: tuple[str, ...]) -> None:
    said = standby(*words)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("standby: ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "words", [("orders", "list"), ("submit", "--", "true"), ("pools", "--json"), ("orders", "wait", "x")]
)
def test_a_server_that_is_not_there_ends_with_3(
    standby: Standby, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = standby(*words)
    assert (nowhere.code, nowhere.out) == (3, "")
    assert "standby serve" in nowhere.err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        monkeypatch.setenv("STANDBY_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        silent = standby(*words)
    assert (silent.code, silent.out) == (3, "")
    assert "does not answer (connection refused); start it with `standby serve`" in silent.err


def test_the_version_and_a_good_configuration_are_printed(standby: Standby, tmp_path: Path) -> None:
    assert standby("version").out.strip() == __version__
    assert json.loads(standby("version", "--json").out) == {"version": __version__}
    (tmp_path / "standby.toml").write_text('database = "postgresql://me:hunter2@db/work"\n[pools.a]\n')
    good = standby("config", "check", "--json")
    assert good.code == 0
    assert json.loads(good.out)["pools"] == {"a": "local"}
    assert "hunter2" not in good.out + standby("config", "check").out


def test_a_configuration_without_changes_is_said_to_be_all_defaults(standby: Standby) -> None:
    said = standby("config", "show", "--local", "--changed")
    assert (said.code, said.out) == (0, "")
    assert "everything is at its default" in said.err


def test_a_database_is_looked_at_printed_and_migrated(standby: Standby, tmp_path: Path) -> None:
    database = ("--database", f"sqlite:///{tmp_path / 'other' / 'standby.db'}")
    new = standby("db", "status", *database)
    assert new.code == 0
    assert "`standby serve` makes it" in new.err
    assert "create table" in standby("db", "sql", *database).out
    first = json.loads(standby("db", "migrate", *database, "--json").out)
    assert first["applied"]
    assert json.loads(standby("db", "migrate", *database, "--json").out)["applied"] == []
    now = standby("db", "status", *database, "--json")
    assert (now.code, json.loads(now.out)["pending"]) == (0, [])
    assert standby("db", "status", "--database", "mysql://x").code == 2


@pytest.mark.parametrize("verb", ["status", "migrate", "sql"])
def test_a_file_that_cannot_be_a_database_is_said_in_words(standby: Standby, tmp_path: Path, verb: str) -> None:
    (tmp_path / "text.db").write_text("This is a text and not a database. " * 10)
    below = [tmp_path / "text.db" / "below.db"] if verb == "migrate" else []
    for path in [tmp_path / "text.db", tmp_path, *below]:
        said = standby("db", verb, "--database", f"sqlite:///{path}")
        assert said.code == 1
        assert said.err.startswith(f"standby: {path} cannot be used as a database: ")
        assert len(said.err.splitlines()) == 1


def test_a_wrong_word_is_answered_with_the_help_that_is_near(standby: Standby) -> None:
    assert "try: standby orders show --help" in standby("orders", "show").err
    assert "try: standby orders --help" in standby("orders", "nonsense").err
    assert "try: standby --help" in standby("nonsense").err


def test_a_word_that_is_nearly_right_is_answered_with_the_right_one(standby: Standby) -> None:
    assert (
        "--state: there is no state 'faild'; did you mean failed?" in standby("orders", "list", "--state", "faild").err
    )
    assert "--state: there is no state 'x'; write one of: pending, " in standby("orders", "list", "--state", "x").err
    assert "--retry-on: there is no reason 'timout'" in standby("submit", "--retry-on", "timout", "--", "true").err
    assert "give it a timezone" in standby("submit", "--not-before", "2030-01-31T12:00:00", "--", "true").err
    assert "did you mean order.failed?" in standby("events", "--kind", "order.faild").err
    for word in ORDERS:
        assert f"did you mean orders {word}?" in standby(word, "01").err
    assert set(app["orders"]) - ORDERS == {"--help", "-h", "--version", "submit"}


def test_every_option_says_what_it_is_for(standby: Standby) -> None:
    silent = [
        f"{' '.join(words)}: {argument.name}"
        for words, command in _commands(app, [])
        if command.default_command is not None
        for argument in command.assemble_argument_collection(parse_docstring=True)
        if argument.show and not argument.parameter.help
    ]
    assert silent == []


def _commands(parent: App, words: list[str]) -> Iterator[tuple[list[str], App]]:
    for name in parent:
        if not name.startswith("-"):
            command = parent[name]
            yield [*words, name], command
            yield from _commands(command, [*words, name])


def test_output_that_may_be_incomplete_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    print_record(LogEnd(run=1, closed=True), as_json=False)
    assert capfd.readouterr() == ("", "")
    print_record(LogEnd(run=1, closed=False), as_json=True)
    out, err = capfd.readouterr()
    assert (out, "may be incomplete" in err) == ("", True)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_table_keeps_ids_and_states_whole_and_each_row_on_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(table, "_console", lambda: Console(width=width))
    rows = [{"id": "0" * 25 + str(number), "state": "waiting_retry", "text": "many words " * 20} for number in range(3)]
    columns = {"ID": "id", "STATE": "state", "WHAT": "text", "NOTE": "text"}
    table.print_table(rows, {name: itemgetter(key) for name, key in columns.items()})
    head, *lines = capfd.readouterr().out.splitlines()
    assert head.split() == list(columns)
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        assert line.startswith(f"{row['id']} waiting_retry many words ")
        assert line.endswith("…")
        assert len(line) <= width


@pytest.mark.parametrize("words", [("config", "check"), ("config", "check", "--json")])
def test_what_the_terminal_cannot_show_ends_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    directory = tmp_path / "ä"
    directory.mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "standby.cli.main", *words]
    said = subprocess.run(command, cwd=directory, env=env, capture_output=True, check=False)
    assert (said.returncode, b"Traceback" in said.stderr) == (0, False)
    assert b"/?/.standby" in said.stdout


def test_what_somebody_wrote_gives_no_orders_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\tb\x1b[2J\x1b]0;owned\x07\x9b31m\x7f ä"
    table.print_table([{"text": evil}], {"WHAT": itemgetter("text")})
    table.print_facts({"what": f"{evil}\nnext"})
    view = {"seq": 1, "at": "2030-01-01T00:00:00Z", "kind": "order.failed", "subject": "x", "trigger": "look"}
    event = {**view, "actor": "a", "data": {"run": {"reason": "exit", "error": f"{evil}\nnext"}}}
    event_table().print(msgspec.convert(event, Event))
    say(evil)
    told = capsys.readouterr()
    shown = told.out + told.err
    assert not set(shown) & set(map(chr, (*range(10), *range(11, 32), *range(127, 160))))
    assert shown.count("a b�[2J�]0;owned��31m� ä") == 4
    assert len(told.out.splitlines()) == 6, "a fact may have lines, an event is on one"


def test_a_table_without_room_puts_the_words_below_their_row(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_console", lambda: Console(width=30))
    table.print_table([{"id": "0" * 26, "text": "it broke"}], {"ID": itemgetter("id"), "ERROR": itemgetter("text")})
    assert capfd.readouterr().out.splitlines() == ["ID", "0" * 26, "  it broke"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_fits_the_terminal_and_cuts_no_id(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(table, "_console", lambda: Console(width=width))
    names = ["ID", "STATE", "POOL", "PROJECT", "SINCE", "WHAT", "NOTE"]
    row = ["0" * 26, "waiting_retry", "meeting-bots", "a-project-of-ours", "12 min", "sh -c run", "words " * 40]
    table.print_table([row], {name: itemgetter(at) for at, name in enumerate(names)})
    lines = capfd.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[1].startswith("0" * 26 + " waiting_retry")
    assert all(text in "\n".join(lines[1:]) for text in row[:5])


def test_a_column_that_says_what_is_usual_gives_way_before_words_are_cut(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["ID", "POOL", "WHAT", "NOTE"]
    columns = {name: itemgetter(at) for at, name in enumerate(names)}
    row = ["0" * 26, "default", "python3 report.py", "it waits for a slot"]

    def lines(width: int, *rows: list[str]) -> list[str]:
        monkeypatch.setattr(table, "_console", lambda: Console(width=width))
        table.print_table(rows, columns, {"POOL": "default"})
        return capfd.readouterr().out.splitlines()

    assert lines(80, row)[0].split() == names
    assert [line.split()[1:] for line in lines(66, row)] == [["WHAT", "NOTE"], [*row[2].split(), *row[3].split()]]
    assert lines(66, row, ["1" * 26, "other", "x", "y"])[1:4] == [
        "0" * 26 + " default",
        *(f"  {each}" for each in row[2:]),
    ]
    assert lines(50, row)[1:] == ["0" * 26, *(f"  {each}" for each in row[2:])], "no word is cut below 18 letters"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_events_fit_the_terminal_and_nothing_of_them_is_cut(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(table, "_console", lambda: Console(width=width))
    view = {"seq": 1, "at": "2030-01-01T00:00:00Z", "subject": "0" * 26, "trigger": "look", "actor": "leader:vm-1"}
    run = {"reason": "start_failed", "error": "cannot start it: " + "many words " * 9}
    events = [
        {**view, "kind": "order.failed", "data": {"run": {"reason": "exit", "exit_code": 3}}},
        {**view, "kind": "order.retry_waiting", "data": {"run": run}},
        {**view, "kind": "host.led", "subject": "local"},
    ]
    listing = event_table()
    for event in events:
        listing.print(msgspec.convert(event, Event))
    out = capfd.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert not re.search(" $", out, re.MULTILINE)
    told = " ".join(out.split())
    for text in ("0" * 26, "leader", "exit 3", f"start_failed: {run['error'].strip()}", "vm-1"):
        assert text in told


def test_facts_are_wrapped_below_their_beginning_and_end_without_spaces(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table.print_facts({"a": "short", "longer": "some words"})
    assert capfd.readouterr().out.splitlines() == ["a       short", "longer  some words"]
    monkeypatch.setattr(table, "_console", lambda: Console(width=30))
    table.print_facts({"a": "many words " * 5, "longer": "x" * 30, "none": None})
    lines = ["a       many words many words", "        many words many words", "        many words"]
    assert capfd.readouterr().out.splitlines() == [*lines, "longer  " + "x" * 22, " " * 8 + "x" * 8]


def test_the_server_is_found_upward_and_its_key_is_shown_to_no_other(tmp_path: Path) -> None:
    state, below = tmp_path / ".standby", tmp_path / "a" / "b"
    below.mkdir(parents=True)
    state.mkdir()
    (state / "server.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    (state / "admin.key").write_text("sb_mine\n")
    found = find_address(env={}, start=below)
    assert (found.url, found.key) == ("http://127.0.0.1:1", "sb_mine")
    assert find_address(url="http://other", env={}, start=below).key is None
    env = {"STANDBY_URL": "http://env", "STANDBY_KEY": "sb_env"}
    by_env = find_address(env=env, start=below)
    assert (by_env.url, by_env.key) == ("http://env", "sb_env")
    by_flag = find_address("http://flag", "sb_flag", env, below)
    assert (by_flag.url, by_flag.key) == ("http://flag", "sb_flag")
    (state / "server.json").unlink()
    with pytest.raises(ServerUnreachable, match=rf"none runs that keeps its state in {re.escape(str(state))}\)"):
        find_address(env={}, start=below)


def test_a_server_keeps_its_state_private_and_stops_in_order_with_a_stream_open(tmp_path: Path) -> None:
    with house(tmp_path / "house") as home:
        home.state.mkdir(mode=0o755)
        home.start()
        assert home.state.stat().st_mode & 0o777 == 0o700
        for name in ("admin.key", "standby.db", "logs.db"):
            assert (home.state / name).stat().st_mode & 0o777 == 0o600, name
        assert home.key not in home.tail(), "what is no terminal may be read by others"
        headers = {"Authorization": f"Bearer {home.key}"}
        with httpx2.stream("GET", f"{home.url}/api/v1/events/stream", headers=headers, timeout=30) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry")
            assert home.process is not None
            home.process.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
        assert home.process.wait(30) == 0
        home.process = None
        assert not (home.state / "server.json").exists()
        home.start()
        assert home.tail().count(f"asks for the key, which is in {home.state / 'admin.key'}") == 2
        assert home.key not in home.tail()
        assert "Traceback" not in home.tail()


def test_a_taken_port_or_a_second_server_is_said_in_words(tmp_path: Path, standby: Standby) -> None:
    with house(tmp_path / "house") as home:
        home.start()
        second = standby("serve", "--config", str(home.config))
        assert second.code == 1
        assert "another Standby server" in second.err
        port = home.url.rpartition(":")[2]
        other = House(tmp_path / "other", port=int(port))
        taken = standby("serve", "--config", str(other.config))
        assert taken.code == 1
        assert "choose another: --port 8378, or `STANDBY_PORT=8378 make up`" in taken.err
        both = standby("serve", "--config", str(other.config), "--bind", f"127.0.0.1:{port}")
        assert both.code == 1
        assert "--bind takes an address, --port the port" in both.err
        assert "Traceback" not in second.err + taken.err + both.err
