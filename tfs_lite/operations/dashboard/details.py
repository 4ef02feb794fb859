"""The details of one model that is open on the page: why it is in its state, its events, failures, workers, and the
points of its plots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import invalid_argument, not_found
from tfs_lite.operations.dashboard.counters import error_codes
from tfs_lite.operations.dashboard.overview import Overview, points
from tfs_lite.operations.dashboard.series import TOTAL, DashboardSeries
from tfs_lite.operations.explain.feature import Explain
from tfs_lite.operations.history.feature import memory_of
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.transport.table import EVERYTHING, Grant

RANGES = {"10m": False, "4h": True}
"""The ranges by their value in a query: whether the coarse points are meant."""
SPARK_POINTS, SPARK_STEP = 30, 5
"""The number of points of the small plot beside each model, and of the fine points that each stands for."""
MOST_SPARKS = 1000


class Details:
    """Any thread but the event loop's."""

    def __init__(self, core: ServerCore, explain: Explain, series: DashboardSeries, overview: Overview) -> None:
        self._core = core
        self._explain = explain
        self._series = series
        self._overview = overview

    def answer(self, model: str | None, span: str, paths: bool, grant: Grant = EVERYTHING) -> dict[str, Any]:
        """The whole overview, or that of one model with everything about it. ``paths``: those of the server may be
        shown. ``grant``: other models than its own are not told of. INVALID_ARGUMENT for an unknown range, NOT_FOUND
        for a model that may not be seen."""
        if span not in RANGES:
            raise invalid_argument(f"range is {span[:50]!r}, expected one of: {', '.join(RANGES)}")
        if model is not None and not grant.allows(model):
            raise not_found(f"no model named {model[:200]!r} is among those that this token may see")
        models = [found for found in self._overview.models(model) if grant.allows(found["name"])]
        found = {"server": self._overview.server(), "models": models}
        if model is None:
            sparks = [spark for spark in self._sparks() if grant.allows(spark["name"])]
            return {**found, "series": self._of_total(span), "sparks": sparks}
        return {**found, "details": self._of_model(model, span, paths)}

    def _of_model(self, name: str, span: str, paths: bool) -> dict[str, Any]:
        core = self._core
        explanation = self._explain.explain(ModelRef(name), paths=paths).as_json
        return {
            "explanation": explanation,
            "events": [event.as_json(manage=paths) for event in core.history.of_model(name)],
            "failures": explanation.get("requests", []),
            "codes": error_codes(core.metrics.requests.totals(), name),
            "memory": [memory.as_json() for memory in memory_of(core, name)],
            "workers": [*self._replicas(name), *self._processes(name)],
            "series": self._points_of(name, span),
        }

    def _replicas(self, name: str) -> list[dict[str, Any]]:
        return [
            {"version": report.id.version, **asdict(replica), "sandbox": None}
            for report in self._core.view.replicas()
            if report.id.name == name
            for replica in report.replicas
        ]

    def _processes(self, name: str) -> list[dict[str, Any]]:
        """Those of versions that run in processes of this server, with the fields of a replica."""
        return [
            {
                "version": worker.id.version,
                "name": f"process {worker.instance}",
                "state": "draining" if worker.drains else "up" if worker.up else "down",
                "since": None,
                "node": worker.node,
                "pid": worker.pid,
                "ongoing": None,
                "restarts": worker.restarts,
                "reason": worker.failure or worker.cause or worker.reason,
                "sandbox": None if worker.sandbox is None else worker.sandbox._asdict(),
            }
            for worker in self._core.view.workers(name)
            if worker.kind == "process"
        ]

    def _points_of(self, name: str, span: str) -> dict[str, Any]:
        step, end, found = self._series.of_model(name, RANGES[span])
        return {"step": step, "end": end, "versions": points(found)}

    def _of_total(self, span: str) -> dict[str, Any]:
        step, end, found = self._series.history([TOTAL], RANGES[span])
        return {"step": step, "end": end, **points(found).get("", {})}

    def _sparks(self) -> list[Mapping[str, Any]]:
        """Requests a second of each model that was asked, the oldest first."""
        return [
            {"name": name, "requests": values}
            for name, values in self._series.sparks(SPARK_POINTS, SPARK_STEP, MOST_SPARKS).items()
        ]
