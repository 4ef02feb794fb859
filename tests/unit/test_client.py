"""The client against a small real gRPC server that keeps what it was asked."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tests.support.servers.process import free_ports
from tfs_lite.client import Client
from tfs_lite.config.model_server import from_proto
from tfs_lite.core.servable import ModelRef, VersionState, VersionStatus
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import OK, ServingError, Status, StatusCode, failed_precondition, invalid_argument, not_found
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow import serving
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode

BATCH = SymbolicDim("x_0")


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


class EchoServer:
    """One model ``echo`` that answers with its inputs; every request is kept."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Message] = []
        self.version = 3
        self.dtype = DataType.FLOAT
        self.failure: ServingError | None = None
        self.reload_status = OK
        self.block: threading.Event | None = None
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(4), options=options)
        self._serve("PredictionService", "Predict", messages.PredictRequest, self.predict)
        self._serve("PredictionService", "GetModelMetadata", messages.GetModelMetadataRequest, self.metadata)
        self._serve("ModelService", "GetModelStatus", messages.GetModelStatusRequest, self.status)
        self._serve("ModelService", "HandleReloadConfigRequest", messages.ReloadConfigRequest, self.reload)
        self.target = f"localhost:{self._server.add_insecure_port(f'localhost:{port}')}"
        self._server.start()

    def _serve(self, service: str, method: str, request: Any, answer: Callable[[Message], Message]) -> None:
        def handle(message: Message, context: grpc.ServicerContext) -> Message:
            self.requests.append(message)
            try:
                if self.failure:
                    raise self.failure
                return answer(message)
            except ServingError as error:
                codes = {code.value[0]: code for code in grpc.StatusCode}
                context.abort(codes[error.code.value], str(error))

        handler = grpc.unary_unary_rpc_method_handler(
            handle, request.FromString, lambda reply: reply.SerializeToString()
        )
        handlers = grpc.method_handlers_generic_handler(f"tensorflow.serving.{service}", {method: handler})
        self._server.add_generic_rpc_handlers((handlers,))

    def count(self, message_class: Any) -> int:
        return sum(isinstance(request, message_class) for request in self.requests)

    def spec(self, request: Message) -> Message:
        ref = serving.read_model_spec(request)
        if ref.name != "echo":
            raise not_found(f"Servable not found for request: Latest({ref.name})")
        return serving.model_spec(ModelRef("echo", self.version if ref.version is None else ref.version))

    def predict(self, request: Message) -> Message:
        if self.block:
            self.block.wait(30)
        response = messages.PredictResponse(model_spec=self.spec(request))
        response.model_spec.signature_name = request.model_spec.signature_name or "serving_default"
        for name in request.output_filter or sorted(request.inputs):
            response.outputs[name].CopyFrom(encode(decode(request.inputs[name], name)))
        return response

    def metadata(self, request: Message) -> Message:
        signature = Signature((TensorSpec("x", self.dtype, (BATCH,)),), (TensorSpec("x", self.dtype, (BATCH,)),))
        response = messages.GetModelMetadataResponse(model_spec=self.spec(request))
        response.metadata["signature_def"].Pack(serving.signature_def_map({"serving_default": signature}))
        return response

    def status(self, request: Message) -> Message:
        ref = serving.read_model_spec(request)
        self.spec(request)
        versions = [
            VersionStatus(4, VersionState.END, Status(StatusCode.DATA_LOSS, "torn file")),
            VersionStatus(3, VersionState.AVAILABLE, OK),
        ]
        wanted = 3 if ref.label == "stable" else ref.version
        return serving.model_status(item for item in versions if wanted in (None, item.version))

    def reload(self, request: Message) -> Message:
        return messages.ReloadConfigResponse(status=serving.status_proto(self.reload_status))

    def stop(self) -> None:
        if self.block:
            self.block.set()
        self._server.stop(None).wait(10)


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.stop()


@pytest.fixture
def client(server: EchoServer) -> Iterator[Client]:
    with Client(server.target, timeout=20) as client:
        yield client


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1.5, 2]], np.float32),
        np.array([1.5], ml_dtypes.bfloat16),
        np.array([[b"a\0", b""]], object),
        np.array(7),
        np.float64(0.5),
        torch.arange(6).reshape(2, 3),
        torch.tensor([True, False]),
    ],
)
def test_arrays_and_tensors_arrive_as_they_are(client: Client, server: EchoServer, value: Any) -> None:
    expected = np.asarray(value)
    got = client.predict("echo", {"y": value}).outputs["y"]
    assert got.dtype == expected.dtype
    assert got.tolist() == expected.tolist()
    assert server.count(messages.GetModelMetadataRequest) == 0


