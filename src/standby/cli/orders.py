"""`standby orders ...`: list, show, why, logs, wait; what is done to many at once is in `bulk`."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number

from standby.cli import bulk
from standby.cli.events import end_words, event_table
from standby.cli.follow import end_of_order, print_record, print_run, say_rest, stay
from standby.cli.submit import end_of
from standby.cli.table import print_facts, print_rows, print_table
from standby.cli.talk import HERE, OK, OrderId, ServerNeed, ago, cut, find, length, print_json, say, shown, tame, what
from standby.client.answers import ENDED, Event, Gate, Order, OrderPage, Run, Said, Why
from standby.client.blocking import Client
from standby.client.errors import ServerRefused
from standby.client.flows import PAGE
from standby.client.plans import Which

SHOWN_MOST: Final = 2_000

app = App(name="orders", help="List, show, follow, cancel, repeat, remove work orders.")
app.command(bulk.cancel)
app.command(bulk.rerun)
app.command(bulk.purge)
app.command(bulk.submit)


@app.command(name="list")
def list_orders(
    *,
    only: Annotated[bulk.Only | None, Parameter(name="*")] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1))] = 50,
    cursor: str | None = None,
    server: ServerNeed = HERE,
) -> int:
    """Newest first.

    Parameters
    ----------
    limit
        How many at most.
    cursor
        Go on where an earlier list ended: what it said at its end.
    """
    which = (only or bulk.Only()).which()
    page = server.ask(lambda client: _pages(client, which, limit, cursor))
    if server.json:
        print_json(page)
        return OK
    if not page.orders:
        say("no orders")
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
    print_table(page.orders, columns, {"POOL": "default", "PROJECT": "default"})
    if page.next:
        say(f"there are more: --cursor {page.next}")
    return OK


def _pages(client: Client, which: Which, limit: int, cursor: str | None) -> OrderPage:
    """As many orders as are wanted, in as many pages as it takes."""
    page = client.orders_page(limit=min(limit, PAGE), cursor=cursor, **which)
    orders = page.orders
    while page.next is not None and len(orders) < limit:
        page = client.orders_page(limit=min(limit - len(orders), PAGE), cursor=page.next, **which)
        orders += page.orders
    if not orders:
        _refuse_unknown(client, which)
    return OrderPage(orders=orders, next=page.next)


def _refuse_unknown(client: Client, which: Which) -> None:
    """A pool of the filter that is not there is refused. An order makes its project: that one is only spoken of."""
    if pool := which.get("pool"):
        client.pool(pool)
    project = which.get("project")
    if project and not client.orders_page(limit=1, project=project).orders:
        names = [each.name for each in client.projects()]
        if project not in names:
            say(f"there is no project {project!r}" + (f"; there are: {', '.join(names)}" if names else ""))


def _note(order: Order) -> str | None:
    if order.gate:
        return order.gate.text
    if not order.ended:
        return None  # how the run before ended says nothing of this one
    return end_words(order.reason, order.exit_code)


@app.command
def show(order_id: OrderId, /, *, server: ServerNeed = HERE) -> int:
    """One order: why it waits, its runs, what happened."""

    def read(client: Client) -> tuple[Order, tuple[Run, ...], tuple[Event, ...], Mapping[str, Any]]:
        order = client.order(find(client, order_id))
        usual = {} if server.json else _usual(client, order.pool)
        return order, client.runs(order.id), client.order_events(order.id), usual

    order, runs, events, usual = server.ask(read)
    if server.json:
        print_json({**msgspec.to_builtins(order), "runs": runs, "events": events})
        return OK
    outcome = end_of_order(order, runs) if order.ended else None
    print_facts({"id": order.id, "state": order.state, "outcome": outcome, **_facts(order), **_limits(order, usual)})
    print_rows([_run_row(run) for run in runs])
    table = event_table(subject=False)
    for event in events:
        table.print(event)
    return OK


def _usual(client: Client, pool: str) -> Mapping[str, Any]:
    """What orders of a pool get unless they say otherwise; nothing is usual where the pool is gone."""
    try:
        return client.pool(pool).settings
    except ServerRefused:
        return {}


def _limits(order: Order, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The order's limits that are not its pool's."""
    names = ("memory_mb", "queue_timeout_s", "start_timeout_s", "run_timeout_s", "stop_grace_s")
    own = {name: getattr(order, name) for name in names}
    cpus = {} if order.cpus is None else {"cpus": order.cpus}
    return cpus | {
        name: "none" if value is None else value for name, value in own.items() if usual.get(name, own) != value
    }


def _run_row(run: Run) -> tuple[str, str]:
    """A run in words: where, for how long, and how it ended."""
    code = None if run.exit_code is None else f"exit code {run.exit_code}"
    parts = ", ".join(part for part in (run.error_name or run.reason, code) if part)
    how = (f" ({parts})" if parts else "") + (f": {run.error}" if run.error else "")
    return f"run {run.number}:", tame(" ".join(f"{run.state} in {run.slot}{_took(run)}{how}".splitlines()))


def _took(run: Run) -> str:
    """How long it has run; nothing of one that never began."""
    began = run.ready_at or (run.commanded_at if run.exit_code is not None else None)
    if began is None:
        return ""
    took = ((run.ended_at or datetime.now(UTC)) - began).total_seconds()
    return f" {'for' if run.ended_at is None else 'after'} {length(took, units=2)}"


