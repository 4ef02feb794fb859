"""The metrics pages: ours, and one with TensorFlow Serving's names; and what they say of the server as a whole.

Our page is text, or OpenMetrics for those who ask for it, which has exemplars. Both have the same series.

A page takes a moment to write, so it is made on a thread of its own.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

import torch
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

import tfs_lite
from tfs_lite.core.status import invalid_argument
from tfs_lite.metrics.tensorflow import CONTENT_TYPE as TENSORFLOW_CONTENT_TYPE
from tfs_lite.metrics.tensorflow import TensorflowMetrics
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.output import lost_lines

MAX_PENDING_PAGES = 16
PATH = "/metrics"
OPENMETRICS = "application/openmetrics-text"


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
        lost = CounterMetricFamily(
            "tfs_lite_output_lost_lines",
            "Lines of output that were lost, since they were not read.",
            labels=("stream",),
        )
        for stream, lines in lost_lines().items():
            lost.add_metric((stream,), lines)
        yield lost


class _ForOpenMetrics(Collector):
    """Metrics of ours, then Triton's. In OpenMetrics all that Triton counts is of unknown type, because counters end
    with ``_total``; and so is a counter of ours that would have the name of a gauge without that ending."""

    def __init__(self, registry: CollectorRegistry, lines: Iterable[str]) -> None:
        self._registry = registry
        self._lines = lines

    def collect(self) -> Iterator[Metric]:
        own = list(self._registry.collect())
        taken = {metric.name for metric in own if metric.type != "counter"}
        for metric in own:
            yield (
                _untyped(metric, f"{metric.name}_total")
                if metric.type == "counter" and metric.name in taken
                else metric
            )
        for family in text_string_to_metric_families("".join(f"{line}\n" for line in self._lines)):
            yield _untyped(family, family.name)


def _untyped(metric: Metric, name: str) -> Metric:
    found = UnknownMetricFamily(name, metric.documentation)
    for sample in metric.samples:
        found.add_sample(name, sample.labels, sample.value)
    return found


def wants_openmetrics(accept: str) -> bool:
    """Whether an ``Accept`` header names OpenMetrics 1.0.0, as Prometheus does."""
    for kind in accept.split(","):
        media, *parameters = [part.strip().lower() for part in kind.split(";")]
        found = {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in parameters)}
        if media == OPENMETRICS and found.get("version", "1.0.0") == "1.0.0":
            return found.get("q", "1").strip("0.") != ""
    return False


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
        if wants_openmetrics(request.headers.get("accept")):
            return await self._respond(self._write_openmetrics, openmetrics.CONTENT_TYPE_LATEST)
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

    def _write_openmetrics(self) -> bytes:
        metrics = _ForOpenMetrics(self._registry, self._triton_lines())
        page: bytes = openmetrics.generate_latest(metrics)  # type: ignore[no-untyped-call]
        return page

    def _write_tensorflow(self) -> bytes:
        """Our names follow if this page replaces ours."""
        own = self._write_own() if self.tensorflow_path == PATH else b""
        return self._tensorflow.page() + own
