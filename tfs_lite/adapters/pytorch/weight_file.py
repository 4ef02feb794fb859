"""Reads files of safetensors without mapping them: a mapped file that is truncated in place ends the process.

    with open_weights(directory, "model.safetensors") as file:
        for name in file.headers:
            tensor = file.read(name)

The library reads without a map as well (``backend="pread"``), but keeps Python's global lock for a whole tensor; here a
tensor is read in pieces, each of which releases it, straight into the tensor's own memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tfs_lite.adapters.inspect.archive import changed_meanwhile, damaged
from tfs_lite.adapters.spare import SPARE
from tfs_lite.core.loader import LoadMeter
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.core.yielding import Yielder
from tfs_lite.protocols.dtypes import Array

MAX_HEADER_BYTES = 100_000_000
"""The largest header, as in the library."""
_PIECE = 1 << 20
_OWN_MAPPING = 1 << 16
"""Bytes from which a tensor is no part of the heap."""
_MAX_SIZE = 1 << 63
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class WeightHeader:
    """A tensor in a file of weights. ``dtype`` in the file's words: F32, BF16, ... ``offset``: where it begins, in
    bytes from the begin of the file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.elements * self.torch_dtype.itemsize


class WeightFile:
    """An open file whose header is sound. Any number of threads may read; ``meter`` counts what they read."""

    def __init__(self, descriptor: int, headers: Mapping[str, WeightHeader], meter: LoadMeter) -> None:
        self.headers = headers
        self._descriptor = descriptor
        self._meter = meter
        self._quiet = threading.Condition()  # guards the two below; notified when no thread reads any more
        self._reading = 0
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(header.nbytes for header in self.headers.values())

    def read(self, name: str) -> torch.Tensor:
        """A tensor in memory of its own. Errors of :meth:`read_into`."""
        tensor = _empty(self.headers[name])
        self.read_into(name, tensor)
        return tensor

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Fills a contiguous tensor on the CPU that has the tensor's shape and dtype. UNAVAILABLE if the file has
        become shorter since it was opened, or cannot be read."""
        header = self.headers[name]
        if not header.elements:
            return
        array: Array = target.detach().reshape(-1).view(torch.uint8).numpy()
        content = array.data
        filled, yielder = 0, Yielder()
        while filled < len(content):
            count = self._read_piece(header, content[filled : filled + _PIECE], header.offset + filled)
            filled += count
            self._meter.add(count)
            yielder()

    def _read_piece(self, header: WeightHeader, piece: memoryview, offset: int) -> int:
        with self._quiet:
            if self._closed:
                raise ServingError(StatusCode.CANCELLED, f"{header.file} is closed")
            self._reading += 1
        try:
            count = os.preadv(self._descriptor, [piece], offset)
        except OSError as error:
            raise changed_meanwhile(f"{header.file}: {error.strerror}") from None
        finally:
            with self._quiet:
                self._reading -= 1
                self._quiet.notify_all()
        if not count:
            raise changed_meanwhile(f"{header.file} has become shorter")
        return count

    def close(self) -> None:
        """Waits for reads of other threads, each of which ends with its piece."""
        with self._quiet:
            self._closed = True
            self._quiet.wait_for(lambda: not self._reading)
        os.close(self._descriptor)


@contextmanager
def open_weights(directory: str, name: str, meter: LoadMeter | None = None) -> Iterator[WeightFile]:
    """The file ``name`` of a version's directory. DATA_LOSS if it is truncated or damaged."""
    try:
        descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise damaged(f"{name} cannot be read: {error.strerror}") from None
    try:
        headers = _read_headers(descriptor, name)
    except BaseException:
        os.close(descriptor)
        raise
    file = WeightFile(descriptor, headers, meter or LoadMeter())
    try:
        yield file
    finally:
        file.close()


def _empty(header: WeightHeader) -> torch.Tensor:
    """A large tensor has a mapping of its own, which is given back, or kept for the next, when it is dropped. Freed
    pieces of the heap, of which each thread that reads has one, would stay with the process."""
    if header.nbytes < _OWN_MAPPING:
        return torch.empty(header.shape, dtype=header.torch_dtype)
    return torch.frombuffer(SPARE.map(header.nbytes), dtype=header.torch_dtype).view(header.shape)


def _read_headers(descriptor: int, name: str) -> dict[str, WeightHeader]:
    try:
        size = os.fstat(descriptor).st_size
        (length,) = struct.unpack("<Q", os.pread(descriptor, 8, 0))
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"its header claims {length} bytes")
        text = os.pread(descriptor, length, 8)
        return _headers(name, json.loads(text), 8 + length, size)
    except struct.error:
        reason = "it has no header"
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = f"{error!s:.200}"
    raise damaged(f"{name} is truncated or damaged: {reason}")


def _headers(name: str, found: Any, start: int, size: int) -> dict[str, WeightHeader]:
    """The headers in the order of the file. ValueError and the like unless the tensors fill the file from ``start`` to
    its end."""
    entries = [
        (key, entry, *map(_size, entry["data_offsets"])) for key, entry in found.items() if key != "__metadata__"
    ]
    headers, at = dict[str, WeightHeader](), 0
    for key, entry, begin, end in sorted(entries, key=lambda each: each[2:]):
        shape = tuple(map(_size, entry["shape"]))
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"tensor {key!r:.80} has the type {entry['dtype']!r:.20}, which is not known")
        header = WeightHeader(name, entry["dtype"], shape, start + begin)
        if begin != at or end - begin != header.nbytes or math.prod(max(each, 1) for each in shape) >= _MAX_SIZE:
            raise ValueError(f"tensor {key!r:.80} is not where its header says")
        headers[key], at = header, end
    if start + at != size:
        raise ValueError(f"it has {size} bytes of {start + at}")
    return headers


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_SIZE:
        raise ValueError(f"{value!r:.40} is no size")
    return value
