"""Metrics of language models: times to the first and between tokens, numbers of tokens, use of the cache slots.

Meanings are those of vLLM's metrics. Steps and texts are counted on the engine's thread; states of engines are read
when the page is requested, also those of versions that are being drained."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.generation import EngineState, StepReport, TextReport
from tfs_lite.core.servable import ServableId
from tfs_lite.metrics.batches import NUMBERS
from tfs_lite.metrics.series import CounterSeries, GoneVersions, HistogramSeries, SeriesCollector, SeriesLock, add_one

STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TEXT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_VERSION = ("model", "version")
_GAUGES: tuple[tuple[str, str, Callable[[EngineState], int]], ...] = (
    ("running", "Texts that have a slot in the cache.", lambda state: state.running),
    ("waiting", "Texts that wait for a slot.", lambda state: state.waiting),
    ("cache_tokens_reserved", "Tokens of the cache kept for texts that run.", lambda state: state.reserved),
    ("cache_tokens_written", "Tokens of the cache that hold keys and values of texts that run.", lambda s: s.written),
    ("cache_tokens", "Tokens that the cache holds at most.", lambda state: state.capacity),
)

_BATCHES = "shares_steps"
_BATCHES_TEXT = "1 if texts share each step; 0 for a family that is stepped one text at a time."


class HasState(Protocol):
    """The part of a language model's servable that is read here."""

    @property
    def batches(self) -> bool: ...

    def state(self) -> EngineState: ...


@dataclass(frozen=True, slots=True)
class GenerationTotals:
    """One version of a language model: the output tokens since its series began, of texts that run too, and the state
    of its engine; None when it has been unloaded."""

    tokens: float
    engine: EngineState | None


