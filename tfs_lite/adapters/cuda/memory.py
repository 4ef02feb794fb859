"""Memory around a GPU: pools for a version's weights and graphs, CUDA streams to use again, host memory for inputs.

torch returns memory to the device in whole segments only, so the weights of a version must not share segments with
those of other versions: they are allocated in a pool of their own. The other memory of a run comes from torch's cache
for its CUDA stream, which no other execution stream shares, and which is unused once the execution stream is closed.

While allocations are routed to a pool, or a graph is captured, torch's allocator refuses to synchronise; a pool that is
destroyed at that moment ends the process. So one lock per device guards all three: allocating in a pool, capturing, and
returning memory. Runs never wait for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from tfs_lite.adapters.pytorch.tensors import TORCH_DTYPES, as_array
from tfs_lite.core.model import Shapes
from tfs_lite.core.signature import DataType, Tensor
from tfs_lite.protocols.dtypes import Array, from_numpy

MAX_SHAPES = 16
MAX_BYTES = 256 << 20
T = TypeVar("T")


class DeviceLocks:
    """One lock per device, made at its first use. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _locks
        self._locks: dict[int, threading.Lock] = {}

    def of(self, device: torch.device) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(device.index or 0, threading.Lock())

    def known(self) -> list[threading.Lock]:
        """The locks in the order of their devices, which is the order to acquire them in."""
        with self._lock:
            return [self._locks[index] for index in sorted(self._locks)]


DEVICE_LOCKS = DeviceLocks()


def empty_caches() -> None:
    """Returns torch's unused GPU memory and pinned memory. Waits for loads and captures, during which torch would keep
    most of it. Not for a thread that serves requests."""
    held: list[threading.Lock] = []
    try:
        for lock in DEVICE_LOCKS.known():
            lock.acquire()
            held.append(lock)
        _empty_caches()
    finally:
        for lock in held:
            lock.release()


def _empty_caches() -> None:
    torch.cuda.empty_cache()
    empty_host_cache = getattr(torch._C, "_host_emptyCache", None)
    if empty_host_cache is not None:
        empty_host_cache()


def tried_twice(make: Callable[[], T], make_room: Callable[[], None]) -> T:
    """Calls ``make()``, and once more after ``make_room()`` if it runs out of GPU memory. By then the first error is
    freed, and with it its stack, which held what had been made."""
    try:
        return make()
    except torch.OutOfMemoryError:
        pass
    make_room()
    return make()


@dataclass(frozen=True, slots=True)
class _PoolName:
    """The part of a pool that ``use_mem_pool`` reads; it does not keep the pool itself alive."""

    id: tuple[int, int]


class MemoryPool:
    """Segments of GPU memory for one purpose. Only for CUDA devices.

    Order: ``allocate`` any number of times, ``drop`` once, and once more for each ``share``. Tensors may outlive the
    pool; the first :func:`empty_caches` after they are freed returns their memory. Threads: any; torch lets one thread
    at a time allocate in a pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._owners = 1  # guarded by the device's lock
        with torch.cuda.device(device):
            self._pool: Any = torch.cuda.MemPool()

    @property
    def id(self) -> tuple[int, int]:
        name: tuple[int, int] = self._pool.id
        return name

    def segments(self) -> list[dict[str, Any]]:
        """The segments that the pool has now, for :mod:`tfs_lite.adapters.cuda.account`. Costs some microseconds for
        each."""
        found: list[dict[str, Any]] = self._pool.snapshot(include_traces=False)
        return found

    def uses(self) -> int:
        """How many users keep the pool's memory from being returned, such as graphs; the pool itself is one."""
        return int(self._pool.use_count())

    def allocate(self, make: Callable[[], T]) -> T:
        """Returns ``make()``, during which this thread's GPU memory comes from the pool. All work has been done when it
        returns, so that other streams may use the result. Other loads and captures of the device wait."""
        with DEVICE_LOCKS.of(self._device):
            return tried_twice(lambda: self._inside(make), torch.cuda.empty_cache)

    def _inside(self, make: Callable[[], T]) -> T:
        with torch.cuda.use_mem_pool(self._pool, self._device):
            made = make()
            torch.cuda.current_stream(self._device).synchronize()
        return made

    def share(self) -> MemoryPool:
        """The same pool for one more owner."""
        with DEVICE_LOCKS.of(self._device):
            self._owners += 1
        return self

    def drop(self) -> None:
        """Returns the memory that is free, when the last owner says so. The pool's destructor would synchronise, which
        fails (and ends the process) while a model captures a graph; so the pool is destroyed while it is in use."""
        with DEVICE_LOCKS.of(self._device):
            self._owners -= 1
            if self._owners:
                return
            name: Any = _PoolName(self.id)
            with torch.cuda.use_mem_pool(name, self._device):
                del self._pool
            torch.cuda.empty_cache()


