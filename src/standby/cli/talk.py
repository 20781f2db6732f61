"""How commands talk: data on stdout, words on stderr, the server found and asked."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from cyclopts import Parameter

from standby.client.answers import Order
from standby.client.errors import ServerRefused
from standby.core.errors import StandbyError

if TYPE_CHECKING:
    from standby.client.blocking import Client

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
INTERRUPTED: Final = 130

ID_LENGTH: Final = 26

UNSEEN: Final = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}") | {9: " ", 10: "\n"}
"""What a terminal would obey and not show."""

T = TypeVar("T")


class Unusable(StandbyError):
    """An option that cannot be used; the text says why."""


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

    def ask(self, question: Callable[["Client"], T]) -> T:
        """Run one conversation with the server."""
        from standby.client.address import OPTION
        from standby.client.blocking import Client  # a server itself never needs one

        with Client(self.url, self.key, said=OPTION) as client:
            return question(client)

    def show(self, data: Any, print_it: Callable[[], None]) -> int:
        """An answer, as JSON or for people."""
        print_json(data) if self.json else print_it()
        return OK

    def tell(self, data: Any, words: str) -> int:
        """What was done, as JSON or in words."""
        return self.show(data, lambda: say(words))

    def set_mode(self, what: str, question: Callable[["Client"], Any]) -> int:
        """Pause, resume or drain something."""
        row = self.ask(question)
        return self.tell(row, f"{what} is {row.mode}")


HERE: Final = Server()
"""Nothing is said of it: it is found."""
ServerNeed = Annotated[Server, Parameter(name="*")]
OrderId = Annotated[str, Parameter(help="Id of the order, or as much of its beginning as no other has.")]
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


def tame(text: str) -> str:
    """A text that anybody may have written, without what a terminal obeys."""
    return text.translate(UNSEEN)


def say(text: str) -> None:
    """Words for the person, not for a pipe."""
    print(tame(text), file=sys.stderr, flush=True)


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_json(data: Any) -> None:
    """One JSON document on a line of stdout."""
    sys.stdout.write(json.dumps(msgspec.to_builtins(data), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def pair(text: str, option: str) -> tuple[str, str]:
    """name=value in two."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Unusable(f"{option}: write name=value")
    return name, value


def text_of(path: str, option: str) -> str:
    """What a file holds, or stdin for -."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{option}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Unusable(f"{option}: {path} is not text in UTF-8 (at byte {error.start})") from None


def one_of(word: str, known: Sequence[str], option: str, noun: str) -> str:
    """The word, when it is one of those there are."""
    if word in known:
        return word
    near = get_close_matches(word, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"write one of: {', '.join(known)}"
    raise Unusable(f"{option}: there is no {noun} {word!r}; {hint}")


def ago(time: datetime | None) -> str:
    """How long ago a time was, for people."""
    return "" if time is None else length(int((datetime.now(UTC) - time).total_seconds()))


def length(seconds: float, units: int = 1) -> str:
    """A length of time in its largest unit, or the largest ones, for people."""
    if 0.001 <= seconds < 1:
        return f"{int(seconds * 1000)} ms"
    words, left = [], max(0, int(seconds))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if left >= size:
            words.append(f"{left // size} {unit}")
            left %= size
    return " ".join(words[:units]) or "0 s"


def shown(time: datetime | None) -> str | None:
    """A time as the API writes it."""
    if time is None:
        return None
    return time.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def what(order: Order, most: int = 60) -> str:
    """What an order runs, on one line."""
    return cut(" ".join(order.command or (order.script or "").split("\n")), most)


def cut(text: str, most: int) -> str:
    """As much of a text as there is room for."""
    return text if len(text) <= most else text[: most - 1] + "…"


def find(client: "Client", text: str) -> str:
    """The id of the one order that is meant by an id, or by its beginning."""
    if len(text) >= ID_LENGTH:
        return text
    found = [order.id for order in client.orders(id_prefix=text.lower(), limit=2)] if text else []
    if not found:
        raise ServerRefused(404, {"code": "no_such_work_order", "detail": f"there is no order {text!r}"})
    if len(found) > 1:
        raise ServerRefused(409, {"detail": f"more than one order begins with {text!r}; write more of its id"})
    return found[0]


def order_code(order: Order) -> int:
    """The exit code that stands for an ended order: its own, or 1 when it did not end well without one."""
    if order.state == "completed":
        return order.exit_code or OK
    return order.exit_code if order.exit_code is not None and 0 < order.exit_code < 256 else FAILED
