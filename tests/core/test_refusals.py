"""A refused change says who cannot do what, and why."""

from collections.abc import Callable

import pytest

from standby.core import lifecycle as life
from standby.core import slots
from standby.core.errors import IllegalMove, Refused
from standby.core.model import OrderState, Reason
from standby.core.sighting import Exit
from tests.rows import cause, order, pool, slot, spec

S = OrderState
NAME = slot().name

REFUSED: dict[str, Callable[[], object]] = {
    "cannot queue order order-1: it is already queued": lambda: life.queue(cause(), order(), spec(), pool()),
    "cannot expire order order-1: it is not waiting in the queue": lambda: life.expire(cause(), order(S.RUNNING)),
    "cannot record order.cancelled of order order-1: it is running": lambda: life.finish(
        cause(),
        order(S.RUNNING, stop_reason=Reason.CANCELLED),
        spec(),
        slot(),
        Exit(code=0),
        handle=None,
        seats=True,
        chance=0.5,
    ),
    "cannot finish order order-1: it is completed": lambda: life.finish(
        cause(), order(S.COMPLETED), spec(), slot(), Exit(code=0), handle=None, seats=True, chance=0.5
    ),
    "cannot record order.stopping of order order-1: it is pending": lambda: life.stop(
        cause(), order(), spec(), Reason.TIMEOUT
    ),
    "cannot record order.submitted of order order-1: it is not there": lambda: life.submit(
        cause(), order(S.RUNNING), spec(), pool(), None, None
    ),
    "cannot record order.purged of order order-1: it is running": lambda: life.purge(cause(), order(S.RUNNING), None),
    f"cannot record slot.gone of slot {NAME}: it is idle": lambda: slots.gone(cause(), slot()),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_refusal_names_the_verb_the_row_and_its_state(text: str) -> None:
    with pytest.raises(IllegalMove) as refused:
        REFUSED[text]()
    assert str(refused.value) == text


def test_a_refusal_carries_its_facts_for_the_caller() -> None:
    refused = IllegalMove("cancel", "order", "order-1", "completed")
    assert isinstance(refused, Refused)
    assert (refused.verb, refused.noun, refused.name, refused.state) == ("cancel", "order", "order-1", "completed")
