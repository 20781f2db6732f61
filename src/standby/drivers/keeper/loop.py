"""The keeper's life: one loop over sockets and pidfds, single-threaded, so that each step is whole."""

import contextlib
import fcntl
import os
import select
import signal
import time

from standby.drivers.keeper import kernel, log, tree
from standby.drivers.keeper.commands import Commands, Refusal
from standby.drivers.keeper.journal import Journal, Record, Run
from standby.drivers.keeper.recover import recover
from standby.drivers.keeper.spawn import start_of
from standby.drivers.keeper.tree import Tree
from standby.drivers.keeper.wire import LOCK, VERSION, Door, Hangup, Peer

TAKEN = 3
"""Exit code: another keeper holds the lock of this directory."""
_TICK_S = 0.02
_CALM_S = 1.0
_LOG_MAX = 1 << 20


class Keeper:
    """Serves one directory for as long as it lives."""

    def __init__(self, directory: str, journal: Journal) -> None:
        self._journal = journal
        self._tree = Tree(directory, journal.state.runs)
        self._commands = Commands(directory, journal, self._tree, self._watch)
        self._epoll = select.epoll()
        self._held: dict[int, Run] = {}
        """Pidfd -> run whose main process is alive."""
        self._unheld: dict[str, Run] = {}
        """Runs whose main process was spawned and for which there was no pidfd to be had yet."""
        self._ending: dict[str, Run] = {}
        """Runs whose main process has ended and whose tree may not be gone."""
        self._peers: dict[int, Peer] = {}
        self._child_ended = False
        self._changed = False
        self._calm_until = 0.0
        """After a fault: so long nothing is settled."""
        self._door: Door | None = None
        self._look_at_door_at = 0.0
        self._wake_fd, wake_in = os.pipe()
        for fd in (self._wake_fd, wake_in):
            os.set_blocking(fd, False)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def open(self, lock: int) -> None:
        """Settle what earlier keepers left, then listen."""
        kernel.become_subreaper()
        for run in recover(self._journal, self._tree):
            self._watch(run)
        self._door = Door(lock)
        self._let_in()

    def turn(self) -> None:
        """Wait for something and deal with it."""
        for fd, mask in self._epoll.poll(self._patience()):
            if fd in self._held:
                self._take_end(fd)
            elif fd in self._peers:
                self._serve(self._peers[fd], mask)
            elif fd == self._wake_fd:
                os.read(fd, 4096)
                self._child_ended = True
            else:
                self._accept()
        if self._unsettled() and time.monotonic() >= self._calm_until:
            self._try_settle()
        if self._changed:
            self._push()
        self._journal.tidy()
        if time.monotonic() >= self._look_at_door_at:
            self._look_at_door()

    def _patience(self) -> float:
        return max(_TICK_S, self._calm_until - time.monotonic()) if self._unsettled() else _CALM_S

    def _unsettled(self) -> bool:
        open_ends = self._child_ended or self._ending or self._unheld
        return bool(open_ends) or any(run.forced for run in self._held.values())

    def _stay_calm(self, fault: str) -> None:
        """What failed is tried again, but not fifty times a second."""
        log.fault(fault)
        self._calm_until = time.monotonic() + _CALM_S

    # ends

    def _watch(self, run: Run) -> None:
        """Take care of a run that is not gone, however far it is."""
        self._changed = True
        if run.exit is not None:
            self._ending[run.id] = run
            return
        try:
            self._hold(run)
        except OSError as error:
            self._unheld[run.id] = run
            self._stay_calm(f"cannot watch a run: {error}")
            return
        self._unheld.pop(run.id, None)
        self._held[run.fd] = run
        self._commands.live += 1
        if run.ours and run.start:  # if it cannot be written, a next keeper finds the run by its marks
            self._try_write({"k": "up", "r": run.id, "pid": run.pid, "st": run.start})

    def _hold(self, run: Run) -> None:
        run.start = run.start or start_of(run.pid)
        if run.fd < 0:
            run.fd = os.pidfd_open(run.pid)
        self._epoll.register(run.fd, select.EPOLLIN)

    def _take_end(self, fd: int) -> None:
        run = self._held.pop(fd)
        self._epoll.unregister(fd)
        self._ending[run.id] = run

    def _try_settle(self) -> None:
        try:
            self._settle()
        except OSError as error:  # no free file, no memory: each step can be repeated
            self._child_ended = True
            self._stay_calm(f"cannot settle: {error}")

    def _settle(self) -> None:
        self._child_ended = False
        for run in list(self._unheld.values()):
            self._watch(run)
        for run in self._held.values():
            if run.forced:
                tree.end(run, self._tree.members(run))
        ended = [run for run in self._ending.values() if self._note_end(run)]
        cared_for = (*self._unheld.values(), *self._held.values(), *self._ending.values())
        leaders = {run.pid for run in cared_for if run.ours}
        self._tree.take_orphans(leaders)  # after the ends were noted: what they leave behind is ours by then
        for run in ended:
            if not self._end_remains(run) and self._close(run):
                del self._ending[run.id]
                self._changed = True

    def _note_end(self, run: Run) -> bool:
        """How the main process ended is in the journal before it is reaped; false when that has to wait."""
        if run.exit is not None:
            return True
        return self._try_write({"k": "end", "r": run.id, "x": _exit_of(run)})

    def _end_remains(self, run: Run) -> bool:
        """Kill what is left of the tree; true when there was something, so that it has to be looked at again."""
        if run.usage or (run.ours and not self._tree.has_orphans(run) and not kernel.cgroup_pids(run.cgroup)):
            return False
        members = self._tree.members(run)
        tree.end(run, members)
        return bool(members) or self._tree.has_orphans(run)

    def _close(self, run: Run) -> bool:
        """Reap the main process and write down that the whole tree is gone; false when that has to wait."""
        if run.ours:
            _, _, used = os.wait4(run.pid, 0)
            run.ours = False
            run.usage = {"peak_memory_kb": used.ru_maxrss, "cpu_ms": round((used.ru_utime + used.ru_stime) * 1000)}
        if run.memory_mb is not None:
            told = self._commands.memory.tell(run.id)
            if (run.exit or {}).get("code") == 0:
                told.pop("oom", None)  # it did without what was killed
            run.usage.update(told)
        if not self._try_write({"k": "gone", "r": run.id, "x": {**(run.exit or {}), **run.usage}}):
            return False
        if run.fd >= 0:
            os.close(run.fd)
            run.fd = -1
            self._commands.live -= 1
        kernel.cgroup_remove(run.cgroup)
        if run.memory_mb is not None:
            self._commands.memory.remove(run.id)
        return True

    def _try_write(self, record: Record) -> bool:
        try:
            self._journal.write(record)
        except OSError as error:
            self._stay_calm(f"journal: {error}")
            return False
        return True

    # peers

    def _accept(self) -> None:
        assert self._door is not None
        try:
            sock, _ = self._door.server.accept()
            self._epoll.register(sock, select.EPOLLIN)
        except OSError as error:
            if not isinstance(error, BlockingIOError | ConnectionError):  # whoever waits is let in at the next look
                log.fault(f"cannot accept: {error}")
                self._epoll.modify(self._door.server, 0)
            return
        peer = Peer(sock)
        self._peers[peer.fileno()] = peer

    def _look_at_door(self) -> None:
        assert self._door is not None
        self._look_at_door_at = time.monotonic() + _CALM_S
        try:
            if not self._door.is_there():
                if not self._door.is_ours():
                    raise SystemExit("socket and lock are gone, so another keeper may serve: leaving")
                self._door.open_again()
                log.say("the socket was gone: listening again")
            self._let_in()
        except OSError as error:
            log.fault(f"cannot listen: {error}")

    def _let_in(self) -> None:
        assert self._door is not None
        try:
            self._epoll.modify(self._door.server, select.EPOLLIN)
        except FileNotFoundError:
            self._epoll.register(self._door.server, select.EPOLLIN)

    def _serve(self, peer: Peer, mask: int) -> None:
        try:
            if mask & ~select.EPOLLOUT:
                for ask in peer.receive():
                    peer.send(self._answer(peer, ask))
            self._flush(peer)
        except (Hangup, KeyError, TypeError, AttributeError) as error:
            if not isinstance(error, Hangup):
                log.fault(f"hung up on a peer that talks nonsense: {error!r}")
            self._drop(peer)

    def _answer(self, peer: Peer, ask: Record) -> Record:
        verb = ask["do"]
        number = ask["n"]
        try:
            if verb == "hello":
                return {"n": number, "ok": self._hello(peer, ask)}
            if not peer.greeted:
                raise Refusal("say hello first")
            match verb:
                case "start" | "stop" | "list" | "all" | "forget":
                    return {"n": number, "ok": getattr(self._commands, verb)(ask)}
                case "watch":
                    peer.watching = True
                    return {"n": number, "ok": {}}
                case _:
                    raise Refusal(f"this keeper does not know {verb}")
        except Refusal as refusal:
            return {"n": number, "refused": str(refusal)}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason to leave the runs alone
            log.fault(f"cannot {verb}: {error!r}")
            return {"n": number, "failed": str(error) or repr(error)}

    def _hello(self, peer: Peer, ask: Record) -> Record:
        if ask["version"] != VERSION:
            raise Refusal(f"this keeper speaks version {VERSION}, not {ask['version']}")
        peer.greeted = True
        return {"version": VERSION, "id": self._journal.state.id, "boot": self._journal.boot, "pid": os.getpid()}

    def _push(self) -> None:
        self._changed = False
        for peer in list(self._peers.values()):
            if peer.watching:
                try:
                    peer.send({"changed": True})
                    self._flush(peer)
                except Hangup:
                    self._drop(peer)

    def _flush(self, peer: Peer) -> None:
        flushed = peer.flush()
        if flushed is peer.blocked:
            peer.blocked = not flushed
            self._epoll.modify(peer.fileno(), select.EPOLLIN if flushed else select.EPOLLIN | select.EPOLLOUT)

    def _drop(self, peer: Peer) -> None:
        self._epoll.unregister(peer.fileno())
        del self._peers[peer.fileno()]
        peer.close()


