"""`standby events`: what happened, and what happens."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from standby.cli.table import Listing
from standby.cli.talk import HERE, OK, ServerNeed, one_of, print_json, say, shown
from standby.client.answers import Event
from standby.client.blocking import Client
from standby.client.errors import ServerUnreachable
from standby.core.model import EventKind

LEADER: Final = "leader:"
WIDTHS: Final = {"AT": 24, "KIND": max(map(len, EventKind)), "SUBJECT": 26, "BY": 6}
"""Those of most events: while they come, nobody knows the widest one."""


def events(
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=(), show_default=False)] = False,
    kind: Annotated[list[str] | None, Parameter(negative=())] = None,
    subject: str | None = None,
    after: str | None = None,
    limit: Annotated[int | None, Parameter(validator=Number(gte=1, lte=1_000))] = None,
    server: ServerNeed = HERE,
) -> int:
    """What happened, oldest first; with -f what happens from now on.

    Parameters
    ----------
    follow
        Stay, and print what comes; with --after also what came since then.
    kind
        Only this kind, like order.failed (may be repeated).
    subject
        Only about this order, slot, pool, host or project.
    after
        Go on after this place: what an earlier call said at its end. 0 is the oldest that is kept.
    limit
        Only the newest, so many at most; with -f before what comes.
    """
    kinds = [one_of(each, tuple(EventKind), "--kind", "kind") for each in kind or []]
    last, table = "", event_table()
    none = "no events of this kind or subject" if kinds or subject else "no events"

    def read(client: Client) -> None:
        nonlocal last
        for event in client.events(follow=follow, after=after, kind=kinds, subject=subject, newest=limit):
            print_json(event) if server.json else table.print(event)
            last = event.cursor

    try:
        server.ask(read)
    except (KeyboardInterrupt, ServerUnreachable):
        _go_on(last)
        raise
    _go_on(last) if last or server.json else say(none)
    return OK


def _go_on(last: str) -> None:
    if last:
        say(f"go on with: --after {last}")


def event_table(*, subject: bool = True) -> Listing:
    """Events, each on a line as far as it goes: when, what, of whom unless all are of one, by whom, and why."""
    columns: Mapping[str, Callable[[Event], Any]] = {
        "AT": lambda event: shown(event.at),
        "KIND": lambda event: event.kind,
        "SUBJECT": lambda event: event.subject,
        "BY": lambda event: LEADER.rstrip(":") if event.actor.startswith(LEADER) else event.actor,
        "NOTE": _note,
    }
    return Listing({name: cell for name, cell in columns.items() if subject or name != "SUBJECT"}, WIDTHS)


def _note(event: Event) -> str:
    """Why, as far as the event says: a person's own words, or the reason with the exit code and the error."""
    note, ended = event.data.get("note", {}), event.data.get("run") or event.data.get("order") or {}
    reason = note.get("reason") or end_words(ended.get("reason"), ended.get("exit_code"))
    led = event.actor.removeprefix(LEADER) if event.kind == EventKind.HOST_LED else None
    said = [str(part) for part in (reason, ended.get("error"), note.get("said"), led) if part]
    return ": ".join(part for part in said if part != event.to_state)


def end_words(reason: str | None, exit_code: int | None) -> str | None:
    """How a run ended, in as few words as there can be: exit 3, or the reason; nothing when all went well."""
    code = f"exit {exit_code}" if exit_code else None
    return code or reason if reason in (None, "exit") else ", ".join(part for part in (reason, code) if part)
