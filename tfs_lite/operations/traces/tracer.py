"""Chooses the requests that are traced, when they have ended. On the event loop; what is chosen is passed on at once.

In the mode opentelemetry a request is chosen for the first of these reasons:

    context    its caller's trace is recorded; at most :data:`MAX_OF_CLIENTS` a second
    rate       it is the next of its model, by ``trace_rate`` and ``trace_count``
    failure    it has failed; at most :data:`MAX_FAILURES` a second
    slow       it took more than :data:`SLOW` times what requests of its model usually take; as many

A caller that says that its trace is not recorded gets failures only. In the mode triton only the rate counts, and a
chosen request is a line of JSON in the log ``tfs_lite.trace``, with Triton's names for its moments, in nanoseconds
since 1970. Source: Triton's trace extension.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from itertools import count
from typing import Protocol

from tfs_lite.core.model import CallTrace
from tfs_lite.core.request_context import TraceContext
from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.ended_requests import ended_request
from tfs_lite.metrics.request_records import RecordedRequest
from tfs_lite.metrics.requests import PREDICTIONS, RequestMetrics
from tfs_lite.operations.traces.medians import RecentMedian
from tfs_lite.operations.traces.spans import ChosenRequest, SpanId, new_span, new_trace
from tfs_lite.serving.statistics.trace_settings import NEVER, ModelTraces, V2Settings

MAX_OF_CLIENTS = 100
MAX_FAILURES = 10
MAX_MODELS = 1000
SLOW = 4.0
logger = logging.getLogger(__name__)
traces = logging.getLogger("tfs_lite.trace")
_METHODS = frozenset(PREDICTIONS)
_OK = StatusCode.OK


class Sink(Protocol):
    """Takes the requests that were chosen."""

    def offer(self, chosen: ChosenRequest) -> None:
        """Must return at once."""


class _PerSecond:
    """A limit of ``most`` in each second."""

    __slots__ = ("_most", "_second", "_taken")

    def __init__(self, most: int) -> None:
        self._most = most
        self._second = 0
        self._taken = 0

    def take(self, now: float) -> bool:
        second = int(now)
        if second != self._second:
            self._second, self._taken = second, 0
        self._taken += 1
        return self._taken <= self._most


class _TracedModel:
    """Requests of a model. Of ``step`` that may end one after the other ``left`` are to come; the last of them is
    looked at in any case, and any other one only if it failed, has a caller or took ``slow`` seconds. ``uncounted``
    have ended since one was counted for the median."""

    __slots__ = ("left", "median", "slow", "step", "traces", "uncounted")

    def __init__(self, traces: ModelTraces, now: float) -> None:
        self.traces = traces
        self.median = RecentMedian(now)
        self.slow = math.inf
        self.step = self.left = 1
        self.uncounted = 0


class _TraceFile(logging.FileHandler):
    """Lines go to FILE, or with a log frequency N to FILE.0, and after N traces to FILE.1, and so on. All lines of a
    trace stand in one file. Source: Triton's trace extension."""

    def __init__(self, file: str, frequency: int) -> None:
        self._file = file
        self._frequency = frequency
        self._number = 0
        self._traces = 0
        super().__init__(self._path(), encoding="utf-8")

    def begin_trace(self, frequency: int) -> None:
        """The next lines are those of another trace."""
        is_full = bool(frequency) and self._traces >= frequency
        if is_full or bool(frequency) != bool(self._frequency):
            self._number += is_full
            self._traces, self._frequency = 0, frequency
            self._change_file()
        self._traces += 1

    def _change_file(self) -> None:
        """A file that cannot be opened leaves the lines in the one before, with a line in the log."""
        before, self.baseFilename = self.baseFilename, os.path.abspath(self._path())
        try:
            stream = self._open()
        except OSError as error:
            self.baseFilename = before
            logger.warning("traces stay in %s: %s", before, error)
            return
        old = self.setStream(stream)
        if old is not None:
            old.close()

    def _path(self) -> str:
        return f"{self._file}.{self._number}" if self._frequency else self._file


