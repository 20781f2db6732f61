"""What the command line does without a server, and how a server starts and stops."""

import json
import signal
import socket
from pathlib import Path

import httpx2
import pytest

from standby import __version__
from standby.client import ServerUnreachable, find_address
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
        ("nonsense",),
        ("orders", "show"),
        ("hosts", "declare-dead", "local", "--reason", "x", "--confirm", "other"),
        ("serve", "--port", "70000"),
        ("serve", "--config", "missing.toml"),
        ("config", "check", "--config", "missing.toml"),
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
    assert "does not answer" in silent.err


def test_the_version_and_a_good_configuration_are_printed(standby: Standby, tmp_path: Path) -> None:
    assert standby("version").out.strip() == __version__
    assert json.loads(standby("version", "--json").out) == {"version": __version__}
    (tmp_path / "standby.toml").write_text('database = "postgresql://me:hunter2@db/work"\n[pools.a]\n')
    good = standby("config", "check", "--json")
    assert good.code == 0
    assert json.loads(good.out)["pools"] == {"a": "local"}
    assert "hunter2" not in good.out + standby("config", "check").out


def test_a_database_is_looked_at_printed_and_migrated(standby: Standby, tmp_path: Path) -> None:
    database = ("--database", f"sqlite:///{tmp_path / 'other' / 'standby.db'}")
    assert standby("db", "status", *database).code == 1
    assert "create table" in standby("db", "sql", *database).out
    first = json.loads(standby("db", "migrate", *database, "--json").out)
    assert first["applied"]
    assert json.loads(standby("db", "migrate", *database, "--json").out)["applied"] == []
    now = standby("db", "status", *database, "--json")
    assert (now.code, json.loads(now.out)["pending"]) == (0, [])
    assert standby("db", "status", "--database", "mysql://x").code == 2


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
    with pytest.raises(ServerUnreachable):
        find_address(env={}, start=below)


def test_a_server_keeps_its_state_private_and_stops_in_order_with_a_stream_open(tmp_path: Path) -> None:
    with house(tmp_path / "house") as home:
        home.start()
        assert (home.state.stat().st_mode & 0o777, (home.state / "admin.key").stat().st_mode & 0o777) == (0o700, 0o600)
        assert home.tail().count(home.key) == 1, "the first key is shown once"
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
        assert home.tail().count(home.key) == 1, "and never again where nobody sits at a terminal"
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
        assert "choose another" in taken.err
        assert "Traceback" not in second.err + taken.err
