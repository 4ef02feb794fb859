"""Explanations and verdicts, as a feature of a server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.operations.explain.answers import explain, line_of_model
from tfs_lite.operations.explain.explanation import Explanation, ModelVerdict, worst_first
from tfs_lite.operations.explain.snapshot import Pace, Snapshots
from tfs_lite.operations.guard.feature import Guard
from tfs_lite.server.feature import Doors, ServerFeature

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore

SHOWN_EVENTS = 20
"""The latest events in an explanation."""


class Explain(ServerFeature):
    """Any thread but the event loop's may ask, once the feature is attached. ``pace_of``, which a feature may set that
    keeps numbers of the last minute, tells how fast a version answers."""

    _snapshots: Snapshots

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self.pace_of = no_pace

    def attach(self, doors: Doors) -> None:
        self._snapshots = Snapshots(
            self._core, doors.health, doors.repository, lambda servable_id: self.pace_of(servable_id)
        )

    def explain(self, ref: ModelRef, *, paths: bool = False) -> Explanation:
        """Why the model, its version or its label is in its state, and what to do. A model that is not served has an
        explanation too. ``paths``: whether the reader may see paths of the server."""
        found = explain(self._snapshots.of_model(ref), ref, paths=paths)
        core, version = self._core, found.version
        events = [event for event in core.history.of_model(ref.name) if version in (None, event.version)]
        workers = [worker for worker in core.view.workers(ref.name) if version in (None, worker.id.version)]
        more = core.features.explains(ref.name, version)
        if said := {f"version {worker.id.version}: {worker.reason}": None for worker in workers if worker.reason}:
            more["notes"] = [*said, *more.get("notes", ())]
        guard = core.find(Guard)
        standing = guard.reports.standing(ref.name) if guard is not None else None
        return replace(
            found,
            rollout=None if standing is None else standing.as_json,
            processes=[_process(worker) for worker in workers if worker.kind == "process"],
            events=[event.as_json(manage=paths) for event in events[-SHOWN_EVENTS:]],
            more=more,
        )

    def verdicts(self) -> list[ModelVerdict]:
        """One line for each model of the config, and for each other that still has a version, worst first."""
        return worst_first(line_of_model(snapshot) for snapshot in self._snapshots.of_all())


def no_pace(servable_id: ServableId) -> Pace | None:
    """Where nothing keeps the numbers of the last minute."""
    return None


def _process(worker: WorkerState) -> dict[str, Any]:
    """``sandbox`` is null for a process in none."""
    return {
        "version": worker.id.version,
        "instance": worker.instance,
        "pid": worker.pid,
        "up": worker.up,
        "restarts": worker.restarts,
        "drains": worker.drains,
        "sandbox": None if worker.sandbox is None else worker.sandbox._asdict(),
    }
