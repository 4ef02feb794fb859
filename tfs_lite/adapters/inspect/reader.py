"""Reads the members of a ``.pt2`` archive for torch, without holding up the rest of the process.

torch's own reader copies a member inside one call that keeps Python's global lock: 200 MB of weights are a fifth of a
second in which no request of any model is answered. This one reads in pieces, into memory of its own for each large
member; reading a piece releases the lock, and dropping the member unmaps its memory at once instead of leaving it to
the heap. It answers the calls that torch's loading code makes of its reader.
"""

from __future__ import annotations

import mmap

import torch

from tfs_lite.adapters.inspect.archive import Archive
from tfs_lite.adapters.inspect.artifact import SAMPLES

Writable = bytearray | mmap.mmap
_PIECE = 1 << 20
_TENSORS = ("data/weights/weight_", "data/constants/tensor_")


class ArchiveReader:
    """Stands where torch expects a ``PT2ArchiveReader`` and, in its field ``archive_file``, a ``PyTorchFileReader``."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.archive_file = self

    def get_file_names(self) -> list[str]:
        return list(self._archive.members)

    def read_string(self, name: str) -> str:
        return self._archive.read(name).decode()

    def get_record_size(self, name: str) -> int:
        return self._archive.size(name)

    def read_bytes(self, name: str) -> bytes | Writable:
        """The member; what becomes a tensor without being copied is writable.

        Sample inputs are a pickle, and serving has no use for them: torch is told that there are none.
        """
        if name == SAMPLES:
            return b""
        return self._writable(name) if name.startswith(_TENSORS) else self._archive.read(name)

    def get_storage_from_record(self, name: str, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor of ``elements`` of ``dtype``, with memory of its own."""
        return torch.frombuffer(self._writable(name), dtype=dtype, count=elements)

    def _writable(self, name: str) -> Writable:
        size = self._archive.size(name)
        memory = mmap.mmap(-1, size) if size > _PIECE else bytearray(size)
        with memoryview(memory) as view:
            self._archive.read_into(name, view)
        return memory
