"""Traces that have reached the collector become exemplars of the histograms that their requests were counted in."""

from __future__ import annotations

import time

from tfs_lite.core.servable import ServableId
from tfs_lite.metrics.batches import BatchMetrics
from tfs_lite.metrics.ended_requests import EndedRequest
from tfs_lite.metrics.requests import RequestMetrics


class Exemplars:
    """The traces that have arrived, on the exporter's thread."""

    def __init__(self, requests: RequestMetrics, batches: BatchMetrics) -> None:
        self._requests = requests
        self._batches = batches

    def add(self, ended: EndedRequest) -> None:
        """The trace of this request has reached the collector."""
        at = time.time() - (time.monotonic() - ended.started - ended.seconds)
        self._requests.add_exemplar(ended, at)
        for call in ended.calls:
            steps = () if call.trace is None else call.trace.steps
            for step in steps:
                self._batches.add_exemplar(step.id, step.queue_seconds, ended.trace_id, at)
            if not steps and ended.version is not None and call.run_seconds:
                version = ServableId(ended.model, ended.version)
                self._batches.add_exemplar(version, call.queue_seconds, ended.trace_id, at)
