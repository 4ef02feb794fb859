"""How much memory a version takes, before and after it is loaded, and returning memory to the system.

Before the load, the estimate is the unpacked size of its files and a fifth more, as in TensorFlow Serving, or what was
measured of a version like it; after it, what it holds. An estimate never grows. Loaded files are not read again, so the
system may drop them from its file cache.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from tfs_lite.adapters.collection import exempt, exemptions
from tfs_lite.adapters.cuda.memory import empty_caches
from tfs_lite.adapters.spare import SPARE, SparePages, c_function
from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource, ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.threads import PeriodicThread
from tfs_lite.core.yielding import Yielder

FIXED_BYTES = 1 << 20
OWED_BYTES = 64 << 20
"""Bytes that unloads and failed loads may leave behind until a collection."""
COLLECT_PAUSE = 1.0
"""Seconds from the moment when they have until it happens."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""What ``mallopt`` sets: from how many free bytes on the end of a heap is given back, and from how many bytes on a
block has a mapping of its own."""
LARGE_BLOCK_BYTES = 128 << 10
"""As glibc begins with; it grows with each large block that is freed."""
HEAP_BLOCK_BYTES = 32 << 20
"""The most that it grows to."""
END_BLOCK_BYTES = 96 << 10
"""The size of a block that lies in a heap, and whose freeing has glibc look at its end: 64 KiB and more."""
_NEVER = 2**31 - 1
COLLECT_SHARE = 0.05
"""The largest share of the time that collections may take which nobody waits for."""
SPARE_SECONDS = 3.0
"""How long memory of dropped weights is kept at least from the last time that any was kept or used again, and how often
that is looked at: it goes back after twice as long at most."""
logger = logging.getLogger(__name__)


def bytes_to_reserve(file_bytes: int) -> int:
    """An upper bound for a version whose unpacked files have this size."""
    return file_bytes * 6 // 5 + FIXED_BYTES


def estimate(
    of_copy: int, copies: Mapping[Resource, int], while_loading: int, for_a_moment: int = 0
) -> ResourceAllocation:
    """The memory to reserve before loading: so many bytes for each copy, by device. Copies for a GPU need main
    memory as well ``while_loading``, one after the other. ``for_a_moment``: what opening a copy takes of main memory
    besides."""
    quantities = {resource: of_copy * count for resource, count in copies.items()}
    on_gpu = any(resource.device == GPU for resource in copies)
    more = for_a_moment + (while_loading if on_gpu else 0)
    if more:
        main = Resource(MAIN, RAM, 0)
        quantities[main] = quantities.get(main, 0) + more
    return ResourceAllocation(quantities)


def measured(
    servable_id: ServableId,
    resident: int | None,
    held: Mapping[Resource, int],
    reserved: ResourceAllocation,
    copies: Mapping[Resource, int],
) -> ResourceAllocation:
    """The memory that a loaded version holds on the devices of its ``copies``: ``held`` bytes, or what was ``reserved``
    where that is unknown. ``resident``: the bytes of all its tensors; None if unknown."""
    of_devices = {resource: reserved.entries.get(resource, 0) for resource in copies}
    if resident is not None and resident > sum(of_devices.values()):
        total = sum(of_devices.values())
        logger.warning("%s holds %d bytes, more than the %d reserved for it", servable_id, resident, total)
    return ResourceAllocation({place: min(held.get(place, most), most) for place, most in of_devices.items()})


def tensor_bytes(tensors: Iterable[object]) -> int:
    """Bytes of all storages behind the tensors; shared ones count once, and other objects do not count."""
    values = [value for value in tensors if isinstance(value, torch.Tensor)]
    packed = sum(value.numel() * value.element_size() for value in values if value.is_mkldnn)
    storages = [value.untyped_storage() for value in values if not value.is_mkldnn]
    return packed + sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def take_apart(module: torch.nn.Module) -> None:
    """Frees what a module holds, one weight after the other, although its parts may refer to one another in circles.
    Nobody may use it any more."""
    held = [*module.parameters(), *module.buffers()]
    for part in list(module.modules()):
        vars(part).clear()
    free_in_turn(held)


def free_in_turn(held: list[torch.Tensor]) -> None:
    """Empties the list, whose references are the last ones, and lets other threads run in between: to give back a
    hundred megabytes takes some ten milliseconds, in which the interpreter lock is held."""
    give_way = Yielder()
    while held:
        held.pop()
        give_way()


def release_memory() -> None:
    """Frees cycles, and returns what is free to the system. A collection looks at the objects of every version that is
    loaded, and holds up every request meanwhile: see :class:`MemoryReturn`."""
    gc.collect()
    return_free_memory()


def return_free_memory() -> None:
    """Returns the heap's free pages and torch's unused GPU memory to the system."""
    trim_heap()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        empty_caches()


def release_exempt_memory() -> None:
    """As :func:`release_memory`, of what :mod:`~tfs_lite.adapters.collection` has exempted, too; all that is left is
    exempt again. It holds up every request for a tenth of a second and longer."""
    gc.unfreeze()
    release_memory()
    exempt()


class MemoryReturn:
    """Decides when memory goes back to the system that only a garbage collection frees: now, or once unloads and failed
    loads may have left :data:`OWED_BYTES` behind together. Any thread may call any method."""

    def __init__(
        self,
        clock: Clock,
        release: Callable[[], None] = release_memory,
        release_exempt: Callable[[], None] = release_exempt_memory,
        exempted: Callable[[], int] = exemptions,
        return_free: Callable[[], None] = return_free_memory,
        spare: SparePages = SPARE,
    ) -> None:
        self._return_free = return_free
        self._spare = spare
        self._exempted = exempted
        self._clock = clock
        self._release, self._release_exempt = release, release_exempt
        self._lock = threading.Lock()  # guards the fields below
        self._due: Timer | None = None
        self._owed = 0
        self._count, self._seconds = 0, 0.0
        self._pause = COLLECT_PAUSE
        self._closed = False
        self._wanted = threading.Event()
        self._begun = False
        self._spare_changes, self._spare_since = 0, 0.0  # of the thread
        self._thread = PeriodicThread("tfs-memory", self._do_wanted, SPARE_SECONDS)

    def start(self) -> None:
        self._begun = True
        self._spare.begin()
        self._thread.start()

    def return_free(self) -> None:
        """Gives free memory back to the system, and collects nothing."""
        self._return_free()

    def exempted(self) -> int:
        """How often what existed was exempted from collection since the start."""
        return self._exempted()

    def collect(self) -> None:
        """Collects now, on this thread, also what is owed."""
        self._collect(self._release)

    def collect_exempt(self) -> None:
        """Collects now, as :meth:`collect`, but also what loads have exempted."""
        self._collect(self._release_exempt)

    def _collect(self, release: Callable[[], None]) -> None:
        with self._lock:
            due, self._due, self._owed = self._due, None, 0
            if self._closed:
                return
        if due is not None:
            due.cancel()
        began = self._clock.monotonic()
        release()
        took = self._clock.monotonic() - began
        with self._lock:
            self._count, self._seconds = self._count + 1, self._seconds + took
            self._pause = max(COLLECT_PAUSE, took / COLLECT_SHARE)

    def collections(self) -> tuple[int, float]:
        """How many there were, and how many seconds they took together."""
        with self._lock:
            return self._count, self._seconds

    def owe(self, left: int) -> None:
        """Records that so many bytes may have been left behind. Collects a moment after that has become much, on a
        thread of its own."""
        with self._lock:
            self._owed += left
            if self._owed >= OWED_BYTES and self._due is None and not self._closed:
                self._due = self._clock.call_later(self._pause, self._wake)

    def close(self) -> None:
        """Ends all collections: the process ends."""
        with self._lock:
            self._closed = True
            due, self._due = self._due, None
            begun, self._begun = self._begun, False
        if due is not None:
            due.cancel()
        self._thread.stop()
        if begun:
            self._spare.end()

    def _wake(self) -> None:
        self._wanted.set()
        self._thread.wake()

    def _do_wanted(self) -> None:
        self._return_unused_spare()
        if self._wanted.is_set():
            self._wanted.clear()
            self.collect()

    def _return_unused_spare(self) -> None:
        """Gives back the memory that is kept for weights, unless some was kept or used again a moment ago. Weights may
        be dropped at any time: by an unload, a collection, or a request that ends late."""
        now = self._clock.monotonic()
        if self._spare.changes != self._spare_changes:
            self._spare_changes, self._spare_since = self._spare.changes, now
        elif self._spare.nbytes and now - self._spare_since >= SPARE_SECONDS:
            self._spare.clear()


def trim_heap() -> None:
    """Returns the heap's free pages to the system. Other threads run meanwhile."""
    if _malloc_trim is not None:
        _malloc_trim(0)