class GenerationMetrics:
    """Counts generated texts and tokens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._guard = guard = SeriesLock()
        self._first = self._histogram(
            "time_to_first_token_seconds", "Seconds from the submission of a text to its first token.", TEXT_SECONDS
        )
        self._gap = self._histogram(
            "inter_token_seconds", "Seconds between a token of a text and the next.", STEP_SECONDS
        )
        self._per_token = self._histogram(
            "time_per_output_token_seconds",
            "Seconds for each token between a text's first token and its last.",
            STEP_SECONDS,
        )
        self._queue = self._histogram(
            "queue_seconds", "Seconds from the submission of a text to its first step.", TEXT_SECONDS
        )
        self._text = self._histogram(
            "text_seconds", "Seconds from the submission of a text to its end.", TEXT_SECONDS, "outcome"
        )
        self._step = self._histogram("step_seconds", "One forward of the network, and its draw.", STEP_SECONDS, "kind")
        self._rows = self._histogram("step_rows", "Token positions in a step.", NUMBERS)
        self._texts = self._histogram("step_texts", "Texts in a step.", NUMBERS)
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of texts that have ended.")
        self._output = self._counter("output_tokens", "Output tokens of texts that have ended.")
        self._hits = self._counter("prefix_hit_tokens", "Prompt tokens that another text had computed before.")
        self._asked = self._counter("prefix_queried_tokens", "Prompt tokens that were looked for among other texts'.")
        self._preempted = self._counter("preemptions", "Texts that gave their slot to more urgent ones.")
        self._failures = self._counter("step_failures", "Steps that failed and were tried again text by text.")
        self._series = (
            *(self._first, self._gap, self._per_token, self._queue, self._text, self._step, self._rows, self._texts),
            *(self._prompt, self._output, self._hits, self._asked, self._preempted, self._failures),
        )
        self._gone = GoneVersions(self._drop)
        self._engines = _Engines()
        registry.register(SeriesCollector(guard, self._series))
        registry.register(self._engines)

    def on_step(self, report: StepReport) -> None:
        version = (report.id.name, str(report.id.version))
        with self._guard.lock:
            _add(self._step, (*version, report.kind), report.seconds)
            _add(self._rows, version, report.rows)
            _add(self._texts, version, report.texts)
            for gap in report.gaps:
                _add(self._gap, version, gap)
            self._preempted.cell(version)[0] += report.preempted
            self._failures.cell(version)[0] += not report.ok

    def on_text(self, report: TextReport) -> None:
        version, usage = (report.id.name, str(report.id.version)), report.usage
        with self._guard.lock:
            _add(self._text, (*version, report.outcome), report.seconds)
            if report.queue_seconds is not None:
                _add(self._queue, version, report.queue_seconds)
            if report.first_seconds is not None:
                _add(self._first, version, report.first_seconds)
                if report.last_seconds is not None and usage.output > 1:
                    _add(self._per_token, version, (report.last_seconds - report.first_seconds) / (usage.output - 1))
            self._prompt.cell(version)[0] += usage.prompt
            self._output.cell(version)[0] += usage.output
            self._hits.cell(version)[0] += usage.cached
            self._asked.cell(version)[0] += report.cached_asked

    def watch(self, servable_id: ServableId, servable: HasState) -> None:
        """Shows the state of the engine until it is unloaded, also while it is drained."""
        self._engines.watch(servable_id, servable)

    def totals(self) -> dict[tuple[str, str], GenerationTotals]:
        """The totals by model and version. A text's first token counts when the text ends."""
        with self._guard.lock:
            cells = [
                {(model, version): cell for (model, version), cell in series.snapshot().items()}
                for series in (self._gap, self._first)
            ]
        states = {_labels(servable_id): state for servable_id, state in self._engines.states().items()}
        return {
            key: GenerationTotals(sum(sum(found[key][:-1]) for found in cells if key in found), states.get(key))
            for key in {*states, *(key for found in cells for key in found)}
        }

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded. Its state is dropped at once, although an answer that is still being sent may keep
        it in memory; its series are dropped after those of enough later versions."""
        self._engines.forget(servable_id)
        with self._guard.lock:
            self._gone.version(servable_id)

    def version_back(self, servable_id: ServableId) -> None:
        """The version is loaded, perhaps again: its series stay."""
        with self._guard.lock:
            self._gone.back(servable_id)

    def model_gone(self, name: str) -> None:
        """The model is no longer served: drops all its series."""
        with self._guard.lock:
            self._gone.model(name)

    def _histogram(self, name: str, text: str, limits: tuple[float, ...], *labels: str) -> HistogramSeries:
        return HistogramSeries(self._guard, f"tfs_lite_generation_{name}", text, (*_VERSION, *labels), limits)

    def _counter(self, name: str, text: str) -> CounterSeries:
        return CounterSeries(self._guard, f"tfs_lite_generation_{name}", text, _VERSION)

    def _drop(self, **labels: str) -> None:
        for series in self._series:
            series.drop(**labels)


class _Engines(Collector):
    """Reads the states of the engines once for each page, on the thread that makes it. A version that is loaded anew in
    its own place has two engines for a while: their numbers are added up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._known: list[tuple[ServableId, weakref.ref[HasState]]] = []

    def watch(self, servable_id: ServableId, servable: HasState) -> None:
        with self._lock:
            self._known = [entry for entry in self._known if entry[1]() is not None]
            self._known.append((servable_id, weakref.ref(servable)))

    def forget(self, servable_id: ServableId) -> None:
        with self._lock:
            self._known = [entry for entry in self._known if entry[0] != servable_id and entry[1]() is not None]

    def states(self) -> dict[ServableId, EngineState]:
        return _added_up(self._alive())

    def describe(self) -> Iterable[Metric]:
        return []

    def _alive(self) -> dict[ServableId, list[HasState]]:
        with self._lock:
            found = [(servable_id, known()) for servable_id, known in self._known]
        engines: dict[ServableId, list[HasState]] = {}
        for servable_id, engine in found:
            if engine is not None:
                engines.setdefault(servable_id, []).append(engine)
        return engines

    def collect(self) -> Iterator[Metric]:
        engines = self._alive()
        shares = GaugeMetricFamily(f"tfs_lite_generation_{_BATCHES}", _BATCHES_TEXT, labels=_VERSION)
        for servable_id, of_version in engines.items():
            shares.add_metric(_labels(servable_id), of_version[-1].batches)
        yield shares
        states = _added_up(engines)
        for name, text, value in _GAUGES:
            family = GaugeMetricFamily(f"tfs_lite_generation_{name}", text, labels=_VERSION)
            for servable_id, state in states.items():
                family.add_metric(_labels(servable_id), value(state))
            yield family


def _added_up(engines: Mapping[ServableId, Iterable[HasState]]) -> dict[ServableId, EngineState]:
    """The state of each version, which is the sum of its engines'."""
    return {
        servable_id: EngineState(*map(sum, zip(*(astuple(engine.state()) for engine in of_version), strict=True)))
        for servable_id, of_version in engines.items()
    }


def _labels(servable_id: ServableId) -> tuple[str, str]:
    return servable_id.name, str(servable_id.version)


def _add(series: HistogramSeries, labels: tuple[str, ...], value: float) -> None:
    add_one(series.cell(labels), series.limits, value)
