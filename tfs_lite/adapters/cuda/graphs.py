"""CUDA graphs: a run of a model recorded once and replayed as a whole, for inputs of the same shapes.

The parameter ``cuda_graphs: "true"`` of a model's config turns them on. Each execution stream has its own graphs, one
per set of input shapes: the first runs with these shapes are ordinary ones, which warm up the CUDA stream; then one is
captured. A model that cannot be captured runs without graphs, and the log says why, once.
"""

from __future__ import annotations

import enum
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch

from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, Pool
from tfs_lite.adapters.exported.operators import Operator
from tfs_lite.adapters.failures import sentence
from tfs_lite.core.servable import ServableId

PARAMETER = "cuda_graphs"
WARM_RUNS = 2
MAX_GRAPHS = 16
MAX_SEEN = 64
_TRUE = frozenset({"1", "true", "yes", "on"})
_UNFIT_TAGS = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
logger = logging.getLogger(__name__)


def wants_graphs(parameters: Mapping[str, str]) -> bool:
    return parameters.get(PARAMETER, "").lower() in _TRUE


def why_no_graph(operators: Iterable[Operator]) -> str:
    """Why a program of these operators cannot be captured: one draws random numbers, or has a result whose size or
    value the host has to know. Empty if it can."""
    for operator in sorted(operators, key=lambda operator: operator.name):
        if operator.has_graphs:
            return f"it has branches or loops ({operator.name})"
        if operator.overload is not None and any(tag in _UNFIT_TAGS for tag in operator.overload.tags):
            return f"operator {operator.name} cannot be recorded"
    return ""


class Step(enum.Enum):
    EAGER = "run it as ever"
    CAPTURE = "record it"
    REPLAY = "replay the record"


class GraphPlan:
    """Decides by its shapes how a run is done. Has no side effects; one thread at a time.

    The first ``warm_runs`` runs with a key are ordinary; at most ``max_graphs`` keys are captured, and ``max_seen``
    remembered until then.
    """

    def __init__(self, warm_runs: int = WARM_RUNS, max_graphs: int = MAX_GRAPHS, max_seen: int = MAX_SEEN) -> None:
        self._warm_runs = warm_runs
        self._max_graphs = max_graphs
        self._max_seen = max_seen
        self._captured = set[Hashable]()
        self._seen: OrderedDict[Hashable, int] = OrderedDict()

    def step(self, key: Hashable, may_capture: bool) -> Step:
        """How to do a run with these shapes. With ``may_capture`` False, nothing new is captured."""
        if key in self._captured:
            return Step.REPLAY
        if not may_capture or len(self._captured) >= self._max_graphs:
            return Step.EAGER
        runs = self._seen.pop(key, 0)
        self._seen[key] = runs + 1
        if len(self._seen) > self._max_seen:
            self._seen.popitem(last=False)
        return Step.CAPTURE if runs >= self._warm_runs else Step.EAGER

    def captured(self, key: Hashable) -> None:
        """The capture that was advised has worked; until then it is advised again."""
        self._captured.add(key)
        self._seen.pop(key, None)


class GraphSwitch:
    """Whether the streams of one model may capture graphs: until the first failure, which is logged. Any thread."""

    def __init__(self, servable_id: ServableId) -> None:
        self._id = servable_id
        self.on = True

    def fail(self, error: BaseException) -> None:
        if self.on:
            self.on = False
            logger.warning("%s runs without CUDA graphs: the capture failed: %s", self._id, sentence(error))


Forward = Callable[..., Any]
Capture = Callable[[Sequence[torch.Tensor], Forward], "Captured"]


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured graph: ``replay`` does the work again on ``inputs``, into ``result``. ``forget`` drops the graph."""

    inputs: Sequence[torch.Tensor]
    result: Any
    replay: Callable[[], None]
    forget: Callable[[], None]

    def run(self, host: Sequence[torch.Tensor]) -> Any:
        """The result is overwritten by the next run: the caller has to copy it, on the same stream."""
        for inside, tensor in zip(self.inputs, host, strict=True):
            inside.copy_(tensor, non_blocking=True)
        self.replay()
        return self.result


class StreamGraphs:
    """The graphs of one execution stream. One thread at a time, with its CUDA stream current.

    A capture never waits: while the device's lock is taken (a load, an unload, another stream's capture) the run is an
    ordinary one, and the next with these shapes tries again.
    """

    def __init__(self, device: torch.device, switch: GraphSwitch, capture: Capture, plan: GraphPlan) -> None:
        self._device = device
        self._switch = switch
        self._capture = capture
        self._plan = plan
        self._captured: dict[Hashable, Captured] = {}

    def run(self, host: Sequence[torch.Tensor], forward: Forward, eager: Callable[[], Any]) -> Any:
        """The result of ``forward`` for inputs in the host's memory; ``eager`` computes it without a graph."""
        key = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in host)
        step = self._plan.step(key, self._switch.on and all(tensor.numel() for tensor in host))
        if step is Step.CAPTURE and self._try(key, host, forward):
            step = Step.REPLAY
        return self._captured[key].run(host) if step is Step.REPLAY else eager()

    def close(self) -> None:
        for captured in self._captured.values():
            captured.forget()
        self._captured.clear()

    def _try(self, key: Hashable, host: Sequence[torch.Tensor], forward: Forward) -> bool:
        lock = DEVICE_LOCKS.of(self._device)
        if not lock.acquire(blocking=False):
            return False
        try:
            self._captured[key] = self._capture(host, forward)
            self._plan.captured(key)
            return True
        except Exception as error:
            self._switch.fail(error)
            return False
        finally:
            lock.release()


def capture_on(device: torch.device, pool: Pool) -> Capture:
    """A function that captures on the current stream, into the pool. It makes one ordinary run first, so that cuBLAS
    does not allocate its workspace for this thread and stream within the pool."""

    def capture(host: Sequence[torch.Tensor], forward: Forward) -> Captured:
        inputs = [torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for tensor in host]
        for inside, tensor in zip(inputs, host, strict=True):
            inside.copy_(tensor, non_blocking=True)
        forward(*inputs)
        graph = torch.cuda.CUDAGraph()
        uses, handle = pool.uses(), cast(Any, pool.id)
        try:
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            try:
                result = forward(*inputs)
            finally:
                graph.capture_end()
        except BaseException:
            _clean_up(graph, pool, uses, device)
            raise
        return Captured(inputs, result, graph.replay, graph.reset)

    return capture


def _clean_up(graph: torch.cuda.CUDAGraph, pool: Pool, uses: int, device: torch.device) -> None:
    """Some releases of torch leave the allocator in capture mode when a capture fails: it would never again return
    memory."""
    with suppress(RuntimeError):
        graph.reset()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool.id)
    while pool.uses() > uses:
        torch._C._cuda_releasePool(device.index or 0, pool.id)
