"""The lock of a cluster name: which server decides about its replicas, under which epoch, and with which secret.

    claim -> it leads, with its epoch and the secret | another one leads, and for how long yet
    renew -> the epoch that leads now: its own, or a higher one

The registrar is one process of the cluster that is always started again, and then has forgotten everything: the leader
tells it again with its next renewal. For a lease's time after such a start no server leads: the leader may be late, and
one that has lost the lead without knowing may be early. Who asks for the lead tries the leader's port itself and may
then claim over it: a connection that is refused there means that the leader has ended.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.0
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Leader:
    """A server that leads, or wants to. ``id`` is drawn at its start, and it listens on ``host`` and ``port`` as long
    as it lives. ``epoch`` and ``secret`` are those that the registrar has given it, 0 and empty before."""

    id: str
    host: str
    port: int
    boot_id: str
    epoch: int = 0
    secret: bytes = field(default=b"", repr=False)

    @property
    def plain(self) -> dict[str, Any]:
        """Plain data: the registrar may be of an older version than the server that asks it."""
        return asdict(self)

    @staticmethod
    def read(plain: Mapping[str, Any]) -> Leader:
        return Leader(**plain)


class Registrar:
    """Threads: one at a time. What goes in and out is plain data. ``restarted``: an earlier one has forgotten who
    leads. ``now`` gives seconds that never go back."""

    def __init__(
        self, restarted: bool, lease_seconds: float = LEASE_SECONDS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._lease, self._now = lease_seconds, now
        self._leader: Leader | None = None
        self._epoch = 0
        self._secret = b""
        self._until = 0.0
        self._settled = now() + lease_seconds if restarted else 0.0

    def claim(self, plain: Mapping[str, Any], clock: int, over: str = "") -> tuple[dict[str, Any] | None, float]:
        """The leader, and seconds until its lease is over: the one that claims, if the lead is free. It is free when
        the lease is over, or belongs to the leader with the id ``over``, which has ended. (None, seconds) from a
        registrar that was started again a moment ago. ``clock``: milliseconds since the epoch, as the one that claims
        sees them: epochs grow with them, also over a registrar that has forgotten the last one."""
        unsettled, left = self._settled - self._now(), self._until - self._now()
        if unsettled > 0:
            return None, unsettled
        leader = self._leader
        if left > 0 and leader is not None and leader.id not in (over, plain["id"]):
            return replace(leader, secret=b"").plain, left
        self._secret = self._secret or secrets.token_bytes(SECRET_BYTES)
        self._epoch = max(clock, self._epoch + 1)
        self._leader = replace(Leader.read(plain), epoch=self._epoch, secret=self._secret)
        self._until = self._now() + self._lease
        return self._leader.plain, self._lease

    def renew(self, plain: Mapping[str, Any]) -> int:
        """The epoch that leads, 0 as long as no server does. If it is that of the server that asks, its lease begins
        again."""
        asks = Leader.read(plain)
        if asks.epoch > self._epoch:  # forgotten meanwhile
            self._leader, self._epoch, self._secret = asks, asks.epoch, asks.secret
        if asks.epoch == self._epoch and self._leader is not None:
            self._until = self._now() + self._lease
        return self._epoch if self._now() >= self._settled else 0

    def release(self, id: str) -> None:
        """The leader with that id leads no more; a renewal of its that is under way changes nothing."""
        if self._leader is not None and self._leader.id == id:
            self._leader = None
