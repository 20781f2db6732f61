"""Which label tells how long a run takes, and what it tells."""

import random
from math import exp

import pytest

from standby.core import telling
from standby.core.estimate import Lengths, measured
from standby.core.telling import Ran

ALL = measured([50_000] * 60)


def mixed(count: int = 100) -> list[Ran]:
    """Short runs and long ones, which a label tells apart; others say who sent them, and name each."""
    chance = random.Random(1)
    runs: list[Ran] = []
    for number in range(count):
        kind, usual = chance.choice([("short", 5_000), ("long", 90_000)])
        labels = {"kind": kind, "team": chance.choice("ab"), "meeting": str(number)}
        runs.append((round(usual * chance.uniform(0.7, 1.4)), labels))
    return runs


def test_the_label_whose_values_differ_most_is_found_and_tells_how_long_each_takes() -> None:
    found = telling.by_label(mixed())
    assert found is not None and found.name == "kind"
    usual = found.usual_ms()
    assert list(usual) == ["long", "short"]
    assert 3_500 <= usual["short"] <= 7_000 and 63_000 <= usual["long"] <= 126_000


def test_a_label_that_tells_nothing_or_names_each_run_is_not_taken() -> None:
    plain = [(length, {"team": labels["team"], "meeting": labels["meeting"]}) for length, labels in mixed()]
    assert telling.by_label(plain) is None
    assert telling.by_label([(1_000, {"kind": "a" if number % 2 else "b"}) for number in range(40)]) is None
    assert telling.by_label([(length, {}) for length, _ in mixed()]) is None
    assert telling.by_label([]) is None
    assert telling.by_label(mixed(1)) is None


@pytest.mark.parametrize("length", [0, 1, 2_997, 5_000, 90_000])
@pytest.mark.parametrize("count", [20, 50, 333, 500])
def test_runs_that_all_take_about_the_same_are_not_told_apart(length: int, count: int) -> None:
    alike = [(length, {"kind": "a" if number % 3 else "b"}) for number in range(count)]
    assert telling.by_label(alike) is None
    if length > 1_000:
        near = [(length + (number % 3 > 0), labels) for number, (_, labels) in enumerate(alike)]
        assert telling.by_label(near) is None


def test_of_many_labels_those_are_looked_at_that_most_runs_have() -> None:
    many = {f"also-{number}": "x" for number in range(telling.LOOKED_AT)}
    first, *runs = mixed()
    found = telling.by_label([first, *((length, {**labels, **many}) for length, labels in runs)])
    assert found is not None and found.name == "kind"
    assert telling.by_label([(first[0], many), *((length, {**many, **labels}) for length, labels in runs)]) is None


def test_labels_that_tell_the_same_are_chosen_by_whoever_had_one_first() -> None:
    runs = [(length, dict.fromkeys("zyxwv", labels["kind"])) for length, labels in mixed()]
    found = telling.by_label(runs)
    assert found is not None and found.name == "z"


def test_a_value_with_few_runs_counts_with_all_others_and_one_that_was_never_seen_too() -> None:
    runs = [*mixed(), *((20_000, {"kind": f"odd-{number}"}) for number in range(telling.ENOUGH))]
    found = telling.by_label(runs)
    assert found is not None and ALL is not None
    assert set(found.usual_ms()) == {"short", "long"}
    assert found.of({"kind": "odd-1"}, ALL) == Lengths([20_000] * telling.ENOUGH, telling.ENOUGH)
    assert found.of({"kind": "new"}, ALL) == found.of({}, ALL) == found.of({"kind": "odd-1"}, ALL)
    assert found.of({"kind": "short"}, ALL).ordered[-1] <= 7_000


def test_where_nearly_every_value_is_known_one_that_is_not_counts_with_the_whole_pool() -> None:
    assert ALL is not None
    few: list[list[Ran]] = [[], [(3_600_000, {})], [(3_600_000, {"kind": "odd"})] * (telling.ENOUGH - 1)]
    for others in few:
        found = telling.by_label([*mixed(), *others])
        assert found is not None and found.name == "kind"
        assert found.of({"kind": "new"}, ALL) is found.of({}, ALL) is ALL


def test_so_many_runs_of_a_value_are_enough() -> None:
    runs = [(1_000, {"kind": "a"})] * telling.ENOUGH + [(9_000, {"kind": "b"})] * (telling.ENOUGH - 1)
    found = telling.by_label(runs)
    assert found is not None
    assert found.usual_ms() == {"a": 1_000}
    found = telling.by_label([*runs, (9_000, {"kind": "b"})])
    assert found is not None
    assert found.usual_ms() == {"a": 1_000, "b": 9_000}


def test_a_label_that_few_have_keeps_no_other_from_telling_and_ten_are_enough() -> None:
    some = [(1_000, {"kind": "a"})] * telling.ENOUGH + [(9_000, {})] * telling.ENOUGH
    found = telling.by_label([*some, (9_000, {"rare": "x"})])
    assert found is not None and found.usual_ms() == {"a": 1_000}


def test_one_run_of_another_kind_leaves_what_a_label_tells() -> None:
    two = [(1_400, {"kind": "a"})] * telling.ENOUGH + [(6_300, {"kind": "b"})] * telling.ENOUGH
    found = telling.by_label([*two, (3_000, {})])
    assert found is not None and found.usual_ms() == {"a": 1_400, "b": 6_300}


def test_what_is_usual_is_the_median() -> None:
    assert telling.ByLabel("kind", {"a": Lengths([1, 2, 3, 4], 4)}).usual_ms() == {"a": 3}


@pytest.mark.parametrize(("apart", "tells"), [(1.372, True), (1.216, False)])
def test_of_a_few_runs_a_label_has_to_tell_a_quarter_by_those_that_could_differ(apart: float, tells: bool) -> None:
    runs = [
        (round(1_000_000 * exp(off + apart * kind)), {"kind": str(kind)})
        for kind in (0, 1)
        for off in (-1, 1)
        for _ in range(5)
    ]
    assert (telling.by_label(runs) is not None) is tells, "32 % of the spread, and 27 %"


def test_a_label_has_to_tell_a_good_part_of_the_spread() -> None:
    chance = random.Random(2)

    def runs(apart: float) -> list[Ran]:
        found: list[Ran] = []
        for number in range(400):
            kind = number % 2
            found.append((round(10_000 * chance.lognormvariate(apart * kind, 1.0)), {"kind": str(kind)}))
        return found

    assert telling.by_label(runs(0.5)) is None, "6 % of it"
    assert telling.by_label(runs(2.0)) is not None, "half of it"


def test_many_small_kinds_that_only_look_different_tell_nothing() -> None:
    chance = random.Random(3)
    runs = [(round(10_000 * chance.lognormvariate(0, 1)), {"room": str(number % 45)}) for number in range(500)]
    assert telling.by_label(runs) is None
    rooms = [chance.gauss(0, 0.4) for _ in range(50)]
    little = [
        (round(10_000 * chance.lognormvariate(rooms[number % 50], 1)), {"room": str(number % 50)})
        for number in range(500)
    ]
    assert telling.by_label(little) is None, "nor those that are a little different"
