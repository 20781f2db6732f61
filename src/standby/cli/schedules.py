"""`standby schedules`: orders that are made again and again."""

from typing import Annotated

from cyclopts import App, Parameter

from standby.cli.submit import Wish, order_body
from standby.cli.table import print_facts, print_table
from standby.cli.talk import HERE, OK, ServerNeed, Unusable, Why, cut, print_json, say, shown
from standby.client.schedules import Schedule

ScheduleName = Annotated[str, Parameter(help="Name of the schedule.")]

app = App(name="schedules", help="List schedules; add, change, show, pause, resume, run or remove one.")


@app.default
@app.command(name="list")
def list_schedules(*, server: ServerNeed = HERE) -> int:
    """All schedules, with their next and last ticks."""
    found = server.ask(lambda client: client.schedules())
    columns = {
        "SCHEDULE": lambda each: each.name,
        "CRON": lambda each: each.cron,
        "ZONE": lambda each: each.zone,
        "MODE": lambda each: each.mode,
        "NEXT": lambda each: shown(each.next_at),
        "LAST": lambda each: shown(each.last_at),
        "ORDER": lambda each: each.last_order,
        "WHAT": _what,
        "NOTE": lambda each: each.mode_reason if each.mode != "open" else None,
    }
    return server.show({"schedules": found}, lambda: print_table(found, columns))


@app.command
def add(
    name: ScheduleName,
    /,
    *command: str,
    cron: Annotated[str, Parameter(help="When: five fields like '30 2 * * mon-fri', or @hourly, @daily, ...")],
    zone: Annotated[str, Parameter(help="Time zone of these times, like Europe/Berlin.")] = "UTC",
    missed: Annotated[str, Parameter(help="What becomes of ticks that nobody could make: skip, once, all.")] = "once",
    wish: Annotated[Wish | None, Parameter(name="*")] = None,
    server: ServerNeed = HERE,
) -> int:
    """Make a schedule: `standby schedules add NAME --cron '@daily' [options of submit] -- COMMAND ...`

    Parameters
    ----------
    command
        Program and arguments, after `--`.
    """
    order = order_body(command, wish or Wish())
    made = server.ask(lambda client: client.add_schedule(name, cron, order, zone=zone, missed=missed))
    return server.tell(made, f"schedule {name} ticks at {_times(made)}, ...")


@app.command
def change(
    name: ScheduleName,
    /,
    *command: str,
    cron: Annotated[str | None, Parameter(help="When: five fields like '30 2 * * mon-fri', or @hourly, ...")] = None,
    zone: Annotated[str | None, Parameter(help="Time zone of these times, like Europe/Berlin.")] = None,
    missed: Annotated[str | None, Parameter(help="What becomes of ticks that nobody could make.")] = None,
    wish: Annotated[Wish | None, Parameter(name="*")] = None,
    server: ServerNeed = HERE,
) -> int:
    """Change when it ticks, or its order as a whole: `standby schedules change NAME [options of add] [-- COMMAND ...]`

    Parameters
    ----------
    command
        Program and arguments of the new order, after `--`; it has nothing of the old one, no env value either.
    """
    order = None
    if command or wish is not None:
        if not command and (wish is None or wish.script is None):
            raise Unusable("an order is changed as a whole: give a command after `--`, or a script with --script")
        order = order_body(command, wish or Wish())
    now = server.ask(lambda client: client.change_schedule(name, cron=cron, zone=zone, missed=missed, order=order))
    when = f"ticks at {_times(now)}, ..." if now.next_ticks else "is changed, and paused"
    return server.tell(now, f"schedule {name} {when}")


@app.command
def show(name: ScheduleName, /, *, server: ServerNeed = HERE) -> int:
    """One schedule: its order, its next ticks, and the last ones with their orders."""
    found = server.ask(lambda client: client.schedule(name))
    facts = {
        "schedule": found.name,
        "cron": found.cron,
        "zone": found.zone,
        "missed": found.missed,
        "mode": found.mode,
        "mode_reason": found.mode_reason,
        "mode_actor": found.mode_actor,
        "project": found.project,
        "pool": found.pool,
        "what": _what(found),
        "env": ", ".join(found.order["env_names"]) or None,
        "next": "\n".join(_times(found).split(", ")) or None,
        "last": "\n".join(f"{shown(tick.at)}  {tick.order}" for tick in found.ticks) or None,
    }
    return server.show(found, lambda: print_facts(facts))


@app.command
def pause(name: ScheduleName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """It does not tick until it is resumed; what would have come meanwhile is not made up for."""
    return server.set_mode(f"schedule {name}", lambda client: client.set_schedule_mode(name, "pause", reason))


@app.command
def resume(name: ScheduleName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """It ticks again, from the next tick on."""
    return server.set_mode(f"schedule {name}", lambda client: client.set_schedule_mode(name, "resume", reason))


@app.command
def run(name: ScheduleName, /, *, server: ServerNeed = HERE) -> int:
    """Make its order now, also while it is paused. Prints the order's id."""
    order = server.ask(lambda client: client.run_schedule(name))
    print_json(order) if server.json else print(order.id, flush=True)
    there = "is there already" if order.deduplicated else "taken in"
    say(f"order {order.id} {there}")
    return OK


@app.command
def remove(name: ScheduleName, /, *, server: ServerNeed = HERE) -> int:
    """It ticks no more and is gone; its orders stay."""
    gone = server.ask(lambda client: client.remove_schedule(name))
    return server.tell(gone, f"schedule {name} is gone")


def _times(schedule: Schedule) -> str:
    return ", ".join(shown(tick) or "" for tick in schedule.next_ticks)


def _what(schedule: Schedule) -> str:
    order = schedule.order
    return cut(" ".join(order["command"] or (order["script"] or "").split("\n")), 60)
