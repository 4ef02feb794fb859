"""The client against a small real gRPC server that keeps what it was asked."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tenacity
import torch

from tests.support.errors import refusal
from tests.support.servers.process import free_ports, wait_until
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
        self.refusals: list[ServingError] = []
        """Errors of the next requests, one each."""
        self.reload_status = OK
        self.block: threading.Event | None = None
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(4), options=options)
        self._serve("PredictionService", "Predict", messages.PredictRequest, self.predict)
        self._serve("PredictionService", "GetModelMetadata", messages.GetModelMetadataRequest, self.metadata)
        self._serve("ModelService", "GetModelStatus", messages.GetModelStatusRequest, self.status)
        self._serve("ModelService", "HandleReloadConfigRequest", messages.ReloadConfigRequest, self.reload)
        for method in ("Explain", "FailedRequests", "WhatIf", "Guard"):
            self._serve("AdminService", method, messages.AdminRequest, lambda asked: messages.AdminResponse(json=b"{}"))
        self.target = f"localhost:{self._server.add_insecure_port(f'localhost:{port}')}"
        self._server.start()

    def _serve(self, service: str, method: str, request: Any, answer: Callable[[Message], Message]) -> None:
        def handle(message: Message, context: grpc.ServicerContext) -> Message:
            self.requests.append(message)
            try:
                if self.failure:
                    raise self.failure
                if self.refusals:
                    raise self.refusals.pop(0)
                return answer(message)
            except ServingError as error:
                codes = {code.value[0]: code for code in grpc.StatusCode}
                context.abort(codes[error.code.value], str(error))

        package = "tfs_lite" if service == "AdminService" else "tensorflow.serving"
        handler = grpc.unary_unary_rpc_method_handler(
            handle, request.FromString, lambda reply: reply.SerializeToString()
        )
        handlers = grpc.method_handlers_generic_handler(f"{package}.{service}", {method: handler})
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


@pytest.mark.parametrize("per_call", [True, False])
def test_a_call_waits_for_the_first_connection_within_its_own_time(per_call: bool) -> None:
    """The port is open, and nobody speaks; with 1000 s for the connection this would not end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(address, timeout=60 if per_call else 0.3, connect_timeout=1000) as client:
            call = partial(client.predict, "echo", {"x": [1.0]}, timeout=0.3 if per_call else None)
            told = refusal(call, code=StatusCode.UNAVAILABLE)
    assert told.startswith(f"no gRPC server answered at {address} within 0.3 s; is it running")


def test_connect_waits_longer_than_a_call_would() -> None:
    (port,) = free_ports(1)
    with Client(f"localhost:{port}", timeout=0.001, connect_timeout=30) as client, ThreadPoolExecutor(1) as pool:
        connected = pool.submit(client.connect)
        server = EchoServer(port)
        connected.result(30)
        assert client.status("echo", timeout=30)[0].version == 4
        server.stop()


def test_an_address_of_another_protocol_is_known_at_once() -> None:
    def answer() -> None:
        with other.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        pool.submit(answer)
        with Client(f"127.0.0.1:{other.getsockname()[1]}", timeout=1000, connect_timeout=1000) as client:
            told = refusal(client.status, "echo", code=StatusCode.UNAVAILABLE)
    assert "is this its gRPC port" in told
    assert "http1.x server" in told


def test_a_client_that_is_closed_while_it_waits_for_the_server_is_cancelled() -> None:
    with Client("127.0.0.1:1", timeout=1000, connect_timeout=1000) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(refusal, client.status, "echo", code=StatusCode.CANCELLED)
        client.close()
        assert waiting.result(30) == "the client was closed"


@pytest.mark.parametrize("token", [b"t-secret", Path("token.txt"), 7])
def test_a_token_that_is_no_text_is_refused_by_the_constructor(token: Any) -> None:
    assert refusal(Client, "localhost:1", token=token).startswith("token: expected text, got ")


