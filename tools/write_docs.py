"""Writes docs/states.md from the state machines, docs/configuration.md from the model of the configuration, and the
tables of docs/api.md from the shapes of the API. With --check it only says whether the files are current."""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from standby.api import wire
from standby.config import Config, HostConfig, PoolConfig, ProjectConfig, model, settings
from standby.config.load import twin
from standby.core.lifecycle import ORDER_MOVES
from standby.core.model import ENDED, EventKind, OrderState, SlotState
from standby.core.slots import SLOT_MOVES

DOCS: Final = Path(__file__).parents[1] / "docs"
Moves = Mapping[EventKind, Mapping[str | None, frozenset[str | None]]]

ORDER_WORDS: Final[Mapping[OrderState, str]] = {
    OrderState.PENDING: "Waits for a slot, or for its `not_before`. It holds nothing.",
    OrderState.PREPARING: "Has a slot; its start is commanded, and its own copy has not been seen at work yet.",
    OrderState.RUNNING: "Its own copy was seen at work.",
    OrderState.STOPPING: "An end was asked for (a cancel, a deadline) and has not been seen yet.",
    OrderState.WAITING_RETRY: "Its run ended badly; the next one is due at a time that is set. It holds nothing.",
    OrderState.COMPLETED: "Ended with exit code 0. Final.",
    OrderState.FAILED: "Ended badly, and no retry is left or wanted; or it waited too long. Final.",
    OrderState.CANCELLED: "Ended because somebody asked for it. Final.",
}
SLOT_WORDS: Final[Mapping[SlotState, str]] = {
    SlotState.CREATING: "It is being made, or made anew: what was there is taken away first.",
    SlotState.IDLE: "The place is there and clean. With an open run it is shown as `deploying` or `busy`.",
    SlotState.CLEANING: "It was used, or its place is gone; it waits for a permit to be made anew (a seat: at once).",
    SlotState.ERROR: "It could not be made, or could not start; tried ever more rarely, given up after 3 failures.",
    SlotState.REMOVING: "Nobody gets it any more; it is being taken away, then its row goes.",
}

INTRO: Final = """\
# States

This page is written by `make docs` from `ORDER_MOVES` in `src/standby/core/lifecycle.py` and `SLOT_MOVES` in
`src/standby/core/slots.py`. A test fails when it is not current. Every change of a state is checked against these
two tables before it is saved; nothing else assigns one.
"""
SLOT_NOTE: Final = """\
One move is not in the table, because it travels with the order: when a run is seen ended, the same change that ends the
run moves its slot `idle -> cleaning`, or `idle -> error` where the place was to blame. A seat (a process host's slot,
where an ended run leaves nothing behind) stays `idle`, and so does a live slot of a pool with `reset = "none"`, unless
the run was lost.
"""


def states_page() -> str:
    """The page of the two state machines."""
    return "\n".join(
        [
            INTRO,
            "## Orders\n",
            *_machine(ORDER_MOVES, {state.value: words for state, words in ORDER_WORDS.items()}, set(ENDED)),
            "## Slots\n",
            *_machine(SLOT_MOVES, {state.value: words for state, words in SLOT_WORDS.items()}, set()),
            SLOT_NOTE,
        ]
    )


def _machine(moves: Moves, words: Mapping[str, str], final: set[str]) -> Iterator[str]:
    arrows = sorted({(was, to) for table in moves.values() for was, tos in table.items() for to in tos}, key=_key)
    yield "```mermaid\nstateDiagram-v2"
    for was, to in arrows:
        if was != to:
            yield f"    {was or '[*]'} --> {to or '[*]'}"
    for state in words:
        if state in final:
            yield f"    {state} --> [*]"
    yield "```\n"
    yield "| state | meaning |\n|---|---|"
    for state, meaning in words.items():
        yield f"| `{state}` | {meaning} |"
    yield "\n| event | from | to |\n|---|---|---|"
    for kind, table in moves.items():
        sources = " | ".join(_name(was) for was in table).replace("|", "\\|")
        targets = sorted({_name(to) for tos in table.values() for to in tos})
        yield f"| `{kind}` | {sources} | {', '.join(targets)} |"
    yield ""


def _key(arrow: tuple[str | None, str | None]) -> tuple[str, str]:
    return arrow[0] or "", arrow[1] or ""


def _name(state: str | None) -> str:
    return "nothing" if state is None else f"`{state}`"


