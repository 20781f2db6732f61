"""`standby events`: what happened, and what happens."""

from typing import Annotated

from cyclopts import Parameter

from standby.cli.orders import event_line
from standby.cli.talk import HERE, OK, ServerNeed, one_of, print_json, say
from standby.client.blocking import Client
from standby.client.errors import ServerUnreachable
from standby.core.model import EventKind


def events(
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=(), show_default=False)] = False,
    kind: Annotated[list[str] | None, Parameter(negative=())] = None,
    subject: str | None = None,
    after: str | None = None,
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
    """
    kinds = [one_of(each, tuple(EventKind), "--kind", "kind") for each in kind or []]
    last = ""

    def read(client: Client) -> None:
        nonlocal last
        for event in client.events(follow=follow, after=after, kind=kinds, subject=subject):
            print_json(event) if server.json else print(event_line(event), flush=follow)
            last = event.cursor

    try:
        server.ask(read)
    except (KeyboardInterrupt, ServerUnreachable):
        _go_on(last)
        raise
    _go_on(last)
    return OK


def _go_on(last: str) -> None:
    if last:
        say(f"go on with: --after {last}")
