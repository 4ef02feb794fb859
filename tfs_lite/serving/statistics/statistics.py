"""The counts behind V2's statistics and Triton's ``nv_`` metrics for each version: requests by their end, rows, runs,
times.

Requests are counted when they end (``on_call``), runs of the model when they end (``on_batch``). A request that was
refused before it was let into a queue counts nowhere; each request of a batch is charged the whole time of its batch.
A request to a language model counts as a run, with its texts as rows: its steps are shared with others.
Source: the statistics extension of the V2 protocol.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tfs_lite.core.generation import GenerationCall
from tfs_lite.core.model import BatchReport, PredictCall, ServableCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.metrics.tensorflow_text import escaped, heading
from tfs_lite.protocols.generation_tensors import INPUT_IDS, TEXT_INPUT
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.schedulers.calls import rows_of
from tfs_lite.schedulers.response_cache import CacheCounts

MOST_NOTED = 64
"""Requests of a version that are noted before they are counted, unless the counts are read before."""
MAX_BATCH_SIZES = 1000
"""Told apart, of one version; larger numbers of sizes are not counted by size."""
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's words for why a request failed: a timeout in the queue, the caller, the model, anything else."""


class _Duration:
    """A count and seconds."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds

    @property
    def message(self) -> Message:
        return v2.StatisticDuration(count=self.count, ns=round(self.seconds * 1e9))

    @property
    def microseconds(self) -> int:
        return round(self.seconds * 1e6)


class _Compute:
    """The times of a run: putting the inputs together, the model, handing the outputs out."""

    __slots__ = ("infer", "input", "output")

    def __init__(self) -> None:
        self.input, self.infer, self.output = _Duration(), _Duration(), _Duration()

    def add(self, count: int, seconds: float, before: float, after: float) -> None:
        """``seconds`` are those of ``count`` requests together, and of them ``before`` and ``after`` the model."""
        self.input.add(before, count)
        self.infer.add(max(seconds - before - after, 0.0), count)
        self.output.add(after, count)

    @property
    def messages(self) -> dict[str, Message]:
        """The messages by field, for one request or one batch size."""
        return {
            "compute_input": self.input.message,
            "compute_infer": self.infer.message,
            "compute_output": self.output.message,
        }


class _Part:
    """The n-th answers of decoupled requests."""

    __slots__ = ("cancel", "empty", "fail", "infer", "success")

    def __init__(self) -> None:
        self.infer, self.success, self.fail = _Duration(), _Duration(), _Duration()
        self.empty, self.cancel = _Duration(), _Duration()

    @property
    def message(self) -> Message:
        return v2.InferResponseStatistics(
            compute_infer=self.infer.message,
            compute_output=v2.StatisticDuration(),
            success=self.success.message,
            fail=self.fail.message,
            empty_response=self.empty.message,
            cancel=self.cancel.message,
        )


@dataclass(slots=True)
class _VersionCounts:
    """The counts of one loaded version."""

    ensemble: bool = False
    has_rows: bool = False
    last: int = 0
    rows: int = 0
    runs: int = 0
    load_seconds: float | None = None
    success: _Duration = field(default_factory=_Duration)
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    failed: _Duration = field(default_factory=_Duration)
    queue: _Duration = field(default_factory=_Duration)
    compute: _Compute = field(default_factory=_Compute)
    batches: dict[int, _Compute] = field(default_factory=dict)
    parts: dict[int, _Part] = field(default_factory=dict)
    noted: deque[tuple[float, float, float, tuple[float, float]]] = field(default_factory=deque)
    """Requests that succeeded and are to be counted: the times of all, in the queue and in the model, and of the last
    those before and after the run."""

    def add_up(self) -> None:
        count = len(self.noted)
        if not count:
            return
        times, waits, runs, moving = zip(*[self.noted.popleft() for _ in range(count)], strict=True)
        self.success.add(sum(times), count)
        self.queue.add(sum(waits), count)
        self.compute.add(count, sum(runs), *map(sum, zip(*moving, strict=True)))


class InferenceStatistics:
    """Any thread may call any method. Order for a version: ``opened`` -> counts -> ``opened`` again when another load
    takes its place, which counts from zero -> ``closed``."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        cache_counts: Callable[[], Mapping[ServableId, CacheCounts]] = dict,
    ) -> None:
        """``cache_counts``: of the versions that use the response cache."""
        self._monotonic = monotonic
        self._wall = wall
        self._cache_counts = cache_counts
        self._lock = threading.Lock()  # guards the next one and what is in it
        self._versions: dict[ServableId, _VersionCounts] = {}

    def opened(
        self,
        servable_id: ServableId,
        ensemble: bool = False,
        load_seconds: float | None = None,
        *,
        has_rows: bool = False,
    ) -> None:
        """``ensemble``: it has no runs of its own; its requests are counted as such, as a language model's are.
        ``has_rows``: the first dimension of such a request is its number of rows; otherwise it counts as one."""
        with self._lock:
            self._versions[servable_id] = _VersionCounts(ensemble, has_rows, load_seconds=load_seconds)

    def closed(self, servable_id: ServableId) -> None:
        with self._lock:
            self._versions.pop(servable_id, None)

    def on_call(self, servable_id: ServableId, call: ServableCall, result: Mapping[str, Tensor] | Status) -> None:
        """A request has ended."""
        failed = isinstance(result, Status)
        if failed and not call.admitted:
            return
        seconds = self._monotonic() - call.arrived if call.arrived else call.queue_seconds + call.run_seconds
        version = self._versions.get(servable_id)
        if version is None:
            return
        if type(call) is PredictCall and call.part_seconds is None and not (failed or call.cached or version.ensemble):
            version.noted.append((seconds, call.queue_seconds, call.run_seconds, call.copy_seconds))
            if len(version.noted) >= MOST_NOTED:
                with self._lock:
                    version.add_up()
            return
        with self._lock:
            if isinstance(call, PredictCall) and call.part_seconds is not None:
                _count_parts(version, call.part_seconds, result)
            if isinstance(result, Status):
                version.failed.add(seconds)
                version.failures[reason_of(result, version.ensemble)] += 1
                return
            version.success.add(seconds)
            version.queue.add(call.queue_seconds)
            if isinstance(call, PredictCall) and call.cached:
                return
            if isinstance(call, GenerationCall):
                self._count_run(version, _texts(call), call.run_seconds, (0.0, 0.0))
            elif version.ensemble:
                rows = rows_of(call.inputs) if version.has_rows else 1
                self._count_run(version, rows, call.run_seconds, (0.0, 0.0))
            version.compute.add(1, call.run_seconds, *call.copy_seconds)

    def on_batch(self, report: BatchReport) -> None:
        """A model was run; failed runs count as executions, without rows."""
        with self._lock:
            version = self._versions.get(report.id)
            if version is not None:
                self._count_run(version, report.rows, report.run_seconds, report.copy_seconds, report)

    def statistics(self, servable_ids: Iterable[ServableId]) -> list[Message]:
        """One ``inference.ModelStatistics`` for each; zeros for a version without requests."""
        caches = self._cache_counts()
        with self._lock:
            self._add_up()
            return [
                _statistics(found, self._versions.get(found) or _VersionCounts(), caches.get(found))
                for found in servable_ids
            ]

    def lines(self, pending: Iterable[tuple[ServableId, int]] = ()) -> Iterator[str]:
        """Triton's metrics as Prometheus text. ``pending``: the requests that wait for each version now."""
        caches = sorted(self._cache_counts().items())
        with self._lock:
            self._add_up()
            versions = sorted(self._versions.items())
            texts = [
                _sample_lines(name, text, [(found, read(version)) for found, version in versions])
                for name, text, read in _METRICS
            ]
            texts.append(_failure_lines(versions))
        loads = [(found, version.load_seconds) for found, version in versions if version.load_seconds is not None]
        texts.append(
            _sample_lines("nv_model_load_duration_secs", "Seconds that the load of the version took.", loads, "gauge")
        )
        waiting = "Requests that wait for an instance of the version now."
        texts.append(_sample_lines("nv_inference_pending_request_count", waiting, sorted(pending), "gauge"))
        texts.extend(
            _sample_lines(name, text, [(found, read(counts)) for found, counts in caches])
            for name, text, read in _CACHE
        )
        for lines in texts:
            yield from lines

    def _add_up(self) -> None:
        """Adds up the counts; called with the lock held."""
        for version in self._versions.values():
            version.add_up()

    def _count_run(
        self,
        version: _VersionCounts,
        rows: int,
        seconds: float,
        moving: tuple[float, float],
        report: BatchReport | None = None,
    ) -> None:
        """Counts a run; called with the lock held."""
        version.runs += 1
        version.last = round(self._wall() * 1e3)
        if report is None or report.ok:
            version.rows += rows
        size = rows + (report.padding if report is not None else 0)
        if size in version.batches or len(version.batches) < MAX_BATCH_SIZES:
            version.batches.setdefault(size, _Compute()).add(1, seconds, *moving)


