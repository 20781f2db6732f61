"""How commands talk: data on stdout, words on stderr, the server found and asked, tables for people."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from standby.client import Client, find_address

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
INTERRUPTED: Final = 130
PIPE_WIDTH: Final = 4_000

T = TypeVar("T")
STYLES: Final = {
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "pending": "yellow",
    "waiting_retry": "yellow",
    "error": "red",
    "paused": "yellow",
    "draining": "yellow",
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Server:
    """Which server, and how to print."""

    url: Annotated[str | None, Parameter(env_var="STANDBY_URL")] = None
    """Address of the server (else the one of the nearest .standby directory)."""
    key: Annotated[str | None, Parameter(env_var="STANDBY_KEY", show_default=False)] = None
    """API key (else admin.key of the nearest .standby directory)."""
    json: bool = False
    """Print JSON."""

    def ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Run one conversation with the server."""
        address = find_address(self.url, self.key)

        async def talk() -> T:
            async with Client(address) as client:
                return await question(client)

        return asyncio.run(talk())


ServerNeed = Annotated[Server | None, Parameter(name="*")]


def say(text: str) -> None:
    """Words for the person, not for a pipe."""
    print(text, file=sys.stderr, flush=True)


def print_json(data: Any) -> None:
    """One JSON document on a line of stdout."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], Any]]) -> None:
    """A table of cells computed from each row; cells are text, never markup."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(columns):
        table.add_column(name, no_wrap=number == 0)
    for row in rows:
        table.add_row(*(_cell(cell(row)) for cell in columns.values()))
    _console().print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Names and values, one a line; what is null is left out."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value is not None:
            table.add_row(Text(name, style="dim"), _cell(value))
    _console().print(table)


def _console() -> Console:
    """As wide as the terminal; what is not one gets whole lines."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def _cell(value: Any) -> Text:
    text = "" if value is None else str(value)
    return Text(text, style=STYLES.get(text, ""))


def ago(time: str | None) -> str:
    """How long ago a time of the API was, for people."""
    if time is None:
        return ""
    seconds = max(0, int((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def what(order: Mapping[str, Any], most: int = 60) -> str:
    """What an order runs, on one line."""
    text = " ".join(order["command"] or (order["script"] or "").split("\n"))
    return text if len(text) <= most else text[: most - 1] + "…"


def order_code(order: Mapping[str, Any]) -> int:
    """The exit code that stands for an ended order: its own, or 1 when it did not end well without one."""
    code = order["exit_code"]
    if order["state"] == "completed":
        return int(code or OK)
    return code if isinstance(code, int) and 0 < code < 256 else FAILED
