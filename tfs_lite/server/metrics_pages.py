"""The metrics pages: ours, and one with TensorFlow Serving's names; and what they say of the server as a whole.

A page takes a moment to write, so it is made on a thread of its own.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

import torch
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import tfs_lite
from tfs_lite.core.status import invalid_argument
from tfs_lite.metrics.tensorflow import CONTENT_TYPE as TENSORFLOW_CONTENT_TYPE
from tfs_lite.metrics.tensorflow import TensorflowMetrics
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.runtime.event_loop import BackgroundRunner

MAX_PENDING_PAGES = 16
PATH = "/metrics"


class ServerCollector(Collector):
    """Whether the server is ready, read on the thread that makes the page, and what it is."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "tfs_lite_ready", "1 while the server is ready, as its readiness probe says.", int(self._is_ready())
        )
        facts = {"version": tfs_lite.__version__, "python": platform.python_version(), "torch": torch.__version__}
        info = GaugeMetricFamily("tfs_lite_build_info", "1, for what the server is.", labels=tuple(facts))
        info.add_metric(tuple(facts.values()), 1)
        yield info


class MetricsPages:
    """``tensorflow_path`` is that of the page with TensorFlow Serving's names; None: there is no such page.
    ``triton_lines`` gives the lines under Triton's names. On the event loop; ``close`` on another thread."""

    def __init__(
        self,
        registry: CollectorRegistry,
        tensorflow: TensorflowMetrics,
        tensorflow_path: str | None,
        triton_lines: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.tensorflow_path = tensorflow_path
        self._registry = registry
        self._tensorflow = tensorflow
        self._triton_lines = triton_lines
        self._background = BackgroundRunner("page", 1, MAX_PENDING_PAGES)

    async def own(self, request: Request, target: None) -> Response:
        return await self._respond(self._write_own, CONTENT_TYPE_LATEST)

    async def tensorflow(self, request: Request, target: None) -> Response:
        if request.head.query:
            raise invalid_argument(f"Unexpected path: {request.head.target}")
        return await self._respond(self._write_tensorflow, TENSORFLOW_CONTENT_TYPE)

    def close(self) -> None:
        self._background.close()

    async def _respond(self, write: Callable[[], bytes], content_type: str) -> Response:
        return Response(await self._background.run(write), media_type=content_type)

    def _write_own(self) -> bytes:
        """Triton's names follow ours as text, because prometheus_client would change them."""
        triton = "".join(f"{line}\n" for line in self._triton_lines())
        return generate_latest(self._registry) + triton.encode()

    def _write_tensorflow(self) -> bytes:
        """Our names follow if this page replaces ours."""
        own = self._write_own() if self.tensorflow_path == PATH else b""
        return self._tensorflow.page() + own
