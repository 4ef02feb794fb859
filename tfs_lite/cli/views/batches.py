"""The part that ``status --verbose`` adds to each version: requests, batches, waits, memory and workers, read from the
metrics page.

The runs of a language model are the steps of its engine: the rows are those of all texts in a step, the times are those
between two tokens of a text. The page has histograms, so times are estimates between two limits, or bounds beyond the
outermost limits. A dash means that the page does not have the number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from tfs_lite.cli.output import state_text, table
from tfs_lite.cli.views.models import ModelRow, Version, model_json
from tfs_lite.cli.views.replicas import ReplicasByVersion, replicas_json
from tfs_lite.core.loader import size_text
from tfs_lite.core.state import ReplicaReport

if TYPE_CHECKING:
    from prometheus_client.samples import Sample
    from rich.table import Table

PREDICTIONS = (
    *("Predict", "Classify", "Regress", "MultiInference", "ModelInfer"),
    *("PredictStreamed", "Completions", "ChatCompletions"),
)
"""The methods whose requests are shown."""
_OF_BATCHES = ("batch_size", "batch_queue_seconds", "batch_run_seconds")
_OF_GENERATION = ("generation_step_rows", "generation_queue_seconds", "generation_inter_token_seconds")
MEDIAN, TAIL = 0.5, 0.99
UNKNOWN = "-"
_MAIN = "main"
"""The device that is the memory of the machine."""
COLUMNS = ("model", "version", "state", "ok", "failed", "rows/run", "padding", "queue p50, p99", "run p50, p99")


@dataclass(frozen=True, slots=True)
class Quantile:
    """A time in seconds; ``bound`` is ``<`` or ``>`` if the time is only known to be below or above that."""

    seconds: float
    bound: str = ""

    def __str__(self) -> str:
        return self.bound + _time(self.seconds)


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """One instance of a version. ``pid`` is empty without a process of its own, ``reason`` unless the model was opened
    in another way than usual, ``sandbox`` says what is out of the reach of its process, if it is in one."""

    instance: str
    kind: str = ""
    pid: str = ""
    up: bool | None = None
    restarts: int | None = None
    reason: str = ""
    sandbox: str = ""


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """The numbers of one version since its series began. None means unknown. ``padding`` is the share of added rows;
    ``draining`` are the requests inside what was withdrawn or replaced. ``memory``: the bytes that the version held
    after its load, by device: all that was measured, with its processes; else its tensors."""

    ok: int | None = None
    failed: int | None = None
    rows_per_run: float | None = None
    padding: float | None = None
    queue_p50: Quantile | None = None
    queue_p99: Quantile | None = None
    run_p50: Quantile | None = None
    run_p99: Quantile | None = None
    waiting: int | None = None
    draining: int | None = None
    memory: Mapping[str, int] | None = None
    workers: tuple[WorkerNumbers, ...] = ()


NOTHING = RunNumbers()
NumbersByVersion: TypeAlias = Mapping[tuple[str, int], RunNumbers]
"""Numbers by model and version."""
Buckets: TypeAlias = Sequence[tuple[float, float]]
"""Upper limits, ascending to infinity, and how many values lie at or below each."""


def read_numbers(page: str) -> dict[tuple[str, int], RunNumbers]:
    """The numbers of each version on the page. Raises ValueError if it is no page of metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[tuple[str, int], _Samples] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                model, version = sample.labels.get("model"), sample.labels.get("version", "")
                if sample.name.startswith("tfs_lite_") and model is not None and version.isdecimal():
                    found.setdefault((model, int(version)), _Samples()).add(sample)
        return {key: samples.numbers() for key, samples in found.items()}
    except (LookupError, OverflowError) as error:
        raise ValueError(f"not a page of metrics: {error}") from None


def quantile(buckets: Buckets, share: float) -> Quantile | None:
    """The time that ``share`` of the values do not exceed, if they are spread evenly between the limits; None without
    values."""
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank, low, below = share * buckets[-1][1], 0.0, 0.0
    for position, (limit, count) in enumerate(buckets):
        if count >= rank and count > below:
            if limit == inf:
                return Quantile(low, ">")
            if position == 0:
                return Quantile(limit, "<")
            return Quantile(low + (limit - low) * (rank - below) / (count - below))
        low, below = limit, count
    return None


def verbose_table(models: Iterable[ModelRow], known: NumbersByVersion, replicas: ReplicasByVersion) -> Table:
    """A row for each version, and for each model without any."""
    rows: list[tuple[Any, ...]] = []
    for model in models:
        if model.reason or not model.versions:
            blanks = [UNKNOWN] * (len(COLUMNS) + 2)
            rows.append((model.name, *blanks, model.reason or "no versions yet"))
        for item in model.versions:
            key = (model.name, item.version)
            rows.append(_row(model.name, item, known.get(key, NOTHING), replicas.get(key)))
    return table((*COLUMNS, "waiting", "memory", "workers", "reason"), rows)


def verbose_json(models: Iterable[ModelRow], known: NumbersByVersion, replicas: ReplicasByVersion) -> dict[str, Any]:
    """The same JSON as without ``--verbose``, with ``numbers`` in each version, and ``replicas`` where it has any."""
    shown = [model_json(model) for model in models]
    for model in shown:
        for version in model["versions"]:
            key = (model["name"], version["version"])
            version["numbers"] = asdict(known.get(key, NOTHING))
            if key in replicas:
                version["replicas"] = replicas_json(replicas[key])
    return {"models": shown}


