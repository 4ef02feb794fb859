"""A server that belongs to no cluster imports and starts nothing of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, threading
from tfs_lite.server.server import Server

with Server(model_repository=sys.argv[1], model_control_mode="explicit") as server:
    server.wait_ready()
    threads = [thread.name for thread in threading.enumerate() if "replica" in thread.name or "cluster" in thread.name]
of_clusters = ("ray.", "tfs_lite.cluster.")
print([name for name in sys.modules if f"{name}.".startswith(of_clusters)], threads)
"""


def test_a_server_without_a_cluster_imports_and_starts_nothing_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[] []"
