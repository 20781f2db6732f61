"""`standby submit`: hand in an order, and stay with it if asked to."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, cast

import msgspec
from cyclopts import Parameter

from standby.cli.follow import how_it_ended, stay
from standby.cli.talk import HERE, OK, ServerNeed, Unusable, one_of, order_code, pair, print_json, say, text_of
from standby.client.answers import Order
from standby.client.blocking import Client
from standby.client.plans import NewOrder
from standby.core.model import NEVER_RETRIED, Reason

REASONS: Final = tuple(reason for reason in Reason if reason not in NEVER_RETRIED)
UNLIMITED: Final = ("queue_timeout", "run_timeout")
"""Time limits that may be none."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the order is and may use."""

    script: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """File with a shell script to run instead of a command; - is stdin."""
    pool: str | None = None
    """Pool that runs it; default unless said."""
    project: str | None = None
    """Project it belongs to; default unless said."""
    env: Annotated[list[str] | None, Parameter(negative=())] = None
    """NAME=value, or NAME to pass on one's own; one for each --env. Values are kept sealed."""
    payload: str | None = None
    """JSON for the order, or @file."""
    label: Annotated[list[str] | None, Parameter(negative=())] = None
    """name=value; one for each --label."""
    priority: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None
    """Smaller goes first; 100 unless said."""
    memory_mb: int | None = None
    """Memory it takes of its host's budget; the pool's unless said."""
    cpus: float | None = None
    """Processors it takes of its host's budget; the pool's unless said."""
    queue_timeout: str | None = None
    """How long it may wait: 30s, 5m, none."""
    start_timeout: str | None = None
    """How long its start may take: 30s, 5m."""
    run_timeout: str | None = None
    """How long it may run: 30s, 1h, none."""
    stop_grace: str | None = None
    """How long it may take to stop before it is forced: 30s."""
    retries: int | None = None
    """How many more runs may follow a failed start or a lost run; after a failing exit only with --retry-on exit."""
    retry_on: Annotated[list[str] | None, Parameter(negative=())] = None
    """Also retry after: exit, oom, timeout (may be repeated)."""
    not_before: Annotated[str | None, Parameter(name=("--not-before", "--in"))] = None
    """Not before this time, like 2030-01-31T12:00:00Z, or so long from now: 10m."""
    dedupe_key: str | None = None
    """While an order with this key is unfinished, that one is meant."""
    concurrency_key: str | None = None
    """Of the orders of its project with this key one runs at a time."""
    on_conflict: Annotated[str | None, Parameter(show_default=False)] = None
    """With a concurrency key: wait (unless said), cancel_new or cancel_old."""
    urgent: Annotated[bool, Parameter(negative=(), show_default=False)] = False
    """Before all that wait; for the admin key only."""
    rerun_of: str | None = None
    """Id of the order that this one repeats."""


def submit(
    *command: str,
    wish: Annotated[Wish | None, Parameter(name="*")] = None,
    idempotency_key: str | None = None,
    wait: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    follow: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    server: ServerNeed = HERE,
) -> int:
    """Hand in a work order: `standby submit [options] -- COMMAND ...`

    Prints the order's id. With --wait or --follow the exit code is the order's.

    Parameters
    ----------
    command
        Program and arguments, after `--`.
    idempotency_key
        The same key with the same order hands it in only once (kept for a day).
    wait
        Stay until the order has ended.
    follow
        Stay, and print its output.
    """
    body = order_body(command, wish or Wish())

    def hand_in(client: Client) -> int:
        order = client.submit(idempotency_key=idempotency_key, **body)
        stays = wait or follow
        if server.json and not stays:
            print_json(order)
        elif not server.json and not follow:
            print(order.id, flush=True)
        say(_welcome(order))
        if wish is not None and wish.retries and not server.json and not _retries_exit(order):
            say("--retries is for failed starts and lost runs; add --retry-on exit to retry a program that fails, too")
        return end_of(client, order.id, follow=follow, as_json=server.json) if stays else OK

    return server.ask(hand_in)


def _retries_exit(order: Order) -> bool:
    return "exit" in order.retry.retry_on and "exit" not in order.retry.no_retry_on


