"""Memory that a version took is given back when it goes, many times over."""

from __future__ import annotations

import psutil
import pytest

from tfs_lite.core.publish import publish
from tfs_lite.testing.profiles import is_soak, scaled
from tfs_lite.testing.servers.models import TaggedArchives
from tfs_lite.testing.servers.probe import Probe
from tfs_lite.testing.servers.process import ServerProcess

MEGABYTES = 200 if is_soak() else 60
CYCLES = scaled(50)
EARLY = 5 if is_soak() else 2
TOLERANCE = 1.10


@pytest.mark.slow
def test_loads_and_unloads_of_a_large_model_leave_memory_where_it_was(tmp_path):
    archive = TaggedArchives(MEGABYTES).write(1, tmp_path / "model.pt2")
    base = tmp_path / "large"
    away = base / ".away"
    published = publish(str(archive), str(base), 1).path
    (base / "1").rename(away)
    with (
        ServerProcess(
            "--model_name=large", f"--model_base_path={base}", "--file_system_poll_wait_seconds=60"
        ) as server,
        Probe(server) as probe,
    ):
        process = psutil.Process(server.pid)
        before = process.memory_info().rss
        loaded, unloaded = [], []
        for _ in range(CYCLES):
            away.rename(published)
            probe.wait_states("large", {1: "AVAILABLE"})
            assert probe.ask("large") == 1
            loaded.append(process.memory_info().rss)
            base.joinpath("1").rename(away)
            probe.wait_states("large", {1: "END"})
            unloaded.append(process.memory_info().rss)
    sizes = [size // 2**20 for size in unloaded]
    assert unloaded[-1] <= unloaded[EARLY - 1] * TOLERANCE, f"MiB after each unload, from {before // 2**20}: {sizes}"
    assert loaded[-1] - unloaded[-1] > MEGABYTES * 1e6 * 0.8, f"MiB after each unload, from {before // 2**20}: {sizes}"
    assert server.exit_code == 0
