"""CUDA graphs: a run of a model recorded once and replayed as a whole, for inputs of the same shapes.

The parameter ``cuda_graphs: "true"`` of a model's config turns them on. They are captured while the version loads, for
the numbers of rows that its batches will have, the largest first: each execution stream has its own graphs, which share
a pool, so that smaller ones use the memory of larger ones. A capture needs the device to itself, and would hold up
requests. Runs of other shapes are ordinary ones. A model that cannot be captured runs without graphs, and the log says
why.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch

from tfs_lite.adapters.cuda.memory import MemoryPool
from tfs_lite.adapters.exported.operators import Operator
from tfs_lite.adapters.pytorch.tensors import TORCH_DTYPES
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode

PARAMETER = "cuda_graphs"
MEMORY = "graph_memory_bytes"
"""The parameter that bounds the memory of the graphs of each execution stream; without it they have no bound."""
_TRUE = frozenset({"1", "true", "yes", "on"})
_UNFIT_TAGS = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


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


Shape = tuple[tuple[int, ...], DataType]


def graph_shapes(signature: Signature, rows: Iterable[int]) -> list[list[Shape]]:
    """The inputs of the graphs to capture, the largest first: the shape and type of each input, for each of these
    numbers of rows that the signature takes. One set where all sizes are fixed. UNIMPLEMENTED if an input has other
    free sizess rows that differ between requests, or a type that has no tensors."""
    for spec in signature.inputs:
        if not spec.shape or any(isinstance(dim, SymbolicDim) for dim in spec.shape[1:]):
            raise ServingError(StatusCode.UNIMPLEMENTED, f"the sizes of input {spec.name} differ between requests")
        if spec.dtype not in TORCH_DTYPES:
            raise ServingError(StatusCode.UNIMPLEMENTED, f"input {spec.name} is no tensor of numbers")
    firsts = [spec.shape[0] for spec in signature.inputs if spec.shape]
    most = min((dim.maximum for dim in firsts if isinstance(dim, SymbolicDim) and dim.maximum), default=None)
    fixed = not any(isinstance(dim, SymbolicDim) for dim in firsts)
    counts = {0} if fixed else {min(count, most) if most else count for count in rows}
    found = [[_shape(spec, count) for spec in signature.inputs] for count in sorted(counts, reverse=True)]
    return [shapes for shapes in found if not _fault(signature, shapes)]


def _fault(signature: Signature, shapes: Sequence[Shape]) -> str:
    if signature.conditions is None:
        return ""
    return signature.conditions.fault(
        {spec.name: shape for spec, (shape, _) in zip(signature.inputs, shapes, strict=True)}
    )


def _shape(spec: TensorSpec, rows: int) -> Shape:
    return tuple(dim if isinstance(dim, int) else rows for dim in spec.shape or ()), spec.dtype


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
    """The graphs of one execution stream. One thread at a time, with its CUDA stream current."""

    def __init__(self) -> None:
        self._captured: dict[Hashable, Captured] = {}

    def __len__(self) -> int:
        return len(self._captured)

    def capture(
        self,
        examples: Iterable[Sequence[torch.Tensor]],
        forward: Forward,
        capture: Capture,
        reserved: Callable[[], int],
        most_bytes: int,
    ) -> bool:
        """Captures ``forward`` for inputs like these examples, in their order. False, with none left, as soon as more
        than ``most_bytes`` are ``reserved``; 0 is no bound. Raises what a capture raises, with none left. The caller
        has the device's lock."""
        try:
            for host in examples:
                self._captured[_key(host)] = capture(host, forward)
                if most_bytes and reserved() > most_bytes:
                    self.close()
                    return False
        except BaseException:
            self.close()
            raise
        return True

    def run(self, host: Sequence[torch.Tensor], eager: Callable[[], Any]) -> Any:
        """The result for inputs in the host's memory; ``eager`` computes it without a graph."""
        captured = self._captured.get(_key(host))
        return eager() if captured is None else captured.run(host)

    def close(self) -> None:
        for captured in self._captured.values():
            captured.forget()
        self._captured.clear()


def _key(host: Sequence[torch.Tensor]) -> Hashable:
    return tuple((tensor.dtype, tuple(tensor.shape)) for tensor in host)


def capture_on(device: torch.device, pool: MemoryPool) -> Capture:
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


def _clean_up(graph: torch.cuda.CUDAGraph, pool: MemoryPool, uses: int, device: torch.device) -> None:
    """Cleans up after a failed capture: some releases of torch leave the allocator in capture mode, and it would never
    again return memory."""
    with suppress(RuntimeError):
        graph.reset()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool.id)
    while pool.uses() > uses:
        torch._C._cuda_releasePool(device.index or 0, pool.id)
