"""A server in this process with one model of two versions, shared by the tests that talk to one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.models import TaggedArchives
from tfs_lite.server.server import Server


@pytest.fixture(scope="session")
def archives() -> TaggedArchives:
    return TaggedArchives()


@pytest.fixture(scope="session")
def server(archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves version 2 of ``tagged``: ``y = x + 2``. Tests leave its config as it is."""
    base = tmp_path_factory.mktemp("served") / "tagged"
    for version in (1, 2):
        archives.write_version(version, base)
    with Server(model_name="tagged", model_base_path=str(base), version_quiet_period_seconds=0) as server:
        server.wait_ready(60)
        yield server


@pytest.fixture
def base(server: Server) -> Path:
    """The base path that the shared server serves."""
    return Path(server.options.model_base_path)
