"""Inference with Triton's client: values of every datatype, raw, binary and as JSON, and what a request may say."""

from __future__ import annotations

import asyncio

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio

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
    inputs = [http_api.input(name, array, datatype(name), binary_data=name in WITHOUT_JSON) for name, array in sent.items()]
    outputs = [http_api.output(f"{name}_out", binary_data=name in WITHOUT_JSON) for name in sent]
    result = http_api.client.infer("types", inputs, outputs=outputs)
    for name, array in sent.items():
        output = result.get_output(f"{name}_out")
        assert ("data" in output) is (name not in WITHOUT_JSON)
        assert same(result.as_numpy(f"{name}_out"), array), name


@pytest.mark.parametrize("name", WITHOUT_JSON)
def test_half_floats_as_json_are_refused(http_api, name):
    sent = values()
    inputs = [http_api.input(each, array, datatype(each)) for each, array in sent.items()]
    outputs = [http_api.output(f"{name}_out", binary_data=False)]
    http_api.refused("INVALID_ARGUMENT", call=lambda: http_api.client.infer("types", inputs, outputs=outputs))


def test_typed_contents_are_read_as_raw_ones_are(grpc_api):
    from tritonclient.grpc import service_pb2

    fields = {
        **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
        **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
        **{"BOOL": "bool_contents", "INT64": "int64_contents", "UINT64": "uint64_contents"},
        **{"FP32": "fp32_contents", "FP64": "fp64_contents"},
    }
    request = service_pb2.ModelInferRequest(model_name="sums", model_version="1", id="typed")
    for name in "ab":
        tensor = request.inputs.add(name=name, datatype="FP32", shape=[1, 4])
        tensor.contents.fp32_contents.extend([1, 2, 3, 4])
    answer = grpc_api.client._client_stub.ModelInfer(request, timeout=60)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [3, 5, 7, 9]
    assert (answer.id, answer.model_version, len(answer.raw_output_contents)) == ("typed", "1", 2)
    sent = {name: array for name, array in values().items() if name not in WITHOUT_JSON}
    assert set(fields) | {"STRING"} == set(sent)


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
    assert result.as_numpy("sum").tolist() == [[b"5.000000:3", b"4.000000:2:south"], [b"9.000000:3", b"8.000000:2:south"]]
    assert result.as_numpy("difference").shape == (2, 4)


def test_classes_of_texts_are_refused(api):
    inputs = [api.input(name, array, datatype(name)) for name, array in values().items()]
    outputs = [api.output("STRING_out", class_count=1)]
    words = "class result not available for output due to unsupported type"
    api.refused("INVALID_ARGUMENT", words, call=lambda: api.client.infer("types", inputs, outputs=outputs))


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
    with pytest.MonkeyPatch.context():
        first = start(api, "gate", inputs)
        gate.wait_entered()
        words = "Request timeout expired"
        api.refused("UNAVAILABLE", words, call=lambda: api.client.infer("gate", inputs, timeout=1000))
        gate.open()
        assert first().as_numpy("y").tolist() == [[0]]


def start(api, model, inputs):
    """Begins a request; what comes back waits for its result."""
    if not api.is_grpc:
        client = api.module.InferenceServerClient(api.address, concurrency=2)
        pending = client.async_infer(model, inputs)

        def wait():
            try:
                return pending.get_result(timeout=60)
            finally:
                client.close()

        # Greenlets run only while somebody waits for one.
        import gevent

        gevent.sleep(0)
        return wait
    import queue

    answers = queue.Queue()
    api.client.async_infer(model, inputs, lambda result, error: answers.put((result, error)))

    def wait():
        result, error = answers.get(timeout=60)
        assert error is None, error
        return result

    return wait


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


@pytest.mark.parametrize("module", [tritonclient.grpc.aio, tritonclient.http.aio], ids=["grpc", "http"])
def test_asyncio_clients(triton_server, module, sums_inputs):
    address = triton_server.target if module is tritonclient.grpc.aio else f"127.0.0.1:{triton_server.http_port}"

    async def ask():
        async with module.InferenceServerClient(address) as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("sums")
            inputs = [module.InferInput(name, [1, 4], "FP32") for name in "ab"]
            for tensor in inputs:
                tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
            results = await asyncio.gather(
                *(client.infer("sums", inputs, model_version="1", request_id=str(index)) for index in range(20))
            )
            assert [result.as_numpy("sum").tolist() for result in results] == [[[3.0] * 4]] * 20

    asyncio.run(ask())


def test_asyncio_stream(triton_server):
    module = tritonclient.grpc.aio
    tensor = module.InferInput("IN", [3], "INT32")
    tensor.set_data_from_numpy(np.array([7, 8, 9], np.int32))

    async def requests():
        yield {"model_name": "repeat", "inputs": [tensor], "request_id": "s"}

    async def ask():
        async with module.InferenceServerClient(triton_server.target) as client:
            return [answer async for answer in client.stream_infer(requests())]

    answers = asyncio.run(ask())
    assert [error for _, error in answers] == [None] * 3
    assert [int(result.as_numpy("OUT")[0]) for result, _ in answers] == [7, 8, 9]