def _exit_of(run: Run) -> Record:
    """How the main process ended, as far as anybody can say."""
    if run.ours:
        result = os.waitid(os.P_PIDFD, run.fd, os.WEXITED | os.WNOWAIT)
        assert result is not None
        return {"code" if result.si_code == os.CLD_EXITED else "signal": result.si_status}
    return read_status(kernel.status_of_ended(run.fd, run.pid, run.start))


def read_status(status: int | None) -> Record:
    """A wait status in our words; null means that it is lost."""
    if status is None:
        return {"lost": True}
    return {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}


def main(argv: list[str]) -> int:
    """Become the keeper of a directory: answers its starter when it listens, and lives on in a session of its own."""
    directory, boot_path = argv
    os.chdir(directory)
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return TAKEN
    told, tell = os.pipe()
    if os.fork() != 0:
        os.close(tell)
        return 0 if os.read(told, 1) else 1
    os.close(told)
    with contextlib.suppress(OSError):  # the pid is there for people, the lock works without
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    _detach()
    keeper = Keeper(os.getcwd(), Journal(kernel.read_bytes(boot_path).decode().strip()))
    keeper.open(lock)
    log.say(f"keeper {os.getpid()} serves")
    os.write(tell, b"1")
    os.close(tell)
    while True:
        keeper.turn()


def _detach() -> None:
    os.setsid()
    os.umask(0o022)
    log_fd = os.open("keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if os.fstat(log_fd).st_size > _LOG_MAX:
        os.ftruncate(log_fd, 0)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, onto in ((null, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(fd, onto)
    os.makedirs("runs", 0o700, exist_ok=True)
