"""What is said about a machine and its configuration without a server: doctor, config, completion."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from standby import __version__
from tests.cli.conftest import Standby
from tests.e2e.house import House


def test_a_machine_in_order_is_said_to_be_without_a_server(standby: Standby) -> None:
    said = standby("doctor")
    assert said.code == 0
    words = [line.split()[0] for line in said.out.splitlines() if line[:1].strip()]
    assert words == ["ok"] * 5 + ["warn"]
    assert "standby serve" in said.out
    view = json.loads(standby("doctor", "--json").out)
    assert view["ok"] is True
    assert [check["name"] for check in view["here"]] == ["config", "state directory", "disk", "clock", "database"]
    assert view["server"][0]["ok"] is None


@pytest.mark.parametrize(
    ("toml", "name", "said"),
    [
        ("prt = 1", "config", "did you mean port?"),
        ("state_dir = 'standby.toml'", "state directory", "set state_dir"),
        ("disk_reserve_mb = 1099511627776", "disk", "make room"),
        ("database = 'sqlite:///standby.toml'", "database", "cannot be used"),
        ("database = 'postgresql://me:hunter2@127.0.0.1:1/work'", "database", "start it"),
    ],
)
def test_what_is_bad_is_named_with_what_to_do(
    standby: Standby, tmp_path: Path, toml: str, name: str, said: str
) -> None:
    (tmp_path / "standby.toml").write_text(toml)
    found = standby("doctor", "--json")
    bad = [check for check in json.loads(found.out)["here"] if check["ok"] is False]
    assert (found.code, bad[0]["name"]) == (1, name)
    assert said in f"{bad[0]['says']} {bad[0]['do']}"
    assert "hunter2" not in found.out + found.err
    assert standby("doctor").code == 1


def test_a_server_that_left_its_file_behind_is_bad(standby: Standby, tmp_path: Path) -> None:
    (tmp_path / ".standby").mkdir(mode=0o700)
    (tmp_path / ".standby" / "server.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    said = standby("doctor")
    assert said.code == 1
    assert "does not answer" in said.out
    assert said.out.count("start it with `standby serve`") == 1


def test_a_clock_that_went_back_and_an_open_directory_are_noticed(standby: Standby, tmp_path: Path) -> None:
    state = tmp_path / ".standby"
    state.mkdir(mode=0o755)
    (state / "standby.lock").touch()
    os.utime(state / "standby.lock", (2**32, 2**32))
    found = {check["name"]: check["ok"] for check in json.loads(standby("doctor", "--json").out)["here"]}
    assert (found["state directory"], found["clock"]) == (None, False)


def test_every_setting_is_shown_with_where_it_comes_from(
    standby: Standby, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "standby.toml").write_text("port = 1\nlog_cap_mb = 1\ndatabase = 'postgresql://me:hunter2@db/work'")
    monkeypatch.setenv("STANDBY_PORT", "0")
    monkeypatch.setenv("STANDBY_SEAL_KEY", "ab" * 32)
    view = standby("config", "show", "--json")
    found = {each["name"]: each for each in json.loads(view.out)["settings"]}
    assert (found["port"]["value"], found["port"]["from"], found["port"]["where"]) == (0, "env", "STANDBY_PORT")
    assert found["port"]["over"] == ["standby.toml"]
    assert (found["poll"]["from"], found["pools.default.slots_max"]["value"]) == ("default", 100)
    shown = standby("config", "show", "--changed")
    lines = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines()}
    assert lines["port"] == ["env", "0", "STANDBY_PORT", "(over", "standby.toml)"]
    assert lines["log_cap_mb"] == ["file", "1", "standby.toml"]
    assert "poll" not in lines
    assert not any(secret in view.out + shown.out for secret in ("hunter2", "abab"))


@pytest.mark.parametrize("text", ["port = ", "port = 'x'", "[pools.a]\nslots = 1", "\udcff"])
def test_a_file_that_cannot_be_used_is_one_line_and_exit_code_2(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    for words in (["config", "check", str(file)], ["serve", "--config", str(file)]):
        command = [sys.executable, "-m", "standby.cli.main", *words]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith(f"standby: {file}")
        assert len(ran.stderr.splitlines()) == 1


def test_the_shell_completes_commands_and_options(standby: Standby, tmp_path: Path) -> None:
    script = tmp_path / "standby.bash"
    assert standby("--install-completion", "--shell", "bash", "--output", str(script)).code == 0
    for words, offered in [
        ("standby orde", "orders"),
        ("standby orders li", "list"),
        ("standby orders list --sta", "--state"),
    ]:
        code = f"""
            source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            COMP_LINE="{words}"; COMP_POINT=${{#COMP_LINE}}; _standby; echo "${{COMPREPLY[@]}}"
        """
        ran = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout.split() == [offered]
    for shell in ("zsh", "fish"):
        assert standby("--install-completion", "--shell", shell, "--output", str(script)).code == 0
        assert "orders" in script.read_text()
    assert standby("--version").out.strip() == __version__


def test_who_installs_completion_is_told_what_was_written_and_what_is_missing(
    standby: Standby, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    said = standby("--install-completion", "--shell", "bash")
    assert (said.code, "~/.bashrc reads it" in said.err, "standby is not on PATH" in said.err) == (0, True, True)
    script = next(tmp_path.glob(".local/**/standby"))
    assert str(script) in said.err and str(script) in (tmp_path / ".bashrc").read_text()


def test_a_closed_pipe_and_ctrl_c_end_without_a_word(home: House) -> None:
    home.ended(home.submit("true"))
    command = [sys.executable, "-m", "standby.cli.main", "events", "--after", "0"]
    with subprocess.Popen(command, cwd=home.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as piped:
        assert piped.stdout is not None and piped.stderr is not None
        piped.stdout.close()
        assert piped.stderr.read() == b""
    with subprocess.Popen(
        [*command, "--follow"], cwd=home.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as followed:
        assert followed.stdout is not None
        assert all(followed.stdout.readline() for _ in range(3)), "the names of the columns, and two events"
        followed.send_signal(2)
        _, err = followed.communicate(timeout=30)
    assert followed.returncode == 130
    assert [line.split(":")[0] for line in err.splitlines()] == ["go on with"]
