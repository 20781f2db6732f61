"""Who wants to hear that something was committed. Nothing depends on it being told."""

from collections.abc import Callable

import structlog

from standby.store.contract import Heard

Hear = Callable[[Heard], None]


log = structlog.get_logger("standby.store")


class Hints:
    """Subscribers of commits; silent when switched off."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self._hearers: dict[object, Hear] = {}

    def listen(self, hear: Hear) -> Callable[[], None]:
        """Call `hear` after each commit until the returned function is called."""
        ticket = object()
        self._hearers[ticket] = hear
        return lambda: self._hearers.pop(ticket, None) and None

    def tell(self, heard: Heard) -> None:
        """Something was committed, or said by a worker."""
        if self.on:
            for hear in tuple(self._hearers.values()):
                try:
                    hear(heard)
                except Exception:  # the writer goes on, whatever becomes of a hint
                    log.exception("a hint could not be heard")
