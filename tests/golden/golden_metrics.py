"""The metrics: every family of both pages, with its labels and buckets, whether anything was counted in it or not.

The families of the usual library are noted down while a page is made, so one without samples tells its labels, too.
Those of collectors that this server has no use for are made by the way. The rest is read from the pages.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any
from unittest import mock

from golden_server import PATIENCE, World
from prometheus_client import CollectorRegistry, metrics_core
from prometheus_client.registry import Collector

from tfs_lite.cluster.metrics import ReplicaMetrics

PAGES = ("/metrics", "/monitoring/prometheus/metrics")
SAMPLE = re.compile(r"([^ {]+)(?:\{(.*)\})? [^ ]+")
LABEL = re.compile(r'([A-Za-z_]+)="((?:[^"\\]|\\.)*)"')
WAITED_FOR = ("request_log_count", "model_warmup_latency", "wrapped_run_count", "request_example_counts")
"""What is counted by a thread of its own may be on the page a moment after the answer."""


class Notes:
    """Which collectors were registered, and which families were made."""

    def __init__(self) -> None:
        self.collectors: set[type] = set()
        self.families: set[str] = set()

    @contextlib.contextmanager
    def taken(self) -> Iterator[Notes]:
        """While the block runs."""
        with contextlib.ExitStack() as stack:
            for name, kind in inspect.getmembers(metrics_core, inspect.isclass):
                if name.endswith("MetricFamily"):
                    stack.enter_context(mock.patch.object(kind, "__init__", self._noting(kind.__init__)))
            register = CollectorRegistry.register

            def noting(registry: CollectorRegistry, collector: Any) -> None:
                self.collectors.add(type(collector))
                register(registry, collector)

            stack.enter_context(mock.patch.object(CollectorRegistry, "register", noting))
            yield self

    def _noting(self, make: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(make)

        def noting(*args: Any, **named: Any) -> None:
            make(*args, **named)
            given = signature.bind(*args, **named).arguments
            family = args[0]
            if family.name.startswith("tfs_lite_"):
                labels = ", ".join(given.get("labels") or ())
                self.families.add(f"family {family.name} {family.type} ({labels}): {family.documentation}")

        return noting


def listing(world: World, notes: Notes) -> Iterator[str]:
    pages = [_page(world, path) for path in PAGES]
    _make_the_others(notes)
    yield from notes.families
    for path, page in zip(PAGES, pages, strict=True):
        yield from (f"{path} {line}" for line in _lines(page))


def _page(world: World, path: str) -> str:
    latest = monotonic() + PATIENCE
    while True:
        page = world.http("GET", path).body.decode()
        if path == PAGES[0] or all(name in page for name in WAITED_FOR):
            return page
        assert monotonic() < latest, f"{path} has not all of {WAITED_FOR}"


def _make_the_others(notes: Notes) -> None:
    of_clusters = CollectorRegistry()
    ReplicaMetrics(of_clusters)
    list(of_clusters.collect())
    for kind in Collector.__subclasses__():
        of_the_product = kind.__module__.startswith("tfs_lite.") and "testing" not in kind.__module__
        if of_the_product and kind not in notes.collectors:
            parameters = list(inspect.signature(kind).parameters)
            list(kind(*(mock.MagicMock() for _ in parameters)).collect())


def _lines(page: str) -> Iterator[str]:
    """What a page says, apart from values. Of the usual library's families the notes know the labels."""
    buckets: dict[str, list[str]] = {}
    for line in page.splitlines():
        match = SAMPLE.fullmatch(line)
        if "_created " in line or "_created{" in line:
            continue  # the library's own, which its users may turn off
        if line.startswith("#"):
            yield line
        elif match is not None:
            name, labels = match[1], dict(LABEL.findall(match[2] or ""))
            if "le" in labels and labels["le"] not in buckets.setdefault(name, []):
                buckets[name].append(labels["le"])
            if not name.startswith("tfs_lite_"):
                yield f"{name} ({', '.join(labels)})"
    yield from (f"{name} buckets {' '.join(limits)}" for name, limits in buckets.items())
