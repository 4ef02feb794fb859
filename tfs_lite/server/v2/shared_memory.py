"""System shared memory of the V2 protocol: clients on the same machine leave tensors in a region and name it.

    register(name, key, offset, byte_size) -> requests that say region, offset and size -> unregister

A region is a POSIX object (``/dev/shm/KEY``) that the client made. It is read and written by copies, never mapped: a
client that cuts its object short gets an error, where a mapping would end the server.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument, not_found
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.v2.request import SharedMemorySlice
from tfs_lite.protocols.v2.tensors import decode_raw, encode_raw

_T = TypeVar("_T")

MAX_REGIONS = 1000
MAX_NAME = 1024
"""Characters of a region's name, and of its key."""
SHOWN = 200
"""Characters of a name that an error repeats."""
FOLDER = "/dev/shm"


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """A region of the system's shared memory; sizes in bytes."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegionStatus:
    """A region of a GPU's memory; its size in bytes."""

    name: str
    device_id: int
    byte_size: int


@dataclass(slots=True, eq=False)
class _Region:
    status: RegionStatus
    descriptor: int
    users: int = 0
    gone: bool = False


class SharedRegions:
    """The regions that are registered. Any thread. With ``enabled`` False registering is refused, because clients may
    be on other machines."""

    def __init__(self, enabled: bool = True, max_bytes: int = 1 << 31) -> None:
        """``max_bytes`` bounds one tensor."""
        self._enabled = enabled
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # guards the regions and their users
        self._regions: dict[str, _Region] = {}

    @property
    def extensions(self) -> tuple[str, ...]:
        return ("system_shared_memory",) if self._enabled else ()

    def system_register(self, region: RegionStatus) -> None:
        """ALREADY_EXISTS for a name that is taken; INVALID_ARGUMENT for a key without an object, or one too short."""
        if not self._enabled:
            raise ServingError(
                StatusCode.UNIMPLEMENTED, "shared memory is only for servers that listen on the loopback address"
            )
        if not region.name:
            raise invalid_argument("shared memory region: name is empty")
        for what, text in (("name", region.name), ("key", region.key)):
            if len(text) > MAX_NAME:
                raise invalid_argument(
                    f"the {what} of a shared memory region has {len(text)} characters, at most {MAX_NAME} are allowed"
                )
        descriptor = _open(region)
        try:
            with self._lock:
                self._check_room(region.name)
                self._regions[region.name] = _Region(region, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def system_unregister(self, name: str | None) -> None:
        """``name`` None means all regions. An unknown name is no error. Reads and writes that run are finished."""
        with self._lock:
            names = list(self._regions) if name is None else [name]
            found = [self._regions.pop(one) for one in names if one in self._regions]
            for region in found:
                region.gone = True
            idle = [region.descriptor for region in found if not region.users]
        for descriptor in idle:
            os.close(descriptor)

    def system_status(self, name: str | None) -> list[RegionStatus]:
        with self._lock:
            if name is None:
                return [region.status for region in self._regions.values()]
            region = self._regions.get(name)
        if region is None:
            raise not_found(f"Unable to find system shared memory region: '{name:.{SHOWN}}'")
        return [region.status]

    def cuda_status(self, name: str | None) -> list[CudaRegionStatus]:
        return []

    def cuda_register(self, region: CudaRegionStatus, raw_handle: bytes) -> None:
        raise ServingError(StatusCode.UNIMPLEMENTED, "CUDA shared memory is not supported")

    def cuda_unregister(self, name: str | None) -> None:
        """Does nothing: no CUDA region can be registered."""

    def read(
        self, memory: SharedMemorySlice, datatype: str, shape: tuple[int, ...], name: str = "", model: str = ""
    ) -> Array:
        """A copy of the tensor that is there. NOT_FOUND without the region; INVALID_ARGUMENT, whose words name the
        input and the model."""
        data = self._use(memory, lambda descriptor, start: os.pread(descriptor, memory.byte_size, start))
        if len(data) != memory.byte_size:
            raise invalid_argument(
                f"shared memory region '{memory.region}' is shorter than it was when it was registered"
            )
        return decode_raw(datatype, shape, data, name, model)

    def write(self, memory: SharedMemorySlice, array: Array) -> int:
        """Writes the tensor; returns the bytes that it takes there. INVALID_ARGUMENT if there is no room for it."""
        data = encode_raw(array)
        if len(data) > memory.byte_size:
            raise invalid_argument(
                f"shared memory size specified with the request for the output ({memory.byte_size} bytes) should be at "
                f"least {len(data)} bytes to hold the results"
            )
        return self._use(memory, lambda descriptor, start: _write(descriptor, data, start, memory.region))

    def close(self) -> None:
        self.system_unregister(None)

    def _use(self, memory: SharedMemorySlice, act: Callable[[int, int], _T]) -> _T:
        """``act`` with the region's file and where the slice begins in it, outside the lock."""
        with self._lock:
            region = self._regions.get(memory.region)
            if region is None:
                raise not_found(f"Unable to find shared memory region: '{memory.region:.{SHOWN}}'")
            self._check_slice(region.status, memory)
            region.users += 1
        try:
            return act(region.descriptor, region.status.offset + memory.offset)
        finally:
            with self._lock:
                region.users -= 1
                last = region.gone and not region.users
            if last:
                os.close(region.descriptor)

    def _check_slice(self, region: RegionStatus, memory: SharedMemorySlice) -> None:
        if not 0 <= memory.offset < region.byte_size:
            raise invalid_argument(
                f"Invalid offset for shared memory region: '{memory.region:.{SHOWN}}': {memory.offset} in "
                f"{region.byte_size} bytes"
            )
        if memory.byte_size < 0 or memory.offset + memory.byte_size > region.byte_size:
            raise invalid_argument(
                f"Invalid offset + byte size for shared memory region: '{memory.region:.{SHOWN}}': {memory.offset} + "
                f"{memory.byte_size} is more than its {region.byte_size} bytes"
            )
        if memory.byte_size > self._max_bytes:
            raise invalid_argument(f"a tensor in shared memory may have at most {self._max_bytes} bytes")

    def _check_room(self, name: str) -> None:
        """Checks for room; called with the lock held."""
        if name in self._regions:
            raise ServingError(StatusCode.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")
        if len(self._regions) >= MAX_REGIONS:
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, f"{MAX_REGIONS} shared memory regions are registered")


def _open(region: RegionStatus) -> int:
    key = region.key.removeprefix("/")
    if not key or "/" in key or "\0" in key or key in (".", ".."):
        raise invalid_argument(f"shared memory key '{region.key:.{SHOWN}}' is no name of an object")
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(os.path.join(FOLDER, key), flags)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no file can have that name"
        raise invalid_argument(f"Unable to open shared memory region: '{region.name:.{SHOWN}}': {why}") from None
    size = os.fstat(descriptor).st_size
    if region.offset < 0 or region.byte_size <= 0 or region.offset + region.byte_size > size:
        os.close(descriptor)
        raise invalid_argument(
            f"failed to register shared memory region '{region.name}': invalid args: offset {region.offset} and "
            f"{region.byte_size} bytes do not fit into its {size} bytes"
        )
    return descriptor


def _write(descriptor: int, data: bytes | memoryview, start: int, name: str) -> int:
    """All of it, or INVALID_ARGUMENT: the object must not grow."""
    if os.fstat(descriptor).st_size < start + len(data):
        raise invalid_argument(f"shared memory region '{name}' is shorter than it was when it was registered")
    view, written = memoryview(data), 0
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], start + written)
    return written
