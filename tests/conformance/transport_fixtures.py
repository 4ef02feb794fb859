"""Fixtures for the tests of foreign gRPC clients: servers with TLS and with limits, a model that waits, node."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.conformance.servers import PATIENCE, running
from tests.conformance.transport_tools import LIMIT, Certificates, Node, NoNode, descriptor_set, infer_gate
from tests.support.servers.process import ServerProcess, wait_until


@pytest.fixture(scope="session")
def few_models(triton_models: Path) -> str:
    """The folder of two quick models of one version each; servers that differ by their flags serve these."""
    for name in ("sums", "plain"):
        only_the_first = shutil.ignore_patterns("3")
        shutil.copytree(triton_models / "served" / name, triton_models / "few" / name, ignore=only_the_first)
    return "few"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls_server(serve_triton, few_models: str, certificates: Certificates) -> Iterator[ServerProcess]:
    yield from running(serve_triton(few_models, certificates.flag))


@pytest.fixture(scope="session")
def socket_path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("socket") / "grpc.sock"


@pytest.fixture(scope="session")
def narrow_server(serve_triton, few_models: str, socket_path: Path) -> Iterator[ServerProcess]:
    """Takes messages of up to ``LIMIT`` bytes, and listens on a UNIX socket too."""
    yield from running(serve_triton(few_models, f"--max_message_bytes={LIMIT}", f"--grpc_socket_path={socket_path}"))


@contextmanager
def infer_at_gate(server: ServerProcess) -> Iterator[grpc.Future]:
    """A call that waits at the gate."""
    with grpc.insecure_channel(server.target) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(infer_gate(), timeout=PATIENCE)


@pytest.fixture
def waiting(gate: Any, triton_server: ServerProcess) -> Iterator[Any]:
    """The gate; afterwards it has been opened and every call that waited for it is through."""
    yield gate
    gate.open()
    with infer_at_gate(triton_server) as last:
        last.result()


@pytest.fixture
def held(triton_server: ServerProcess, waiting: Any) -> Iterator[None]:
    """A call is at the gate; it gets its response once the gate was opened."""
    with infer_at_gate(triton_server) as call:
        waiting.wait_entered()
        yield
        waiting.open()
        assert call.result().model_name == "gate"


@pytest.fixture
def queued(triton_server: ServerProcess) -> Callable[[int], object]:
    """``queued(count)`` returns once as many requests wait behind the one that is at the gate."""

    def depth() -> float:
        lines = triton_server.get("/metrics")[1].decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith('tfs_lite_queue_depth{model="gate"'))

    return lambda count: wait_until(lambda: depth() == count, f"{count} requests wait at the gate", PATIENCE)


@pytest.fixture(scope="session")
def descriptors(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("descriptors") / "all.binpb"
    path.write_bytes(descriptor_set())
    return path


@pytest.fixture(scope="session")
def node(descriptors: Path) -> Node:
    try:
        return Node(descriptors)
    except NoNode as error:
        pytest.skip(str(error))
