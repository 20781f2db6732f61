"""An order that comes alone, with or without its claim: the values of `save_lone`, which stand as in `save_hot`."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from standby.store.entry import Entry
from standby.store.hot import Hot
from standby.store.postgres_hot import claim_row, group, submit_row


def lone_call(batch: Sequence[Entry], hint: str | None) -> tuple[str, Sequence[Any]] | None:
    """The statement that saves this batch, with its values; null for one that is anything else."""
    submit = batch[0]
    if submit.hot is not Hot.SUBMIT or len(batch) > 2:
        return None
    change, order = submit.change, submit.order
    assert order is not None
    project, pool, memory, *wanted = submit_row(submit)
    values: tuple[Any, ...] = (change.id, order.id, project, pool, memory, change.at, *wanted)
    values = *values, submit.data, change.trigger, change.actor, hint
    if len(batch) == 1:
        return _call(len(values)), values
    claim = batch[1]
    was = claim.change.order_was
    if claim.hot is not Hot.CLAIM or claim.claimed != submit.writes[0] or was is None:
        return None
    if order.rank is None or order.concurrency_key is not None or was.version != order.version:
        return None
    host, epoch, _, *versions, trigger, actor = group(claim)[:7]
    _, *columns = claim_row(claim)
    values = *values, host, epoch, *versions, claim.change.id, claim.change.at, *columns, claim.data, trigger, actor
    return _call(len(values)), values


@lru_cache(2)
def _call(values: int) -> str:
    return f"select save_lone({', '.join(f'${place}' for place in range(1, values + 1))})"
