"""The way to a collector: attempts over HTTP or gRPC, again where that may help, within a time."""

from __future__ import annotations

import random
import threading
import time
from typing import Protocol

from tfs_lite.operations.traces.collector_http import HttpWay, tls_context
from tfs_lite.operations.traces.environment import GRPC, OtlpSettings
from tfs_lite.operations.traces.otlp import ALL, Attempt

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 5.0
"""Seconds before the second attempt, and at most before any."""


class Way(Protocol):
    """One protocol. ``attempt`` on one thread, ``close`` on any."""

    def attempt(self, body: bytes, seconds: float) -> Attempt:
        """Raises nothing but OSError and ValueError, which are tried again."""

    def close(self) -> None:
        """Ends what waits."""


class CollectorClient:
    """Sends bodies. ``send`` on one thread, ``close`` on any."""

    def __init__(self, settings: OtlpSettings) -> None:
        self.settings = settings
        self._way = _way(settings)
        self._closed = threading.Event()

    def send(self, body: bytes) -> Attempt:
        """The last attempt. Tries again while that may help, for at most the timeout."""
        ends, pause = time.monotonic() + self.settings.timeout, FIRST_PAUSE
        while True:
            try:
                last = self._way.attempt(body, max(ends - time.monotonic(), 0.1))
            except (OSError, ValueError) as error:
                last = Attempt(ALL, f"{self.settings.place}: {error}", again=True)
            wait = max(last.wait, pause * random.uniform(0.8, 1.2))
            if not last.again or time.monotonic() + wait >= ends or self._closed.wait(wait):
                return last
            pause = min(2 * pause, LONGEST_PAUSE)

    def close(self) -> None:
        """Ends all attempts."""
        self._closed.set()
        self._way.close()


def _way(settings: OtlpSettings) -> Way:
    if settings.protocol != GRPC:
        return HttpWay(settings)
    from tfs_lite.operations.traces.collector_grpc import GrpcWay

    return GrpcWay(settings)


def check_certificates(settings: OtlpSettings) -> str:
    """The reason why nothing can be sent with these certificates; empty if they are good."""
    try:
        tls_context(settings)
    except OSError as error:
        return str(error)
    return ""
