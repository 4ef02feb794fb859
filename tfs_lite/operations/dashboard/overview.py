"""The overview of all models on the page, as JSON: how each fares, its versions with their states, and its numbers now.

What changes with the states of models is gathered when one has changed, at the latest every five seconds; numbers come
from the series every two seconds. When neither has changed, a snapshot is the one before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tfs_lite import __version__
from tfs_lite.core.history import Event
from tfs_lite.core.servable import ServableId, VersionState
from tfs_lite.operations.dashboard.counters import held_bytes
from tfs_lite.operations.dashboard.feed import FeedSnapshot
from tfs_lite.operations.dashboard.series import DashboardSeries, Key, LatestNumbers, Numbers
from tfs_lite.operations.explain.causes.wanted import config_refusal
from tfs_lite.operations.explain.feature import Explain
from tfs_lite.operations.history.feature import memory_of
from tfs_lite.server.runtime.health import Health
from tfs_lite.serving.server_core import ServerCore

STATES_AGE = 5.0
"""Seconds after which states are gathered again, although none has changed."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_COMING = (VersionState.START, VersionState.LOADING)


@dataclass(slots=True)
class _States:
    """The states of all models at one moment, and when that was."""

    changes: int
    taken: float
    models: dict[str, dict[str, Any]]
    coming: dict[str, list[tuple[dict[str, Any], ServableId]]] = field(default_factory=dict)
    """The versions that are being loaded, by model; their progress is asked for each time."""
    memory: list[dict[str, Any]] = field(default_factory=list)


class Overview:
    """The overview, made on one thread; ``on_event`` runs on any."""

    def __init__(self, core: ServerCore, explain: Explain, health: Health, series: DashboardSeries) -> None:
        self._core = core
        self._explain = explain
        self._health = health
        self._series = series
        self._started = time.time()
        self._states: _States | None = None
        self._latest: LatestNumbers | None = None
        self._encoded: dict[str, bytes] = {}
        self._events: dict[str, int] = {}
        core.history.listen(self.on_event)

    def on_event(self, event: Event) -> None:
        """Any thread. The page asks for the events of a model when the number of its last one has changed."""
        self._events[event.model] = event.seq

    def snapshot(self) -> FeedSnapshot:
        """The snapshot for the feed."""
        states, latest = self._gather(), self._series.latest
        fresh = states is not self._states or latest is not self._latest
        self._states, self._latest = states, latest
        if fresh:
            self._encoded = {name: dumps(self._model(states, name, latest)) for name in states.models}
        for name in states.coming:
            self._encoded[name] = dumps(self._model(states, name, latest))
        return FeedSnapshot(dumps(self._head(states, latest)), self._encoded)

    def server(self) -> dict[str, Any]:
        """The server itself."""
        return self._head(self._gather(), self._series.latest)

    def models(self, name: str | None = None) -> list[dict[str, Any]]:
        """Every model, the worst first; or the one of that name, if there is one."""
        states, latest = self._gather(), self._series.latest
        names = states.models if name is None else [name] if name in states.models else []
        return [self._model(states, found, latest) for found in names]

    # The states.

    def _gather(self) -> _States:
        known, changes, now = self._states, self._core.changes.count, time.monotonic()
        if known is not None and known.changes == changes and now - known.taken < STATES_AGE:
            return known
        states = _States(changes, now, {}, memory=[_device(use) for use in self._core.view.device_memory()])
        replicas = {report.id: report for report in self._core.view.replicas()}
        for line in self._explain.verdicts():
            states.models[line.model] = {
                "name": line.model,
                "rank": line.rank,
                **{key: value for key, value in line.as_json.items() if key not in ("model", "version")},
                "answers": line.version,
                "versions": list(self._versions(states, line.model, replicas)),
            }
        for gone in self._events.keys() - states.models.keys():
            self._events.pop(gone, None)
        return states

    def _versions(self, states: _States, name: str, replicas: Mapping[ServableId, Any]) -> Any:
        core = self._core
        times, labels = core.states.version_states(name), core.labels.table.get(name, {})
        wanted = {servable_id.version for servable_id in core.states.aspired(name)}
        memory = {found.version: held_bytes(found) for found in memory_of(core, name)}
        for status in core.states.report(name).versions:
            number, servable_id = status.version, ServableId(name, status.version)
            timed = times.get(number)
            found: dict[str, Any] = {
                "version": number,
                "state": status.state.name,
                "since": timed.time if timed else None,
                "wanted": number in wanted,
            }
            if not status.status.ok:
                found["message"] = status.status.message[:500]
            of_version = sorted(label for label, at in labels.items() if at == number)
            if of_version:
                found["labels"] = of_version
            if memory.get(number) is not None:
                found["memory"] = memory[number]
            if servable_id in replicas:
                found["replicas"] = _replicas(replicas[servable_id])
            if status.state in _COMING:
                states.coming.setdefault(name, []).append((found, servable_id))
            yield found

    # Their JSON.

    def _model(self, states: _States, name: str, latest: LatestNumbers) -> dict[str, Any]:
        for found, servable_id in states.coming.get(name, ()):
            progress = self._core.view.load_progress(servable_id)
            found["progress"] = None if progress is None else {**progress.as_json(), "text": str(progress)}
        model = states.models[name]
        versions = [
            {**found, "now": rounded(latest.versions.get((name, str(found["version"])), {}))}
            for found in model["versions"]
        ]
        now = rounded(latest.models.get(name, {}))
        lost = rounded(latest.versions.get((name, ""), {}))
        return {**model, "versions": versions, "now": now, "unanswered": lost, "event": self._events.get(name, 0)}

    def _head(self, states: _States, latest: LatestNumbers) -> dict[str, Any]:
        health = self._health
        why = health.remark if health.ready else "it is being stopped" if health.draining else "models are being loaded"
        return {
            "product": "tfs_lite",
            "version": __version__,
            "started": self._started,
            "time": time.time(),
            "ready": health.ready,
            "why": why,
            "config_refused": self._config_refused(),
            "control": self._core.options.model_control_mode,
            "tick": latest.tick,
            "now": rounded(latest.total),
            "resident": resident_bytes(),
            "memory": states.memory,
        }

    def _config_refused(self) -> dict[str, Any] | None:
        """The config file or repository that is not in force. Its path stays out: one answer goes to every reader."""
        refused = self._core.refusals.config
        return config_refusal(refused, paths=False).as_json if refused is not None else None


def _device(use: Any) -> dict[str, Any]:
    return {"device": use.device, "instance": use.instance, "used": use.used, "total": use.total}


def _replicas(report: Any) -> dict[str, Any]:
    ready = sum(replica.state == "ready" for replica in report.replicas)
    return {"ready": ready, "of": len(report.replicas), "summary": report.summary}


def resident_bytes() -> int | None:
    """The main memory, in bytes, that this process holds; None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return None


def rounded(numbers: Numbers) -> dict[str, float]:
    """Four digits that count; numbers that are 0 are left out."""
    return {name: round_to(value) for name, value in numbers.items() if value}


def round_to(value: float) -> float:
    return round(value) if value >= 1000 else float(f"{value:.4g}")


def points(found: Mapping[Key, Mapping[str, Sequence[float | None]]]) -> dict[str, dict[str, list[float | None]]]:
    """The points of versions, by version."""
    return {
        version: {
            signal: [None if value is None else round_to(value) for value in values]
            for signal, values in of_version.items()
            if any(values)
        }
        for (_, version), of_version in found.items()
    }


def dumps(value: Any) -> bytes:
    """JSON. Names of directories may hold what is no Unicode; it is replaced."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_clean(value))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value
