"""One cluster of Ray for all tests of this folder: a head without resources and three nodes. It takes 15 seconds.

Without the extra ``cluster`` the folder is skipped; ``make test-cluster`` makes an environment that has it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("ray") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(
                    pytest.mark.skip(reason="needs Ray: make test-cluster, or pip install tfs-lite[cluster]")
                )


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator:
    """The cluster, and the environment of this process made so that helpers reach it."""
    from tfs_lite.testing.cluster.ray_nodes import RayNodes

    with RayNodes() as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        for zone in "abc":
            cluster.add_node(1, {"zone": zone})
        yield cluster