class Tracer:
    """``sink`` None means the mode triton. Costs requests nothing while the trace level of every model is OFF."""

    def __init__(self, metrics: RequestMetrics, settings: V2Settings, sink: Sink | None = None, file: str = "") -> None:
        """``file``: where lines of the mode triton go, see :class:`_TraceFile`; empty: into the log. Raises OSError."""
        self._metrics = metrics
        self._settings = settings
        self._sink = sink
        self._models: dict[str, _TracedModel] = {}
        self._clients = _PerSecond(MAX_OF_CLIENTS)
        self._failures = _PerSecond(MAX_FAILURES)
        self._slow = _PerSecond(MAX_FAILURES)
        self._lines = count(1)
        self._offset = time.time() - time.monotonic()
        self._handler = _TraceFile(file, settings.traces_of("").log_frequency) if file else None
        if self._handler is not None:
            traces.addHandler(self._handler)
            traces.propagate = False
        settings.listen(self._changed)

    def close(self) -> None:
        self._settings.listen(lambda on: None)
        self._changed(False)
        if self._handler is not None:
            traces.removeHandler(self._handler)
            traces.propagate = True
            self._handler.close()

    def _changed(self, on: bool) -> None:
        """Any thread."""
        self._models.clear()
        self._metrics.notes_calls = on
        if on:
            self._metrics.on_end(self._on_end)
        else:
            self._metrics.off_end(self._on_end)

    def _on_end(self, record: RecordedRequest, code: StatusCode, seconds: float, error: BaseException | None) -> None:
        if record.method not in _METHODS:
            return
        model = self._models.get(record.model) or self._new_model(record, seconds)
        model.left -= 1
        if model.left <= 0 or seconds >= model.slow or code is not _OK or record.caller is not None:
            self._look_at(model, record, code, seconds, error)

    def _new_model(self, record: RecordedRequest, seconds: float) -> _TracedModel:
        if len(self._models) >= MAX_MODELS:
            self._models.clear()
        found = _TracedModel(self._settings.traces_of(record.model), record.started + seconds)
        self._models[record.model] = found
        return found

    def _look_at(
        self,
        model: _TracedModel,
        record: RecordedRequest,
        code: StatusCode,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        if self._sink is None:
            if self._is_next(model, bool(record.calls)):
                self._write_lines(model.traces.log_frequency, record, code, seconds, error)
            return
        caller = record.caller
        why = self._choose(model, caller, code, seconds, record.started + seconds)
        if why:
            found = SpanId(new_trace() if caller is None else int(caller.trace_id, 16), new_span())
            record.trace_id = f"{found.trace:032x}"
            self._sink.offer(ChosenRequest(ended_request(record, code, seconds, error), found, caller, why))

    def _choose(
        self, model: _TracedModel, caller: TraceContext | None, code: StatusCode, seconds: float, now: float
    ) -> str:
        """The reason why the request is traced; empty if it is not."""
        failed, followed, median = code is not _OK, caller is None or caller.sampled, model.median.at(now)
        model.uncounted += model.step - model.left
        if model.uncounted >= model.median.every and not failed:
            model.uncounted = 0
            model.median.add(seconds, now)
            new = model.median.at(now)
            model.slow = math.inf if new is None else SLOW * new
        by_rate = self._is_next(model, followed)
        if not model.traces.on:
            return ""
        if caller is not None and caller.sampled and self._clients.take(now):
            return "context"
        if by_rate:
            return "rate"
        if failed:
            return "failure" if self._failures.take(now) else ""
        is_slow = followed and median is not None and seconds > SLOW * median
        return "slow" if is_slow and self._slow.take(now) else ""

    def _is_next(self, model: _TracedModel, counts: bool) -> bool:
        """Whether the request is the one that rate and count choose; ``counts``: whether it is one of those."""
        chosen = model.traces.passed(model.step - model.left - (not counts)) and counts
        rest = NEVER if self._sink is None else model.median.every - model.uncounted
        model.step = model.left = max(min(model.traces.ahead, rest), 1)
        return chosen

    # The mode triton.

    def _write_lines(
        self, frequency: int, record: RecordedRequest, code: StatusCode, seconds: float, error: BaseException | None
    ) -> None:
        ended = ended_request(record, code, seconds, error)
        if self._handler is not None:
            self._handler.begin_trace(frequency)
        for call in ended.calls:
            if not call.arrived:
                continue
            number = next(self._lines)
            common = {"id": number, "request_id": ended.context.request_id}
            moments = _moments(call.arrived, call.queue_seconds, call.run_seconds, call.copy_seconds)
            moments["REQUEST_END"] = ended.started + ended.seconds
            self._write(common, record.model, record.version, code, moments)
            if call.trace is not None:
                self._write_steps(number, ended.context.request_id, call.trace)

    def _write_steps(self, parent: int, request_id: str, trace: CallTrace) -> None:
        for step in trace.steps:
            number = next(self._lines)
            common = {"id": number, "parent_id": parent, "request_id": request_id}
            moments = _moments(step.arrived, step.queue_seconds, step.run_seconds, step.copy_seconds)
            moments["REQUEST_END"] = step.ended
            self._write(common, step.id.name, step.id.version, step.code, moments)
            if step.trace is not None:
                self._write_steps(number, request_id, step.trace)

    def _write(
        self,
        common: Mapping[str, object],
        model: str,
        version: int | None,
        code: StatusCode,
        moments: Mapping[str, float],
    ) -> None:
        line = {
            **common,
            "model_name": model,
            "model_version": version,
            "code": code.name,
            "timestamps": [{"name": name, "ns": round((at + self._offset) * 1e9)} for name, at in moments.items()],
        }
        traces.info("%s", json.dumps(line))


def _moments(arrived: float, waited: float, ran: float, copied: tuple[float, float]) -> dict[str, float]:
    started = arrived + waited
    return {
        "REQUEST_START": arrived,
        "QUEUE_START": arrived,
        "COMPUTE_START": started,
        "COMPUTE_INPUT_END": started + copied[0],
        "COMPUTE_OUTPUT_START": started + ran - copied[1],
        "COMPUTE_END": started + ran,
    }
