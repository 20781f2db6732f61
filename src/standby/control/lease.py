"""What a leader may still do: a lease counted by this machine's monotonic clock, from before its renewal was sent."""

from standby.core.errors import StandbyError
from standby.core.model import Lease
from standby.world import Clock


class Deposed(StandbyError):
    """Somebody else leads this host now (or nobody): stop acting at once."""


class Hold:
    """One host's lease in the hands of this instance."""

    def __init__(self, clock: Clock, lease: Lease, sent_at: float, ttl_ms: int) -> None:
        self._clock = clock
        self.host = lease.host
        self.epoch = lease.epoch
        self.key = lease.host, lease.epoch
        """What every write of the leader names."""
        self._ends = sent_at + ttl_ms / 1000
        self._lost = False

    @property
    def lost(self) -> bool:
        """Whether it has been seen to be over. An expired one may still be renewed if nobody took it meanwhile."""
        return self._lost

    def renewed(self, sent_at: float, ttl_ms: int) -> None:
        self._ends = sent_at + ttl_ms / 1000

    def give_up(self) -> None:
        self._lost = True

    def outlives(self, ms: int) -> bool:
        """Whether it certainly lasts this much longer."""
        return not self._lost and self._clock.monotonic() + ms / 1000 < self._ends
