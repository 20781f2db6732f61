"""An event loop whose time stands still until the simulator moves it: no threads, no sockets."""

import asyncio
import heapq
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

BUSY_MOST = 20_000
"""Callbacks that one moment may take; more is a loop that never rests."""


class Handle:
    """One callback that waits for its turn."""

    __slots__ = ("_args", "_callback", "_context", "_when_ms", "cancelled_")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self._callback, self._args, self._context = callback, args, context
        self.cancelled_ = False

    def cancel(self) -> None:
        """It shall not be called any more."""
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def run(self) -> None:
        if self.cancelled_:
            return
        if self._context is None:
            self._callback(*self._args)
        else:
            self._context.run(self._callback, *self._args)


class VirtualLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that tasks, futures and timeouts need."""

    def __init__(self, start_ms: int) -> None:
        self.ms = start_ms
        """What time it is, by the store's clock."""
        self.faults: list[str] = []
        """What went wrong where nobody waited for it."""
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._count = 0

    # what asyncio asks for

    def time(self) -> float:
        return self.ms / 1000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        handle = Handle(callback, args, context)
        self._count += 1
        heapq.heappush(self._timers, (round(when * 1000), self._count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.ms / 1000 + delay, callback, *args, context=context)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> "asyncio.Task[Any]":
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if str(context.get("message")).startswith("Task was destroyed"):
            return  # the dead leave behind what they were doing
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    # what the simulator asks for

    def settle(self) -> None:
        """Let everybody go on who can, until all wait."""
        for _ in range(BUSY_MOST):
            if not self._ready:
                return
            self._ready.popleft().run()
        raise AssertionError("somebody is busy for ever without time passing")

    def next_at(self) -> int | None:
        """When the next timer is due."""
        while self._timers and self._timers[0][2].cancelled_:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance_to(self, until_ms: int) -> None:
        """Let time pass; what falls due on the way happens at its time."""
        self.settle()
        while (due := self.next_at()) is not None and due <= until_ms:
            self.ms = max(self.ms, due)
            heapq.heappop(self._timers)[2].run()
            self.settle()
        self.ms = max(self.ms, until_ms)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop of this thread."""
        _set_running_loop(self)
        try:
            yield
        finally:
            _set_running_loop(None)


def at_once(coro: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that never has to wait."""
    try:
        coro.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    coro.close()
    raise AssertionError("it had to wait")
