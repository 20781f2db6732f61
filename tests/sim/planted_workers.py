"""Bugs in the worker protocol that somebody could write, planted like the others."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from standby.control import workers
from standby.control.mirror import Mirror
from standby.core import lifecycle, work
from standby.core.judge import Open
from standby.core.lifecycle import Cause
from standby.core.model import Change, Order, OrderState, Pool, Slot, Template, run_id
from standby.core.sighting import Seen, Sighting
from standby.core.work import Offer, Report
from tests.sim.planted import Plant


def a_second_boot_gets_the_run(patch: pytest.MonkeyPatch) -> None:
    real = work.offer

    def offer(slot: Slot, pool: Pool, order: Order | None, nonce: str, report: Report | None, now: int) -> Offer:
        mine = nonce if order is None or order.boot is None else order.boot
        return real(slot, pool, order, mine, report, now)

    patch.setattr(work, "offer", offer)


def a_new_boot_takes_the_run_over(patch: pytest.MonkeyPatch) -> None:
    real = work.boot

    def boot(cause: Cause, slot: Slot, pool: Pool, order: Order | None, nonce: str) -> Change | None:
        started = order is not None and order.state in (OrderState.PREPARING, OrderState.RUNNING)
        if order is not None and started and order.boot not in (None, nonce):
            return lifecycle.bind(cause, replace(order, boot=None), nonce)
        return real(cause, slot, pool, order, nonce)

    patch.setattr(work, "boot", boot)


def silence_believed_of_workers_that_do_not_fence_themselves(patch: pytest.MonkeyPatch) -> None:
    real = work.silent

    def counting(mirror: Mirror, residents: Sequence[Open], reports: Mapping[str, Report]) -> dict[str, Report]:
        return {key: reports[key] for run in residents if (key := run_id(run.order)) in reports}

    def silent(run: Open, report: Report | None, silence_ms: int | None, now: int) -> bool:
        return real(run, report, silence_ms or 3_000, now)

    patch.setattr(workers, "_counting", counting)
    patch.setattr(work, "silent", silent)


def silence_believed_before_the_worker_ends_itself(patch: pytest.MonkeyPatch) -> None:
    def silent(run: Open, report: Report | None, silence_ms: int | None, now: int) -> bool:
        at_work = silence_ms is not None and report is not None and report.ended_at is None
        return at_work and report is not None and now > report.heartbeat_at + 500

    patch.setattr(work, "silent", silent)


def a_result_is_not_asked_for_when_a_place_is_gone(patch: pytest.MonkeyPatch) -> None:
    real = work.sighting

    def sighting(
        order: Order, template: Template, look: Sighting | None, report: Report | None, dead_at: int | None
    ) -> Sighting | None:
        gone = look is not None and look.seen is Seen.ABSENT
        return look if gone else real(order, template, look, report, dead_at)

    patch.setattr(work, "sighting", sighting)


PLANTS: Mapping[Plant, str] = {
    a_second_boot_gets_the_run: r"gets run .* which is nonce-\d+'s",
    a_new_boot_takes_the_run_over: r"both work on|which is nonce-\d+'s",
    silence_believed_of_workers_that_do_not_fence_themselves: r"a silence that means nothing|while it is alive",
    silence_believed_before_the_worker_ends_itself: r"while it is alive|but the run is over|means nothing",
    a_result_is_not_asked_for_when_a_place_is_gone: r"is recorded as .*lost=True",
}
"""Each bug with what the simulator must say of it."""