@pytest.mark.parametrize(
    ("declared", "value", "dtype"),
    [
        (DataType.FLOAT, [1.5, 2], np.float32),
        (DataType.FLOAT, [1, 2], np.float32),
        (DataType.DOUBLE, 1.5, np.float64),
        (DataType.BFLOAT16, [1, 2.5], ml_dtypes.bfloat16),
        (DataType.HALF, [1.5], np.float16),
        (DataType.UINT8, [0, 255], np.uint8),
        (DataType.INT64, [], np.int64),
        (DataType.BOOL, [True], np.bool_),
        (DataType.COMPLEX64, [1 + 2j], np.complex64),
        (DataType.STRING, ["a", b"b\0"], object),
        (DataType.INVALID, [1.5], np.float32),
        (DataType.INVALID, [1, 2], np.int64),
        (DataType.INVALID, [True], np.bool_),
        (DataType.FLOAT, "text", object),
    ],
)
def test_lists_and_numbers_get_the_dtype_of_the_signature(
    client: Client, server: EchoServer, declared: DataType, value: Any, dtype: Any
) -> None:
    server.dtype = declared
    got = client.predict("echo", {"x": value}).outputs["x"]
    assert got.dtype == np.dtype(dtype)
    expected = np.array(value, dtype=object).ravel().tolist()
    assert got.ravel().tolist() == [item.encode() if isinstance(item, str) else item for item in expected]


@pytest.mark.parametrize(
    ("declared", "value", "reason"),
    [
        (DataType.INT32, [1.5], "float64 values came, expected int32"),
        (DataType.BOOL, [2], "int64 values came, expected bool"),
        (DataType.UINT8, [256], "out of bounds"),
        (DataType.FLOAT, [[1], [2, 3]], "inhomogeneous"),
        (DataType.FLOAT, [None], "expected bytes or str"),
        (DataType.FLOAT, torch.ones(2, requires_grad=True), "requires grad"),
        (DataType.FLOAT, np.array(["2020"], "M8"), "cannot be sent"),
    ],
)
def test_values_that_would_change_are_refused_by_name(
    client: Client, server: EchoServer, declared: DataType, value: Any, reason: str
) -> None:
    server.dtype = declared
    with pytest.raises(ServingError, match=f"^input x of model echo cannot become a tensor: .*{reason}") as raised:
        client.predict("echo", {"x": value})
    assert raised.value.code is StatusCode.INVALID_ARGUMENT
    assert server.count(messages.PredictRequest) == 0


def test_an_answer_names_the_version_that_computed_it(client: Client) -> None:
    x = np.ones(2, np.float32)
    latest = client.predict("echo", {"x": x, "y": x})
    assert (latest.model, latest.version, latest.signature) == ("echo", 3, "serving_default")
    assert set(latest.outputs) == {"x", "y"}
    asked = client.predict("echo", {"x": x, "y": x}, version=0, signature="other", outputs=["y"])
    assert (asked.version, asked.signature, set(asked.outputs)) == (0, "other", {"y"})


def test_a_label_is_sent_as_a_label(client: Client, server: EchoServer) -> None:
    client.predict("echo", {"x": np.ones(1)}, label="stable")
    assert serving.read_model_spec(server.requests[-1]) == ModelRef("echo", label="stable")


def test_a_version_and_a_label_exclude_each_other(client: Client) -> None:
    with pytest.raises(ServingError, match="version 1 and label stable exclude each other"):
        client.predict("echo", {}, version=1, label="stable")


def test_the_signature_is_fetched_once_per_model_and_version(client: Client, server: EchoServer) -> None:
    for _ in range(3):
        client.predict("echo", {"x": [1.0]})
        client.predict("echo", {"x": [1.0]}, version=3)
    assert server.count(messages.GetModelMetadataRequest) == 2


def test_the_signature_is_fetched_again_when_another_version_answers(client: Client, server: EchoServer) -> None:
    client.predict("echo", {"x": [1]})
    server.version, server.dtype = 4, DataType.INT64
    client.predict("echo", {"x": [1]})
    assert client.predict("echo", {"x": [1]}).outputs["x"].dtype == np.int64


def test_the_signature_is_fetched_again_after_a_refusal(client: Client, server: EchoServer) -> None:
    client.predict("echo", {"x": [1]})
    server.failure = invalid_argument("Expects arg[0] to be int64 but float is provided")
    with pytest.raises(ServingError):
        client.predict("echo", {"x": [1]})
    server.failure, server.dtype = None, DataType.INT64
    assert client.predict("echo", {"x": [1]}).outputs["x"].dtype == np.int64


