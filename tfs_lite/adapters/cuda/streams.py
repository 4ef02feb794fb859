"""Execution streams of a model on a GPU, by which several threads copy, compute and copy back at the same time.

    stage -> (the caller fills the arrays) -> run: inputs -> device, model, outputs -> host, one wait -> results

An execution stream is a CUDA stream, pinned memory for inputs and, if wanted, graphs. A thread holds one from ``stage``
or the start of ``run`` to the end of ``run``; then another thread may take it. All work of a run is on its CUDA stream,
so torch's allocator may reuse memory in the order of that stream, and no tensor has to be recorded for other streams.
The weights, which the load's stream has written, are complete before the first run and stay until the last. Results are
copied into pinned memory from torch's cache, which then belongs to the caller: a further copy into numpy's memory would
cost more than the cache. A run waits once, for an event, while its thread sleeps without the interpreter's lock.

On the CPU there are no execution streams, and a :class:`DeviceModel` runs as every :class:`TorchModel` does.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from tfs_lite.adapters.cuda.account import reserved_bytes, workspace_bytes
from tfs_lite.adapters.cuda.graphs import Forward, Shape, StreamGraphs, capture_on
from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, STREAMS, HostBuffers, MemoryPool
from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.measured import Measured
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.pytorch.model import TorchModel
from tfs_lite.adapters.pytorch.tensors import CPU, TORCH_DTYPES, to_tensor
from tfs_lite.core.model import Shapes
from tfs_lite.core.resources import GPU, MAIN
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.protocols.dtypes import Array

logger = logging.getLogger(__name__)
MAX_CONCURRENCY = 64
"""How many threads may run at once a model that keeps no state."""
OVERLAPPING_STREAMS = 2
"""One stream copies while the other one computes; more would only wait for the device."""


@dataclass(slots=True)
class ExecutionStream:
    """The resources of one run. ``cuda_stream`` None means the CPU, where every call has finished when it returns.
    ``kept`` holds what the device may still read."""

    device: torch.device
    cuda_stream: Any
    buffers: HostBuffers
    pool: MemoryPool | None = None
    graphs: StreamGraphs | None = None
    kept: list[torch.Tensor] = field(default_factory=list)

    def activated(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.cuda_stream is None else torch.cuda.stream(self.cuda_stream)

    def host(self, array: Array) -> torch.Tensor:
        """The array as a tensor that is neither freed nor overwritten before the run is over."""
        tensor = to_tensor(array, CPU, share=True)
        self.kept.append(tensor)
        return tensor

    def upload(self, array: Array) -> torch.Tensor:
        return self.host(array).to(self.device, non_blocking=True)

    def forward(self, arrays: Sequence[Array], forward: Callable[..., Any]) -> Any:
        """Calls ``forward`` with the arrays as tensors on the device, in a graph where there is one."""
        host = [self.host(array) for array in arrays]

        def eager() -> Any:
            return forward(*(tensor.to(self.device, non_blocking=True) for tensor in host))

        return eager() if self.graphs is None else self.graphs.run(host, eager)

    def capture(self, shapes: Sequence[Sequence[Shape]], forward: Forward, most_bytes: int) -> list[int]:
        """Captures graphs for inputs of these shapes, within so many bytes (0: any number): the largest are left out
        until all others fit. Returns the numbers of rows that have a graph. Waits for loads and captures of the device;
        before the first run."""
        for first in range(len(shapes)):
            if self._capture_all(shapes[first:], forward, most_bytes):
                return [inputs[0][0][0] for inputs in shapes[first:]]
            self.drop_graphs()
        return []

    def _capture_all(self, shapes: Sequence[Sequence[Shape]], forward: Forward, most_bytes: int) -> bool:
        pool, graphs = MemoryPool(self.device), StreamGraphs()
        self.pool, self.graphs = pool, graphs
        examples = ([torch.zeros(shape, dtype=TORCH_DTYPES[dtype]) for shape, dtype in inputs] for inputs in shapes)
        capture = capture_on(self.device, pool)
        with DEVICE_LOCKS.of(self.device), self.activated(), torch.inference_mode():
            fits = graphs.capture(examples, forward, capture, lambda: reserved_bytes(pool.segments()), most_bytes)
            torch.cuda.current_stream(self.device).synchronize()
        return fits

    def drop_graphs(self) -> None:
        """All runs are ordinary ones from now on."""
        self.synchronize()
        if self.graphs is not None:
            self.graphs.close()
        if self.pool is not None:
            self.pool.drop()
        self.graphs = self.pool = None

    def synchronize(self) -> None:
        """Waits until the device is done with this stream. Errors are ignored: the calls that caused them raised
        them."""
        if self.cuda_stream is not None:
            with suppress(RuntimeError):
                self.cuda_stream.synchronize()

    def close(self) -> None:
        self.drop_graphs()
        self.kept.clear()
        self.buffers.clear()
        if self.cuda_stream is not None:
            STREAMS.put_back(self.device, self.cuda_stream)


class ExecutionStreams:
    """The streams of one model, and which thread holds which; there are never more than threads were inside at once.

    Threads: any; ``close`` once, after the last run.
    """

    def __init__(self, make: Callable[[], ExecutionStream]) -> None:
        self._make = make
        self._lock = threading.Lock()  # guards _held and _free
        self._held: dict[int, ExecutionStream] = {}
        self._free: list[tuple[int, ExecutionStream]] = []

    def current(self) -> ExecutionStream:
        """The stream that this thread holds; otherwise a free one, if possible the thread's last; otherwise a new
        one."""
        me = threading.get_ident()
        with self._lock:
            if me in self._held:
                return self._held[me]
            if self._free:
                owners = [owner for owner, _ in self._free]
                _, stream = self._free.pop(owners.index(me) if me in owners else -1)
                self._held[me] = stream
                return stream
        stream = self._make()
        with self._lock:
            self._held[me] = stream
        return stream

    def add(self) -> ExecutionStream:
        """A new stream, which is free."""
        stream = self._make()
        with self._lock:
            self._free.append((0, stream))
        return stream

    def release(self) -> None:
        """Gives the stream of this thread back, if it holds one."""
        me = threading.get_ident()
        with self._lock:
            if me in self._held:
                self._free.append((me, self._held.pop(me)))

    def stage(self, shapes: Shapes) -> dict[str, Tensor] | None:
        stream = self.current()
        with stream.activated():
            return stream.buffers.get(shapes)

    @contextmanager
    def for_run(self) -> Iterator[ExecutionStream]:
        """The stream of one run, whose results are on the host when it ends well."""
        stream = self.current()
        try:
            with stream.activated():
                yield stream
        except BaseException:
            stream.synchronize()
            raise
        finally:
            stream.kept.clear()
            self.release()

    def close(self) -> None:
        for stream in self.take_all():
            stream.close()

    def all(self) -> list[ExecutionStream]:
        """Every stream there is."""
        with self._lock:
            return [*self._held.values(), *(stream for _, stream in self._free)]

    def take_all(self) -> list[ExecutionStream]:
        """Every stream there is; none is left."""
        with self._lock:
            streams = [*self._held.values(), *(stream for _, stream in self._free)]
            self._held.clear()
            self._free.clear()
        return streams


def open_streams(device: torch.device) -> ExecutionStreams | None:
    """The execution streams of a model on a GPU; None on the CPU."""
    if device.type != "cuda":
        return None
    return ExecutionStreams(lambda: ExecutionStream(device, STREAMS.take(device), HostBuffers(pinned=True)))


def _snapshot() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = torch.cuda.memory_snapshot(include_traces=False)  # type: ignore[no-untyped-call]
    return found


def open_pool(device: torch.device) -> MemoryPool | None:
    """A pool for the weights of a version on a GPU; None on the CPU."""
    return MemoryPool(device) if device.type == "cuda" else None


class DeviceModel(TorchModel):
    """A :class:`TorchModel` whose runs on a GPU take a stream each. ``call`` finds it in :attr:`stream`, which is None
    on the CPU. With ``reentrant`` several threads may be inside ``run``. ``pool`` holds the weights."""

    def __init__(
        self,
        request: OpenRequest,
        platform: str,
        signature: Signature,
        *,
        reentrant: bool,
        streams: ExecutionStreams | None,
        pool: MemoryPool | None,
    ) -> None:
        super().__init__(request, platform, signature)
        self._reentrant = reentrant
        self._streams = streams
        self._pool = pool
        self._captured_rows: tuple[int, ...] = ()

    def capture(self, shapes: Sequence[Sequence[Shape]], forward: Forward, most_bytes: int) -> None:
        """Opens the streams that are useful, and captures the graphs of each. Called once, before the first run. If a
        capture fails, the model runs without graphs, and the log says why."""
        if self._streams is None:
            return
        streams = [self._streams.add() for _ in range(self.useful_threads)]
        try:
            captured = [stream.capture(shapes, forward, most_bytes) for stream in streams]
        except Exception as error:
            for stream in streams:
                stream.drop_graphs()
            logger.warning("%s runs without CUDA graphs: the capture failed: %s", self._id, sentence(error))
            return
        self._captured_rows = tuple(sorted(set.intersection(*map(set, captured))))
        if len(self._captured_rows) < len(shapes):
            logger.warning("%s has CUDA graphs for %s rows only: %s bytes", self._id, self._captured_rows, most_bytes)

    @property
    def counts_weights(self) -> bool:
        """Whether this instance counts its weights: False for one that shares the weights of another, which counts
        them."""
        return True

    @property
    def captured_rows(self) -> tuple[int, ...]:
        return self._captured_rows

    @property
    def concurrency(self) -> int:
        return MAX_CONCURRENCY if self._reentrant else 1

    @property
    def useful_threads(self) -> int:
        return OVERLAPPING_STREAMS if self._reentrant and self._streams is not None else 1

    @property
    def stream(self) -> ExecutionStream | None:
        return None if self._streams is None else self._streams.current()

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        return None if self._streams is None else self._streams.stage(shapes)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        if self._streams is None:
            return super().run(signature, inputs, outputs)
        with self._streams.for_run():
            return super().run(signature, inputs, outputs)

    def measured_bytes(self) -> Measured:
        weights = self.resident_bytes()
        if self._streams is None or self._pool is None:
            return {} if weights is None else {MAIN: {"weights": weights}}
        streams = self._streams.all()
        graphs = [stream.pool.segments() for stream in streams if stream.pool is not None]
        numbers = {int(stream.cuda_stream.cuda_stream) for stream in streams if stream.cuda_stream is not None}
        return {
            MAIN: {"staging": sum(stream.buffers.bytes for stream in streams)},
            f"{GPU}/{self._device.index or 0}": {
                "weights": reserved_bytes(self._pool.segments()) if self.counts_weights else 0,
                "graphs": sum(map(reserved_bytes, graphs)),
                "workspace": workspace_bytes(_snapshot(), numbers),
            },
        }

    def close(self) -> None:
        """The streams first: their graphs refer to the weights."""
        if self._streams is not None:
            self._streams.close()
        self.drop_weights()
        if self._pool is not None:
            self._pool.drop()

    @abstractmethod
    def drop_weights(self) -> None:
        """Drops the references to the model."""