def _facts(order: Order) -> dict[str, Any]:
    state = ("id", "state", "queue_position", "pool", "project", "attempt", "retries_left", "reason", "exit_code")
    place = ("slot", "priority", "dedupe_key", "concurrency_key")
    times = ("submitted_at", "due_at", "commanded_at", "ready_at", "deadline", "ended_at")
    return {
        **{name: getattr(order, name) for name in (*state, *place)},
        "waits for": order.gate.text if order.gate else None,
        **_times(order),
        **({} if order.worker is None else _said(order.worker)),
        "what": what(order, SHOWN_MOST),
        "payload": None if order.payload is None else cut(json.dumps(order.payload, ensure_ascii=False), SHOWN_MOST),
        "env": ", ".join(order.env_names) or None,
        "labels": ", ".join(f"{name}={value}" for name, value in order.labels.items()) or None,
        "rerun_of": order.rerun_of,
        **{name: shown(getattr(order, name)) for name in times},
    }


def _said(worker: Said) -> dict[str, str | None]:
    """How far it is and how it ended, by its worker's word."""
    share = None if worker.progress is None else f"{worker.progress:.0%}"
    error = worker.error
    return {
        "progress": ": ".join(part for part in (share, worker.text) if part) or None,
        "heard": f"{ago(worker.heartbeat_at)} ago",
        "error": None if error is None else ": ".join(part for part in (error.name, error.text) if part),
        "result": None if worker.result is None else cut(json.dumps(worker.result, ensure_ascii=False), SHOWN_MOST),
    }


def _times(found: Order | Why) -> dict[str, str | None]:
    """When a waiting order may start, and when it gives up waiting."""
    gives_up = found.gives_up_in_ms
    return {
        "starts": _starts(found),
        "gives up": None if gives_up is None else f"in {length(gives_up / 1000, units=2)}",
    }


def _starts(found: Order | Why) -> str | None:
    """When it probably starts, from when to when that is, and what the guess is worth; or why nobody can say."""
    usual, estimate = found.estimated_wait_ms, found.estimate
    if estimate is None:
        return None
    if usual is None or estimate.low_ms is None or estimate.high_ms is None:
        return f"nobody can say when: {estimate.why_none}"
    low, high = (length(each / 1000, units=2) for each in (estimate.low_ms, estimate.high_ms))
    return f"in about {length(max(1, usual / 1000), units=2)} ({low} to {high}, a {estimate.confidence} guess)"


def _gate(gate: Gate | None) -> dict[str, str | None]:
    """What holds it, how much is lacking, and who has it."""
    if gate is None:
        return {}
    return {
        "waits for": gate.text,
        "gate": gate.name,
        "needs": None if gate.needed is None else f"{gate.needed}, {gate.free} free",
        "held by": ", ".join(gate.holders) or None,
        "opens": shown(gate.opens_at),
    }


@app.command
def why(order_id: OrderId, /, *, server: ServerNeed = HERE) -> int:
    """Why it waits, its place in the queue, and what happens next."""

    def read(client: Client) -> tuple[Why, str | None]:
        found = client.why(find(client, order_id))
        if server.json or found.state not in ENDED:
            return found, None
        return found, end_of_order(client.order(found.id), client.runs(found.id))

    found, outcome = server.ask(read)
    facts = {
        "id": found.id,
        "state": found.state,
        "outcome": outcome,
        **_gate(found.gate),
        "waiting": None if found.waiting_since is None else f"for {ago(found.waiting_since)}",
        "position": found.position,
        **_times(found),
        "next": found.next,
    }
    return server.show(found, lambda: print_facts(facts))


@app.command
def logs(
    order_id: OrderId,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=(), show_default=False)] = False,
    run: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    from_line: Annotated[int, Parameter(name="--from", validator=Number(gte=0))] = 0,
    server: ServerNeed = HERE,
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

    def read(client: Client) -> None:
        found = find(client, order_id)
        number, wrote = run, False
        if follow and run is None and from_line == 0:
            order = stay(client, found, follow=True, as_json=server.json)
            number, wrote = order.attempt, next(client.logs(found), None) is not None
        elif follow:
            number = run or max(1, client.order(found).attempt)
            wrote = print_run(client, found, number, from_line, as_json=server.json)
        else:
            for line in client.logs(found, run=run, start=from_line):
                print_record(line, as_json=server.json)
                wrote = True
        if from_line == 0 and (follow or not wrote):
            say_rest(client, found, number, wrote=wrote, late=not follow, as_json=server.json)

    server.ask(read)
    return OK


@app.command
def wait(
    order_id: OrderId, /, *others: Annotated[str, Parameter(help="More orders.")], server: ServerNeed = HERE
) -> int:
    """Stay until it has ended, and all others named; the exit code is the order's, or the first that is not 0."""

    def stay_with(client: Client) -> int:
        found = [find(client, each) for each in (order_id, *others)]
        codes = [end_of(client, each, follow=False, as_json=server.json) for each in found]
        return next((code for code in codes if code != OK), OK)

    return server.ask(stay_with)
