"""Fixtures of the suites that watch a real server from outside (integration, chaos).

Starting a server costs seconds, so one serves a model repository to most tests, each under model names of its own:
one bad model never disturbs another, and ``served`` checks after every test that this held.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.profiles import register_profiles
from tests.support.remote.azurite import azurite, azurite_process
from tests.support.remote.moto import bucket, moto

if TYPE_CHECKING:
    from tests.support.servers.models import TaggedArchives
    from tests.support.servers.probe import Probe
    from tests.support.servers.process import ServerProcess

__all__ = ["azurite", "azurite_process", "bucket", "moto"]  # fixtures, which stand with what they start

QUIET_SECONDS = 0.5
PATIENCE_SECONDS = 5
LONGEST_ID = 60

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--grpc-server", choices=("native", "grpcio"), help="who speaks gRPC in tests that do not say")
    parser.addoption("--browser", metavar="PATH", help="the browser of tests/browser; else the first one in the path")
    parser.addoption("--pictures", metavar="FOLDER", help="where tests/browser puts its pictures; else they are short")


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("--grpc-server"):
        from tests.support.grpc.grpc_choice import choose

        choose(name)


def pytest_collection_finish() -> None:
    """Exempts the tests and what they have imported from garbage collection: every unload and every stop of a server in
    this process collects, and would visit millions of objects."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Long values (bodies, keys made for the run) are not part of a test's name: workers must agree on it."""
    return argname if isinstance(val, str | bytes) and len(val) > LONGEST_ID else None


class Repository:
    """A served ``DIR/<model>/<version>/``, and ways to put versions into it. Models called ``code_*`` are trusted."""

    def __init__(self, path: Path, archives: TaggedArchives) -> None:
        self.path = path
        self._archives = archives
        self._scratch = path.with_name(f"{path.name}-scratch")
        self._scratch.mkdir()
        self.server: ServerProcess
        self.probe: Probe

    def base(self, model: str) -> Path:
        return self.path / model

    def archive(self, version: int) -> Path:
        """A whole ``model.pt2`` outside the repository."""
        return self._archives.write(version, self._scratch / f"{version}.pt2")

    def publish(self, model: str, version: int, content: bytes | None = None) -> Path:
        """Publishes the tagged model of that version, or a ``model.pt2`` of exactly these bytes."""
        from tfs_lite.core.publish import publish

        source = self.archive(version)
        if content is not None:
            source.write_bytes(content)
        return Path(publish(str(source), str(self.base(model)), version).path)

    def publish_code(self, model: str, version: int, source: str) -> Path:
        """Publishes a python model, whole."""
        from tests.support.servers.models import write_python_version
        from tfs_lite.core.publish import publish

        directory = write_python_version(self._scratch / model, version, source)
        return Path(publish(str(directory), str(self.base(model)), version).path)


@pytest.fixture(scope="session")
def archives() -> TaggedArchives:
    from tests.support.servers.models import TaggedArchives

    return TaggedArchives()


@pytest.fixture(scope="session")
def repository(archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    from tests.support.servers.probe import Probe
    from tests.support.servers.process import ServerProcess, default_command

    found = Repository(tmp_path_factory.mktemp("repository"), archives)
    found.publish("steady", 1)
    flags = (
        f"--model_repository={found.path}",
        f"--trusted_model_base_paths={found.path}/code_*",
        f"--version_quiet_period_seconds={QUIET_SECONDS}",
        "--max_num_load_retries=0",
        f"--slow_load_seconds={PATIENCE_SECONDS}",
        "--max_queued_requests=32",
    )
    with ServerProcess(*flags, command=default_command()) as server, Probe(server) as probe:
        found.server, found.probe = server, probe
        yield found
    assert server.exit_code == 0, "the server did not end well"


@pytest.fixture
def served(repository: Repository) -> Iterator[Repository]:
    """The served repository; whatever the test did, its oldest model still answers afterwards."""
    yield repository
    assert repository.server.exit_code is None, repository.server.log()
    assert repository.probe.ask("steady") == 1


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    """A model name that no other test uses."""
    return re.sub(r"\W+", "_", request.node.name).removeprefix("test_")[:80]
