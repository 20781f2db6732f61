"""Which label tells how long a run takes, and what it tells."""

import random

from standby.core import telling
from standby.core.estimate import measured
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


def test_a_value_with_few_runs_counts_with_all_others_and_one_that_was_never_seen_too() -> None:
    runs = [*mixed(), *((20_000, {"kind": f"odd-{number}"}) for number in range(telling.ENOUGH - 1))]
    found = telling.by_label(runs)
    assert found is not None and ALL is not None
    assert set(found.usual_ms()) == {"short", "long"}
    assert found.of({"kind": "odd-1"}, ALL).ordered == [20_000] * (telling.ENOUGH - 1)
    assert found.of({"kind": "new"}, ALL) == found.of({}, ALL) == found.of({"kind": "odd-1"}, ALL)
    assert found.of({"kind": "short"}, ALL).ordered[-1] <= 7_000


def test_where_every_value_is_known_one_that_is_not_counts_with_the_whole_pool() -> None:
    found = telling.by_label(mixed())
    assert found is not None and ALL is not None
    assert found.of({"kind": "new"}, ALL) is ALL


def test_so_many_runs_of_a_value_are_enough() -> None:
    runs = [(1_000, {"kind": "a"})] * telling.ENOUGH + [(9_000, {"kind": "b"})] * (telling.ENOUGH - 1)
    found = telling.by_label(runs)
    assert found is not None
    assert found.usual_ms() == {"a": 1_000}
    assert found.lengths[None].ordered == [9_000] * (telling.ENOUGH - 1)


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
