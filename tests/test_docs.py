"""The documents say what the code does."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from standby import Client
from standby.config import Config, HostConfig, PoolConfig, ProjectConfig
from standby.core.model import EventKind, PoolSettings, Trigger

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SECTIONS: Mapping[str, type[BaseModel]] = {
    "Top level": Config,
    "`[hosts.NAME]`": HostConfig,
    "`[pools.NAME]`": PoolConfig,
    "`[projects.NAME]`": ProjectConfig,
}
NO_DEFAULT = "none"


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The first table under a heading: first cell without its backticks -> the other cells."""
    text = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None, f"no table under {heading}"
    cells = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table[0].splitlines()[2:]]
    return {first.strip("` "): rest for first, *rest in cells}


def defaults(heading: str) -> dict[str, Any]:
    """The defaults as the page gives them, read as TOML."""
    given = {key: cells[0] for key, cells in rows("configuration.md", heading).items() if cells[0] != NO_DEFAULT}
    return tomllib.loads("\n".join(f"{key} = {text.strip('`')}" for key, text in given.items()))


def keys_of(model: type[BaseModel]) -> set[str]:
    """Keys as they are written in the file."""
    names = {field.alias or name for name, field in model.model_fields.items()}
    return names - {"hosts", "pools", "projects"}


def test_every_method_of_the_client_is_documented() -> None:
    table = (DOCS / "clients.md").read_text(encoding="utf-8").split("| what | methods |")[1].split("\n\n")[0]
    methods = {name for name in vars(Client) if not name.startswith("_")} - {"close"}
    assert set(re.findall(r"`([a-z_]+)[(`]", table)) == methods


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_configuration_key_is_documented(heading: str) -> None:
    assert set(rows("configuration.md", heading)) == keys_of(SECTIONS[heading])


def test_the_documented_defaults_are_the_real_ones() -> None:
    pool = {"pools": {"default": defaults("`[pools.NAME]`")}}
    host = {"hosts": {"local": defaults("`[hosts.NAME]`")}}
    documented, real = Config.of(**defaults("Top level"), **pool, **host), Config.of()
    assert {key: getattr(documented, key) for key in Config.model_fields if key not in ("pools", "hosts")} == {
        key: getattr(real, key) for key in Config.model_fields if key not in ("pools", "hosts")
    }
    assert documented.pool_settings("default") == real.pool_settings("default") == PoolSettings()
    assert documented.hosts["local"] == real.hosts["local"]


def test_the_example_can_be_used_and_has_every_key() -> None:
    text = (ROOT / "standby.example.toml").read_text(encoding="utf-8")
    Config.of(**tomllib.loads(text))
    keys = tomllib.loads(re.sub(r"^#(?=[a-z\[])", "", text, flags=re.MULTILINE))
    Config.of(**keys)
    assert keys_of(Config) <= set(keys)
    assert {key for host in keys["hosts"].values() for key in host} == keys_of(HostConfig)
    assert {key for pool in keys["pools"].values() for key in pool} == keys_of(PoolConfig)


def test_every_event_is_documented() -> None:
    assert list(rows("events.md", "Kinds")) == list(EventKind)
    assert list(rows("events.md", "Triggers")) == list(Trigger)


def test_the_generated_pages_are_current() -> None:
    written = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert written.returncode == 0, written.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in DOCS.glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("https:")]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
