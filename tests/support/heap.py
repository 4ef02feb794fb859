"""What glibc says of the memory that it manages."""

from __future__ import annotations

import ctypes

import pytest


class _Mallinfo(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns."""

    names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names]


def mapped_bytes() -> int:
    """Bytes of the blocks that have mappings of their own. Skips the test with other C libraries."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("needs glibc 2.33")
    mallinfo.restype = _Mallinfo
    return int(mallinfo().hblkhd)