class _Apart:
    lock = threading.Lock()  # guards the field below
    inside = 0


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """While any thread is inside, blocks of :data:`LARGE_BLOCK_BYTES` and more that any thread allocates have mappings
    of their own, for what is kept for long. In a heap they would be given back by :func:`trim_heap` all at once: for
    half a gigabyte it keeps the heap, which several threads share, for 30 ms. Afterwards blocks of up to
    :data:`HEAP_BLOCK_BYTES` lie in a heap, as what requests need for a moment should."""
    with _Apart.lock:
        _Apart.inside += 1
        _set_large_block(LARGE_BLOCK_BYTES)
    try:
        yield
    finally:
        with _Apart.lock:
            _Apart.inside -= 1
            if not _Apart.inside:
                _set_large_block(HEAP_BLOCK_BYTES)


class HeapEnd:
    """The free end of the heap of the thread that makes it, for a library that frees much at once with the interpreter
    lock held. glibc would give the end back to the system then and there, a millisecond for ten megabytes; within
    :meth:`kept` it stays, and goes back afterwards, while other threads run."""

    def __init__(self) -> None:
        self._block = _malloc(END_BLOCK_BYTES) if _malloc is not None and _mallopt is not None else 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Once, in any thread."""
        _set_heap_end(_NEVER)
        try:
            yield
        finally:
            with _Apart.lock:
                _set_heap_end(LARGE_BLOCK_BYTES)
                self._free()
                _set_large_block(LARGE_BLOCK_BYTES if _Apart.inside else HEAP_BLOCK_BYTES)

    def _free(self) -> None:
        block, self._block = self._block, 0
        if block and _free is not None:
            _free(block)

    def __del__(self) -> None:
        self._free()


def _set_heap_end(least: int) -> None:
    if _mallopt is not None:
        _mallopt(_M_TRIM_THRESHOLD, least)


def _set_large_block(least: int) -> None:
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, least)
    _set_heap_end(2 * HEAP_BLOCK_BYTES)


_malloc_trim = c_function("malloc_trim", ctypes.c_size_t)
_mallopt = c_function("mallopt", ctypes.c_int, ctypes.c_int)
_malloc = c_function("malloc", ctypes.c_size_t, result=ctypes.c_void_p)
_free = c_function("free", ctypes.c_void_p)


def drop_file_caches(directory: str) -> None:
    """Tells the system that the cached contents of the files below ``directory`` are not needed. Skips files that are
    missing, not readable or not regular."""
    if not hasattr(os, "posix_fadvise"):
        return
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                _drop(path)


def _drop(path: str) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return
    finally:
        os.close(file)
