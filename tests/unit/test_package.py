"""What importing the package costs, each time in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

IMPORT = """
import sys, time
begin = time.perf_counter()
import {module}
print(time.perf_counter() - begin, *{{name.partition(".")[0] for name in sys.modules}})
"""


def imported(module: str) -> tuple[float, set[str]]:
    """The seconds that the import takes, and every top-level module there is afterwards."""
    code = IMPORT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    seconds, *modules = done.stdout.split()
    return float(seconds), set(modules)


def test_import_of_the_package_stays_under_100_ms() -> None:
    # A promise of the public contract, hence a time; the best of five is what the import itself costs.
    assert min(imported("tfs_lite")[0] for _ in range(5)) < 0.1


def test_import_of_the_package_loads_neither_torch_nor_grpc_nor_numpy() -> None:
    modules = imported("tfs_lite")[1]
    assert "tfs_lite" in modules
    assert not {"torch", "grpc", "numpy"} & modules


def test_import_of_the_client_loads_neither_torch_nor_anything_of_a_server() -> None:
    modules = imported("tfs_lite.client")[1]
    assert "tfs_lite" in modules
    assert not {"torch", "pydantic", "httptools", "uvloop"} & modules


def test_only_a_client_that_repeats_calls_loads_the_library_for_it() -> None:
    assert "tenacity" not in imported("tfs_lite.client; tfs_lite.client.Client('localhost:1')")[1]
    assert "tenacity" in imported("tfs_lite.client; tfs_lite.client.Client('localhost:1', retry=1)")[1]


def test_import_of_fetches_loads_neither_the_storages_nor_the_retries() -> None:
    modules = imported("tfs_lite.storage.fetch")[1]
    assert "tfs_lite" in modules
    assert not {"obstore", "tenacity", "torch"} & modules
