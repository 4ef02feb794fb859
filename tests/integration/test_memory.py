"""Memory that a version took is given back when it goes, many times over."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.support.profiles import is_soak, scaled
from tests.support.servers.in_process import config_text, entry, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, default_command, wait_until
from tfs_lite.adapters.memory import FIXED_BYTES
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState
from tfs_lite.managers.resource_tracker import LEAST_RESERVE
from tfs_lite.operations.history.feature import memory_of

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
        wait_until(
            lambda: loaded[-1] - process.memory_info().rss > MEGABYTES * 1e6 * 0.8,
            "the memory of the weights, which is kept a moment for others, is given back",
        )
    sizes = [size // 2**20 for size in unloaded]
    assert unloaded[-1] <= unloaded[EARLY - 1] * TOLERANCE, f"MiB after each unload, from {before // 2**20}: {sizes}"
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
        (first,) = memory_of(served.server.core, "m")
        weights = first.held["main"]["weights"]
        assert 20_000_000 < weights < first.reserved["main"]
        assert weights + first.reserved["main"] > BETWEEN
        archives.write_version(2, tmp_path / "m")
        wait_until(lambda: served.status().get(2) is not None, "version 2 is known")
        served.wait_states({1: VersionState.AVAILABLE, 2: VersionState.AVAILABLE})
        second, _ = memory_of(served.server.core, "m")
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
        (account,) = memory_of(served.server.core, "m")
        assert 20_000_000 < account.held["main"]["process"] <= max(account.workers) + 20_000_000


class ControlGroup:
    """A control group with a memory limit of its own, below the one of this process; skips where none can be made."""

    def __init__(self) -> None:
        old = Path("/sys/fs/cgroup/memory")
        top, self.used, self._limit = (old, "memory.usage_in_bytes", "memory.limit_in_bytes")
        if not old.exists():
            top, self.used, self._limit = (Path("/sys/fs/cgroup"), "memory.current", "memory.max")
        self.folder = top / f"tfs-lite-test-{os.getpid()}"
        try:
            self.folder.mkdir()
            self.limit_to(1 << 40)
        except OSError as error:
            if self.folder.exists():
                self.folder.rmdir()
            pytest.skip(f"no control group can be made here: {error}")

    def limit_to(self, limit: int) -> None:
        (self.folder / self._limit).write_text(str(limit))

    @property
    def held(self) -> int:
        return int((self.folder / self.used).read_text())

    @property
    def command(self) -> list[str]:
        """Runs the server in the group."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$0" "$@"', *default_command()]

    def remove(self) -> None:
        def gone() -> bool:
            try:
                self.folder.rmdir()
            except OSError:
                return False
            return True

        wait_until(gone, "the control group has no processes")


@pytest.fixture
def group():
    made = ControlGroup()
    yield made
    made.remove()


def test_in_a_container_a_version_that_does_not_fit_beside_the_old_one_is_refused_and_the_kernel_kills_nobody(
    tmp_path, group
):
    archives, base = TaggedArchives(MEGABYTES), tmp_path / "m"
    base.mkdir()
    flags = ("--model_name=m", f"--model_base_path={base}", "--max_num_load_retries=0")
    with ServerProcess(*flags, command=group.command, env={"OMP_NUM_THREADS": "1"}) as server, Probe(server) as probe:
        # Room for one version and the reserve; the limit as such has room for nearly two.
        group.limit_to(group.held + int(MEGABYTES * 1e6 * 1.2) + LEAST_RESERVE + (12 << 20))
        archives.write_version(1, base)
        probe.wait_states("m", {1: "AVAILABLE"})
        archives.write_version(2, base)
        probe.wait_states("m", {1: "AVAILABLE", 2: "END"})
        assert probe.ask("m") == 1
        said = server.log()
        assert "Insufficient resources to load servable {name: m version: 2}" in said
        assert "are held beside models" in said
        group.limit_to(group.held + 4 * int(MEGABYTES * 1e6))
        probe.wait_states("m", {1: "END", 2: "AVAILABLE"})  # by itself, as soon as there is room
        assert probe.ask("m") == 2
    assert server.exit_code == 0