def _count_parts(version: _VersionCounts, times: Sequence[float], result: Mapping[str, Tensor] | Status) -> None:
    """Each answer by its place; the end of the request, where it has no content, in the place behind the last."""
    for place, seconds in enumerate(times):
        part = version.parts.setdefault(place, _Part())
        part.infer.add(seconds)
        part.success.add(seconds)
    last = version.parts.setdefault(len(times), _Part())
    if not isinstance(result, Status):
        last.empty.add(0.0)
    elif reason_of(result, version.ensemble) == "CANCELED":
        last.cancel.add(0.0)
    else:
        last.fail.add(0.0)


def reason_of(status: Status, ensemble: bool) -> str:
    """Triton's word for the failure of a request that had been let in."""
    if ensemble:
        return "OTHER"
    if status.reason is Reason.QUEUE_TIMEOUT:
        return "REJECTED"
    if status.code in (StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED):
        return "CANCELED"
    return "BACKEND" if status.code in (StatusCode.INTERNAL, StatusCode.INVALID_ARGUMENT) else "OTHER"


def _texts(call: GenerationCall) -> int:
    """The number of texts in a request to a language model."""
    if call.texts:
        return len(call.texts)
    prompts = call.inputs.get(TEXT_INPUT, call.inputs.get(INPUT_IDS))
    if prompts is None or (TEXT_INPUT not in call.inputs and len(prompts.shape) < 2):
        return 1
    return math.prod(prompts.shape) if TEXT_INPUT in call.inputs else prompts.shape[0]


