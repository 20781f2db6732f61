"""How commands talk: data on stdout, words on stderr, the server found and asked, tables for people."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from cyclopts import Parameter
from rich.cells import cell_len
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
SHRINKING: Final = frozenset({"WHAT", "NOTE", "ERROR"})
"""Columns that give way where a line is short; left out where they are empty."""
SHRUNK_LEAST: Final = 6

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

    url: Annotated[str | None, Parameter(env_var="STANDBY_URL", show_default=False)] = None
    """Address of the server (else the one of the nearest .standby directory)."""
    key: Annotated[str | None, Parameter(env_var="STANDBY_KEY", show_default=False)] = None
    """API key (else admin.key of the nearest .standby directory)."""
    json: Annotated[bool, Parameter(negative=(), show_default=False)] = False
    """Print JSON on stdout, for programs."""

    def ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Run one conversation with the server."""
        address = find_address(self.url, self.key)

        async def talk() -> T:
            async with Client(address) as client:
                return await question(client)

        return asyncio.run(talk())


ServerNeed = Annotated[Server | None, Parameter(name="*")]
OrderId = Annotated[str, Parameter(help="Id of the order.")]
Why = Annotated[str | None, Parameter(help="Why; it is kept with the event.")]
Json = Annotated[bool, Parameter(negative=(), show_default=False, help="Print JSON on stdout, for programs.")]


@contextmanager
def private_files() -> Iterator[None]:
    """Files that are made meanwhile are for nobody else's eyes. (The keeper sets its own mask for the work.)"""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def say(text: str) -> None:
    """Words for the person, not for a pipe."""
    print(text, file=sys.stderr, flush=True)


def print_json(data: Any) -> None:
    """One JSON document on a line of stdout."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], Any]]) -> None:
    """A line a row; only what describes gives way where the line is short. Cells are text, never markup."""
    console = _console()
    table = [{name: _cell(cell(row)) for name, cell in columns.items()} for row in rows]
    names = [name for name in columns if name not in SHRINKING or any(line[name].plain for line in table)]
    natural = {name: max(cell_len(name), *(line[name].cell_len for line in table), 0) for name in names}
    widths = _widths(natural, console.width)
    for line in [{name: Text(name, style="dim") for name in names}, *table]:
        _print_line(console, [(line[name], widths[name]) for name in widths])
        for name in names:
            if name not in widths and line[name].plain and line[name].plain != name:
                _print_line(console, [(Text("  ") + line[name], console.width)])


def _widths(natural: Mapping[str, int], width: int) -> dict[str, int]:
    """How wide each column is; those that shrink share what the others leave, or have no place in the line at all."""
    widths = dict(natural)
    shrinking = sorted((name for name in natural if name in SHRINKING), key=lambda name: natural[name])
    left = width - sum(natural[name] + 1 for name in natural if name not in SHRINKING)
    for number, name in enumerate(shrinking):
        share = (left - (len(shrinking) - number - 1)) // (len(shrinking) - number)
        widths[name] = min(natural[name], share)
        left -= widths[name] + 1
    if any(widths[name] < min(natural[name], SHRUNK_LEAST) for name in shrinking):
        return {name: natural[name] for name in natural if name not in SHRINKING}
    return widths


def _print_line(console: Console, cells: Sequence[tuple[Text, int]]) -> None:
    for cell, width in cells:
        cell.truncate(width, overflow="ellipsis", pad=True)
    line = Text(" ").join(cell for cell, _ in cells)
    line.rstrip()
    console.print(line, soft_wrap=True)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Names and values, one a line; what is null is left out."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value is not None:
            table.add_row(Text(name, style="dim"), Text(str(value), style=STYLES.get(str(value), "")))
    _console().print(table)


def _console() -> Console:
    """As wide as the terminal; what is not one gets whole lines."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def _cell(value: Any) -> Text:
    text = "" if value is None else " ".join(str(value).splitlines())
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
