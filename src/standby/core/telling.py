"""Which label tells how long a run takes: where one does, each run counts with those of its own kind."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from typing import Final

from msgspec import Struct

from standby.core.estimate import Lengths

ENOUGH: Final = 10
"""Of a value with fewer runs nobody can tell; those count with all that have no such value, or with the whole pool."""
LOOKED_AT: Final = 32
"""So many labels, those that most runs have: whoever names each run by a label of its own costs nothing."""
ALIKE: Final = 1e-4
"""Where the logarithms spread no more than this, runs differ by one percent: there is nothing to tell."""
TELLS: Final = 0.25
"""So much of the spread has to be gone once the label is known."""

Labels = Mapping[str, str]
Ran = tuple[int, Labels]
"""How long a run took, and its labels."""


class ByLabel(Struct, frozen=True):
    """What runs took, by the values of the label that tells most of it."""

    name: str
    lengths: Mapping[str | None, Lengths]
    """Null: of all other values together, where those are enough."""

    def usual_ms(self) -> Mapping[str, int]:
        """By value: as many runs took longer as took less."""
        known = {value: lengths.ordered for value, lengths in self.lengths.items() if value is not None}
        return {value: ordered[len(ordered) // 2] for value, ordered in sorted(known.items())}

    def of(self, labels: Labels, unknown: Lengths) -> Lengths:
        """How long runs with these labels take."""
        return self.lengths.get(labels.get(self.name)) or self.lengths.get(None) or unknown


class Known(Struct, frozen=True):
    """The labels of those who are at work, by order, and of the next ones in line, as far as somebody looked."""

    open: Mapping[str, Labels] = {}
    ahead: Sequence[Labels] = ()


def by_label(runs: Sequence[Ran]) -> ByLabel | None:
    """The label that tells most, where one tells enough."""
    logs = [log(max(1, length)) for length, _ in runs]
    spread = _spread(logs) / max(1, len(runs) - 1)
    if spread <= ALIKE:
        return None
    best, least = None, (1 - TELLS) * spread
    for name, count in Counter(name for _, labels in runs for name in labels).most_common(LOOKED_AT):
        if count < ENOUGH:
            break
        counts = Counter(labels.get(name) for _, labels in runs)
        kinds: dict[str | None, list[int]] = {}
        for place, (_, labels) in enumerate(runs):
            value = labels.get(name)
            kinds.setdefault(value if counts[value] >= ENOUGH else None, []).append(place)
        # by how many could differ freely: many small kinds always look alike inside
        left = sum(_spread([logs[place] for place in kind]) for kind in kinds.values()) / (len(runs) - len(kinds))
        if left < least:
            best, least = (name, kinds), left
    if best is None:
        return None
    known = {value: kind for value, kind in best[1].items() if len(kind) >= ENOUGH}
    return ByLabel(
        best[0], {value: Lengths(sorted(runs[place][0] for place in kind), len(kind)) for value, kind in known.items()}
    )


def _spread(values: Sequence[float]) -> float:
    mean = sum(values) / max(1, len(values))
    return sum((each - mean) ** 2 for each in values)