CONFIGURATION: Final = """\
# Configuration

The tables of this page are written by `make docs` from `src/standby/config/model.py`. A test fails when they are not
current.

There is one TOML file (up to 1 MB), read once at the start: `standby.toml` in the working directory, or the one named
by `--config` or `STANDBY_CONFIG`. A flag goes before the environment, the environment before the file, the file before
the default. `standby config show` says for every setting what it is, where it comes from, and what lost against it;
`standby config check FILE` says whether a file can be used. [`standby.example.toml`](../standby.example.toml) has
every key.

Every key has an env twin: `STANDBY_` and its path in capitals, with `_` for `.` and `-`. So `port` is `STANDBY_PORT`,
and `slots_max` of `[pools.big-ones]` is `STANDBY_POOLS_BIG_ONES_SLOTS_MAX`. A section that is not in the file is made
by the first variable that names it. Where a name could be read in two ways, a section that is in the file is meant,
then the longest key. In lists the values have commas between.

Unknown keys and unknown variables that begin with `STANDBY_` are refused, with the nearest right name.

Lengths of time are numbers of seconds or texts like `"250ms"`, `"30s"`, `"5m"`, `"1h"`, `"2d"`. `"none"` means
unlimited; 0 means zero. Without any file there is one process host `local` and one pool `default` on it.

What `standby pools set` changes wins over all of this for its pool, until it is taken back with `--unset`.
"""
HOSTS_NOTE: Final = "Names of hosts, pools and projects are made of a-z, 0-9 and `-`, at most 63 long.\n"
POOLS_NOTE: Final = "Memory, timeouts and retries are defaults for the pool's orders; the rest is about its slots.\n"
PROFILES_NOTE: Final = """
| profile | what it sets |
|---|---|
| `bots` | `slots_max = 100`, `queue_timeout = "5m"` |
| `agents` | `slots_max = 2`, `memory_mb = 4096`, no queue timeout and no ceiling, `retry_on = ["exit"]` |
| `deployments` | `retries = 0`, no queue timeout and no ceiling |
"""
PROJECTS_NOTE: Final = "A project needs no section; it is there as soon as an order names it.\n"


def configuration_page() -> str:
    """The page of the settings: their meanings are the docstrings of the model's fields."""
    plain = {each.name: each.default for each in settings(Config.of(projects={"x": {}}))} | {"state_dir": ".standby"}
    return "\n".join(
        [
            CONFIGURATION,
            "## Top level\n",
            *_settings_table(Config, "", plain, env=True),
            "\n## `[hosts.NAME]`\n",
            HOSTS_NOTE,
            *_settings_table(HostConfig, "hosts.local.", plain),
            "\n## `[pools.NAME]`\n",
            POOLS_NOTE,
            *_settings_table(PoolConfig, "pools.default.", plain),
            PROFILES_NOTE,
            "## `[projects.NAME]`\n",
            PROJECTS_NOTE,
            *_settings_table(ProjectConfig, "projects.x.", plain),
            "",
        ]
    )


def _settings_table(
    section: type[BaseModel], prefix: str, plain: Mapping[str, Any], *, env: bool = False
) -> Iterator[str]:
    meanings = _meanings(section)
    yield (
        "| key | default | env | meaning |\n|---|---|---|---|" if env else "| key | default | meaning |\n|---|---|---|"
    )
    for key, name in model.keys_of(section).items():
        default = plain[prefix + key]
        written = "none" if default is None else f"`{json.dumps(default)}`"
        yield "| " + " | ".join([f"`{key}`", written, *([f"`{twin([key])}`"] if env else []), meanings[name]]) + " |"


def _meanings(section: type[BaseModel]) -> dict[str, str]:
    """Field -> the docstring below it."""
    (found,) = (node for node in ast.parse(inspect.getsource(section)).body if isinstance(node, ast.ClassDef))
    pairs = zip(found.body, found.body[1:], strict=False)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


API_TABLE: Final = re.compile(r"(?<=<!-- make docs: )(?P<body>[A-Za-z]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)
NOUNS: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
}
RANGE_MOST: Final = 1_000_000
"""Larger limits are nothing to know beforehand."""


def api_page() -> str:
    """The page of the API with the tables between its marks written again."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    return API_TABLE.sub(lambda mark: "\n".join([f"{mark['body']} -->\n", *_fields_table(mark["body"]), "\n"]), text)


def _fields_table(body: str) -> Iterator[str]:
    shape: dict[str, Any] = getattr(wire, body).model_json_schema()
    defaults = {name: each["default"] for name, each in shape["properties"].items() if each.get("default") is not None}
    yield "| field | what it is | default | meaning |" if defaults else "| field | what it is | meaning |"
    yield "|---|---|---|---|" if defaults else "|---|---|---|"
    for name, field in shape["properties"].items():
        default = [f"`{json.dumps(defaults[name])}`" if name in defaults else ""] if defaults else []
        meaning = " ".join(field["description"].split())
        yield "| " + " | ".join([f"`{name}`", _said(name, field, shape["$defs"]), *default, meaning]) + " |"


def _said(name: str, field: Mapping[str, Any], shapes: Mapping[str, Any]) -> str:
    """What may be sent, in words: `list of texts or null`."""
    match field:
        case {"$ref": str(reference)}:
            return _said(name, shapes[reference.rpartition("/")[2]], shapes)
        case {"anyOf": [*most, last]}:
            return ", ".join(_said(name, each, shapes) for each in most) + " or " + _said(name, last, shapes)
        case {"enum": words}:
            return ", ".join(f"`{word}`" for word in words)
        case {"type": "array", "items": each}:
            return "list of reasons" if "$ref" in each else f"list of {_said(name, each, shapes)}s"
        case {"type": "object"}:
            return "see below" if "properties" in field else "texts by name"
        case {"format": "date-time"}:
            return "time"
        case {"type": "number"} if name.endswith("_s"):
            return "seconds"
        case {"type": kind, "minimum": least, "maximum": most} if most <= RANGE_MOST:
            return f"{NOUNS[kind]} from {least:,} to {most:,}"
        case {"type": kind}:
            return NOUNS[kind]
        case _:
            return "any JSON"


PAGES: Final = {"states.md": states_page, "configuration.md": configuration_page, "api.md": api_page}


def main() -> int:
    """Write the pages, or with --check compare them."""
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(f"docs/{name} is not current: say `make docs`")
    print("\n".join(stale), end="\n" if stale else "", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