class StreamPool:
    """CUDA streams of closed execution streams, for new ones. Any thread.

    torch has few streams per device and hands them out in turn, and cuBLAS keeps a workspace of some megabytes for each
    one that a thread has ever used: without this pool, every load would add one.
    """

    def __init__(self, make: Callable[[torch.device], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()  # guards _free
        self._free: dict[torch.device, list[Any]] = {}

    def take(self, device: torch.device) -> Any:
        with self._lock:
            free = self._free.get(device)
            if free:
                return free.pop()
        return self._make(device)

    def put_back(self, device: torch.device, stream: Any) -> None:
        with self._lock:
            self._free.setdefault(device, []).append(stream)


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


STREAMS = StreamPool(_stream)


class HostBuffers:
    """Memory for the inputs of a stream's next run: one set of arrays per set of names, shapes and dtypes, reused.

    It holds at most ``max_shapes`` sets and ``max_bytes``, and evicts the least recently used. One thread at a time.
    ``pinned`` memory needs a GPU.
    """

    def __init__(self, pinned: bool, max_shapes: int = MAX_SHAPES, max_bytes: int = MAX_BYTES) -> None:
        self._pinned = pinned
        self._max_shapes = max_shapes
        self._max_bytes = max_bytes
        self._sets: OrderedDict[Hashable, dict[str, Array]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._sets)

    def get(self, shapes: Shapes) -> dict[str, Tensor] | None:
        """The uninitialised arrays for all inputs but texts; None if there are none, or for more than ``max_bytes``."""
        key = frozenset((name, shape, str(dtype)) for name, (shape, dtype) in shapes.items())
        arrays = self._sets.get(key)
        if arrays is None:
            wanted = {name: (shape, kind) for name, (shape, dtype) in shapes.items() if (kind := _numeric(dtype))}
            size = sum(_bytes(shape, kind) for shape, kind in wanted.values())
            if not wanted or size > self._max_bytes:
                return None
            self._make_room(size)
            arrays = {name: self._array(shape, kind) for name, (shape, kind) in wanted.items()}
            self._sets[key] = arrays
            self._bytes += size
        self._sets.move_to_end(key)
        return dict(arrays)

    def clear(self) -> None:
        self._sets.clear()
        self._bytes = 0

    def _make_room(self, size: int) -> None:
        while self._sets and (len(self._sets) >= self._max_shapes or self._bytes + size > self._max_bytes):
            _, arrays = self._sets.popitem(last=False)
            self._bytes -= sum(array.nbytes for array in arrays.values())

    def _array(self, shape: tuple[int, ...], dtype: DataType) -> Array:
        return as_array(torch.empty(shape, dtype=TORCH_DTYPES[dtype], pin_memory=self._pinned))


def _numeric(dtype: Any) -> DataType | None:
    """The element type; None for texts."""
    found = DataType.STRING if dtype.kind == "O" else from_numpy(dtype)
    return None if found is DataType.STRING else found


def _bytes(shape: tuple[int, ...], dtype: DataType) -> int:
    size = TORCH_DTYPES[dtype].itemsize
    for dim in shape:
        size *= dim
    return size
