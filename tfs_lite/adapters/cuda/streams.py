"""Lanes of a model on a GPU: what one thread needs to copy, compute and copy back beside other threads.

    stage -> (the caller fills the arrays) -> run: inputs -> device, model, outputs -> host, one wait -> results

A lane is a stream, pinned memory for inputs and, if wanted, graphs. A thread holds one from ``stage`` or the start of
``run`` to the end of ``run``; then the next thread may have it. Everything of a run happens on the lane's stream, so
torch's allocator may reuse its memory in the order of that stream and nothing has to be recorded for other streams; the
weights, which come from the stream of the load, are complete before the first run and stay until the last. Results are
copied into pinned memory fresh from torch's cache, which belongs to the caller: another copy, into memory of numpy's,
would cost more than the cache. The one wait is for an event; the thread sleeps and does not hold the interpreter.

On the CPU there are no lanes, and :class:`LaneModel` is a :class:`LoadedModel` that says so.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from tfs_lite.adapters.contract import LoadedModel, OpenRequest
from tfs_lite.adapters.cuda.graphs import GraphPlan, GraphSwitch, LaneGraphs, capture_on
from tfs_lite.adapters.cuda.memory import STREAMS, HostBuffers, Pool
from tfs_lite.adapters.tensors import CPU, Array, to_tensor
from tfs_lite.core.model import Shapes
from tfs_lite.core.signature import Signature, Tensor

MANY = 64
"""How many threads may run a model at once that keeps nothing between its operators."""
OVERLAPPING = 2
"""One lane copies while the other one computes; more only wait for the device."""

T = TypeVar("T")


class LaneTable(Generic[T]):
    """Which thread holds which lane. Any thread; there are never more lanes than threads were inside at once."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()  # guards _held and _free
        self._held: dict[int, T] = {}
        self._free: list[tuple[int, T]] = []

    def mine(self) -> T:
        """The lane that this thread holds; else a free one, best the one it had last; else a new one."""
        me = threading.get_ident()
        with self._lock:
            if me in self._held:
                return self._held[me]
            if self._free:
                owners = [owner for owner, _ in self._free]
                _, lane = self._free.pop(owners.index(me) if me in owners else -1)
                self._held[me] = lane
                return lane
        lane = self._make()
        with self._lock:
            self._held[me] = lane
        return lane

    def put_back(self) -> None:
        """This thread is done with its lane, if it holds one."""
        me = threading.get_ident()
        with self._lock:
            if me in self._held:
                self._free.append((me, self._held.pop(me)))

    def take_all(self) -> list[T]:
        """Every lane there is; the table is empty afterwards."""
        with self._lock:
            lanes = [*self._held.values(), *(lane for _, lane in self._free)]
            self._held.clear()
            self._free.clear()
        return lanes


@dataclass(slots=True)
class Lane:
    """``stream`` None: the CPU, where everything is done when it returns. ``kept``: what the device may still read."""

    device: torch.device
    stream: Any
    buffers: HostBuffers
    pool: Pool | None = None
    graphs: LaneGraphs | None = None
    kept: list[torch.Tensor] = field(default_factory=list)

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def host(self, array: Array) -> torch.Tensor:
        """The array as a tensor that is neither freed nor overwritten before the run is over."""
        tensor = to_tensor(array, CPU, share=True)
        self.kept.append(tensor)
        return tensor

    def upload(self, array: Array) -> torch.Tensor:
        return self.host(array).to(self.device, non_blocking=True)

    def forward(self, arrays: Sequence[Array], forward: Callable[..., Any]) -> Any:
        """``forward`` of the arrays as tensors on the device, in a graph where there is one."""
        host = [self.host(array) for array in arrays]

        def eager() -> Any:
            return forward(*(tensor.to(self.device, non_blocking=True) for tensor in host))

        return eager() if self.graphs is None else self.graphs.run(host, forward, eager)

    def settle(self) -> None:
        """Waits until the device is done with this lane. Its errors were reported by whoever caused them."""
        if self.stream is not None:
            with suppress(RuntimeError):
                self.stream.synchronize()

    def close(self) -> None:
        self.settle()
        self.kept.clear()
        self.buffers.clear()
        if self.graphs is not None:
            self.graphs.close()
        if self.pool is not None:
            self.pool.drop()
        if self.stream is not None:
            STREAMS.put_back(self.device, self.stream)


class Lanes:
    """The lanes of one model, made as threads come. ``stage``, ``borrowed`` and ``mine``: any thread; ``close``: once,
    after the last run."""

    def __init__(self, make: Callable[[], Lane]) -> None:
        self._table = LaneTable(make)

    def mine(self) -> Lane:
        return self._table.mine()

    def stage(self, shapes: Shapes) -> dict[str, Tensor] | None:
        lane = self._table.mine()
        with lane.current():
            return lane.buffers.get(shapes)

    @contextmanager
    def borrowed(self) -> Iterator[Lane]:
        """For one run, whose results are on the host when it ends well."""
        lane = self._table.mine()
        try:
            with lane.current():
                yield lane
        except BaseException:
            lane.settle()
            raise
        finally:
            lane.kept.clear()
            self._table.put_back()

    def close(self) -> None:
        for lane in self._table.take_all():
            lane.close()


def open_lanes(device: torch.device, switch: GraphSwitch | None = None) -> Lanes | None:
    """Lanes on a GPU, with graphs if there is a switch for them; None on the CPU."""
    if device.type != "cuda":
        return None

    def make() -> Lane:
        lane = Lane(device, STREAMS.take(device), HostBuffers(pinned=True))
        if switch is not None:
            lane.pool = Pool(device)
            lane.graphs = LaneGraphs(device, switch, capture_on(device, lane.pool), GraphPlan())
        return lane

    return Lanes(make)


def open_pool(device: torch.device) -> Pool | None:
    """A pool for the weights of a version on a GPU; None on the CPU."""
    return Pool(device) if device.type == "cuda" else None


class LaneModel(LoadedModel):
    """A :class:`LoadedModel` whose runs take a lane each. ``call`` finds it in :attr:`lane`, None on the CPU.

    ``reentrant``: several threads may be inside ``run`` at once. ``pool`` has the weights, and is dropped with them.
    """

    def __init__(
        self,
        request: OpenRequest,
        platform: str,
        signature: Signature,
        *,
        reentrant: bool,
        lanes: Lanes | None,
        pool: Pool | None,
    ) -> None:
        super().__init__(request.id, platform, signature, request.device)
        self._reentrant = reentrant
        self._lanes = lanes
        self._pool = pool

    @property
    def concurrency(self) -> int:
        return MANY if self._reentrant else 1

    @property
    def lanes(self) -> int:
        return OVERLAPPING if self._reentrant and self._lanes is not None else 1

    @property
    def lane(self) -> Lane | None:
        return None if self._lanes is None else self._lanes.mine()

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        return None if self._lanes is None else self._lanes.stage(shapes)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        if self._lanes is None:
            return super().run(signature, inputs, outputs)
        with self._lanes.borrowed():
            return super().run(signature, inputs, outputs)

    def close(self) -> None:
        """The lanes first: their graphs refer to the weights."""
        if self._lanes is not None:
            self._lanes.close()
        self.drop_weights()
        if self._pool is not None:
            self._pool.drop()

    @abstractmethod
    def drop_weights(self) -> None:
        """Forgets the model; what is left of it is for the garbage collector."""
