"""`standby orders ...`: list, show, logs, cancel, wait."""

from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from standby.cli.follow import print_record, print_run, stay
from standby.cli.submit import end_of
from standby.cli.talk import OK, OrderId, Server, ServerNeed, Why, ago, print_facts, print_json, print_table, say, what
from standby.client import Client, View

PAGE_LINES: Final = 10_000

app = App(name="orders", help="List, show, follow, cancel work orders.")


@app.command(name="list")
def list_orders(
    *,
    state: str | None = None,
    pool: str | None = None,
    project: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    server: ServerNeed = None,
) -> int:
    """Newest first.

    Parameters
    ----------
    state
        Only those in this state: pending, preparing, running, stopping, waiting_retry, completed, failed, cancelled.
    pool
        Only those of this pool.
    project
        Only those of this project.
    limit
        How many at most, up to 200.
    cursor
        Go on where an earlier list ended: what it said at its end.
    """
    asked = server or Server()
    page = asked.ask(lambda client: client.orders(state=state, pool=pool, project=project, limit=limit, cursor=cursor))
    if asked.json:
        print_json(page)
        return OK
    columns = {
        "ID": lambda order: order["id"],
        "STATE": lambda order: order["state"],
        "POOL": lambda order: order["pool"],
        "PROJECT": lambda order: order["project"],
        "SINCE": lambda order: ago(order["state_since"]),
        "WHAT": what,
        "NOTE": _note,
    }
    print_table(page["orders"], columns)
    if page["next"]:
        say(f"there are more: --cursor {page['next']}")
    return OK


def _note(order: View) -> str | None:
    if order["gate"]:
        return str(order["gate"]["text"])
    code = None if order["exit_code"] is None else f"exit {order['exit_code']}"
    if order["reason"] in (None, "exit"):
        return code if order["exit_code"] else None
    return ", ".join(part for part in (order["reason"], code) if part)


@app.command
def show(order_id: OrderId, /, *, server: ServerNeed = None) -> int:
    """One order: why it waits, its runs, what happened."""
    asked = server or Server()

    async def read(client: Client) -> tuple[View, list[View], list[View]]:
        return await client.order(order_id), await client.runs(order_id), await client.events(order_id)

    order, runs, events = asked.ask(read)
    if asked.json:
        print_json({**order, "runs": runs, "events": events})
        return OK
    print_facts(_facts(order))
    for run in runs:
        print(_run_line(run))
    for event in events:
        why = _said(event)
        print(f"{event['at']}  {event['kind']}  by {event['actor']}{f': {why}' if why else ''}")
    return OK


def _run_line(run: View) -> str:
    code = None if run["exit_code"] is None else f"exit code {run['exit_code']}"
    parts = ", ".join(part for part in (run["reason"], code) if part)
    how = (f" ({parts})" if parts else "") + (f": {run['error']}" if run["error"] else "")
    return f"run {run['number']}: {run['state']} in {run['slot']}{how}"


def _said(event: View) -> str | None:
    """Why it happened, as far as the event says: the person's own words, or the reason."""
    note, ended = event["data"].get("note", {}), event["data"].get("run") or event["data"].get("order", {})
    reason = note.get("reason") or ended.get("reason")
    parts = [part for part in (reason, ended.get("error"), note.get("said")) if part and part != event["to"]]
    return ": ".join(parts) or None


def _facts(order: View) -> dict[str, Any]:
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
    return {
        **{name: order[name] for name in names},
        "waits for": order["gate"]["text"] if order["gate"] else None,
        "what": what(order, 2_000),
        "env": ", ".join(order["env_names"]) or None,
        "labels": ", ".join(f"{name}={value}" for name, value in order["labels"].items()) or None,
        **{name: order[name] for name in times},
    }


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

    async def read(client: Client) -> None:
        if follow and run is None and from_line == 0:
            await stay(client, order_id, follow=True, as_json=asked.json)
        elif follow:
            number = run or max(1, (await client.order(order_id))["attempt"])
            await print_run(client, order_id, number, from_line, as_json=asked.json)
        else:
            await _pages(client, order_id, run, from_line, as_json=asked.json)

    asked.ask(read)
    return OK


async def _pages(client: Client, order_id: str, run: int | None, line: int, *, as_json: bool) -> None:
    while True:
        page = await client.logs(order_id, **{"run": run, "from": line, "limit": PAGE_LINES})
        if page["dropped"]:
            print_record({"dropped": page["dropped"]}, as_json=as_json)
        for record in page["lines"]:
            print_record(record, as_json=as_json)
        if not page["lines"]:
            return
        line = page["next"]


@app.command
def cancel(order_id: OrderId, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """Ask for its end. Safe to repeat."""
    asked = server or Server()
    order = asked.ask(lambda client: client.cancel(order_id, reason))
    print_json(order) if asked.json else say(f"order {order_id} is {order['state']}")
    return OK


@app.command
def wait(order_id: OrderId, /, *, server: ServerNeed = None) -> int:
    """Stay until it has ended; the exit code is the order's."""
    asked = server or Server()
    return asked.ask(lambda client: end_of(client, order_id, follow=False, as_json=asked.json))
