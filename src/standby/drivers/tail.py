"""Reading a run's output files from where the last read ended, line by line."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from standby.drivers.contract import LogLine, LogPiece

LINE_MAX: Final = 64 << 10
READ_MAX: Final = 128 << 10
"""Bytes of one stream in one call, so that neither stream keeps the other waiting."""
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_OURS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What we are short of says nothing about the file: it has to be read later."""


def tail(folder: Path, run_id: str, cursor: str, *, over: bool, now: int) -> LogPiece:
    """New whole lines since the cursor. `over` must have been known before the call: then a last line without its
    newline counts too, and the piece is closed once all is read."""
    offsets = [int(part) for part in cursor.split(",")] if cursor else [0, 0]
    lines: list[LogLine] = []
    ended = over
    for index, stream in enumerate(("stdout", "stderr")):
        data = _read(folder / stream, offsets[index])
        used = 0
        for text, length in _lines(data, last=over and len(data) < READ_MAX):
            lines.append(LogLine(at=now, stream=stream, text=text))
            used += length
        offsets[index] += used
        ended = ended and len(data) < READ_MAX
    return LogPiece(run_id=run_id, lines=lines, cursor=f"{offsets[0]},{offsets[1]}", closed=ended)


def _read(path: Path, offset: int) -> bytes:
    """What is there; nothing if it never began, or made something else of its file: it is the run's to do so."""
    try:
        fd = os.open(path, _OPEN)
        try:
            return os.pread(fd, READ_MAX, offset) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _OURS:
            raise
        return b""


def _lines(data: bytes, *, last: bool) -> Iterator[tuple[str, int]]:
    """Texts with the number of bytes they took; an overlong line comes in parts, a partial one only if `last`."""
    at = 0
    while at < len(data):
        newline = data.find(b"\n", at, at + LINE_MAX + 1)
        if newline >= 0:
            part, length = data[at:newline], newline - at + 1
        elif len(data) - at > LINE_MAX:
            length = _whole_letters(data, at)
            part = data[at : at + length]
        elif last:
            part, length = data[at:], len(data) - at
        else:
            return
        yield part.decode(errors="replace"), length
        at += length


def _whole_letters(data: bytes, at: int) -> int:
    """How much of LINE_MAX bytes can be taken without cutting a letter of UTF-8 in two."""
    for cut in range(LINE_MAX, LINE_MAX - 4, -1):
        if data[at + cut] & 0xC0 != 0x80:
            return cut
    return LINE_MAX
