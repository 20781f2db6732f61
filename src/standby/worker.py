"""A worker for Standby: one file, standard library only, to be copied into an image. See docs/workers.md.

python -m standby.worker                     # runs what each order says
python -m standby.worker -- COMMAND ARG...   # runs this for each order

def meet(job):                               # or as part of a program: Worker().run(meet)
    job.progress(0.5, "half of it")          # job.stopping is set when an end is wanted
    return {"minutes": 42}                   # any JSON; or raise Failed("NoSuchMeeting", retryable=False)
"""

import ctypes
import http.client
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

WAIT_S, TIMEOUT_S, PAUSE_S = 20.0, 10.0, 1.0
SUBREAPER = 36
STREAMS = {1: "stdout", 2: "stderr"}
LINE_MOST, LINES_MOST, BATCH, GATHER_S = 4096, 10_000, 50, 0.1
HEAD_START_S = 0.005  # of the work before its first heartbeat: they share one interpreter


class Failed(Exception):
    """The order cannot be done; `retryable` is what the worker thinks of another try, the order's policy decides."""

    def __init__(self, name: str, text: str = "", *, retryable: bool | None = None) -> None:
        super().__init__(text or name)
        self.name, self.text, self.retryable = name, text, retryable


class Job:
    """One run, as it was handed over: `payload`, `env`, `labels` and the rest are in `order`."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.order, self.run_id, self.payload = order, str(order["run_id"]), order["payload"]
        self.stopping, self.news = threading.Event(), threading.Event()
        self.on_stop: Callable[[float], None] = lambda seconds_left: None
        self.said: dict[str, Any] = {}

    def progress(self, share: float | None = None, text: str | None = None) -> None:
        """Say how far it is, from 0 to 1; the next heartbeat tells it, and comes at once."""
        self.said = {"progress": share, "text": text}
        self.news.set()


class Output:
    """What an order writes: it goes where it went before, and line by line to the server. Made before the order is
    there, which does not wait for it."""

    stderr = 2  # where this process itself complains

    def __init__(self) -> None:
        self.tell: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]] | None = None
        self._next, self._left_out = 0, 0
        self._lines: list[dict[str, str]] = []
        self._changed, self._over = threading.Condition(), False
        self._sender: threading.Thread | None = None
        _flush()
        self._kept = {fd: os.dup(fd) for fd in STREAMS}
        Output.stderr = self._kept[2]
        pipes = {}
        for fd in STREAMS:
            pipe, into = os.pipe()
            pipes[pipe] = fd
            os.dup2(into, fd)
            os.close(into)
        self._reader = threading.Thread(target=self._read, args=(pipes,), daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Nobody writes any more: tell the rest."""
        _flush()
        for fd, kept in self._kept.items():
            os.dup2(kept, fd)
        Output.stderr = 2
        self._reader.join()
        for kept in self._kept.values():
            os.close(kept)
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._sender is not None:
            self._sender.join()

    def _read(self, pipes: dict[int, int]) -> None:
        halves = dict.fromkeys(pipes, b"")
        while pipes:
            for pipe in select.select(list(pipes), [], [])[0]:
                fd, data = pipes[pipe], os.read(pipe, 65536)
                rest = data
                while rest:
                    rest = rest[os.write(self._kept[fd], rest) :]
                *lines, half = (halves[pipe] + data).split(b"\n")
                if not data:
                    os.close(pipe)
                    del pipes[pipe]
                if half and (not data or len(half) > LINE_MOST):
                    lines, half = [*lines, half], b""
                halves[pipe] = half
                self._add(STREAMS[fd], lines)

    def _add(self, stream: str, lines: Sequence[bytes]) -> None:
        if self.tell is None:
            return  # no order wrote this
        with self._changed:
            for line in lines:
                text = line.decode(errors="replace").replace("\0", "")
                if len(self._lines) >= LINES_MOST:
                    self._left_out += 1
                    continue
                if self._left_out:
                    text, self._left_out = f"({self._left_out} lines left out, the server was away) {text}", 0
                self._lines += [
                    {"stream": stream, "text": text[at : at + LINE_MOST]} for at in range(0, len(text) or 1, LINE_MOST)
                ]
            self._changed.notify()
        if lines and self._sender is None:
            self._sender = threading.Thread(target=self._send, daemon=True)
            self._sender.start()

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._over)
                self._changed.wait_for(lambda: self._over or len(self._lines) >= BATCH, GATHER_S)
                batch, closed = self._lines[:BATCH], self._over and len(self._lines) <= BATCH
            assert self.tell is not None
            status, said = self.tell({"first": self._next, "lines": batch, "closed": closed})
            if status >= 500:
                time.sleep(PAUSE_S)
                continue
            with self._changed:
                # a server that wants none of it gets no more: what is written still goes where it went before
                done = said["next"] - self._next if status == 200 else len(self._lines)
                del self._lines[: max(0, done)]
                self._next += max(0, done)
            if closed or status != 200:
                return


