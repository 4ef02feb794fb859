"""More small requests at once than a server can answer in time: it refuses the excess, counts it, and serves on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.transport_fixture import RawClient
from tests.support.servers.in_process import ROW, TIMEOUT, ServerFixture, serving
from tests.support.servers.process import wait_until
from tfs_lite.protocols.messages import HealthCheckRequest, PredictRequest
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.transport.backlog import ALWAYS_TAKEN, OVERLOADED

PREDICT = "/tensorflow.serving.PredictionService/Predict"
HEALTH = "/grpc.health.v1.Health/Check"
FLOOD = 300
SHORT = (b"grpc-timeout", b"5m")
"""Less than a new server expects to need for those that are always taken."""


@contextmanager
def busy(served: ServerFixture) -> Iterator[None]:
    """The loop reads nothing meanwhile, so that what is sent comes at once."""
    reached, leave = threading.Event(), threading.Event()

    def stay() -> None:
        reached.set()
        leave.wait(TIMEOUT)

    lifecycle: Any = served.server._lifecycle
    lifecycle._loop.loop.call_soon_threadsafe(stay)
    assert reached.wait(TIMEOUT)
    try:
        yield
    finally:
        leave.set()


@pytest.fixture
def served(tmp_path: Path, publish: Any) -> Iterator[ServerFixture]:
    publish("m", 1)
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m"), port=0, rest_api_port=0) as started:
        assert started.version() == 1
        yield started


@pytest.fixture
def clients(served: ServerFixture) -> Iterator[tuple[RawClient, RawClient]]:
    with ExitStack() as stack:
        found = list[RawClient]()
        for _ in range(2):
            connected = socket.create_connection(("127.0.0.1", served.server.port))
            found.append(RawClient(stack.enter_context(connected), None, True))
            found[-1].read_until(lambda frame: frame.kind == h2.SETTINGS and frame.ack)
        yield found[0], found[1]


def refused(served: ServerFixture) -> float:
    """How many predictions were counted as refused by their heads."""
    page = httpx.get(f"{served.url}/metrics", timeout=TIMEOUT).text
    series = 'tfs_lite_requests_total{code="UNAVAILABLE",method="Predict",model="unknown",version=""} '
    return sum(float(line.removeprefix(series)) for line in page.splitlines() if line.startswith(series))


def test_server_refuses_what_it_has_no_time_for_and_stays_healthy(
    served: ServerFixture, clients: tuple[RawClient, RawClient]
) -> None:
    raw, other = clients
    request = PredictRequest()
    request.model_spec.name = "m"
    request.inputs["x"].CopyFrom(encode(ROW))
    sent = h2.message(request.SerializeToString())
    fields = [*((name, PREDICT.encode() if name == b":path" else value) for name, value in h2.REQUEST), SHORT]
    with busy(served):
        raw.send(*(raw.peer.call(stream, sent, fields) for stream in range(1, 2 * FLOOD, 2)))
        other.request(1, HEALTH, h2.message(HealthCheckRequest().SerializeToString()), (b"grpc-timeout", b"20S"))
    assert other.status(1) == (0, "")
    ends = [raw.read_until(lambda frame: frame.kind == h2.HEADERS and frame.ended) for _ in range(FLOOD)]
    texts = [dict(frame.fields).get(b"grpc-message", b"").decode() for frame in ends]
    assert texts.count(OVERLOADED) == FLOOD - ALWAYS_TAKEN
    assert refused(served) == FLOOD - ALWAYS_TAKEN
    assert httpx.get(f"{served.url}/readyz", timeout=TIMEOUT).status_code == 200
    wait_until(lambda: served.version() == 1, "it serves on", TIMEOUT)
