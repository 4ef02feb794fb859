"""A whole server whose gRPC runs in processes of their own: for clients the same server, which lives and dies whole."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tfs_lite.core.status import StatusCode
from tfs_lite.protocols import tensor_proto
from tfs_lite.protocols.messages import HealthCheckRequest, HealthCheckResponse, PredictRequest, PredictResponse
from tfs_lite.server.v2_grpc_service import SERVICE
from tfs_lite.testing.models import TaggedArchives, write_python_version
from tfs_lite.testing.probe import ROW, Probe, Traffic
from tfs_lite.testing.process import ServerProcess, wait_until
from tfs_lite.testing.v2_client import V2Client, V2Stream

FRONTENDS = 2
COUNTING = """
import os

RUNS = os.open({path!r}, os.O_APPEND | os.O_CREAT | os.O_WRONLY)


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        os.write(RUNS, b".")
        return {{"y": inputs["x"] + 1}}
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def flags(tmp_path: Path, archives: TaggedArchives, runs: Path) -> tuple[str, ...]:
    models = tmp_path / "models"
    archives.write_version(1, models / "tagged")
    write_python_version(models / "counting", 1, COUNTING.format(path=str(runs)))
    return (
        f"--model_repository={models}",
        f"--trusted_model_base_paths={models}/counting",
        "--version_quiet_period_seconds=0.2",
        "--ready_requires_all_models",
        f"--grpc_frontends={FRONTENDS}",
    )


@pytest.fixture
def server(flags: tuple[str, ...]) -> Iterator[ServerProcess]:
    with ServerProcess(*flags) as server:
        yield server


def frontends(server: ServerProcess) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children()
    return [child for child in children if "tfs_lite.server.frontend_process" in child.cmdline()]


def clients_of(frontend: psutil.Process, server: ServerProcess) -> int:
    found = frontend.net_connections("tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == server.grpc_port for one in found)


def predict(channel: grpc.Channel, model: str, x: np.ndarray) -> np.ndarray:
    request = PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(tensor_proto.encode(x))
    call = channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        request_serializer=PredictRequest.SerializeToString,
        response_deserializer=PredictResponse.FromString,
    )
    return tensor_proto.decode(call(request, timeout=30).outputs["y"], "y")


def test_every_frontend_gives_the_models_answers_and_errors(server: ServerProcess) -> None:
    assert len(frontends(server)) == FRONTENDS
    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    with ExitStack() as stack:
        while not all(clients_of(frontend, server) for frontend in frontends(server)):
            channel = stack.enter_context(grpc.insecure_channel(server.target, options=own_connection))
            np.testing.assert_array_equal(predict(channel, "tagged", ROW), ROW + 1)
            with pytest.raises(grpc.RpcError) as caught:
                predict(channel, "nowhere", ROW)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            with pytest.raises(grpc.RpcError) as caught:
                predict(channel, "counting", np.zeros((1, 7), np.float32))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "size 7 in dimension 1" in caught.value.details()
    for frontend in frontends(server):
        assert "libtorch" not in Path(f"/proc/{frontend.pid}/maps").read_text()


def test_large_tensors_go_both_ways(server: ServerProcess) -> None:
    rows = np.random.default_rng(1).random((450_000, 3), np.float32)
    with Probe(server) as probe:
        assert probe.ask("tagged", rows) == 1


def test_health_is_watched_through_a_frontend_until_the_server_drains(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.target) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )(HealthCheckRequest(), timeout=60)
        assert next(watch).status == 1
        server.terminate()
        assert [answer.status for answer in watch] == [2]
    assert server.wait() == 0


def ask_stream(stream: V2Stream, model: str, x: np.ndarray, name: str = "") -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape}
    stream.send(model_name=model, id=name, inputs=[tensor], raw_input_contents=[x.tobytes()])


def test_inference_and_reflection_have_streams_of_requests_through_a_frontend(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stream = V2Client(channel).stream(mine="yes")
        rows = [np.full((rows, 3), number, np.float32) for number in range(60) for rows in (1, 20_000)]
        for index, x in enumerate(rows):
            ask_stream(stream, "tagged", x, str(index))
        for index, x in enumerate(rows):
            answer = stream.next()
            assert (answer.error_message, answer.infer_response.id) == ("", str(index))
            np.testing.assert_array_equal(
                np.frombuffer(answer.infer_response.raw_output_contents[0], x.dtype), x.flatten() + 1
            )
        ask_stream(stream, "nowhere", ROW)
        assert "nowhere" in stream.next().error_message
        stream.end()
        assert stream.rest() == []
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"tensorflow.serving.PredictionService", SERVICE.strip("/")} <= set(database.get_services())
        infer = DescriptorPool(database).FindServiceByName(SERVICE.strip("/")).FindMethodByName("ModelStreamInfer")
        assert infer.client_streaming


def test_a_stream_of_requests_is_ended_when_the_server_drains(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stream = V2Client(channel).stream()
        ask_stream(stream, "tagged", ROW)
        assert stream.next().error_message == ""
        server.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            stream.rest()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        stream.end()
    assert server.wait() == 0
    assert not server.leftovers()
    assert "Traceback" not in server.log()


def test_a_killed_frontend_comes_back_and_no_answer_is_wrong(server: ServerProcess) -> None:
    with Traffic(server.target, "tagged") as traffic:
        victim, other = sorted(frontends(server), key=lambda frontend: -clients_of(frontend, server))
        assert clients_of(victim, server) > 0
        victim.kill()
        wait_until(lambda: not victim.is_running(), "it is dead")
        wait_until(lambda: len(frontends(server)) == FRONTENDS, "another one has taken its place")
        before = traffic.total
        wait_until(lambda: traffic.total > before + 50, "traffic flows")
        assert other.is_running()
    assert traffic.wrong == []
    assert {error.code for error in traffic.failures} <= {StatusCode.UNAVAILABLE}
    assert "it is started again" in server.log()


def test_sigterm_under_load_answers_what_was_accepted_and_leaves_nothing(server: ServerProcess, runs: Path) -> None:
    family = frontends(server)
    with Traffic(server.target, "counting", stop_at_failure=True) as traffic:
        wait_until(lambda: traffic.total > 100, "traffic flows")
        os.killpg(server.pid, signal.SIGTERM)  # as a terminal or a supervisor does: to everybody
        assert server.wait() == 0
    assert traffic.wrong == []
    assert {error.code for error in traffic.failures} <= {StatusCode.UNAVAILABLE}
    assert traffic.total == runs.stat().st_size, "every request that the model ran was answered"
    assert not server.leftovers()
    assert not any(process.is_running() for process in family)
    assert "Traceback" not in server.log()


def test_sigkill_of_the_server_leaves_no_frontend_behind(server: ServerProcess) -> None:
    family = frontends(server)
    os.kill(server.pid, signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    wait_until(lambda: not any(process.is_running() for process in family), "every frontend has ended")
    wait_until(lambda: not server.leftovers(), "nothing is left")


def test_a_port_in_use_is_a_clear_error(flags: tuple[str, ...]) -> None:
    server = ServerProcess(*flags)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", server.grpc_port))
        stranger.listen()
        server.start()
        assert server.wait() != 0
        assert f"port {server.grpc_port} of 127.0.0.1 is already in use (--port)" in server.log()
    assert not server.leftovers()
    server.stop()
