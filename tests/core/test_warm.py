"""What the slots of a pool are: seats, places that are made, places that live."""

from standby.core import warm
from standby.core.model import PoolSettings, SlotState, Template, Warmth
from standby.core.places import fingerprint
from tests.rows import pool, slot

MADE = pool(settings=PoolSettings(template=Template(image="bot:1")))


def test_a_place_is_made_of_its_pools_template_and_a_used_one_only_with_a_permit() -> None:
    of = fingerprint(MADE.settings)
    states = (SlotState.CREATING, SlotState.CLEANING)
    assert [warm.may_make(MADE, slot(1, state, template=of), seats=False) for state in states] == [True, False]
    assert not warm.may_make(MADE, slot(1, SlotState.CREATING, template="another"), seats=False)


def test_a_seat_is_made_at_once_and_of_nothing() -> None:
    cold = pool(settings=PoolSettings(template=Template(image="bot:1", warmth=Warmth.COLD)))
    for of, seats in ((MADE, True), (cold, False)):
        assert warm.may_make(of, slot(1, SlotState.CLEANING), seats)
        assert not warm.may_make(of, slot(1, SlotState.CLEANING, template="another"), seats)
