"""One cluster of Ray for all tests of this folder: a head without resources and three nodes. It takes 15 seconds.

Without the extra ``cluster`` the folder is skipped; ``make test-cluster`` makes an environment that has it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.cluster.ray_nodes import RayNodes
    from tests.support.cluster.replicated_models import ReplicatedModels
    from tests.support.servers.in_process import ServerFixture

    Serve = Callable[[], AbstractContextManager[ServerFixture]]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("ray") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(
                    pytest.mark.skip(reason="needs Ray: make test-cluster, or pip install 'tfs-lite[cluster]'")
                )


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator:
    """The cluster, and the environment of this process made so that helpers reach it."""
    from tests.support.cluster.ray_nodes import RayNodes

    with RayNodes() as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        for zone in "abc":
            cluster.add_node(1, {"zone": zone})
        yield cluster


@pytest.fixture
def models(tmp_path: Path) -> ReplicatedModels:
    from tests.support.cluster.replicated_models import ReplicatedModels

    root, scratch = tmp_path / "models", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    return ReplicatedModels(root, scratch)


@pytest.fixture
def serve(ray_nodes: RayNodes, models: ReplicatedModels, request: pytest.FixtureRequest) -> Serve:
    """A server of the models, under a cluster name of the test's own. What it leaves ends by itself."""
    from tests.support.servers.in_process import serving

    root, name = str(models.root), str(request.node.name)[:40]

    def start() -> AbstractContextManager[ServerFixture]:
        return serving(
            models.root,
            ready=False,
            cluster=ray_nodes.address,
            cluster_name=name,
            cluster_host="127.0.0.1",
            replica_orphan_seconds=10.0,
            model_repository=root,
            trusted_model_base_paths=(root,),
        )

    return start