class Worker:
    """One life of a worker: boots once, then works on one order after the other."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._socket, self._url = env.get("STANDBY_SOCKET"), urllib.parse.urlsplit(env.get("STANDBY_URL", ""))
        self._token, self._nonce = env["STANDBY_SLOT_TOKEN"], secrets.token_hex(16)
        self._beat_s, self._silence_s, self._answered_at = 5.0, float("inf"), _now()

    def run(self, work: Callable[[Job], Any]) -> None:
        """Boot, then fetch and work; this process ends when the server says that it is enough."""
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # whatever an order leaves behind becomes this process's child
        signal.signal(signal.SIGTERM, lambda *_: _quit(143))
        said = self._insist("POST", "boot", {"nonce": self._nonce})
        self._token, self._beat_s = said["boot_token"], said["heartbeat_s"]
        self._silence_s = float("inf") if said["silence_s"] is None else said["silence_s"]
        output = Output()
        while True:
            wait_s = min(WAIT_S, self._silence_s / 4)  # the time to its end counts from when it asked
            said = self._insist("GET", f"assignment?wait_s={wait_s}", timeout_s=wait_s + TIMEOUT_S)
            if said and _now() - self._answered_at < self._silence_s:
                self._work_on(Job(said), work, output)
                output = Output()

    def _work_on(self, job: Job, work: Callable[[Job], Any], output: Output) -> None:
        over = threading.Event()
        output.tell = lambda said: self._ask("POST", "output", {"run_id": job.run_id, **said}, TIMEOUT_S)
        threading.Thread(target=self._beat, args=(job, over), daemon=True).start()
        try:
            end: dict[str, Any] = {"result": work(job)}
            json.dumps(end)
        except SystemExit as code:
            end = {"exit_code": code.code & 255 if isinstance(code.code, int) else int(code.code is not None)}
        except Failed as error:
            end = {"error": {"name": error.name, "text": error.text[:4000], "retryable": error.retryable}}
        except Exception as error:  # noqa: BLE001  whatever it was, it is the order's, and the next one is served
            end = {"error": {"name": type(error).__name__, "text": str(error)[:4000]}}
        _end_others()  # nothing of it may be alive when it is told to be over
        output.close()
        over.set()
        job.news.set()
        said = {"run_id": job.run_id, **job.said}
        refusal = self._insist("POST", "result", {**said, **end}, over_is_fine=True).get("code")
        if refusal not in (None, "run_over", "token_unknown"):
            end = {"error": {"name": "ResultRefused", "text": refusal}}
            self._insist("POST", "result", {"run_id": job.run_id, **end}, over_is_fine=True)

    def _beat(self, job: Job, over: threading.Event) -> None:
        """Say that it is at work, obey the answer, and end everything when there was none for too long."""
        over.wait(HEAD_START_S)
        while not over.is_set():
            job.news.clear()
            left_s = self._silence_s - (_now() - self._answered_at)
            if left_s <= 0:
                _quit(75, "no heartbeat was answered for too long")
            status, said = self._ask("POST", "heartbeat", {"run_id": job.run_id, **job.said}, min(TIMEOUT_S, left_s))
            if over.is_set():
                return
            if status == 401 or said.get("do") == "exit":
                _quit(0, "the run is over, or somebody else's")
            if said.get("do") == "stop" and not job.stopping.is_set():
                job.stopping.set()
                job.on_stop(said["stop_in_s"] or 0)
            job.news.wait(min(self._beat_s if status == 200 else PAUSE_S, self._silence_s / 8))

    def _insist(
        self, method: str, route: str, body: Any = None, *, timeout_s: float = TIMEOUT_S, over_is_fine: bool = False
    ) -> dict[str, Any]:
        """Ask until there is an answer; a server that wants nothing of this worker is obeyed."""
        while True:
            status, said = self._ask(method, route, body, timeout_s)
            if status < 400 or (status < 500 and over_is_fine):
                return said
            if status < 500:
                _quit(0, f"{route}: {said.get('detail', status)}")
            time.sleep(PAUSE_S)

    def _ask(self, method: str, route: str, body: Any, timeout_s: float) -> tuple[int, dict[str, Any]]:
        """One question, and the status of its answer; 599 when there was none."""
        asked_at = _now()
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        line = kind("standby" if self._socket else self._url.netloc, timeout=timeout_s)
        try:
            if self._socket:
                line.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                line.sock.settimeout(timeout_s)
                line.sock.connect(self._socket)
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            line.request(method, f"/api/v1/worker/{route}", None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            said = json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError):
            return 599, {}
        finally:
            line.close()
        if answer.status < 400:
            self._answered_at = asked_at
        return answer.status, said


def _now() -> float:
    """Also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _below() -> Iterator[int]:
    """Every process below this one; what its parent left alone is below it too."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                parents[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it ended meanwhile
    known = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in known and pid not in known}:
        known |= more
        yield from more


def _end_others() -> None:
    while pids := list(_below()):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                pass
        time.sleep(0.002)


def _quit(code: int, why: str = "") -> None:
    _end_others()
    if why:
        os.write(Output.stderr, f"standby worker leaves: {why}\n".encode())
    _flush()
    os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def run_command(job: Job, command: Sequence[str] = ()) -> None:
    """Run a command for the order, or what the order itself says, with the environment of a process run."""
    order, script = job.order, job.order["script"] or ""
    with tempfile.TemporaryDirectory() as place:
        for name, text in (("payload", json.dumps(job.payload)), ("script", script)):
            with open(os.open(f"{place}/{name}", os.O_WRONLY | os.O_CREAT, 0o700), "w") as file:
                file.write(text)
        given = [f"{place}/script"] if script.startswith("#!") else ["/bin/sh", f"{place}/script"]
        env = {name: value for name, value in os.environ.items() if name != "STANDBY_SLOT_TOKEN"} | order["env"]
        env |= {f"STANDBY_{name}".upper(): str(order[name]) for name in ("run_id", "order_id", "project", "pool")}
        env |= {"STANDBY_ATTEMPT": str(order["attempt"]), "STANDBY_PAYLOAD_FILE": f"{place}/payload"}
        try:
            child = subprocess.Popen(command or order["command"] or given, env=env, start_new_session=True)
        except OSError as error:
            raise Failed("CannotStart", str(error), retryable=False) from error

        def stop(seconds: float) -> None:
            child.terminate()
            threading.Timer(seconds, child.kill).start()

        job.on_stop = stop
        if job.stopping.is_set():
            child.kill()
        code = child.wait()
        raise SystemExit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    mine = sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:]
    Worker().run(lambda job: run_command(job, mine))
