"""What the server says to its operator: on stderr, for people on a terminal, as JSON lines otherwise."""

import contextlib
import io
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

SECRET_NAMES: Final = frozenset({"env", "token", "key", "authorization", "seal_key", "password", "database"})


def hide_secrets(_: Any, __: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A last net: a field with the name of a secret never reaches the log."""
    for name in record.keys() & SECRET_NAMES:
        record[name] = "(hidden)"
    return record


class Unfailing(io.StringIO):
    """A stream that loses what it cannot write: a full disk or a closed pipe must not end what is logged about."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._out.flush()


def set_up(instance: str, *, out: TextIO | None = None) -> None:
    """Log to stderr with the instance's name in every record; uvicorn's own errors go the same way."""
    stream = sys.stderr if out is None else out
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    on_terminal = stream.isatty()
    # Plain tracebacks: the pretty ones show local variables, and any of them may hold a secret.
    pretty = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    last: Any = pretty if on_terminal else structlog.processors.JSONRenderer()
    plain = [] if on_terminal else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, *plain, last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(Unfailing(stream)),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(instance=instance)
    _adopt_uvicorn(stream, [*shared, *plain], last)


def _adopt_uvicorn(stream: TextIO, shared: list[Any], last: Any) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    errors = logging.getLogger("uvicorn.error")
    errors.handlers, errors.propagate = [handler], False
    errors.setLevel(logging.WARNING)
    access = logging.getLogger("uvicorn.access")
    access.handlers, access.propagate = [], False
