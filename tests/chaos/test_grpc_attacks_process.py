"""The same attacks on a whole server, a process of its own with the default limits: its memory, its metrics page, and
the predictions of others while they last."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_attacks import Attacker
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.client import Client
from tfs_lite.protocols.descriptors import message_class
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

ROW = np.array([[1.0, 2.0, 3.0]], np.float32)
PREDICT = "/tensorflow.serving.PredictionService/Predict"
MIB = 1 << 20
MOST_GROWTH = 64 * MIB
"""Of the process's memory: allocators keep some, and a thousand places have their price."""
PATIENCE = 30.0


@pytest.fixture(scope="module")
def server(archives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root: Path = tmp_path_factory.mktemp("attacked")
    archives.write_version(1, root / "m")
    flags = ("--model_name=m", f"--model_base_path={root / 'm'}", "--grpc_server=native")
    with ServerProcess(*flags) as running:
        running.wait_ready()
        yield running
    assert running.exit_code == 0, running.log()


@pytest.fixture
def control_client(server: ServerProcess) -> Iterator[None]:
    """Predicts all the time; every answer is compared."""
    stopped, faults, answered = threading.Event(), [], []

    def ask() -> None:
        try:
            with Client(server.target, timeout=PATIENCE) as client:
                while not stopped.is_set():
                    np.testing.assert_array_equal(client.predict("m", {"x": ROW}).outputs["y"], ROW + np.float32(1))
                    answered.append(1)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=ask, name="control-client")
    thread.start()
    wait_until(lambda: answered or faults, "the first answer", PATIENCE)
    yield
    before = len(answered)
    wait_until(lambda: len(answered) > before + 5 or faults, "more answers", PATIENCE)
    stopped.set()
    thread.join()
    assert faults == []


def closed(server: ServerProcess) -> dict[str, float]:
    page = server.get("/metrics")[1].decode()
    found = re.findall(r'^tfs_lite_grpc_connections_closed_total\{kind="(\w+)"\} (\S+)$', page, re.MULTILINE)
    return {kind: float(count) for kind, count in found}


def gauge(server: ServerProcess, name: str) -> float:
    page = server.get("/metrics")[1].decode()
    match = re.search(rf"^tfs_lite_grpc_{name} (\S+)$", page, re.MULTILINE)
    assert match is not None, page
    return float(match[1])


def request(rows: int) -> bytes:
    """A whole message of gRPC."""
    body = message_class("tensorflow.serving.PredictRequest")()
    body.model_spec.name = "m"
    tensor = body.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_content = np.ones((rows, 3), np.float32).tobytes()
    for size in (rows, 3):
        tensor.tensor_shape.dim.add(size=size)
    data: bytes = body.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


def resets(attacker: Attacker) -> Iterator[bytes]:
    block, body = attacker.request_block(PREDICT), request(1)
    for at in range(1, 200_001, 2):
        yield h2.headers(at, block) + h2.data(at, body, ended=True) + h2.rst_stream(at)


def pings(attacker: Attacker) -> Iterator[bytes]:
    return repeat(h2.ping(), 100_000)


def continuations(attacker: Attacker) -> Iterator[bytes]:
    first = h2.raw(h2.HEADERS, 0, 1, attacker.request_block(PREDICT))
    return chain([first], repeat(h2.continuation(1, bytes(500), last=False), 100_000))


def empty_frames(attacker: Attacker) -> Iterator[bytes]:
    return chain([h2.headers(1, attacker.request_block(PREDICT))], repeat(h2.data(1), 100_000))


@pytest.mark.parametrize(
    ("attack", "kind"),
    [
        (resets, "rapid_reset"),
        (pings, "too_many_pings"),
        (continuations, "header_bomb"),
        (empty_frames, "empty_frame_flood"),
    ],
    ids=["resets", "pings", "continuations", "empty-frames"],
)
def test_flood_of_many_connections_is_counted_and_keeps_no_memory(
    server: ServerProcess, control_client: None, attack: Callable[[Attacker], Iterator[bytes]], kind: str
) -> None:
    process = psutil.Process(server.pid)
    before, closed_before = process.memory_info().rss, closed(server).get(kind, 0)
    for _ in range(10):
        with contextlib.closing(Attacker(("127.0.0.1", server.grpc_port), None, True)) as attacker:
            frames = attack(attacker)
            attacker.flood(iter(lambda frames=frames: b"".join(islice(frames, 100)), b""))
            assert attacker.end()[0] is ErrorCode.ENHANCE_YOUR_CALM
    wait_until(lambda: closed(server).get(kind, 0) == closed_before + 10, f"ten are counted as {kind}", PATIENCE)
    wait_until(lambda: gauge(server, "streams") <= 1, "no call is left of them", PATIENCE)
    assert process.memory_info().rss - before < MOST_GROWTH


def test_answers_that_are_not_read_are_bounded_by_their_streams(server: ServerProcess, control_client: None) -> None:
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    places, body = Limits().max_streams, request(1000)
    attacker = Attacker(("127.0.0.1", server.grpc_port), {h2.INITIAL_WINDOW: 0}, True)
    with contextlib.closing(attacker):
        block = attacker.request_block(PREDICT)
        calls = (h2.headers(at, block) + h2.data(at, body, ended=True) for at in range(1, 10_001, 2))
        attacker.flood(islice(calls, places))
        wait_until(lambda: gauge(server, "unsent_bytes") >= MIB, "answers wait", PATIENCE)
        attacker.flood(calls)
        assert gauge(server, "unsent_bytes") <= places * (len(body) + 500)
        assert attacker.end() == (ErrorCode.ENHANCE_YOUR_CALM, "stream_error_flood")
    wait_until(lambda: closed(server).get("stream_error_flood") == 1, "it is counted", PATIENCE)
    wait_until(lambda: gauge(server, "unsent_bytes") == 0, "nothing waits", PATIENCE)
    wait_until(lambda: gauge(server, "streams") <= 1, "no call is left", PATIENCE)
    assert process.memory_info().rss - before < 2 * places * len(body) + MOST_GROWTH