@pytest.mark.parametrize("given", ["ca.pem", Path("ca.pem")])
@pytest.mark.parametrize("name", ["root_certificates", "client_key", "client_certificate"])
def test_a_certificate_that_is_no_bytes_is_refused_by_the_constructor(name: str, given: Any) -> None:
    assert refusal(Client, "localhost:1", **{name: given}).startswith(f"{name}: expected the bytes of a PEM file, got ")


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


REFUSED = ServingError(StatusCode.UNAVAILABLE, "queue of model echo is full")
NO_WAIT = tenacity.Retrying(wait=tenacity.wait_none())


@pytest.fixture
def patient(server: EchoServer) -> Iterator[Client]:
    """A client that repeats calls twice."""
    with Client(server.target, timeout=20, retry=2) as client:
        yield client


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.predict("echo", {"x": np.ones(1)}),
        lambda client: client.metadata("echo"),
        lambda client: client.status("echo"),
        lambda client: client.explain("echo"),
        lambda client: client.failed_requests(),
        lambda client: client.what_if({}),
        lambda client: client.guard("echo"),
    ],
    ids=["predict", "metadata", "status", "explain", "failed_requests", "what_if", "guard"],
)
def test_every_question_is_asked_again_of_a_server_that_is_unavailable(patient: Client, server, ask) -> None:
    server.refusals = [REFUSED, REFUSED]
    ask(patient)
    assert len(server.requests) == 3


def test_a_call_is_refused_with_the_last_answer_when_no_attempt_is_left(patient: Client, server: EchoServer) -> None:
    server.refusals = [REFUSED, REFUSED, ServingError(StatusCode.UNAVAILABLE, "the third"), REFUSED]
    assert refusal(patient.status, "echo", code=StatusCode.UNAVAILABLE) == "the third"
    assert len(server.requests) == 3


def test_a_client_repeats_nothing_unless_it_is_told_to(client: Client, server: EchoServer) -> None:
    server.refusals = [REFUSED]
    refusal(client.status, "echo", code=StatusCode.UNAVAILABLE)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [code for code in StatusCode if code not in (StatusCode.OK, StatusCode.UNAVAILABLE)])
def test_no_other_code_is_asked_again(patient: Client, server: EchoServer, code: StatusCode) -> None:
    server.refusals = [ServingError(code, "no")]
    assert refusal(patient.status, "echo", code=code) == "no"
    assert len(server.requests) == 1


def test_a_reload_is_never_sent_again(patient: Client, server: EchoServer) -> None:
    server.refusals = [REFUSED]
    refusal(patient.reload, messages.ModelServerConfig(model_config_list={}), code=StatusCode.UNAVAILABLE)
    assert len(server.requests) == 1


def test_a_rollback_that_came_through_is_not_sent_again_and_goes_back_no_further(patient: Client, server) -> None:
    server.refusals = [REFUSED, REFUSED]
    refusal(patient.rollback, "echo", code=StatusCode.UNAVAILABLE)
    refusal(patient.guard, "echo", "undo", version=8, code=StatusCode.UNAVAILABLE)
    sent = [json.loads(request.json) for request in server.requests]
    assert sent == [{"model": "echo", "action": "rollback"}, {"model": "echo", "action": "undo", "version": 8}]
    assert "names no version" in refusal(patient.rollback, "echo", 7, undo=True, code=StatusCode.INVALID_ARGUMENT)


def test_an_unavailable_model_inside_the_answer_of_a_reload_is_not_asked_again(patient: Client, server) -> None:
    server.reload_status = REFUSED.status
    refusal(patient.reload, messages.ModelServerConfig(model_config_list={}), code=StatusCode.UNAVAILABLE)
    assert len(server.requests) == 1


def test_the_callers_own_stop_wait_and_sleep_decide(server: EchoServer) -> None:
    slept: list[float] = []
    own = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(4),
        wait=tenacity.wait_incrementing(1, 1),
        sleep=slept.append,
        retry=tenacity.retry_never,
        retry_error_callback=lambda state: "an answer that nobody gave",
    )
    with Client(server.target, timeout=20, retry=own) as client:
        server.refusals = [REFUSED] * 3
        assert client.status("echo")
        assert slept == [1, 2, 3]
        server.refusals = [REFUSED] * 5
        assert refusal(client.status, "echo", code=StatusCode.UNAVAILABLE) == str(REFUSED)
        assert slept == [1, 2, 3] * 2
    assert own.statistics == {}  # it is the caller's


