"""Memory that a version took is given back when it goes, many times over."""

from __future__ import annotations

import urllib.request

import psutil
import pytest

from tfs_lite.adapters.memory import FIXED_BYTES
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState
from tfs_lite.testing.profiles import is_soak, scaled
from tfs_lite.testing.servers.in_process import config_text, entry, serving
from tfs_lite.testing.servers.models import TaggedArchives
from tfs_lite.testing.servers.probe import Probe
from tfs_lite.testing.servers.process import ServerProcess, wait_until

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


BETWEEN = 46_000_000
"""Bytes: two versions of 20 MB fit as they were measured, and would not if the second were expected to take a fifth
more than its files."""


def test_second_version_is_admitted_by_what_the_first_took_and_shown_as_measured(tmp_path):
    archives = TaggedArchives(megabytes=21)
    archives.write_version(1, tmp_path / "m")
    limits = {"total_model_memory_limit_bytes": BETWEEN, "max_num_load_retries": 0}
    config = tmp_path / "models.config"
    config.write_text(config_text(tmp_path, entry("m", "model_version_policy { all {} }")))
    with serving(tmp_path, model_config_file=str(config), file_system_poll_wait_seconds=1, **limits) as served:
        assert served.version() == 1
        (first,) = served.server.core.memory("m")
        weights = first.held["main"]["weights"]
        assert 20_000_000 < weights < first.reserved["main"]
        assert weights + first.reserved["main"] > BETWEEN
        archives.write_version(2, tmp_path / "m")
        wait_until(lambda: served.status().get(2) is not None, "version 2 is known")
        served.wait_states({1: VersionState.AVAILABLE, 2: VersionState.AVAILABLE})
        second, _ = served.server.core.memory("m")
        assert second.reserved["main"] <= 1.02 * weights + FIXED_BYTES
        page = urllib.request.urlopen(f"{served.url}/metrics").read().decode()
        name = 'tfs_lite_memory_measured_bytes{device="main",kind="weights",model="m",version="2"} '
        assert [float(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name)] == [weights]


def test_process_of_a_version_is_measured_from_outside(tmp_path):
    TaggedArchives(megabytes=21).write_version(1, tmp_path / "m")
    config = tmp_path / "models.config"
    config.write_text(config_text(tmp_path, entry("m")))
    with serving(tmp_path, model_config_file=str(config), worker="process") as served:
        assert served.version() == 1
        (account,) = served.server.core.memory("m")
        assert 20_000_000 < account.held["main"]["process"] <= max(account.workers) + 20_000_000
