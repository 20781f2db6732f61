"""What a server says to the person who starts it."""

from pathlib import Path

import pytest

from standby.cli.serve import page_line
from standby.config import Config

URL = "http://127.0.0.1:8377"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "admin.key").write_text("sb_secret\n")
    return Config.of(state_dir=str(tmp_path))


def test_a_person_at_a_terminal_gets_a_link_that_works(config: Config) -> None:
    assert page_line(config, URL, terminal=True) == f"page: {URL}/#key=sb_secret"


def test_what_may_be_a_log_is_told_where_the_key_is(config: Config) -> None:
    key_file = config.state_dir / "admin.key"
    assert page_line(config, URL, terminal=False) == f"page: {URL}/ (asks for the key, which is in {key_file})"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_server_without_the_file_or_without_keys_says_so(config: Config, terminal: bool) -> None:
    (config.state_dir / "admin.key").unlink()
    assert page_line(config, URL, terminal=terminal) == f"page: {URL}/ (asks for a key)"
    open_house = Config.of(state_dir=str(config.state_dir), auth=False)
    assert page_line(open_house, URL, terminal=terminal) == f"page: {URL}/ (no key needed from this machine)"
