from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from tfs_lite.adapters.memory import drop_file_caches

PAGES = 64


def resident_pages(path: Path) -> int:
    """How much of a file is in the system's cache, in pages."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        found = (ctypes.c_ubyte * PAGES)()
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(PAGES * mmap.PAGESIZE), found) == 0
        return sum(page & 1 for page in found)


def test_what_was_read_leaves_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "weights"
    path.parent.mkdir()
    path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        file.read()
    if resident_pages(path) < PAGES:
        pytest.skip("this file system has no cache to look into")
    drop_file_caches(str(tmp_path))
    if resident_pages(path) == PAGES:
        pytest.skip("this file system keeps its cache whatever it is told")
    assert resident_pages(path) == 0


def test_pipes_links_to_nowhere_and_missing_directories_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    drop_file_caches(str(tmp_path))
    drop_file_caches(str(tmp_path / "missing"))
