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
    values = *submit_row(0, 0, submit)[2:], *group(submit)[-2:], hint
    if len(batch) == 1:
        return _call(len(values)), values
    claim = batch[1]
    order, was = submit.order, claim.change.order_was
    if claim.hot is not Hot.CLAIM or claim.claimed != submit.writes[0] or order is None or was is None:
        return None
    if order.rank is None or order.concurrency_key is not None or was.version != order.version:
        return None
    host, epoch, _, *versions, trigger, actor = group(claim)
    _, _, change, _, _, *columns = claim_row(0, 0, claim)
    values = *values, host, epoch, *versions, change, *columns, trigger, actor
    return _call(len(values)), values


@lru_cache(2)
def _call(values: int) -> str:
    return f"select save_lone({', '.join(f'${place}' for place in range(1, values + 1))})"
