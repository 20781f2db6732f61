"""What is done to orders by their ids or by a filter: cancel, rerun, purge; and handing in many from a file."""

import json as text_json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from standby.cli.talk import (
    HERE,
    ID_LENGTH,
    OK,
    REFUSED,
    Server,
    ServerNeed,
    Unusable,
    Why,
    agreed,
    find,
    one_of,
    pair,
    print_json,
    say,
    text_of,
)
from standby.client.answers import Bulk, Verdict
from standby.client.blocking import Client
from standby.client.errors import ServerRefused
from standby.client.plans import NewOrder, Which
from standby.core.errors import StandbyError
from standby.core.model import OrderState

STATES: Final = tuple(OrderState)
BATCH_MOST: Final = 1_000
BATCH_BYTES: Final = 900_000
"""Below the request_max_kb that a server has unless it is set."""

Ids = Annotated[str, Parameter(help="Ids of the orders; else say which by a filter.")]
Flag = Parameter(negative=(), show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Only:
    """Which orders: all that is said must match."""

    state: Annotated[list[str] | None, Parameter(negative=())] = None
    """In this state (may be repeated): pending, preparing, running, stopping, waiting_retry, completed, failed,
    cancelled."""
    pool: str | None = None
    """Of this pool."""
    project: str | None = None
    """Of this project."""
    label: Annotated[list[str] | None, Parameter(negative=())] = None
    """With this label, name=value (may be repeated: all must match)."""
    id_prefix: str | None = None
    """Whose id begins so."""

    def which(self) -> Which:
        """The filter as it is sent."""
        labels = dict(pair(each, "--label") for each in self.label or [])
        states = [one_of(each, STATES, "--state", "state") for each in self.state or []]
        said = {"state": states, "pool": self.pool, "project": self.project, "id_prefix": self.id_prefix}
        which: Any = {name: value for name, value in {**said, "labels": labels}.items() if value}
        found: Which = which
        return found


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class How:
    """How many are meant, and whether that is sure."""

    dry_run: Annotated[bool, Flag] = False
    """Only say which orders are meant."""
    yes: Annotated[bool, Parameter(name=("--yes", "-y"), negative=(), show_default=False)] = False
    """Do not ask before a filter takes effect."""
    reason: Why = None


OnlyNeed = Annotated[Only | None, Parameter(name="*")]
HowNeed = Annotated[How | None, Parameter(name="*")]


def cancel(*ids: Ids, only: OnlyNeed = None, how: HowNeed = None, server: ServerNeed = HERE) -> int:
    """Ask for the end of orders: those named, or all unfinished ones that a filter matches. Safe to repeat."""
    reason = (how or How()).reason
    if len(ids) == 1 and not (only or (how and how.dry_run)):
        order = server.ask(lambda client: client.cancel(find(client, ids[0]), reason))
        had = "had ended already:" if order.state in ("completed", "failed") else "is"
        print_json(order) if server.json else say(f"order {order.id} {had} {order.state}")
        return OK
    return _act("cancel", ids, only, how, server)


def rerun(*ids: Ids, only: OnlyNeed = None, how: HowNeed = None, server: ServerNeed = HERE) -> int:
    """Repeat ended orders, each as a new order: those named, or all that a filter matches."""
    reason = (how or How()).reason
    if len(ids) == 1 and not (only or (how and how.dry_run)):
        order = server.ask(lambda client: client.rerun(find(client, ids[0]), reason))
        print_json(order) if server.json else print(order.id)
        say(f"order {order.rerun_of} is repeated as {order.id}")
        return OK
    return _act("rerun", ids, only, how, server)


def purge(*ids: Ids, only: OnlyNeed = None, how: HowNeed = None, server: ServerNeed = HERE) -> int:
    """Remove ended orders with their runs, logs and events, for ever: those named, or all that a filter matches."""
    if part := next((each for each in ids if len(each) < ID_LENGTH), None):
        raise Unusable(f"{part!r} is not a whole id; purge wants all {ID_LENGTH} characters: it is for ever")
    return _act("purge", ids, only, how, server)


def _act(verb: str, ids: Sequence[str], only: Only | None, how: How | None, server: Server) -> int:
    which, how = (only or Only()).which(), how or How()
    if ids and which:
        raise Unusable("name orders by their ids or by a filter, not both")
    if not ids and not which:
        raise Unusable("say which orders: their ids, or a filter (--state, --pool, --project, --label, --id-prefix)")
    sure = how.yes or how.dry_run or bool(ids)
    if not sure and not sys.stdin.isatty():
        raise Unusable("this may touch many orders: look with --dry-run first, then repeat with --yes")

    done: list[Bulk] = []
    named: list[str] = []

    def do(client: Client) -> bool:
        act: Callable[..., Bulk] = getattr(client, f"{verb}_many")
        # What cannot be taken back wants whole ids.
        named.extend(each if verb == "purge" else find(client, each) for each in ids)
        meant = {"ids": named} if named else which
        if not sure and not _agreed(verb, _all([], act, dry_run=True, **meant)):
            return False
        _all(done, act, dry_run=how.dry_run, reason=how.reason, **meant)
        return True

    try:
        agreed_to = server.ask(do)
    except (StandbyError, KeyboardInterrupt):
        if done:
            _told(verb, _whole(done), server, dry_run=how.dry_run)
        raise
    if not agreed_to:
        say("nothing was done")
        return OK
    code = _told(verb, _whole(done), server, dry_run=how.dry_run)
    # A cancel also leaves out what has ended: nothing is wrong with that.
    missing = set(named) - {each.id for page in done for each in page.orders} if verb != "cancel" else ()
    for each in sorted(missing):
        say(f"there is no order {each!r}; see: standby orders list")
    return REFUSED if missing else code


def _all(pages: list[Bulk], act: Callable[..., Bulk], **said: Any) -> list[Bulk]:
    """Add page by page, to the last order that matches; a person at a terminal sees the count grow."""
    pages.append(act(**said))
    while (cursor := pages[-1].next) is not None:
        if sys.stderr.isatty():
            print(f"{_whole(pages).matched} orders so far\r", end="", file=sys.stderr, flush=True)
        pages.append(act(cursor=cursor, **said))
    return pages


def _whole(pages: Sequence[Bulk]) -> Bulk:
    matched, done, refused = (sum(getattr(page, name) for page in pages) for name in ("matched", "done", "refused"))
    orders = tuple(each for page in pages for each in page.orders)
    last = pages[-1]
    return Bulk(matched=matched, done=done, refused=refused, more=last.more, next=last.next, orders=orders)


def _agreed(verb: str, found: Sequence[Bulk]) -> bool:
    """Whether the person at the terminal means it."""
    whole = _whole(found)
    if not (able := whole.matched - whole.refused):
        return True
    say(f"{able} orders match.")
    return agreed(f"{verb} them?")


def _told(verb: str, done: Bulk, server: Server, *, dry_run: bool) -> int:
    if server.json:
        print_json(done)
    else:
        for each in done.orders:
            print(each.id if each.became is None else f"{each.id} {each.became}")
    words = {"cancel": "asked to end", "rerun": "repeated", "purge": "removed"}[verb]
    refused = f", {done.refused} cannot be" if done.refused else ""
    more = "; there are more, which were not reached" if done.more else ""
    say(f"{done.matched} match, {'nothing was done' if dry_run else f'{done.done} {words}'}{refused}{more}")
    return REFUSED if done.refused and not done.done and not dry_run else OK


def submit(
    *,
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    together: Annotated[bool, Flag] = False,
    idempotency_key: str | None = None,
    server: ServerNeed = HERE,
) -> int:
    """Hand in many orders from a file with one JSON object a line, as the API takes them.

    Prints an id for each order that was taken in. Exit code 4 when any was refused.

    Parameters
    ----------
    file
        The file; - is stdin.
    together
        All or none (up to 1,000).
    idempotency_key
        The same key with the same file hands them in only once (kept for a day).
    """
    orders = _orders_of(file)
    batches = list(_batches(orders))
    if together and len(batches) > 1:
        raise Unusable(f"--together: at most {BATCH_MOST} orders and {BATCH_BYTES} bytes can be taken in together")

    def hand_in(client: Client) -> int:
        lost = first = 0
        for number, batch in enumerate(batches):
            key = idempotency_key if idempotency_key is None or len(batches) == 1 else f"{idempotency_key}-{number}"
            try:
                found = client.submit_many(batch, together=together, idempotency_key=key)
            except ServerRefused as refused:
                for error in refused.problem.get("errors", []):
                    if index := re.fullmatch(r"orders\.([0-9]+)", str(error.get("field"))):
                        say(f"line {orders[first + int(index[1])][0]}: {error.get('message')}")
                raise
            for verdict in found.verdicts:
                _told_verdict(verdict, orders[first + verdict.index][0], server)
            first, lost = first + len(batch), lost + found.refused
        say(f"{len(orders) - lost} of {len(orders)} orders taken in")
        return REFUSED if lost else OK

    return server.ask(hand_in)


def _told_verdict(verdict: Verdict, line: int, server: Server) -> None:
    if server.json:
        print_json({"line": line, **{name: getattr(verdict, name) for name in ("answer", "order", "problem")}})
    elif verdict.order is not None:
        print(verdict.order.id)
    if verdict.problem is not None:
        say(f"line {line}: {verdict.problem.get('detail')}; {verdict.problem.get('what_to_do')}")
    elif verdict.order is not None and verdict.answer == "deduplicated":
        say(f"line {line}: order {verdict.order.id} is there already ({verdict.order.state})")


def _orders_of(file: str) -> list[tuple[int, NewOrder, int]]:
    """Line number, order and size of each line that is not empty; all are read before any is sent."""
    text = text_of(file, "--file")
    found: list[tuple[int, NewOrder, int]] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            order = text_json.loads(line) if line.strip() else None
        except text_json.JSONDecodeError as error:
            raise Unusable(f"{file}:{number}: not JSON: {error.msg} (column {error.colno})") from None
        except ValueError as error:
            raise Unusable(f"{file}:{number}: not JSON: {error}") from None
        if isinstance(order, dict):
            new: Any = order
            found.append((number, new, len(line.encode())))
        elif line.strip():
            raise Unusable(f"{file}:{number}: write one JSON object a line")
    if not found:
        raise Unusable(f"--file: there is no order in {file}")
    return found


def _batches(orders: Sequence[tuple[int, NewOrder, int]]) -> Iterator[list[NewOrder]]:
    batch: list[NewOrder] = []
    size = 0
    for _, order, length in orders:
        if batch and (len(batch) == BATCH_MOST or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(order)
        size += length + 2
    yield batch
