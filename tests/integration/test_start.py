"""Many models at once at the start: they load side by side, on several threads, and every one of them is served."""

from __future__ import annotations

from tfs_lite.testing.probe import Probe
from tfs_lite.testing.process import ServerProcess

MODELS = 24


def test_models_that_load_side_by_side_at_the_start_all_serve(archives, tmp_path):
    names = [f"model_{number}" for number in range(1, MODELS + 1)]
    for version, name in enumerate(names, start=1):
        archives.write_version(version, tmp_path / name)
    flags = (
        f"--model_repository={tmp_path}",
        "--num_initial_load_threads=8",
        "--max_num_load_retries=0",
        "--version_quiet_period_seconds=0.1",
        "--ready_requires_all_models",
    )
    with ServerProcess(*flags) as server, Probe(server) as probe:
        assert [probe.ask(name) for name in names] == list(range(1, MODELS + 1))
    assert server.exit_code == 0