@dataclass(slots=True)
class _Samples:
    """The samples of one version."""

    values: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        name, labels = sample.name.removeprefix("tfs_lite_"), sample.labels
        if name.startswith("worker_"):
            facts = self.workers.setdefault(labels.get("instance", ""), {})
            facts[name] = sample.value
            facts.update((key, labels[key]) for key in ("kind", "pid", "reason", "sandbox") if key in labels)
        elif name == "requests_total" and labels.get("method") in PREDICTIONS:
            code = labels.get("code", "")
            self.requests[code] = self.requests.get(code, 0) + sample.value
        elif name == "memory_measured_bytes":
            device = labels.get("device", "")
            self.held[device] = self.held.get(device, 0) + int(sample.value)
        elif name == "version_memory_bytes":
            if labels.get("kind") == "measured":
                self.tensors[labels.get("device", "")] = int(sample.value)
        elif name.endswith("_bucket"):
            self.buckets.setdefault(name, []).append((float(labels.get("le", "inf")), sample.value))
        else:
            self.values[name] = sample.value

    def numbers(self) -> RunNumbers:
        generates = "generation_step_rows_count" in self.values
        size, queue, run = _OF_GENERATION if generates else _OF_BATCHES
        ok, rows = self.requests.get("OK", 0), self.values.get(f"{size}_sum", 0)
        padding = self.values.get("batch_padding_rows_sum", 0)
        return RunNumbers(
            ok=int(ok) if self.requests else None,
            failed=int(sum(self.requests.values()) - ok) if self.requests else None,
            rows_per_run=_ratio(rows, self.values.get(f"{size}_count", 0)),
            padding=_ratio(padding, rows + padding),
            queue_p50=self._quantile(queue, MEDIAN),
            queue_p99=self._quantile(queue, TAIL),
            run_p50=self._quantile(run, MEDIAN),
            run_p99=self._quantile(run, TAIL),
            waiting=int(self.values["queue_depth"]) if "queue_depth" in self.values else None,
            draining=int(self.values["draining_requests"]) if "draining_requests" in self.values else None,
            memory=self.held or self.tensors or None,
            workers=tuple(_worker(instance, facts) for instance, facts in sorted(self.workers.items(), key=_order)),
        )

    def _quantile(self, name: str, share: float) -> Quantile | None:
        return quantile(self.buckets.get(f"{name}_bucket", ()), share)


def _order(worker: tuple[str, Any]) -> tuple[int, str]:
    """The order of instances by their number."""
    return len(worker[0]), worker[0]


def _worker(instance: str, facts: Mapping[str, Any]) -> WorkerNumbers:
    up, restarts = facts.get("worker_up"), facts.get("worker_restarts_total")
    return WorkerNumbers(
        instance,
        facts.get("kind", ""),
        facts.get("pid", ""),
        None if up is None else bool(up),
        None if restarts is None else int(restarts),
        facts.get("reason", ""),
        facts.get("sandbox", ""),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _row(name: str, version: Version, numbers: RunNumbers, replicas: ReplicaReport | None) -> tuple[Any, ...]:
    *shown, workers = _shown(numbers)
    return (
        name,
        version.version,
        state_text(version.state, version.failed),
        *shown,
        f"ray {replicas.summary}" if replicas else workers,
        "; ".join(filter(None, (version.reason, _drain_text(version.state, numbers.draining)))),
    )


def _drain_text(state: str, requests: int | None) -> str:
    if not requests:
        return ""
    where = "inside the load before" if state == "AVAILABLE" else "inside"
    return f"{requests} request{'s' if requests != 1 else ''} {where} {'are' if requests != 1 else 'is'} waited for"


def _shown(numbers: RunNumbers) -> Iterator[str]:
    yield from map(_or_dash, (numbers.ok, numbers.failed))
    yield UNKNOWN if numbers.rows_per_run is None else f"{numbers.rows_per_run:.1f}"
    yield UNKNOWN if numbers.padding is None else f"{numbers.padding:.1%}"
    for pair in ((numbers.queue_p50, numbers.queue_p99), (numbers.run_p50, numbers.run_p99)):
        yield UNKNOWN if pair == (None, None) else ", ".join(map(_or_dash, pair))
    yield _or_dash(numbers.waiting)
    yield UNKNOWN if numbers.memory is None else ", ".join(_memory_text(*each) for each in numbers.memory.items())
    yield ", ".join(map(_worker_text, numbers.workers)) or UNKNOWN


def _or_dash(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _memory_text(device: str, size: int) -> str:
    """``3.4 GiB``, of a GPU ``3.4 GiB on cuda:0``."""
    return size_text(size) if device == _MAIN else f"{size_text(size)} on {device}"


def _worker_text(worker: WorkerNumbers) -> str:
    words = [f"pid {worker.pid}" if worker.pid else worker.kind or "worker"]
    if worker.up is False:
        words.append("down")
    if worker.restarts:
        words.append(f"({worker.restarts} restart{'s' if worker.restarts != 1 else ''})")
    if "files" in worker.sandbox.split():
        words.append("sandboxed")
    return " ".join(words) + (f": {worker.reason}" if worker.reason else "")


def _time(seconds: float) -> str:
    """The time with at most three digits, in a suitable unit."""
    rounded = float(f"{seconds:.3g}")
    if rounded < 1e-3:
        return f"{rounded * 1e6:g} µs"
    return f"{rounded * 1e3:g} ms" if rounded < 1 else f"{rounded:g} s"
