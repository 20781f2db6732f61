"""Whatever is found where the configuration should be, a message says what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.config import Config, ConfigError, load_config
from standby.config import settings as shown
from standby.config.load import twin
from standby.config.model import SECTIONS, keys_of
from tests.cli.conftest import Standby, standby

__all__ = ["standby"]

DEEP = 20_000
TEXTS: dict[str, bytes] = {
    "not UTF-8": b"port = 1 # \xff\xfe",
    "UTF-16": "port = 1\n".encode("utf-16"),
    "half a letter": b'bind = "\xc3"',
    "NUL": b"port\0 = 1",
    "only NULs": b"\0" * 4096,
    "deep arrays": b"port = " + b"[" * DEEP,
    "deep tables": b"port = " + b"{a = " * DEEP,
    "deep names": b".".join([b"a"] * 2_000) + b" = 1",
    "deep names in a section": b"[pools." + b".".join([b"a"] * 2_000) + b"]",
    "a number of 5,000 digits": b"port = " + b"9" * 5_000,
    "an endless line": b"x" * 3_000_000,
    "huge and good": b"# nothing\n" * 300_000,
    "a section twice": b"[pools.a]\n[pools.a]",
    "a section that is a list": b"[[pools]]",
    "a key of a number": b"1 = 2",
    "an empty key": b'"" = 1',
    "a program": b"\x7fELF\x02\x01\x01\0\0\0",
}
VALUES = (
    *("inf", "-inf", "nan", "1e400", "-0.0", "9223372036854775808", "-9223372036854775809", "0x7fffffffffffffffffff"),
    *("2030-01-31", "12:00:00", "2030-01-31T12:00:00Z", "2030-01-31 12:00:00.5", "9999-12-31T23:59:59+23:59"),
    *(
        "[]",
        "[[[]]]",
        "{}",
        "{a = {}}",
        '""',
        '"\\u0000"',
        '"nan"',
        '"inf"',
        '"99999999999999999999h"',
        "[inf]",
        "true",
    ),
)
KEYS = [
    *keys_of(Config),
    *(f"{section}.a.{key}" for section, model in SECTIONS.items() for key in keys_of(model)),
    *SECTIONS,
    *(f"{section}.a" for section in SECTIONS),
]


def _used_or_refused(file: Path, env: dict[str, str], flags: dict[str, Any] | None = None) -> str | None:
    """What was said against it; null when it is used."""
    try:
        assert shown(load_config(file, env, flags))
    except ConfigError as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_is_no_configuration_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / "standby.toml"
    file.write_bytes(TEXTS[name])
    said = _used_or_refused(file, {})
    assert said is not None and str(file) in said
    assert len(said) < 2_000


def test_a_place_that_cannot_be_read_is_refused_by_its_name(tmp_path: Path) -> None:
    file, circle = tmp_path / "file", tmp_path / "circle"
    file.write_text("port = 1")
    circle.symlink_to(circle)
    endless = Path("/dev/zero")
    guarded = Path("/proc/self/mem")  # nobody can read its beginning, not even root
    for place in (tmp_path, file / "standby.toml", circle, tmp_path / ("x" * 300), endless, guarded):
        said = _used_or_refused(place, {})
        assert said is not None and str(place) in said


@pytest.mark.parametrize("value", VALUES)
def test_a_value_of_any_kind_is_used_or_refused_for_every_key(tmp_path: Path, value: str) -> None:
    file = tmp_path / "standby.toml"
    for key in KEYS:
        file.write_text(f"{key} = {value}")
        said = _used_or_refused(file, {})
        assert said is None or str(file) in said, key


@given(
    key=st.sampled_from(KEYS),
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=[]), max_size=30)
    | st.sampled_from([value.strip('"') for value in VALUES]),
)
@settings(max_examples=300)
def test_a_variable_of_any_text_is_used_or_refused_for_every_key(key: str, text: str) -> None:
    said = _used_or_refused(Path("/dev/null"), {twin(key.split(".")): text})
    assert said is None or twin(key.split(".")) in said


@given(
    key=st.sampled_from(sorted(keys_of(Config))), value=st.one_of(st.text(), st.integers(), st.floats(), st.binary())
)
@settings(max_examples=300)
def test_a_flag_of_any_value_is_used_or_refused_by_its_name(key: str, value: Any) -> None:
    said = _used_or_refused(Path("/dev/null"), {}, {key: value})
    assert said is None or f"--{key.replace('_', '-')}" in said


@pytest.mark.parametrize("name", ["not UTF-8", "deep arrays", "deep names", "huge and good"])
def test_the_command_line_says_it_without_a_trace(standby: Standby, tmp_path: Path, name: str) -> None:
    file = tmp_path / "odd.toml"
    file.write_bytes(TEXTS[name])
    for words in (
        ["config", "check", str(file)],
        ["serve", "--config", str(file)],
        ["serve", "--config", str(tmp_path)],
    ):
        said = standby(*words)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("standby: ") and "Traceback" not in said.err
