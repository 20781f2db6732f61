"""`python -m sim`: many seeds with progress, or one seed with its history."""

import argparse
import os
import sys
import time
from collections.abc import Iterable

from sim.coverage import Pair, told
from sim.plan import ACTIONS
from sim.run import Outcome, run_many, run_seed, shrink


def main() -> int:
    """Returns 1 when a truth was broken."""
    options = _options()
    if options.seed is not None:
        return _one(options.seed, options.actions, options.keep, shorter=options.shrink)
    return _many(range(options.first, options.first + options.seeds), options.actions, options.jobs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--actions", type=int, default=ACTIONS, help="how many things happen in a seed")
    parser.add_argument("--seed", type=int, help="play this one and tell its history")
    parser.add_argument("--shrink", action="store_true", help="with --seed: drop actions while it still fails")
    parser.add_argument("--keep", type=_numbers, help="with --seed: only these actions, as --shrink names them")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _one(seed: int, actions: int, keep: list[int] | None, *, shorter: bool) -> int:
    if shorter:
        outcome, keep = shrink(seed, actions=actions)
    else:
        outcome = run_seed(seed, actions=actions, keep=keep, telling=True)
    for line in outcome.history:
        _say(line)
    _say(_verdict(outcome))
    if shorter and keep is not None and outcome.violation is not None:
        _say(f"again: python -m sim --seed {seed} --keep {','.join(map(str, keep))}")
    return 0 if outcome.violation is None else 1


def _many(seeds: range, actions: int, jobs: int) -> int:
    began, pairs, failed, done = time.monotonic(), set[Pair](), list[Outcome](), 0
    orders = events = 0
    cpu_s = 0.0
    for outcome in run_many(seeds, actions=actions, jobs=jobs):
        done += 1
        pairs |= outcome.pairs
        orders, events, cpu_s = orders + outcome.orders, events + outcome.events, cpu_s + outcome.cpu_s
        if outcome.violation is not None:
            failed.append(outcome)
            _say(f"\r{_verdict(outcome)}")
        if done % 50 == 0 or done == len(seeds):
            rate = done / (time.monotonic() - began)
            _say(f"\r{done} of {len(seeds)} seeds, {len(failed)} failed, {rate:.0f} a second", end="")
    _say(f"\n{orders} orders, {events} events, {done / max(cpu_s, 0.001):.1f} seeds a second and core")
    _say(told(pairs))
    return _tell_failures(failed)


def _tell_failures(failed: Iterable[Outcome]) -> int:
    seeds = sorted(outcome.seed for outcome in failed)
    if seeds:
        _say(f"failed: {seeds}\ntold by: python -m sim --seed {seeds[0]} (--shrink)")
    return 1 if seeds else 0


def _verdict(outcome: Outcome) -> str:
    if outcome.violation is None:
        return f"seed {outcome.seed}: {outcome.orders} orders, {outcome.events} events, every truth held"
    when = "at the end" if outcome.at is None else f"at action {outcome.at}"
    return f"seed {outcome.seed} {when}: {outcome.violation}"


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
