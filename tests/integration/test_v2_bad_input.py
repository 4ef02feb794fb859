"""V2 requests that cannot be answered, over gRPC and HTTP: each has its code and words, and the server serves on."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from tests.support.schedulers.sum_repository import SumRepository, request_fields
from tests.support.servers.process import ServerProcess, wait_until
from tests.support.servers.v2_client import V2Client
from tfs_lite.core.publish import publish

pytestmark = pytest.mark.slow

PATIENCE = 30.0
BATCH = 4
SOURCES = {
    "pair": 'return {"sum": inputs["a"] + inputs["b"], "rows": torch.full_like(inputs["a"], len(inputs["a"]))}',
    "text": 'return {"out": inputs["in"]}',
    "free": 'return {"out": inputs["in"]}',
    "fails": 'raise ValueError("no such number")',
    "exits": "import sys; sys.exit(3)",
    "wide": 'return {"out": torch.zeros(len(inputs["in"]), 7)}',
    "other_type": 'return {"out": inputs["in"].to(torch.int64)}',
    "many": 'return iter([{"out": inputs["in"]}] * 2)',
}
SOURCE = """
import torch


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        {body}
"""
ONE = """
input [ {{ name: "in" data_type: {kind} dims: [ {dims} ] }} ]
output [ {{ name: "out" data_type: {kind} dims: [ {dims} ] }} ]
"""
PAIR = """
input [ { name: "a" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "b" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "rows" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
BATCHED = f"max_batch_size: {BATCH}\n"
ROW = ONE.format(kind="TYPE_FP32", dims="3")
CONFIGS = {
    "pair": BATCHED + PAIR,
    "text": BATCHED + ONE.format(kind="TYPE_STRING", dims="2"),
    "free": ONE.format(kind="TYPE_FP32", dims="-1, 3"),
    "fails": BATCHED + ROW,
    "exits": BATCHED + ROW,
    "wide": BATCHED + ROW,
    "other_type": BATCHED + ROW,
    "many": BATCHED + ROW + "model_transaction_policy { decoupled: true }",
}


@dataclass
class V2InputFixture:
    server: ServerProcess
    client: V2Client
    http: httpx.Client
    root: Path

    def over_grpc(self, request: Request) -> tuple[str, str]:
        """The code's name and the message."""
        code, text = self.client.refusal("ModelInfer", **request.grpc())
        return code.name, text

    def over_http(self, request: Request) -> tuple[int, str]:
        content, headers = request.http()
        version = f"/versions/{request.version}" if request.version else ""
        return told(self.http.post(f"/v2/models/{request.model}{version}/infer", content=content, headers=headers))


def told(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    return answer.status_code, answer.json()["error"]


@dataclass(frozen=True)
class Tensor:
    """As it is sent; ``data`` need not fit the shape."""

    name: str
    shape: tuple[int, ...]
    data: bytes
    datatype: str = "FP32"


@dataclass(frozen=True)
class Request:
    model: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""

    def grpc(self) -> dict[str, Any]:
        return {
            "model_name": self.model,
            "model_version": self.version,
            "inputs": [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in self.inputs],
            "outputs": [{"name": name} for name in self.outputs],
            "parameters": {key: _parameter(value) for key, value in self.parameters.items()},
            "raw_input_contents": [one.data for one in self.inputs],
        }

    def http(self) -> tuple[bytes, dict[str, str]]:
        """With binary data."""
        inputs = [
            {
                "name": one.name,
                "datatype": one.datatype,
                "shape": one.shape,
                "parameters": {"binary_data_size": len(one.data)},
            }
            for one in self.inputs
        ]
        head = {"inputs": inputs, "parameters": self.parameters, "outputs": [{"name": name} for name in self.outputs]}
        text = json.dumps({key: value for key, value in head.items() if value or key == "inputs"}).encode()
        content = text + b"".join(one.data for one in self.inputs)
        return content, {"Inference-Header-Content-Length": str(len(text))}


def _parameter(value: Any) -> dict[str, Any]:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {kinds[type(value)]: value}


def floats(name: str, *shape: int, count: int | None = None) -> Tensor:
    size = int(np.prod(shape)) if count is None else count
    return Tensor(name, shape, np.arange(size, dtype=np.float32).tobytes())


def texts(*items: bytes, shape: tuple[int, ...] = (1, 2), cut: int = 0, more: bytes = b"") -> Tensor:
    data = b"".join(struct.pack("<I", len(item)) + item for item in items)
    return Tensor("in", shape, data[: len(data) - cut] + more, "BYTES")


A, B = floats("a", 1, 3), floats("b", 1, 3)
GOOD = Request("pair", (A, B))


def pair(*inputs: Tensor, **rest: Any) -> Request:
    return Request("pair", inputs, **rest)


def row(model: str) -> Request:
    return Request(model, (floats("in", 1, 3),))


BAD = "INVALID_ARGUMENT", 400
MISSING = "NOT_FOUND", 404
BROKEN = "INTERNAL", 500
TABLE: dict[str, tuple[Request, tuple[str, int], str]] = {
    "too_few_inputs": (pair(A), BAD, "expected 2 inputs but got 1 inputs for model 'pair'"),
    "too_many_inputs": (pair(A, B, floats("c", 1, 3)), BAD, "expected 2 inputs but got 3 inputs for model 'pair'"),
    "no_inputs": (pair(), BAD, "expected 2 inputs but got 0 inputs for model 'pair'"),
    "unknown_input": (pair(A, floats("c", 1, 3)), BAD, "unexpected inference input 'c' for model 'pair'"),
    "input_twice": (pair(A, A), BAD, "input 'a' already exists in request"),
    "unknown_output": (pair(A, B, outputs=("product",)), BAD, "unexpected inference output 'product' for model 'pair'"),
    "output_twice": (
        pair(A, B, outputs=("sum", "sum")),
        BAD,
        "Duplicate output name 'sum' is not allowed in a request",
    ),
    "other_dtype": (
        pair(A, Tensor("b", (1, 3), bytes(12), "INT32")),
        BAD,
        "inference input 'b' data-type is 'INT32', but model 'pair' expects 'FP32'",
    ),
    "unknown_dtype": (pair(A, Tensor("b", (1, 3), bytes(12), "FP99")), BAD, "FP99"),
    "other_size": (
        pair(floats("a", 1, 2), floats("b", 1, 2)),
        BAD,
        "unexpected shape for input 'a' for model 'pair'. Expected [-1,3], got [1,2]",
    ),
    "other_rank": (
        pair(A, floats("b", 1, 3, 1)),
        BAD,
        "unexpected shape for input 'b' for model 'pair'. Expected [-1,3], got [1,3,1]",
    ),
    "batch_too_large": (
        pair(floats("a", 5, 3), floats("b", 5, 3)),
        BAD,
        f"inference request batch-size must be <= {BATCH} for 'pair'",
    ),
    "batches_differ": (pair(A, floats("b", 2, 3)), BAD, "input 'b' batch size does not match other inputs for 'pair'"),
    "no_shape": (pair(Tensor("a", (), bytes(4)), B), BAD, "has no shape but model requires batch dimension"),
    "too_few_bytes": (
        pair(A, floats("b", 1, 3, count=2)),
        BAD,
        "input byte size mismatch for input 'b' for model 'pair'. Expected 12, got 8",
    ),
    "too_many_bytes": (
        pair(A, floats("b", 1, 3, count=4)),
        BAD,
        "input byte size mismatch for input 'b' for model 'pair'. Expected 12, got 16",
    ),
    "no_bytes": (pair(A, floats("b", 1, 3, count=0)), BAD, "for input 'b' for model 'pair'"),
    "too_few_texts": (Request("text", (texts(b"one"),)), BAD, "expected 2 string elements for inference input 'in'"),
    "too_many_texts": (
        Request("text", (texts(b"one", b"two", b"three"),)),
        BAD,
        "unexpected number of string elements",
    ),
    "length_cut": (Request("text", (texts(b"one", more=b"\x03\x00"),)), BAD, "incomplete string length indicator"),
    "text_cut": (Request("text", (texts(b"one", b"two", cut=1),)), BAD, "incomplete string data"),
    "text_far_too_long": (
        Request("text", (texts(b"one", more=struct.pack("<I", 2**32 - 1)),)),
        BAD,
        "incomplete string data",
    ),
    "size_left_open": (pair(Tensor("a", (1, -1), bytes(12)), B), BAD, ""),
    "too_many_elements": (Request("free", (Tensor("in", (2**62, 3), bytes(12)),)), BAD, "exceed maximum size"),
    "unknown_model": (Request("nobody", (A,)), MISSING, "Request for unknown model: 'nobody' is not found"),
    "unknown_version": (pair(A, B, version="9"), MISSING, "Request for unknown model: 'pair' version 9 is not found"),
    "version_is_no_number": (pair(A, B, version="one"), BAD, "one"),
    "version_is_negative": (pair(A, B, version="-1"), BAD, "-1"),
    "reserved_parameter": (
        pair(A, B, parameters={"triton_magic": True}),
        BAD,
        "parameter keys starting with 'triton_' are reserved",
    ),
    "flag_is_no_bool": (pair(A, B, parameters={"sequence_id": 1, "sequence_start": "yes"}), BAD, "sequence_start"),
    "timeout_is_negative": (pair(A, B, parameters={"timeout": -1}), BAD, "timeout"),
    "model_raises": (row("fails"), BROKEN, "no such number"),
    "model_exits": (row("exits"), BROKEN, "SystemExit"),
    "output_of_another_shape": (row("wide"), BROKEN, "out"),
    "output_of_another_type": (row("other_type"), BROKEN, "out"),
    "decoupled": (row("many"), ("UNIMPLEMENTED", 501), "decoupled transaction policy"),
    "no_correlation_id": (
        Request("sequences", (Tensor("INPUT", (1, 1), bytes(8), "INT64"),)),
        BAD,
        "must specify a non-zero or non-empty correlation ID",
    ),
    "no_start": (
        Request("sequences", (Tensor("INPUT", (1, 1), bytes(8), "INT64"),), parameters={"sequence_id": 7}),
        BAD,
        "must specify the START flag on the first request of the sequence",
    ),
    "rows_of_a_sequence": (
        Request(
            "sequences",
            (Tensor("INPUT", (2, 1), bytes(16), "INT64"),),
            parameters={"sequence_id": 7, "sequence_start": True},
        ),
        BAD,
        "must specify batch-size 1 due to requirements of sequence batcher",
    ),
    "id_of_the_wrong_type": (
        Request(
            "sequences",
            (Tensor("INPUT", (1, 1), bytes(8), "INT64"),),
            parameters={"sequence_id": "seven", "sequence_start": True},
        ),
        BAD,
        "sequence batching control 'CORRID' data-type is 'BYTES', but model 'sequences' expects",
    ),
    "id_too_long": (
        pair(A, B, parameters={"sequence_id": "x" * 129, "sequence_start": True}),
        ("UNIMPLEMENTED", 501),
        "string correlation ID cannot be longer than 128 characters",
    ),
    "control_tensor_sent": (
        Request(
            "sequences",
            (Tensor("INPUT", (1, 1), bytes(8), "INT64"), Tensor("START", (1, 1), bytes(4), "INT32")),
            parameters={"sequence_id": 7, "sequence_start": True},
        ),
        BAD,
        "expected 1 inputs but got 2 inputs for model 'sequences'",
    ),
}


def write(root: Path, scratch: Path, name: str) -> None:
    (root / name).mkdir()
    (root / name / "config.pbtxt").write_text(f'platform: "python"\n{CONFIGS[name]}\n')
    source = scratch / name
    source.mkdir(parents=True)
    (source / "model.py").write_text(SOURCE.format(body=SOURCES[name]))
    publish(str(source), str(root / name), 1)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[V2InputFixture]:
    directory = tmp_path_factory.mktemp("bad_input")
    sums = SumRepository(directory)
    sums.add("sequences", 1, batch=4)
    for name in SOURCES:
        write(sums.path, directory / "sources", name)
    flags = (
        f"--model_repository={sums.path}",
        f"--trusted_model_base_paths={sums.path}/*",
        "--max_message_bytes=1000000",
    )
    with (
        ServerProcess(*flags) as server,
        grpc.insecure_channel(server.target) as channel,
        httpx.Client(base_url=f"http://127.0.0.1:{server.http_port}", timeout=PATIENCE) as http,
    ):
        fixture = V2InputFixture(server, V2Client(channel), http, sums.path)
        for name in ("sequences", *SOURCES):
            wait_until(lambda name=name: fixture.client.call("ModelReady", name=name).ready, f"{name} is ready")
        yield fixture
    assert server.exit_code == 0
    assert not server.leftovers()


@pytest.fixture
def fixture(started: V2InputFixture) -> Iterator[V2InputFixture]:
    """Whatever was sent, the server answers afterwards, over both."""
    yield started
    assert started.server.exit_code is None, started.server.log()
    answer = started.client.call("ModelInfer", **GOOD.grpc())
    sums = np.frombuffer(answer.raw_output_contents[0], np.float32)
    np.testing.assert_array_equal(sums, [0, 2, 4])
    content, headers = GOOD.http()
    reply = started.http.post("/v2/models/pair/infer", content=content, headers=headers)
    assert reply.json()["outputs"][0]["data"] == [0, 2, 4]
    assert started.http.get("/v2/health/live").status_code == 200


def check_words(text: str, fragment: str, fixture: V2InputFixture) -> None:
    assert fragment in text
    assert text
    assert str(fixture.root) not in text
    assert "Traceback" not in text


@pytest.mark.wire
@pytest.mark.parametrize("case", TABLE)
def test_mistake_has_its_code_and_words_over_grpc(fixture: V2InputFixture, case: str) -> None:
    request, (expected, _), fragment = TABLE[case]
    code, text = fixture.over_grpc(request)
    assert code == expected, text
    check_words(text, fragment, fixture)


@pytest.mark.parametrize("case", TABLE)
def test_mistake_has_its_code_and_words_over_http(fixture: V2InputFixture, case: str) -> None:
    request, (_, expected), fragment = TABLE[case]
    code, text = fixture.over_http(request)
    assert code == expected, text
    check_words(text, fragment, fixture)


@pytest.mark.wire
@pytest.mark.parametrize("case", [case for case, (_, (code, _), _) in TABLE.items() if code != "UNIMPLEMENTED"])
def test_mistake_in_a_stream_is_told_in_it_and_the_stream_goes_on(fixture: V2InputFixture, case: str) -> None:
    request, _, fragment = TABLE[case]
    stream = fixture.client.stream()
    stream.send(**request.grpc(), id="wrong")
    stream.send(**GOOD.grpc(), id="right")
    wrong, right = stream.next(), stream.next()
    assert fragment in wrong.error_message
    assert (wrong.infer_response.id, right.infer_response.id) == ("wrong", "right")
    assert not right.error_message
    stream.end()
    assert stream.rest() == []


# What only one of the two can get wrong


def with_fields(**fields: Any) -> dict[str, Any]:
    return GOOD.grpc() | fields


INT_CONTENTS = {"int_contents": [1, 2, 3]}
FP32_CONTENTS = {"fp32_contents": [1, 2, 3]}


def typed(name: str, contents: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [1, 3], "contents": contents}


GRPC_ONLY = {
    "typed_and_raw": (
        with_fields(inputs=[typed("a", FP32_CONTENTS), typed("b", FP32_CONTENTS)]),
        "contents field must not be specified when using raw_input_contents",
    ),
    "typed_field_of_another_type": (
        with_fields(inputs=[typed("a", INT_CONTENTS), typed("b", FP32_CONTENTS)], raw_input_contents=[]),
        "int_contents",
    ),
    "too_few_typed_elements": (
        with_fields(inputs=[typed("a", FP32_CONTENTS), typed("b", {"fp32_contents": [1.0]})], raw_input_contents=[]),
        "input byte size mismatch for input 'b' for model 'pair'. Expected 12, got 4",
    ),
    "raw_for_one_input_only": (with_fields(raw_input_contents=[A.data]), "unable to find data for input tensor 'b'"),
    "more_raw_than_inputs": (with_fields(raw_input_contents=[A.data] * 3), "raw_input_contents has 3 entries"),
    "no_model_name": (with_fields(model_name=""), "no model name"),
    "uint64_parameter": (with_fields(parameters={"mine": {"uint64_param": 1}}), "mine"),
    "parameter_without_a_value": (with_fields(parameters={"mine": {}}), "mine"),
}


@pytest.mark.wire
@pytest.mark.parametrize("case", GRPC_ONLY)
def test_mistake_that_only_grpc_can_make(fixture: V2InputFixture, case: str) -> None:
    fields, fragment = GRPC_ONLY[case]
    code, text = fixture.client.refusal("ModelInfer", **fields)
    assert code is grpc.StatusCode.INVALID_ARGUMENT, text
    check_words(text, fragment, fixture)


@pytest.mark.wire
def test_message_past_the_limit_is_refused_by_both(fixture: V2InputFixture) -> None:
    big = Request("free", (floats("in", 100_000, 3),))
    code, _ = fixture.over_grpc(big)
    assert code == "RESOURCE_EXHAUSTED"
    status, text = fixture.over_http(big)
    assert (status, "1000000" in text) == (413, True), text


def json_with(**changes: Any) -> bytes:
    inputs = [{"name": name, "datatype": "FP32", "shape": [1, 3], "data": [0, 1, 2]} for name in ("a", "b")]
    inputs[1] |= changes.pop("second", {})
    return json.dumps({"inputs": inputs, **changes}).encode()


JSON_ONLY: dict[str, tuple[bytes, str]] = {
    "no_json": (b"{ this is no json", "failed to parse the request JSON buffer"),
    "empty": (b"", ""),
    "a_list": (b"[]", ""),
    "no_inputs": (b"{}", "'inputs'"),
    "inputs_is_a_number": (b'{"inputs": 5}', "'inputs'"),
    "no_name": (b'{"inputs": [{"datatype": "FP32", "shape": [1, 3], "data": [1]}]}', "'name'"),
    "negative_size": (json_with(second={"shape": [-1, 3]}), "'shape'"),
    "element_of_another_type": (json_with(second={"data": [0, "one", 2]}), ""),
    "too_few_elements": (json_with(second={"data": [0, 1]}), "shape does not match true shape"),
    "too_many_elements": (json_with(second={"data": [0, 1, 2, 3]}), "hape does not match true shape"),
    "too_deep": (json_with().replace(b"[0, 1, 2]", b"[" * 101 + b"]" * 101), "nesting depth"),
    "far_too_deep": (b"[" * 100_000, ""),
    "no_data": (b'{"inputs": [{"name": "a", "datatype": "FP32", "shape": [1, 3]}]}', "'a'"),
    "size_without_the_header": (
        json_with(second={"parameters": {"binary_data_size": 12}}).replace(b', "data": [0, 1, 2], "para', b', "para'),
        "",
    ),
    "parameter_is_an_object": (json_with(parameters={"mine": {"a": 1}}), "parameter 'mine' has invalid type"),
}


@pytest.mark.parametrize("case", JSON_ONLY)
def test_json_that_is_wrong(fixture: V2InputFixture, case: str) -> None:
    content, fragment = JSON_ONLY[case]
    code, text = told(fixture.http.post("/v2/models/pair/infer", content=content))
    assert code == 400, text
    check_words(text, fragment, fixture)


HEADERS = {
    "not_a_number": ("ten", b""),
    "negative": ("-1", b""),
    "beyond_the_body": ("100000", b""),
    "beyond_32_bits": (str(2**40), b""),
    "left_over": ("", b"more"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_length_of_the_json_that_is_wrong(fixture: V2InputFixture, case: str) -> None:
    value, more = HEADERS[case]
    content, headers = GOOD.http()
    if value:
        headers["Inference-Header-Content-Length"] = value
    code, text = told(fixture.http.post("/v2/models/pair/infer", content=content + more, headers=headers))
    assert code == 400, text
    check_words(text, "", fixture)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/pair/infer", 405),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/pair/versions/one", 400),
        ("POST", "/v2/repository/elsewhere/index", 501),
        ("POST", "/v2/repository/models/pair/load", 503),
    ],
)
def test_paths_that_do_not_answer(fixture: V2InputFixture, method: str, path: str, code: int) -> None:
    status, text = told(fixture.http.request(method, path))
    assert (status, bool(text)) == (code, True), text


# Unusual, and answered


def test_sizes_of_zero_and_numbers_that_are_none_come_back(fixture: V2InputFixture) -> None:
    answer = fixture.client.call("ModelInfer", **Request("free", (floats("in", 0, 3),)).grpc())
    assert (list(answer.outputs[0].shape), list(answer.raw_output_contents)) == ([0, 3], [b""])
    odd = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    request = Request("free", (Tensor("in", (1, 3), odd.tobytes()),))
    assert fixture.client.call("ModelInfer", **request.grpc()).raw_output_contents[0] == odd.tobytes()


def test_texts_that_are_empty_or_no_text_come_back(fixture: V2InputFixture) -> None:
    tensor = texts(b"", b"\x00\xff\xfe")
    request = Request("text", (tensor,))
    assert fixture.client.call("ModelInfer", **request.grpc()).raw_output_contents[0] == tensor.data
    code, text = fixture.over_http(request)
    assert (code, bool(text)) == (400, True), "JSON has no place for such bytes"


def test_only_the_requests_of_a_failing_run_fail(fixture: V2InputFixture) -> None:
    assert fixture.client.call("ModelInfer", **request_fields("sequences", 1, 5, start=True)).model_version == "1"
    assert fixture.over_grpc(row("fails"))[0] == "INTERNAL"
    assert fixture.client.call("ModelInfer", **request_fields("sequences", 1, 5, end=True)).model_version == "1"
