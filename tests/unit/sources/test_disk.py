"""The real disk: what it refuses to look into."""

from __future__ import annotations

import os

import pytest

from tfs_lite.sources.disk import RealDisk


def test_pipe_among_the_files_is_refused_because_reading_it_would_block(tmp_path):
    os.mkfifo(tmp_path / "model.pt2")
    with pytest.raises(OSError, match="not a plain file"):
        RealDisk().stat_tree(str(tmp_path))
