import pytest
from msgspec import Struct

from standby.core.model import Change, EventKind, OrderState, Project, SlotState, Trigger, run_id, slot_word
from tests.rows import NOW, host, order, pool, slot

S = OrderState
PROJECT = Project(name="a")
SUBJECTS: dict[EventKind, tuple[str, Struct, str, str | None]] = {
    EventKind.ORDER_CLAIMED: ("order", order(), "order-1", "pending"),
    EventKind.SLOT_IDLE: ("slot", slot(), slot().name, "idle"),
    EventKind.POOL_APPLIED: ("pool", pool("big"), "big", "open"),
    EventKind.HOST_LED: ("host", host(name="far"), "far", "open"),
    EventKind.PROJECT_APPLIED: ("project", PROJECT, "a", None),
}


@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_change_is_about_the_row_that_its_kind_names_also_when_it_begins_or_goes(kind: EventKind) -> None:
    noun, row, name, state = SUBJECTS[kind]
    others = {each: made for each, made, _, _ in SUBJECTS.values() if each != noun}
    for rows, states in (
        ({noun: row}, (None, state)),
        ({f"{noun}_was": row}, (state, None)),
        ({f"{noun}_was": row, noun: row}, (state, state)),
    ):
        change = Change(id="c", kind=kind, at=NOW, trigger=Trigger.LOOK, actor="a", **{**others, **rows})  # type: ignore[arg-type]
        assert (change.subject, change.states) == (name, states)


def test_a_change_without_the_row_that_its_kind_names_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match=r"host\.led"):
        _ = Change(id="c", kind=EventKind.HOST_LED, at=NOW, trigger=Trigger.LEASE, actor="a", pool=pool()).subject


@pytest.mark.parametrize(
    ("holder", "word"), [(None, "idle"), (S.PREPARING, "deploying"), (S.RUNNING, "busy"), (S.STOPPING, "busy")]
)
def test_a_slot_is_called_by_what_its_holder_does(holder: OrderState | None, word: str) -> None:
    assert slot_word(slot(), None if holder is None else order(holder)) == word


def test_a_slot_without_a_holder_is_called_by_its_state() -> None:
    assert slot_word(slot(state=SlotState.CLEANING), None) == "cleaning"


def test_a_run_is_named_after_its_order_and_its_number() -> None:
    assert run_id(order(S.RUNNING, id="order-7", attempt=3)) == "order-7-3"
