"""Staying with an order: its output as it comes, what went wrong, when it is tried again."""

import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from standby.cli.talk import print_json, say
from standby.client.answers import LogEnd, LogLine, Order, Run
from standby.client.blocking import Client
from standby.client.errors import ServerUnreachable
from standby.core.model import NEVER_RETRIED, RETRIED_BY_DEFAULT

STORED_WITHIN: Final = timedelta(seconds=30)
"""The output of a run is stored this soon after its end: until then more may come."""


def stay(client: Client, order_id: str, *, follow: bool, as_json: bool) -> Order:
    """The order once it has ended; until then its output if asked for, and a word on each run that is tried again."""
    followed = told = 0
    try:
        for order in client.watch(order_id):
            while follow and followed < order.attempt:
                told = _tell(client, order, told, followed)
                followed += 1
                print_run(client, order_id, followed, as_json=as_json)
            waits = order.state in ("waiting_retry", "pending")
            told = _tell(client, order, told, order.attempt - (not waits))
    except KeyboardInterrupt:
        say(f"order {order_id} goes on; end it with: standby orders cancel {order_id}")
        raise
    return order


def print_run(client: Client, order_id: str, run: int, from_line: int = 0, *, as_json: bool) -> bool:
    """The output of one run until there is no more; whether there was any."""
    wrote = False
    for record in client.follow(order_id, run, from_line):
        print_record(record, as_json=as_json)
        wrote = wrote or isinstance(record, LogLine)
    return wrote


def print_record(record: LogLine | LogEnd, *, as_json: bool) -> None:
    """One record of a log: its own stream for its lines, stderr for our remarks."""
    if isinstance(record, LogEnd):
        if not record.closed:
            say(f"(the output of run {record.run} may be incomplete: it was not stored to its end)")
        return
    if record.dropped:
        say(f"({record.dropped} older lines are no longer kept)")
    if as_json:
        print_json(record)
    else:
        print(record.text, file=sys.stdout if record.stream == "stdout" else sys.stderr, flush=True)


def how_it_ended(client: Client, order: Order) -> str:
    """An ended order in words, with the last run's own error."""
    return f"order {order.id} {end_of_order(order, _runs(client, order))}"


def end_of_order(order: Order, runs: Iterable[Run]) -> str:
    """How it ended: its state and why, the last run's own error, and why there was no other run."""
    why = f" ({order.reason})" if order.reason else ""
    code = "" if order.exit_code is None else f", exit code {order.exit_code}"
    last = [run for run in runs if run.number == order.attempt and run.error]
    error = f": {last[0].error}" if last else ""
    return f"{order.state}{why}{code}{error}{_not_retried(order)}"


def end_of_run(run: Run, *, wrote: bool = True) -> str:
    """How a run ended, with its own error, and whether it wrote anything."""
    code = None if run.exit_code is None else f"exit code {run.exit_code}"
    reason = None if run.reason == "exit" and code else run.reason
    how = ", ".join(part for part in (reason, code) if part) or "success"
    error = f": {run.error}" if run.error else ""
    return f"run {run.number} {'' if wrote else 'wrote nothing; it '}ended with {how}{error}"


def say_rest(client: Client, order_id: str, number: int | None, *, wrote: bool, late: bool, as_json: bool) -> None:
    """What its output does not say: how a run ended that failed or wrote nothing, or that there is no output yet. With
    `late` what is stored only now is printed, too."""
    order = client.order(order_id)
    run = next((each for each in client.runs(order_id) if each.number == (number or order.attempt)), None)
    if run is None:
        gate = f" yet: {order.gate.text}" if order.gate else " yet"
        say(f"no run of it began{f': {end_of_order(order, ())}' if order.ended else gate}")
    elif run.ended_at is None:
        if not wrote:
            say(f"run {run.number} has written nothing yet; it is {run.state}")
    elif late and _is_new(run) and print_run(client, order_id, run.number, as_json=as_json):
        return
    elif not wrote or run.reason:
        say(end_of_run(run, wrote=wrote))


def _is_new(run: Run) -> bool:
    return run.ended_at is not None and datetime.now(UTC) - run.ended_at < STORED_WITHIN


def _not_retried(order: Order) -> str:
    """Why a failed order has runs left and gets none."""
    if order.state != "failed" or order.reason in (None, *NEVER_RETRIED):
        return ""
    if order.attempt > (most := order.retry.retries):
        return f"; no retries left (it had {most})" if most else ""
    if order.reason in order.retry.no_retry_on:
        return f"; not retried: no_retry_on has {order.reason}"
    if order.reason == "error" and order.worker is not None and order.worker.error is not None:
        name = order.worker.error.name
        fatal = name in order.retry.fatal_errors
        return f"; not retried: fatal_errors has {name}" if fatal else f"; not retried: nobody says so for {name}"
    if order.reason in order.retry.retry_on:
        return ""
    if order.reason == "start_failed":
        return "; not retried: it would fail again, and retry_on has no start_failed"
    return "" if order.reason in RETRIED_BY_DEFAULT else f"; not retried: retry_on has no {order.reason}"


def _tell(client: Client, order: Order, told: int, ended: int) -> int:
    """Say how the runs after `told` up to `ended` ended, all of which are tried again; returns what is told now."""
    if ended <= told:
        return told
    for run in _runs(client, order):
        if told < run.number <= ended:
            waits = run.number == order.attempt
            say(f"{end_of_run(run)}; it {f'is tried again{_wait(order)}' if waits else 'was tried again'}")
    return ended


def _wait(order: Order) -> str:
    if order.due_at is None:
        return ""
    return f" in {(order.due_at - order.state_since).total_seconds():.0f} s (retries left: {order.retries_left})"


def _runs(client: Client, order: Order) -> tuple[Run, ...]:
    """Its runs; a server that is away for a moment has nothing to add."""
    try:
        return client.runs(order.id) if order.attempt else ()
    except ServerUnreachable:
        return ()
