"""Tables and facts for people: as wide as the terminal, ids whole, cells text and never markup."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from standby.cli.talk import tame

PIPE_WIDTH: Final = 4_000
SHRINKING: Final = frozenset({"WHAT", "NOTE", "ERROR", "VALUE", "WHERE"})
"""Columns that give way where a line is short; left out where they are empty."""
SHRUNK_LEAST: Final = 18
"""What is cut shorter cannot be read: it goes below its row."""
STYLES: Final = {
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "pending": "yellow",
    "waiting_retry": "yellow",
    "error": "red",
    "paused": "yellow",
    "draining": "yellow",
    "ok": "green",
    "warn": "yellow",
    "bad": "red",
}


def print_table(
    rows: Sequence[Any], columns: Mapping[str, Callable[[Any], Any]], usual: Mapping[str, str] | None = None
) -> None:
    """A line a row. Where the line is short, what describes gives way, then the last columns go below their row; before
    that go the columns in which every row says no more than what is usual."""
    console = _console()
    table = [{name: _cell(cell(row)) for name, cell in columns.items()} for row in rows]
    names = [name for name in columns if name not in SHRINKING or any(line[name].plain for line in table)]
    natural = {name: max(cell_len(name), *(line[name].cell_len for line in table), 0) for name in names}
    widths = _widths(natural, console.width)
    if usual and len(widths) < len(natural):
        told = {name: {line[name].plain for line in table} for name in names}
        natural = {name: size for name, size in natural.items() if told[name] != {usual.get(name)}}
        widths = _widths(natural, console.width)
    _print_line(console, [(Text(name, style="dim"), widths[name]) for name in widths])
    for line in table:
        _print_line(console, [(line[name], widths[name]) for name in widths])
        _print_below(console, {name: line[name] for name in natural if name not in widths and line[name].plain})


class Listing:
    """A table whose rows are printed as they come, in columns of at least these widths. Nothing is cut: what has no
    place in its line is wrapped below it."""

    def __init__(self, columns: Mapping[str, Callable[[Any], Any]], least: Mapping[str, int]) -> None:
        self._columns, self._least, self._console = columns, least, _console()
        self._begun = False

    def print(self, row: Any) -> None:
        """One more row, after the names of the columns if it is the first."""
        console, least = self._console, self._least
        if not self._begun:
            head = _widths({name: max(cell_len(name), least.get(name, 0)) for name in self._columns}, console.width)
            _print_line(console, [(Text(name, style="dim"), head[name]) for name in head])
            self._begun = True
        line = {name: _cell(cell(row)) for name, cell in self._columns.items()}
        natural = {name: max(cell.cell_len, least.get(name, 0)) for name, cell in line.items()}
        widths = _widths(natural, console.width, shrunk_least=console.width)
        _print_line(console, [(line[name], widths[name]) for name in widths])
        _print_below(console, {name: line[name] for name in natural if name not in widths and line[name].plain}, True)


def _widths(natural: Mapping[str, int], width: int, shrunk_least: int = SHRUNK_LEAST) -> dict[str, int]:
    """How wide each column is; those that shrink share what the others leave. Who has no place is not in it."""
    fixed = {name: size for name, size in natural.items() if name not in SHRINKING}
    if sum(size + 1 for size in fixed.values()) - 1 > width:
        kept = dict(fixed)
        while len(kept) > 1 and sum(size + 1 for size in kept.values()) - 1 > width:
            kept.popitem()
        return kept
    widths = dict(natural)
    shrinking = sorted((name for name in natural if name in SHRINKING), key=lambda name: natural[name])
    left = width - sum(size + 1 for size in fixed.values())
    for number, name in enumerate(shrinking):
        share = (left - (len(shrinking) - number - 1)) // (len(shrinking) - number)
        widths[name] = min(natural[name], share)
        left -= widths[name] + 1
    return fixed if any(widths[name] < min(natural[name], shrunk_least) for name in shrinking) else widths


def _print_line(console: Console, cells: Sequence[tuple[Text, int]]) -> None:
    for cell, width in cells:
        cell.truncate(width, overflow="ellipsis", pad=True)
    line = Text(" ").join(cell for cell, _ in cells)
    line.rstrip()
    console.print(line, soft_wrap=True)


def _print_below(console: Console, cells: Mapping[str, Text], whole: bool = False) -> None:
    """What has no place in the line: short facts side by side, what describes on its own, cut or wrapped."""
    facts = [Text.assemble((f"{name.lower()} ", "dim"), cell) for name, cell in cells.items() if name not in SHRINKING]
    for text in [*([Text(", ").join(facts)] if facts else []), *(cells[name] for name in cells if name in SHRINKING)]:
        for line in _wrapped(console, text, console.width - 2) if whole else [text]:
            _print_line(console, [(Text("  ") + line, console.width)])


def print_facts(facts: Mapping[str, Any]) -> None:
    """Names and values, one a line; what is null is left out."""
    shown = [(name, tame(str(value))) for name, value in facts.items() if value is not None]
    print_rows([(Text(name, style="dim"), Text(value, style=STYLES.get(value, ""))) for name, value in shown])


def print_rows(rows: Sequence[tuple[Text | str, Text | str]]) -> None:
    """A narrow column and a wide one whose texts are wrapped, never cut."""
    console = _console()
    pairs = [(_styled(name), _styled(text)) for name, text in rows]
    narrow = max((name.cell_len for name, _ in pairs), default=0)
    wide = max(console.width - narrow - 2, SHRUNK_LEAST)
    for name, text in pairs:
        for number, line in enumerate(_wrapped(console, text, wide)):
            _print_line(console, [(name if number == 0 else Text(), narrow + 1), (line, wide)])


def _wrapped(console: Console, text: Text, width: int) -> Sequence[Text]:
    lines = list(text.wrap(console, width))
    for line in lines:
        line.rstrip()
    return lines


def _styled(text: Text | str) -> Text:
    return Text(text, style=STYLES.get(text.strip(), "")) if isinstance(text, str) else text


def _console() -> Console:
    """As wide as the terminal; what is not one gets whole lines."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def _cell(value: Any) -> Text:
    text = "" if value is None else tame(" ".join(str(value).splitlines()))
    return Text(text, style=STYLES.get(text, ""))