def _statistics(servable_id: ServableId, version: _VersionCounts, cache: CacheCounts | None) -> Message:
    compute, cache = version.compute, cache or CacheCounts()
    message = v2.ModelStatistics(
        name=servable_id.name,
        version=str(servable_id.version),
        last_inference=version.last,
        inference_count=version.rows,
        execution_count=version.runs,
        inference_stats=v2.InferStatistics(
            success=version.success.message,
            fail=version.failed.message,
            queue=version.queue.message,
            cache_hit=v2.StatisticDuration(count=cache.hits, ns=round(cache.hit_seconds * 1e9)),
            cache_miss=v2.StatisticDuration(count=cache.misses, ns=round(cache.miss_seconds * 1e9)),
            **compute.messages,
        ),
    )
    for size, found in sorted(version.batches.items()):
        message.batch_stats.add(batch_size=size, **found.messages)
    for place, part in version.parts.items():
        message.response_stats[str(place)].CopyFrom(part.message)
    return message


_METRICS: tuple[tuple[str, str, Callable[[_VersionCounts], int]], ...] = (
    (
        "nv_inference_request_success",
        "Requests that succeeded, however many rows they had.",
        lambda version: version.success.count,
    ),
    (
        "nv_inference_count",
        "Rows of requests that the model has run; answers from the cache are left out.",
        lambda version: version.rows,
    ),
    ("nv_inference_exec_count", "Runs of the model, each of one batch.", lambda version: version.runs),
    (
        "nv_inference_request_duration_us",
        "Microseconds from arrival to answer, of all requests that succeeded.",
        lambda version: version.success.microseconds,
    ),
    (
        "nv_inference_queue_duration_us",
        "Microseconds that requests waited for their run.",
        lambda version: version.queue.microseconds,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Microseconds for putting the inputs of requests together.",
        lambda version: version.compute.input.microseconds,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Microseconds of requests in the model.",
        lambda version: version.compute.infer.microseconds,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Microseconds for handing the outputs out to requests.",
        lambda version: version.compute.output.microseconds,
    ),
)
_CACHE: tuple[tuple[str, str, Callable[[CacheCounts], int]], ...] = (
    ("nv_cache_num_hits_per_model", "Requests answered from the response cache.", lambda counts: counts.hits),
    (
        "nv_cache_num_misses_per_model",
        "Requests whose answer was not in the response cache.",
        lambda counts: counts.misses,
    ),
    (
        "nv_cache_hit_duration_per_model",
        "Microseconds for finding answers in the response cache.",
        lambda counts: round(counts.hit_seconds * 1e6),
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Microseconds for looking up and keeping answers that were not in the response cache.",
        lambda counts: round(counts.miss_seconds * 1e6),
    ),
)


def _sample_lines(name: str, text: str, found: Sequence[tuple[ServableId, float]], kind: str = "counter") -> list[str]:
    lines = [
        f'{name}{{model="{escaped(servable_id.name)}",version="{servable_id.version}"}} {value:.16g}'
        for servable_id, value in found
    ]
    return [*heading(name, text, kind), *lines] if lines else []


def _failure_lines(versions: list[tuple[ServableId, _VersionCounts]]) -> list[str]:
    name = "nv_inference_request_failure"
    lines = [
        f'{name}{{model="{escaped(servable_id.name)}",reason="{reason}",version="{servable_id.version}"}} {count}'
        for servable_id, version in versions
        for reason, count in version.failures.items()
    ]
    text = "Requests that failed after they were let in, by reason."
    return [*heading(name, text, "counter"), *lines] if lines else []
