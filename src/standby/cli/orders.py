"""`standby orders ...`: list, show, logs, cancel, wait."""

from typing import Annotated, Any

from cyclopts import App, Parameter

from standby.cli.follow import print_record
from standby.cli.submit import stay_with
from standby.cli.talk import INTERRUPTED, OK, Server, ServerNeed, ago, print_facts, print_json, print_table, say, what
from standby.client import Client, View

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
    """Newest first."""
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
    return None if order["reason"] is None else f"{order['reason']}"


@app.command
def show(order_id: str, /, *, server: ServerNeed = None) -> int:
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
        code = "" if run["exit_code"] is None else f" exit code {run['exit_code']}"
        why = "".join(f" {run[name]}" for name in ("reason", "error") if run[name])
        print(f"run {run['number']}: {run['state']} in {run['slot']}{code}{why}")
    for event in events:
        print(f"{event['at']}  {event['kind']}  by {event['actor']}")
    return OK


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
    order_id: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=())] = False,
    run: int | None = None,
    from_line: Annotated[int, Parameter(name="--from")] = 0,
    server: ServerNeed = None,
) -> int:
    """Its output: of the last run, or of the one named; with -f until it is closed."""
    asked = server or Server()

    async def read(client: Client) -> None:
        if follow and run is None and from_line == 0:
            async for record in client.follow_order(order_id):
                print_record(record, as_json=asked.json)
        elif follow:
            number = run or max(1, (await client.order(order_id))["attempt"])
            async for record in client.follow(order_id, number, from_line):
                print_record(record, as_json=asked.json)
        else:
            await _pages(client, order_id, run, from_line, as_json=asked.json)

    try:
        asked.ask(read)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


async def _pages(client: Client, order_id: str, run: int | None, line: int, *, as_json: bool) -> None:
    while True:
        page = await client.logs(order_id, **{"run": run, "from": line})
        if page["dropped"]:
            print_record({"dropped": page["dropped"]}, as_json=as_json)
        for record in page["lines"]:
            print_record(record, as_json=as_json)
        if not page["lines"]:
            return
        line = page["next"]


@app.command
def cancel(order_id: str, /, *, reason: str | None = None, server: ServerNeed = None) -> int:
    """Ask for its end. Safe to repeat."""
    asked = server or Server()
    order = asked.ask(lambda client: client.cancel(order_id, reason))
    print_json(order) if asked.json else say(f"order {order_id} is {order['state']}")
    return OK


@app.command
def wait(order_id: str, /, *, server: ServerNeed = None) -> int:
    """Stay until it has ended; the exit code is the order's."""
    return stay_with(server or Server(), order_id, follow=False)
