"""The counts that the series are made from: the counters of requests, runs and texts, the calls that wait, the memory
held."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tfs_lite.metrics.generation import GenerationTotals
from tfs_lite.metrics.requests import RequestTotals
from tfs_lite.operations.dashboard.series import TOTAL, Counts, Key
from tfs_lite.operations.history.feature import memory_of
from tfs_lite.operations.history.memory import VersionMemory
from tfs_lite.serving.server_core import ServerCore

_OK = "OK"
_OF_CALLERS = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "PERMISSION_DENIED", "UNAUTHENTICATED", "CANCELLED"}
)
"""The codes of failures that say something of the caller, and nothing of the model."""


MEMORY_AGE = 10.0
"""Seconds after which the memory of versions is looked at again."""


class Counters:
    """One thread. ``read`` takes the locks of the counters one after the other, briefly."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._memory: dict[Key, int] = {}
        self._looked = 0.0

    def read(self) -> dict[Key, Counts]:
        """The counts of every version that has counters because requests were for it; ``TOTAL`` has the memory of the
        others."""
        found = _read_counts(self._core)
        now = time.monotonic()
        if now - self._looked >= MEMORY_AGE:
            self._looked, self._memory = now, _read_memory(self._core)
        rest = 0
        for key, held in self._memory.items():
            if key in found:
                found[key].gauges["memory"] = held
            else:
                rest += held
        found[TOTAL] = Counts(gauges={"memory": rest} if rest else {})
        return found


def _read_memory(core: ServerCore) -> dict[Key, int]:
    return {
        (model, str(memory.version)): held
        for model in core.states.configured
        for memory in memory_of(core, model)
        if (held := held_bytes(memory)) is not None
    }


def held_bytes(memory: VersionMemory) -> int | None:
    """The bytes that a version holds now, as well as they are known: its tensors and its processes, else what was set
    aside."""
    if not memory.resident:
        return None
    known = memory.measured or memory.reserved
    return sum(known.values()) + sum(memory.workers) if known or memory.workers else None


def _read_counts(core: ServerCore) -> dict[Key, Counts]:
    found: dict[Key, Counts] = {}
    for key, requests in core.metrics.requests.totals().items():
        _add_requests(found.setdefault(key, Counts()), requests)
    for key, runs in core.metrics.batches.totals().items():
        counts = found.setdefault(key, Counts())
        counts.waits, counts.wait_seconds = runs.waits, runs.wait_seconds
        counts.runs, counts.rows, counts.padding = runs.runs, runs.rows, runs.padding
        counts.timed_runs, counts.run_seconds = runs.timed_runs, runs.run_seconds
    for key, texts in core.metrics.generation.totals().items():
        _add_texts(found.setdefault(key, Counts()), texts)
    for servable_id, waiting in core.view.queues({model for model, _ in found}):
        key = servable_id.name, str(servable_id.version)
        if key in found:
            found[key].gauges["waiting"] = waiting
    return found


def error_codes(totals: Mapping[Key, RequestTotals], model: str) -> dict[str, dict[str, int]]:
    """The failed predictions of a model since its counters began: by version, then by code."""
    return {
        version: {code: round(count) for code, count in sorted(found.codes.items()) if code != _OK}
        for (name, version), found in totals.items()
        if name == model
    }


def _add_requests(counts: Counts, requests: RequestTotals) -> None:
    counts.requests = sum(requests.codes.values())
    counts.failures = counts.requests - requests.codes.get(_OK, 0.0)
    counts.faults = counts.failures - sum(requests.codes.get(code, 0.0) for code in _OF_CALLERS)
    counts.seconds = requests.seconds
    counts.gauges["in_flight"] = requests.in_flight


def _add_texts(counts: Counts, texts: GenerationTotals) -> None:
    counts.tokens = texts.tokens
    engine = texts.engine
    if engine is not None:
        counts.gauges["texts"], counts.gauges["texts_waiting"] = engine.running, engine.waiting
        counts.gauges["cache"] = engine.reserved / engine.capacity if engine.capacity else 0.0
