"""What the slots of a pool are: seats, places that are made, places that live."""

from standby.core import warm
from standby.core.model import PoolSettings, Reset, SlotState, Template, Warmth
from standby.core.places import fingerprint
from tests.rows import pool, slot

MADE = pool(settings=PoolSettings(template=Template(image="bot:1")))
LIVE = Template(image="bot:1", warmth=Warmth.RUNNING)


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


def test_a_used_place_serves_again_only_alive_for_one_project_and_without_a_reset() -> None:
    kept = PoolSettings(template=LIVE, reset=Reset.NONE, project="a")
    made = PoolSettings(template=MADE.settings.template, reset=Reset.NONE, project="a")
    anybody, anew = PoolSettings(template=LIVE, reset=Reset.NONE), PoolSettings(template=LIVE, project="a")
    stays = [warm.stays(pool(settings=each), seats=False) for each in (kept, made, anybody, anew)]
    assert stays == [True, False, False, False]
    assert warm.stays(pool(settings=anew), seats=True)
