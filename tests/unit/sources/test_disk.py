"""The real disk: what it refuses to look into."""

from __future__ import annotations

import os

import pytest

from tfs_lite.sources.disk import RealDisk


def test_pipe_among_the_files_is_refused_because_reading_it_would_block(tmp_path):
    os.mkfifo(tmp_path / "model.pt2")
    with pytest.raises(OSError, match="not a plain file"):
        RealDisk().stat_tree(str(tmp_path))


def test_link_among_the_files_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "model.pt2").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="a link that leads nowhere"):
        RealDisk().stat_tree(str(tmp_path))
