"""How long it takes to explain many models at once, which a thread beside the event loop does.

    python -m benchmarks.explain [--models 1000]

A manager with so many models that serve, a tenth of which have a broken newer version; the time is that of the whole
answer: snapshot, verdicts, words and JSON. CPU time and wall time in milliseconds, the best of some rounds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from tests.support.servers.models import write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.operations.admin.feature import Admin
from tfs_lite.server.server import Server

SOURCE = "class Model:\n    def __init__(self, context):\n        pass\n\n    def predict(self, inputs):\n"
SOURCE += "        return {'y': inputs['x']}\n"
ROUNDS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    count = parser.parse_args().models
    with TemporaryDirectory() as directory:
        for number in range(count):
            base = Path(directory, f"model-{number:04}")
            write_python_version(base, 1, SOURCE)
            if number % 10 == 0:
                (base / "2").mkdir()
                (base / "2" / "notes.txt").write_text("no model")
        options: dict[str, Any] = {"trusted_model_base_paths": (directory,), "version_quiet_period_seconds": 0.0}
        with Server(model_repository=directory, max_num_load_retries=0, **options) as server:
            core = server.core
            wait_until(
                lambda: len(core.manager.list_available_servable_ids()) >= count - count // 10, "the models serve", 600
            )
            report(server)


def report(server: Server) -> None:
    admin = server.core.find(Admin)
    assert admin is not None
    control = admin.control
    best_wall, best_cpu, size = float("inf"), float("inf"), 0
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.thread_time()
        lines = control.verdicts()
        size = len(orjson.dumps([line.as_json for line in lines]))
        best_wall = min(best_wall, time.perf_counter() - wall)
        best_cpu = min(best_cpu, time.thread_time() - cpu)
    print(f"{len(lines)} models, {size} bytes: wall {best_wall * 1e3:.1f} ms, CPU {best_cpu * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
