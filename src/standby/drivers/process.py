"""Runs as processes of this machine, held by a keeper that outlives the server."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from standby.core.errors import Unreachable
from standby.core.model import Slot
from standby.drivers.contract import CommandRefused, Exit, LogPiece, Making, OpenRun, Reading, Seen, Sighting, Start
from standby.drivers.gauge import MachineGauge
from standby.drivers.keeper.journal import HORIZON_S
from standby.drivers.keeper.kernel import boottime
from standby.drivers.keeper.wire import LINE_MAX
from standby.drivers.keeper_link import KeeperLink, RunState, TooLarge
from standby.drivers.tail import tail

ENV_ALLOWED: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""What a run gets of the server's environment unless configured otherwise; never its secrets."""
BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"


class _Listing(Struct, frozen=True):
    runs: list[RunState]
    forgotten: list[str]


_read_state: Final = msgspec.json.Decoder(RunState).decode
_read_listing: Final = msgspec.json.Decoder(_Listing).decode
_read_names: Final = msgspec.json.Decoder(dict[str, list[str]]).decode


class ProcessDriver:
    """Driver, Logs, Watch and Gauge for the processes of one directory's keeper."""

    lag_ms = 0  # the keeper does one thing after the other: a look after a start shows it
    seats = True

    def __init__(
        self,
        directory: Path,
        *,
        now: Callable[[], int],
        env_allow: Sequence[str] = ENV_ALLOWED,
        cgroups: str = "off",
        disk_reserve_mb: int = 1024,
        timeout_s: float = 10.0,
        launch_gap_s: float = 1.0,
        boot_id_path: str = BOOT_ID_PATH,
    ) -> None:
        """`cgroups` is "off", "auto" (one for each run where that is possible) or "limit" (which also holds the run to
        its memory). It finds also a daemon that left its session and cleared its environment while other runs go on,
        and costs about half a millisecond a run.

        A keeper that dies is started again, but not more often than each `launch_gap_s`.
        """
        if cgroups not in ("auto", "off", "limit"):
            raise ValueError(f'cgroups must be "auto", "limit" or "off", not {cgroups!r}')
        self._directory = directory.absolute()
        self._now = now
        self._env = {name: os.environ[name] for name in env_allow if _is_text(os.environ.get(name))}
        self._common = {"cgroups": cgroups != "off", "disk_reserve_mb": disk_reserve_mb}
        self._limits = cgroups == "limit"
        self._gauge = MachineGauge(self._directory)
        self._link = KeeperLink(self._directory, self._env, boot_id_path, timeout_s, launch_gap_s)

    async def open(self) -> None:
        """Connect to the keeper, and start it when none holds the directory."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unreachable(f"the keeper's directory cannot be made: {error}") from error
        await self._link.ready()
        await asyncio.to_thread(self._empty_trash)

    async def close(self) -> None:
        """Hang up; the keeper and its runs live on."""
        self._link.close()

    async def identity(self) -> str:
        """The keeper's id: made with its journal and lost with it."""
        wire = await self._link.ready()
        await wire.greet()
        return wire.hello.id

    async def measure(self) -> Reading:
        """How full this machine is."""
        return self._gauge.read()

    async def keeper_pid(self) -> int:
        """The process id of the keeper, for an operator and for tests."""
        return (await self._link.ready()).hello.pid

    async def create(self, slot: Slot, making: Making) -> str:
        """A seat is nothing but the keeper's word that it will not start a run twice."""
        return await self.identity()

    async def start(self, slot: Slot, start: Start) -> Sighting:
        """Spawn the run once; the same run id again tells what became of the first."""
        asked_at = self._now()
        until = boottime() + min(start.valid_for_ms / 1000, HORIZON_S)
        wire = await self._link.ready()
        incarnation = start.order.incarnation or slot.incarnation
        if incarnation != wire.hello.id:
            raise CommandRefused(f"seat {slot.name} belongs to keeper {incarnation}, this is {wire.hello.id}")
        order = self._order(start)
        try:
            answer = await wire.ask("start", {**order, **self._common, "until": until})
        except TooLarge:  # it was not sent and never will be
            never = Exit(start_error=_too_large(order), retryable=False)
            state = RunState(start.run_id, over=True, handle=None, exit=never)
            return _sighting(state, wire.hello.id, asked_at)
        return _sighting(_read_state(answer), wire.hello.id, asked_at)

    async def stop(self, slot: Slot, run_id: str, incarnation: str, *, force: bool, epoch: int) -> None:
        """SIGTERM, or SIGKILL until nothing is left, to the run's whole tree."""
        wire = await self._link.ready()
        if incarnation == wire.hello.id:
            await wire.ask("stop", {"run_id": run_id, "force": force, "epoch": epoch})

    async def remove(self, slot: Slot) -> None:
        """A seat leaves nothing behind."""

    async def observe(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        """One sighting for each run: FRESH if this keeper never saw it, ABSENT if it belongs to another keeper."""
        asked_at = self._now()
        wire = await self._link.ready()
        answer = await wire.ask("list", {"run_ids": [run.run_id for run in runs]})
        listing = _read_listing(answer)
        known = {state.run_id: state for state in listing.runs}
        forgotten = set(listing.forgotten)
        return [self._judge(run, known.get(run.run_id), forgotten, wire.hello.id, asked_at) for run in runs]

    async def logs(self, cursors: Mapping[str, str]) -> Sequence[LogPiece]:
        """New whole lines of each run's output files."""
        wire = await self._link.ready()
        listing = _read_listing(await wire.ask("list", {"run_ids": list(cursors)}))  # before the files are read
        over = {state.run_id: state.over for state in listing.runs}
        try:
            return await asyncio.to_thread(self._tail_all, cursors, over)
        except OSError as error:
            raise Unreachable(f"output cannot be read: {error}") from error

    async def unstored(self) -> Sequence[str]:
        """All runs that the keeper has not been told to forget."""
        wire = await self._link.ready()
        return _read_names(await wire.ask("all", {}))["run_ids"]

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop ended runs and their directories; raises CommandRefused, naming them, if some are alive."""
        wire = await self._link.ready()
        live = _read_names(await wire.ask("forget", {"run_ids": list(run_ids)}))["live"]
        await asyncio.to_thread(self._empty_trash)
        if live:
            raise CommandRefused(f"still alive: {', '.join(live)}")

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields when a run began or ended, or the keeper was lost: since this call, not since the first wait."""
        return self._changes(self._link.listen())

    async def _changes(self, event: asyncio.Event) -> AsyncGenerator[None, None]:
        try:
            while True:
                await event.wait()
                event.clear()
                yield
        finally:
            self._link.unlisten(event)

    def _order(self, start: Start) -> Mapping[str, object]:
        order, spec = start.order, start.spec
        env = {
            **self._env,
            **start.env,
            "STANDBY_RUN_ID": start.run_id,
            "STANDBY_ORDER_ID": order.id,
            "STANDBY_PROJECT": order.project,
            "STANDBY_POOL": order.pool,
            "STANDBY_ATTEMPT": str(order.attempt),
        }
        return {
            "run_id": start.run_id,
            "epoch": start.epoch,
            "argv": spec.command,
            "script": spec.script,
            "payload": spec.payload,
            "env": env,
            "memory_mb": order.memory_mb if self._limits else None,
        }

    def _judge(
        self, run: OpenRun, state: RunState | None, forgotten: set[str], identity: str, asked_at: int
    ) -> Sighting:
        if run.incarnation == identity and state is not None:
            return _sighting(state, identity, asked_at)
        fresh = run.incarnation == identity and run.run_id not in forgotten
        seen = Seen.FRESH if fresh else Seen.ABSENT
        return Sighting(run_id=run.run_id, incarnation=run.incarnation, seen=seen, asked_at=asked_at)

    def _tail_all(self, cursors: Mapping[str, str], over: Mapping[str, bool]) -> list[LogPiece]:
        now = self._now()
        runs = self._directory / "runs"
        return [
            tail(runs / run_id, run_id, cursor, over=over[run_id], now=now)
            if run_id in over
            else LogPiece(run_id=run_id, lines=(), cursor=cursor, closed=True)
            for run_id, cursor in cursors.items()
        ]

    def _empty_trash(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # what cannot be removed now is tried again with the next run that is forgotten
            for entry in os.scandir(self._directory / "trash"):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _too_large(order: Mapping[str, object]) -> str:
    """What a person has to make smaller."""
    sizes = {part: len(msgspec.json.encode(order[part])) for part in ("argv", "script", "payload", "env")}
    part = max(sizes, key=sizes.__getitem__)
    name = {"argv": "command"}.get(part, part)
    return f"the order is too large: its {name} takes {sizes[part] >> 10} KB, all of it may take {LINE_MAX >> 10} KB"


def _is_text(value: str | None) -> bool:
    """Whether it can be sent to the keeper: a value that is no UTF-8 is left out rather than failing every start."""
    try:
        return value is not None and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _sighting(state: RunState, identity: str, asked_at: int) -> Sighting:
    return Sighting(
        run_id=state.run_id,
        incarnation=identity,
        seen=Seen.STOPPED if state.over else Seen.READY,
        asked_at=asked_at,
        handle=state.handle,
        exit=state.exit,
    )