def test_no_wait_begins_that_would_outlast_the_call(server: EchoServer) -> None:
    slept: list[float] = []
    own = tenacity.Retrying(wait=tenacity.wait_incrementing(8, 8), sleep=slept.append)
    with Client(server.target, timeout=20, retry=own) as client:
        server.failure = REFUSED
        refusal(client.status, "echo", code=StatusCode.UNAVAILABLE)
        assert slept == [8, 16]
        refusal(client.status, "echo", timeout=10, code=StatusCode.UNAVAILABLE)
        assert slept == [8, 16, 8]


def test_all_attempts_share_the_time_of_the_call(server: EchoServer) -> None:
    given: list[float] = []
    with Client(server.target, timeout=20, retry=NO_WAIT) as client:
        attempt = client._attempt
        server.refusals = [REFUSED] * 3

        def watched(path: str, request: Message, answer: Any, timeout: float) -> Any:
            given.append(timeout)
            return attempt(path, request, answer, timeout)

        client._attempt = watched  # type: ignore[method-assign]
        client.predict("echo", {"x": [1.0]})  # asks for the signature first
    assert len(given) == 5
    assert [20.0, *given] == sorted([20.0, *given], reverse=True)


def test_an_attempt_without_an_answer_ends_with_the_time_of_the_call(server: EchoServer) -> None:
    with Client(server.target, retry=100) as client:
        server.refusals, server.block = [REFUSED], threading.Event()
        refusal(client.predict, "echo", {"x": np.ones(1)}, timeout=0.5, code=StatusCode.DEADLINE_EXCEEDED)
    assert server.count(messages.PredictRequest) == 2


def test_a_server_that_goes_and_comes_back_is_asked_again() -> None:
    (port,) = free_ports(1)
    first = EchoServer(port)
    came_back: list[EchoServer] = []

    def sleep(seconds: float) -> None:
        if not came_back:
            came_back.append(EchoServer(port))
        time.sleep(seconds)  # until the connection is tried again

    own = tenacity.Retrying(wait=tenacity.wait_fixed(0.05), sleep=sleep)
    with Client(first.target, timeout=30, retry=own) as client:
        assert client.status("echo")
        first.stop()
        assert client.status("echo")
        came_back[0].stop()


def test_the_first_connection_is_waited_for_once() -> None:
    asleep: list[float] = []
    own = tenacity.Retrying(wait=tenacity.wait_none(), sleep=asleep.append)
    with Client("127.0.0.1:1", wait_for_server=False, retry=own) as client:
        refusal(client.status, "echo", code=StatusCode.UNAVAILABLE)
    assert not asleep


def test_a_call_that_waits_for_its_next_attempt_is_cancelled_when_the_client_closes(server: EchoServer) -> None:
    with Client(server.target, timeout=1000, retry=10**6) as client, ThreadPoolExecutor(1) as pool:
        server.failure = REFUSED
        call = pool.submit(client.status, "echo")
        wait_until(lambda: len(server.requests) > 2 or call.done(), "it was tried again")
        client.close()
        with pytest.raises(ServingError) as raised:
            call.result(30)
        assert raised.value.code is StatusCode.CANCELLED


@pytest.mark.parametrize("retry", [-1, 1.5, "3", None, tenacity.AsyncRetrying()])
def test_what_says_nothing_about_attempts_is_refused(retry: Any) -> None:
    assert refusal(Client, "localhost:1", retry=retry).startswith("retry: expected a number of attempts or")


def test_threads_that_repeat_calls_do_not_disturb_one_another(server: EchoServer) -> None:
    with Client(server.target, timeout=30, retry=NO_WAIT) as client, ThreadPoolExecutor(8) as pool:
        server.refusals = [REFUSED] * 50
        answers = list(pool.map(lambda x: client.predict("echo", {"x": np.array([x])}).outputs["x"][0], range(50)))
    assert answers == list(range(50))
    assert server.count(messages.PredictRequest) == 100
