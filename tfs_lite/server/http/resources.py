"""What all APIs over HTTP share: the bounds on request bodies, the calls in flight, and threads for large bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tfs_lite.server.http.bodies import BODY_SECONDS, BodyReader
from tfs_lite.server.http.calls import HttpCalls
from tfs_lite.server.http.heap_trimmer import HeapTrimmer
from tfs_lite.server.http.replies import ClientDisconnected
from tfs_lite.server.runtime.event_loop import BackgroundRunner

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """``max_body_bytes`` bounds one body, before and after decompression, and ``budget_bytes`` all bodies together
    (None: four of the largest). ``timeout_seconds`` bounds a whole prediction (None: no bound), ``body_seconds`` the
    arrival of its body."""

    max_body_bytes: int = 100 << 20
    budget_bytes: int | None = None
    timeout_seconds: float | None = 30.0
    body_seconds: float = BODY_SECONDS


class HttpResources:
    """``background`` runs the work on large bodies. On the event loop; ``close`` at the end."""

    def __init__(self, limits: HttpLimits, background: BackgroundRunner) -> None:
        self.bodies = BodyReader(limits.max_body_bytes, limits.budget_bytes, limits.body_seconds)
        self.calls = HttpCalls(limits.timeout_seconds)
        self.heap = HeapTrimmer(background)
        self.background = background

    async def run(self, large: bool, work: Callable[[], T]) -> T:
        """Runs short work on the loop and large work on a thread, unless its caller was cancelled before it began."""
        if not large:
            return work()
        wanted = True

        def run_if_wanted() -> T:
            if not wanted:
                raise ClientDisconnected
            return work()

        try:
            return await self.background.run(run_if_wanted)
        finally:
            wanted = False

    def close(self) -> None:
        self.heap.close()
