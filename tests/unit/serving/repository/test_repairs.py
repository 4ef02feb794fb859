"""Versions that failed and whose files were changed afterwards, seen through a whole server."""

from __future__ import annotations

from pathlib import Path

from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState
from tfs_lite.testing.servers.in_process import serving
from tfs_lite.testing.servers.models import write_python_version
from tfs_lite.testing.servers.process import wait_until


def test_a_published_version_that_failed_and_was_changed_in_place_says_why_it_is_not_tried(tmp_path: Path) -> None:
    source = write_python_version(tmp_path / "source", 1, "class Model: pass")
    base = tmp_path / "m"
    publish(str(source), str(base), 1)
    options = {"model_name": "m", "model_base_path": str(base), "trusted_model_base_paths": (str(tmp_path / "**"),)}
    with serving(tmp_path, **options) as fixture:
        wait_until(lambda: fixture.states().get(1) is VersionState.END, "it has failed", 30)
        (base / "1" / "model.py").write_text("class Model:  # repaired")
        wait_until(lambda: "manifest lists model.py" in fixture.status()[1].status.message, "the reason is told", 30)
        assert fixture.states()[1] is VersionState.START
