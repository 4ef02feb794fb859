"""Inference with Triton's client: values of every datatype, raw, binary and as JSON, and what a request may say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2

from tests.conformance.servers import PYTHON, REPO, new_server

EXAMPLE = REPO / "examples/image_pipeline"
DATATYPES = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
}
WITHOUT_JSON = ("FP16", "BF16")
TYPED = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "STRING": "bytes_contents",
}


def largest(dtype) -> object:
    if dtype is np.bool_:
        return True
    return ml_dtypes.finfo(dtype).max if np.dtype(dtype).kind in "fV" else np.iinfo(dtype).max


def values() -> dict[str, np.ndarray]:
    """For the model ``types``: two rows of two for each datatype, its largest value among them."""
    found = {}
    for name, dtype in DATATYPES.items():
        found[name] = np.array([[0, 1], [largest(dtype), 1]], dtype=dtype)
    found["STRING"] = np.array([[b"", b"text"], ["grün".encode(), b"x" * 300]], dtype=object)
    return found


def datatype(name: str) -> str:
    return "BYTES" if name == "STRING" else name


def same(found: np.ndarray, sent: np.ndarray) -> bool:
    return found.shape == sent.shape and found.dtype == sent.dtype and bool((found == sent).all())


def test_every_datatype_comes_back_as_it_was_sent(api):
    sent = values()
    inputs = [api.input(name, array, datatype(name)) for name, array in sent.items()]
    result = api.client.infer("types", inputs)
    for name, array in sent.items():
        assert same(result.as_numpy(f"{name}_out"), array), name


def test_bytes_that_are_no_text_come_back(api):
    sent = {**values(), "STRING": np.array([[b"\xff\xfe", b"\x00a\x00"]], dtype=object)}
    inputs = [api.input(name, array, datatype(name)) for name, array in sent.items()]
    result = api.client.infer("types", inputs, outputs=[api.output("STRING_out")])
    assert same(result.as_numpy("STRING_out"), sent["STRING"])


def test_empty_tensors_come_back_empty(api):
    sent = {name: np.zeros((0, 3), array.dtype) for name, array in values().items()}
    inputs = [api.input(name, array, datatype(name)) for name, array in sent.items()]
    result = api.client.infer("types", inputs)
    for name, array in sent.items():
        found = result.as_numpy(f"{name}_out")
        assert (found.shape, found.dtype) == ((0, 3), array.dtype), name


def test_json_carries_what_json_can_say(http_api):
    sent = values()
    inputs = [
        http_api.input(name, array, datatype(name), binary_data=name in WITHOUT_JSON) for name, array in sent.items()
    ]
    outputs = [http_api.output(f"{name}_out", binary_data=name in WITHOUT_JSON) for name in sent]
    result = http_api.client.infer("types", inputs, outputs=outputs)
    for name, array in sent.items():
        output = result.get_output(f"{name}_out")
        assert ("data" in output) is (name not in WITHOUT_JSON)
        text = name == "STRING"  # as_numpy leaves the texts of JSON as they are
        expected = np.array([[item.decode() for item in row] for row in array], dtype=object) if text else array
        assert same(result.as_numpy(f"{name}_out"), expected), name


@pytest.mark.parametrize("name", WITHOUT_JSON)
def test_half_floats_as_json_are_refused(http_api, name):
    sent = values()
    inputs = [http_api.input(each, array, datatype(each)) for each, array in sent.items()]
    outputs = [http_api.output(f"{name}_out", binary_data=False)]
    http_api.refused("INVALID_ARGUMENT", "", http_api.client.infer, "types", inputs, outputs=outputs)


def test_typed_contents_are_read_as_raw_ones_are(grpc_api):
    """The client itself sends raw contents only."""
    sent = {name: array for name, array in values().items() if name not in WITHOUT_JSON}
    request = service_pb2.ModelInferRequest(model_name="typed", id="t")
    for name, array in sent.items():
        tensor = request.inputs.add(name=name, datatype=datatype(name), shape=array.shape)
        getattr(tensor.contents, TYPED[name]).extend(array.ravel().tolist())
    result = tritonclient.grpc.InferResult(grpc_api.client._client_stub.ModelInfer(request, timeout=60))
    for name, array in sent.items():
        assert same(result.as_numpy(f"{name}_out"), array), name


def test_half_floats_have_no_typed_contents(grpc_api):
    request = service_pb2.ModelInferRequest(model_name="types")
    tensor = request.inputs.add(name="FP16", datatype="FP16", shape=[1, 1])
    tensor.contents.fp32_contents.append(1)
    with pytest.raises(grpc.RpcError) as caught:
        grpc_api.client._client_stub.ModelInfer(request, timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "fp32_contents" in caught.value.details()


@pytest.mark.parametrize(("version", "used"), [("", "3"), ("1", "1"), ("3", "3")])
def test_answer_names_the_version_and_the_id(api, sums_inputs, version, used):
    result = api.client.infer("sums", sums_inputs(api), model_version=version, request_id="r 17/ü")
    answer = api.plain(result.get_response())
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("sums", used, "r 17/ü")
    assert result.as_numpy("sum").tolist() == [[value + 1 + int(used) for value in range(4)]]


def test_only_wanted_outputs_come_in_the_order_they_were_wanted(api, sums_inputs):
    def names(*outputs):
        result = api.client.infer("sums", sums_inputs(api), outputs=[api.output(name) for name in outputs] or None)
        return [output["name"] for output in api.plain(result.get_response())["outputs"]]

    assert names() == ["sum", "difference"]
    assert names("difference") == ["difference"]
    assert names("difference", "sum") == ["difference", "sum"]


def test_binary_and_json_may_be_mixed(http_api, sums_inputs):
    json_inputs = sums_inputs(http_api, 2, binary_data=False)
    inputs = [json_inputs[0], sums_inputs(http_api, 2)[1]]
    outputs = [http_api.output("sum", binary_data=False), http_api.output("difference", binary_data=True)]
    result = http_api.client.infer("sums", inputs, outputs=outputs, model_version="1")
    assert result.get_output("sum")["data"] == [float(value + 2) for value in range(8)]
    assert result.get_output("difference")["parameters"]["binary_data_size"] == 32
    assert result.as_numpy("difference").ravel().tolist() == list(range(8))


@pytest.mark.parametrize("binary", [True, False])
def test_bodies_that_were_made_apart_are_taken(http_api, sums_inputs, binary):
    client = http_api.module.InferenceServerClient
    inputs = sums_inputs(http_api, binary_data=binary)
    body, header_length = client.generate_request_body(inputs, outputs=[http_api.output("sum", binary_data=binary)])
    headers = {} if header_length is None else {"Inference-Header-Content-Length": str(header_length)}
    assert bool(headers) is binary
    answer = http_api.client._post("v2/models/sums/versions/1/infer", body, headers, None)
    length = answer.get("Inference-Header-Content-Length")
    parsed = client.parse_response_body(answer.read(), header_length=None if length is None else int(length))
    assert parsed.as_numpy("sum").tolist() == [[2, 3, 4, 5]]


def test_classification_gives_the_best_with_their_labels(api, sums_inputs):
    outputs = [api.output("sum", class_count=2), api.output("difference", class_count=9)]
    result = api.client.infer("sums", sums_inputs(api, 2), model_version="1", outputs=outputs)
    best = [[b"5.000000:3", b"4.000000:2:south"], [b"9.000000:3", b"8.000000:2:south"]]
    assert result.as_numpy("sum").tolist() == best
    assert result.as_numpy("difference").shape == (2, 4)


def test_classes_of_texts_are_refused(api):
    inputs = [api.input(name, array, datatype(name)) for name, array in values().items()]
    outputs = [api.output("STRING_out", class_count=1)]
    words = "class result not available for output due to unsupported type"
    api.refused("INVALID_ARGUMENT", words, api.client.infer, "types", inputs, outputs=outputs)


def test_priority_timeout_headers_and_own_parameters_are_taken(api, sums_inputs):
    result = api.client.infer(
        "sums",
        sums_inputs(api),
        priority=2,
        timeout=60_000_000,
        headers={"x-who": "me"},
        parameters={"flag": True, "number": 7, "text": "word", "share": 0.5},
    )
    assert result.as_numpy("sum").shape == (1, 4)


def test_request_that_waits_longer_than_its_timeout_is_rejected(api, gate):
    inputs = [api.input("x", np.zeros((1, 1), np.float32))]
    with api.beside(lambda other: other.client.infer("gate", inputs)) as first:
        gate.wait_entered()
        words = "Request timeout expired"
        api.refused("UNAVAILABLE", words, api.client.infer, "gate", inputs, timeout=1000)
        gate.open()
        assert first.result(timeout=60).as_numpy("y").tolist() == [[0]]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_and_answers(api, sums_inputs, algorithm):
    how = (
        {"compression_algorithm": algorithm}
        if api.is_grpc
        else {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    )
    sent = {**values(), "FP64": np.ones((50, 100))}
    inputs = [api.input(name, array, datatype(name)) for name, array in sent.items()]
    outputs = [api.output("FP64_out"), api.output("STRING_out")]
    result = api.client.infer("types", inputs, outputs=outputs, **how)
    assert same(result.as_numpy("FP64_out"), sent["FP64"])
    assert same(result.as_numpy("STRING_out"), sent["STRING"])


def test_body_may_be_nothing_but_the_tensor(http_api):
    """A header length of 0: the shape follows from the size, and every answer is binary."""
    body = np.arange(4, dtype=np.int16).tobytes()
    headers = {"Inference-Header-Content-Length": "0"}
    answer = http_api.client._post("v2/models/plain/infer", body, headers, None)
    assert answer.status_code == 200
    length = int(answer["Inference-Header-Content-Length"])
    parsed = http_api.client.parse_response_body(answer.read(), header_length=length)
    assert parsed.as_numpy("y").tolist() == [[0, 1, 2, 3]]


def test_large_tensors_come_back(api):
    sent = {**values(), "FP32": np.arange(4_000_000, dtype=np.float32).reshape(2000, 2000)}
    inputs = [api.input(name, array, datatype(name)) for name, array in sent.items()]
    result = api.client.infer("types", inputs, outputs=[api.output("FP32_out")])
    assert same(result.as_numpy("FP32_out"), sent["FP32"])


def test_ensemble_answers_like_a_model(api):
    inputs = [api.input("IN", np.ones((2, 4), np.float32))]
    result = api.client.infer("chain", inputs, request_id="c")
    assert result.as_numpy("OUT").tolist() == [[5.0] * 4] * 2
    assert api.plain(result.get_response())["model_name"] == "chain"


def test_client_of_the_example_gets_the_same_by_tritonclient_and_by_plain_http(tmp_path: Path):
    models = tmp_path / "models"
    subprocess.run([PYTHON, EXAMPLE / "make.py", models, "--steps=12"], check=True, stdout=sys.stderr)
    client = runpy.run_path(str(EXAMPLE / "client.py"))
    image = (REPO / "docs/images/dashboard-phone.png").read_bytes()
    with new_server(f"--model_repository={models}", f"--trusted_model_base_paths={models}") as server:
        address = f"127.0.0.1:{server.http_port}"
        theirs, ours = (client[ask](address, image) for ask in ("ask_with_tritonclient", "ask_plainly"))
    assert set(theirs) == set(ours) == {"CLASSIFICATION", "SEGMENTATION"}
    for name in ours:
        np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-4, atol=1e-6)