def test_only_so_many_signatures_are_remembered(client: Client, server: EchoServer) -> None:
    for version in range(65):
        client.predict("echo", {"x": [1.0]}, version=version)
    server.requests.clear()
    client.predict("echo", {"x": [1.0]}, version=64)
    assert server.count(messages.GetModelMetadataRequest) == 0
    client.predict("echo", {"x": [1.0]}, version=0)
    assert server.count(messages.GetModelMetadataRequest) == 1


def test_metadata_are_signatures(client: Client) -> None:
    metadata = client.metadata("echo")
    assert (metadata.model, metadata.version) == ("echo", 3)
    assert metadata.signatures["serving_default"].inputs == (TensorSpec("x", DataType.FLOAT, (BATCH,)),)


def test_status_lists_versions_with_their_errors(client: Client) -> None:
    failed, available = client.status("echo")
    assert (failed.version, failed.state, failed.status.message) == (4, VersionState.END, "torn file")
    assert (available.version, available.state, available.status) == (3, VersionState.AVAILABLE, OK)
    assert client.status("echo", version=3) == [available]
    assert client.status("echo", label="stable") == [available]


def test_a_reload_takes_settings_and_messages_alike(client: Client, server: EchoServer) -> None:
    message = messages.ModelServerConfig()
    message.model_config_list.config.add(name="m", base_path="/m")
    client.reload(message)
    client.reload(from_proto(message))
    first, second = (from_proto(request.config) for request in server.requests)
    assert [model.name for model in first.models] == ["m"]
    assert first.models[0].base_path == second.models[0].base_path


@pytest.mark.parametrize("failure", [invalid_argument("bad"), failed_precondition("label"), not_found("gone")])
def test_errors_have_the_code_and_message_of_the_server(client, server, failure: ServingError) -> None:
    server.failure = failure
    for call in (
        lambda: client.predict("echo", {"x": np.ones(1)}),
        lambda: client.metadata("echo"),
        lambda: client.status("echo"),
        lambda: client.reload(messages.ModelServerConfig()),
    ):
        with pytest.raises(ServingError) as raised:
            call()
        assert raised.value.status == failure.status


def test_an_unknown_model_is_not_found(client: Client) -> None:
    assert "Servable not found" in refusal(client.predict, "other", {"x": [1.0]}, code=StatusCode.NOT_FOUND)


def test_a_failure_inside_the_reply_is_raised_too(client: Client, server: EchoServer) -> None:
    server.reload_status = Status(StatusCode.ABORTED, "another reload is running")
    with pytest.raises(ServingError) as raised:
        client.reload(messages.ModelServerConfig(model_config_list={}))
    assert raised.value.status == server.reload_status


def test_a_call_that_takes_too_long_ends_at_its_timeout(client: Client, server: EchoServer) -> None:
    server.block = threading.Event()
    refusal(client.predict, "echo", {"x": np.ones(1)}, timeout=0.2, code=StatusCode.DEADLINE_EXCEEDED)


def test_a_server_that_does_not_answer_is_named() -> None:
    with Client("localhost:1", connect_timeout=0.2) as client, pytest.raises(ServingError) as raised:
        client.status("echo")
    assert raised.value.code is StatusCode.UNAVAILABLE
    assert "no gRPC server answered at localhost:1 within 0.2 s" in str(raised.value)


def test_a_client_that_does_not_wait_is_told_at_once_that_nobody_listens() -> None:
    with Client("127.0.0.1:1", connect_timeout=1000, wait_for_server=False) as client:
        told = refusal(client.status, "echo", code=StatusCode.UNAVAILABLE)
    assert told.startswith("no gRPC server answered at 127.0.0.1:1; is it running")
    assert "refused" in told


def test_a_server_that_starts_late_is_waited_for() -> None:
    (port,) = free_ports(1)
    with Client(f"localhost:{port}", connect_timeout=30) as client, ThreadPoolExecutor(1) as pool:
        status = pool.submit(client.status, "echo")
        server = EchoServer(port)
        assert status.result(30)[0].version == 4
        server.stop()


def test_a_tensor_larger_than_grpcs_default_limit_goes_both_ways(client: Client) -> None:
    x = np.ones(2_000_000, np.float32)
    assert client.predict("echo", {"x": x}).outputs["x"].size == x.size


def test_many_threads_share_one_client(client: Client) -> None:
    def call(number: int) -> bool:
        return client.predict("echo", {"x": [float(number)]}).outputs["x"].tolist() == [number]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(100)))