def _welcome(order: Order) -> str:
    if order.deduplicated:
        return f"order {order.id} is there already ({order.state})"
    if order.replayed:
        return f"order {order.id} was taken in before, with this idempotency key; nothing new was handed in"
    place = f", number {order.queue_position} in its queue" if order.queue_position else ""
    return f"order {order.id} taken in{place}"


def end_of(client: Client, order_id: str, *, follow: bool, as_json: bool) -> int:
    """Wait for an order's end, say it, and return the order's exit code."""
    order = stay(client, order_id, follow=follow, as_json=as_json)
    if as_json:
        print_json(order)
    say(how_it_ended(client, order))
    return order_code(order)


def order_body(command: Sequence[str], wish: Wish) -> NewOrder:
    """The request for what was asked on the command line; what was not said is left to the server."""
    body: dict[str, Any] = {
        "command": list(command) or None,
        "script": None if wish.script is None else text_of(wish.script, "--script"),
        "pool": wish.pool,
        "project": wish.project,
        "priority": wish.priority,
        "memory_mb": wish.memory_mb,
        "cpus": wish.cpus,
        "start_timeout_s": _seconds(wish.start_timeout, "start_timeout"),
        "stop_grace_s": _seconds(wish.stop_grace, "stop_grace"),
        "not_before": _moment(wish.not_before),
        "dedupe_key": wish.dedupe_key,
        "concurrency_key": wish.concurrency_key,
        "on_conflict": wish.on_conflict,
        "urgent": wish.urgent or None,
        "rerun_of": wish.rerun_of,
        "env": dict(_variable(each) for each in wish.env or []) or None,
        "labels": dict(pair(each, "--label") for each in wish.label or []) or None,
        "retry": _retry(wish),
    }
    body = {name: value for name, value in body.items() if value is not None}
    for name in UNLIMITED:
        if (said := getattr(wish, name)) is not None:
            body[f"{name}_s"] = _seconds(said, name)
    if wish.payload is not None:
        body["payload"] = _payload(wish.payload)
    if ("command" in body) == ("script" in body):
        raise Unusable("give a command after `--`, or a script with --script (not both)")
    if command and (wish.env or wish.label) and re.fullmatch(r"[A-Za-z_][\w.-]*=.*", command[0], re.DOTALL):
        raise Unusable(f"{command[0]} would be the program to run; write --env or --label before each value")
    return cast(NewOrder, body)


def _retry(wish: Wish) -> dict[str, Any] | None:
    words = [word.strip() for each in wish.retry_on or [] for word in each.split(",")]
    said = {
        "retries": wish.retries,
        "retry_on": [one_of(word, REASONS, "--retry-on", "reason") for word in words] or None,
    }
    return {name: value for name, value in said.items() if value is not None} or None


def _moment(text: str | None) -> datetime | None:
    """A time with its zone, or a length from now on."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text) if "-" in text else None
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is None:
        raise Unusable("--not-before: give it a timezone, like 2030-01-31T12:00:00Z")
    if moment is None:
        from standby.config.values import length_ms

        try:
            moment = datetime.now(UTC) + timedelta(milliseconds=length_ms(text))
        except ValueError:
            raise Unusable("--not-before: write a time like 2030-01-31T12:00:00Z, or so long from now: 10m") from None
    return moment


def _payload(text: str) -> Any:
    raw = text_of(text[1:], "--payload") if text.startswith("@") else text
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise Unusable(f"--payload is not JSON: {error}") from None
    return msgspec.Raw(raw.strip().encode())


def _variable(text: str) -> tuple[str, str]:
    if "=" in text:
        return pair(text, "--env")
    if text not in os.environ:
        raise Unusable(f"--env {text}: there is no such variable here; write {text}=value")
    return text, os.environ[text]


def _seconds(text: str | None, key: str) -> float | None:
    """A length as in the configuration, in seconds; "none" is null."""
    if text is None or (text == "none" and key in UNLIMITED):
        return None
    from standby.config.values import length_ms  # takes a tenth of a second, and is seldom needed here

    try:
        return length_ms(text) / 1000
    except ValueError:
        option = "--" + key.replace("_", "-")
        raise Unusable(f'{option}: write a number of seconds, or a text like "30s" or "5m"') from None
