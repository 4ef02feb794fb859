"""A server's helper where there is no Ray. ``tests/cluster`` has what it does with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.errors import refusal
from tfs_lite.cluster.replicas.helper import HelperEngine
from tfs_lite.cluster.replicas.helper_program import has_ended
from tfs_lite.cluster.replicas.registrar import Leader
from tfs_lite.config.replicas import ClusterOptions
from tfs_lite.core.status import StatusCode

OPTIONS = ClusterOptions("auto")


@pytest.fixture
def no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is not installed, even if it is."""
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('no ray', name='ray')")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("no_ray")
def test_without_ray_it_is_said_how_to_install_it() -> None:
    message = refusal(HelperEngine.connect, OPTIONS, code=StatusCode.FAILED_PRECONDITION)
    assert message == "`worker: \"ray\"` needs Ray: pip install 'tfs-lite[cluster]'"


def test_what_is_no_trouble_of_the_cluster_is_said_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise TypeError('two of one kind')")
    monkeypatch.syspath_prepend(str(tmp_path))
    message = refusal(HelperEngine.connect, OPTIONS, code=StatusCode.INTERNAL)
    assert message == "the cluster's helper failed: TypeError: two of one kind"


def test_an_address_without_a_listener_is_named_and_no_helper_is_started_for_it() -> None:
    options = ClusterOptions("127.0.0.1:1")
    message = refusal(HelperEngine.connect, options, connect_seconds=2, code=StatusCode.UNAVAILABLE)
    assert message == "the cluster at 127.0.0.1:1 cannot be reached: Connection refused for 2 s"


@pytest.mark.parametrize(
    ("host", "boot_id", "expected"), [("127.0.0.1", "here", True), ("127.0.0.1", "elsewhere", False)]
)
def test_a_server_has_ended_if_its_port_refuses_and_loopback_says_so_only_on_its_host(
    host: str, boot_id: str, expected: bool
) -> None:
    assert has_ended(Leader("id", host, 1, boot_id), "here") is expected
