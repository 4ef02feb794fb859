"""The resources that all APIs over HTTP share: the bounds on request bodies, the calls in flight, and threads for large
bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tfs_lite.server.http.bodies import OLD_UPLOAD, Bodies
from tfs_lite.server.http.calls import HttpCalls
from tfs_lite.server.http.heap_trimmer import HeapTrimmer
from tfs_lite.server.runtime.event_loop import BackgroundRunner

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """``max_body_bytes`` bounds one body, before and after decompression, and ``budget_bytes`` all bodies together
    (None: four of the largest). ``timeout_seconds`` bounds a prediction from when its request has come whole (None: no
    bound). A body that has been arriving for ``old_upload_seconds`` gives way to others."""

    max_body_bytes: int = 100 << 20
    budget_bytes: int | None = None
    timeout_seconds: float | None = 30.0
    old_upload_seconds: float = OLD_UPLOAD


class HttpResources:
    """``background`` runs the work on large bodies. On the event loop; ``close`` at the end."""

    def __init__(self, limits: HttpLimits, background: BackgroundRunner) -> None:
        self._background = background
        self.heap = HeapTrimmer(background)
        self.bodies = Bodies(
            background, self.heap, limits.max_body_bytes, limits.budget_bytes, limits.old_upload_seconds
        )
        self.calls = HttpCalls(limits.timeout_seconds)

    async def run(self, large: bool, work: Callable[[], T]) -> T:
        """Runs short work on the loop and large work on a thread, unless its caller is cancelled before it begins.
        RESOURCE_EXHAUSTED when too much waits."""
        return await self._background.run(work) if large else work()

    def close(self) -> None:
        self.heap.close()
