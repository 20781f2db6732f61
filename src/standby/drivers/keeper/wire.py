"""The keeper's side of its socket: lines of JSON in, lines of JSON out."""

import contextlib
import json
import os
import socket
from typing import Any

VERSION = 1
NAME = "keeper.sock"
LOCK = "keeper.lock"
LINE_MAX = 8 << 20
_OUT_MAX = 64 << 20
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Hangup(Exception):
    """The other side is gone, or talks nonsense."""


class Door:
    """Where servers come in: a socket in the current directory, for as long as the lock there is ours."""

    def __init__(self, lock: int) -> None:
        self._lock = os.fstat(lock)
        self.server = _listen()
        self._file = os.stat(NAME)

    def is_ours(self) -> bool:
        """False when the file that we have locked is not there any more: then another keeper can be."""
        return _is_still(LOCK, self._lock)

    def is_there(self) -> bool:
        """False when somebody removed the socket's file: nobody can connect then."""
        return _is_still(NAME, self._file)

    def open_again(self) -> None:
        server = _listen()
        self.server.close()
        self.server, self._file = server, os.stat(NAME)


def _is_still(name: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(name), file)
    except OSError as error:  # another error does not tell
        return not isinstance(error, FileNotFoundError)


def _listen() -> socket.socket:
    """The socket in the current directory, for this user only; named relatively, as paths are limited to 108 bytes."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(NAME)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    server.bind(NAME)
    os.chmod(NAME, 0o600)
    server.listen(64)
    return server


class Peer:
    """One connected server."""

    __slots__ = ("_inbox", "_outbox", "_sock", "blocked", "greeted", "watching")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._inbox = bytearray()
        self._outbox = bytearray()
        self.blocked = False
        """The socket takes no more for now; the rest waits in the outbox."""
        self.greeted = False
        self.watching = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self) -> list[dict[str, Any]]:
        """Whole messages that have arrived; one bounded read, so that no peer starves the others."""
        try:
            data = self._sock.recv(32768)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Hangup from error
        if not data:
            raise Hangup
        self._inbox += data
        if b"\n" not in data:
            if len(self._inbox) > LINE_MAX:
                raise Hangup
            return []
        *lines, rest = self._inbox.split(b"\n")
        self._inbox = rest
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise Hangup from error

    def send(self, message: dict[str, Any]) -> None:
        """Queue one message."""
        self._outbox += _encode(message).encode() + b"\n"
        if len(self._outbox) > _OUT_MAX:
            raise Hangup

    def flush(self) -> bool:
        """Send what the socket takes; true when nothing is left."""
        try:
            while self._outbox:
                del self._outbox[: self._sock.send(self._outbox)]
        except BlockingIOError:
            return False
        except OSError as error:
            raise Hangup from error
        return True

    def close(self) -> None:
        self._sock.close()
