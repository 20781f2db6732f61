"""`standby orders ...`: list, show, why, logs, wait; what is done to many at once is in `bulk`."""

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from standby.cli import bulk
from standby.cli.follow import print_record, print_run, stay
from standby.cli.submit import end_of
from standby.cli.table import print_facts, print_table
from standby.cli.talk import OK, OrderId, Server, ServerNeed, ago, length, print_json, say, shown, what
from standby.client import Client
from standby.client.answers import Event, Order, Run

app = App(name="orders", help="List, show, follow, cancel, repeat, remove work orders.")
app.command(bulk.cancel)
app.command(bulk.rerun)
app.command(bulk.purge)
app.command(bulk.submit)


@app.command(name="list")
def list_orders(
    *,
    only: Annotated[bulk.Only | None, Parameter(name="*")] = None,
    limit: int = 50,
    cursor: str | None = None,
    server: ServerNeed = None,
) -> int:
    """Newest first.

    Parameters
    ----------
    limit
        How many at most, up to 200.
    cursor
        Go on where an earlier list ended: what it said at its end.
    """
    asked, which = server or Server(), (only or bulk.Only()).which()
    page = asked.ask(lambda client: client.orders_page(limit=limit, cursor=cursor, **which))
    if asked.json:
        print_json(page)
        return OK
    columns = {
        "ID": lambda order: order.id,
        "STATE": lambda order: order.state,
        "POOL": lambda order: order.pool,
        "PROJECT": lambda order: order.project,
        "SINCE": lambda order: ago(order.state_since),
        "WHAT": what,
        "NOTE": _note,
    }
    print_table(page.orders, columns)
    if page.next:
        say(f"there are more: --cursor {page.next}")
    return OK


def _note(order: Order) -> str | None:
    if order.gate:
        return order.gate.text
    code = None if order.exit_code is None else f"exit {order.exit_code}"
    if order.reason in (None, "exit"):
        return code if order.exit_code else None
    return ", ".join(part for part in (order.reason, code) if part)


@app.command
def show(order_id: OrderId, /, *, server: ServerNeed = None) -> int:
    """One order: why it waits, its runs, what happened."""
    asked = server or Server()

    def read(client: Client) -> tuple[Order, tuple[Run, ...], tuple[Event, ...]]:
        return client.order(order_id), client.runs(order_id), client.order_events(order_id)

    order, runs, events = asked.ask(read)
    if asked.json:
        print_json({**msgspec.to_builtins(order), "runs": runs, "events": events})
        return OK
    print_facts(_facts(order))
    for run in runs:
        print(_run_line(run))
    for event in events:
        print(event_line(event, subject=False))
    return OK


def _run_line(run: Run) -> str:
    code = None if run.exit_code is None else f"exit code {run.exit_code}"
    parts = ", ".join(part for part in (run.reason, code) if part)
    how = (f" ({parts})" if parts else "") + (f": {run.error}" if run.error else "")
    return f"run {run.number}: {run.state} in {run.slot}{how}"


def event_line(event: Event, *, subject: bool = True) -> str:
    """An event on one line: when, what, by whom, and why as far as it says: a person's own words, or the reason."""
    note, ended = event.data.get("note", {}), event.data.get("run") or event.data.get("order") or {}
    reason = note.get("reason") or ended.get("reason")
    said = [str(part) for part in (reason, ended.get("error"), note.get("said")) if part and part != event.to_state]
    about = f"  {event.subject}" if subject else ""
    return f"{shown(event.at)}  {event.kind}{about}  by {event.actor}{': ' if said else ''}{': '.join(said)}"


def _facts(order: Order) -> dict[str, Any]:
    names = [
        "id",
        "state",
        "queue_position",
        "pool",
        "project",
        "attempt",
        "retries_left",
        "reason",
        "exit_code",
        "slot",
    ]
    times = ["submitted_at", "due_at", "commanded_at", "ready_at", "deadline", "ended_at"]
    wait = order.estimated_wait_ms
    return {
        **{name: getattr(order, name) for name in names},
        "slot": order.slot,
        "waits for": order.gate.text if order.gate else None,
        "may wait": None if wait is None else length(wait / 1000),
        "what": what(order, 2_000),
        "env": ", ".join(order.env_names) or None,
        "labels": ", ".join(f"{name}={value}" for name, value in order.labels.items()) or None,
        "rerun_of": order.rerun_of,
        **{name: shown(getattr(order, name)) for name in times},
    }


@app.command
def why(order_id: OrderId, /, *, server: ServerNeed = None) -> int:
    """Why it waits, its place in the queue, and what happens next."""
    asked = server or Server()
    found = asked.ask(lambda client: client.why(order_id))
    if asked.json:
        print_json(found)
        return OK
    wait = found.estimated_wait_ms
    print_facts(
        {
            "id": found.id,
            "state": found.state,
            "waits for": None if found.gate is None else found.gate.text,
            "gate": None if found.gate is None else found.gate.name,
            "waiting": None if found.waiting_since is None else f"for {ago(found.waiting_since)}",
            "position": found.position,
            "may wait": None if wait is None else length(wait / 1000),
            "next": found.next,
        }
    )
    return OK


@app.command
def logs(
    order_id: OrderId,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=(), show_default=False)] = False,
    run: int | None = None,
    from_line: Annotated[int, Parameter(name="--from")] = 0,
    server: ServerNeed = None,
) -> int:
    """Its output: of the last run, or of the one named; with -f all runs until the order has ended.

    Parameters
    ----------
    follow
        Stay, and print what comes.
    run
        Number of the run, from 1 on; the last one unless said (with -f: all).
    from_line
        Number of the first line, from 0 on.
    """
    asked = server or Server()

    def read(client: Client) -> None:
        if follow and run is None and from_line == 0:
            stay(client, order_id, follow=True, as_json=asked.json)
        elif follow:
            number = run or max(1, client.order(order_id).attempt)
            print_run(client, order_id, number, from_line, as_json=asked.json)
        else:
            for line in client.logs(order_id, run=run, start=from_line):
                print_record(line, as_json=asked.json)

    asked.ask(read)
    return OK


@app.command
def wait(order_id: OrderId, /, *, server: ServerNeed = None) -> int:
    """Stay until it has ended; the exit code is the order's."""
    asked = server or Server()
    return asked.ask(lambda client: end_of(client, order_id, follow=False, as_json=asked.json))
