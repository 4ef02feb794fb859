"""Triton's asyncio clients."""

import asyncio

import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio


@pytest.fixture(params=["grpc", "http"])
def connect(request, triton_server):
    """(the client's module, how to make a client)"""
    is_grpc = request.param == "grpc"
    module = tritonclient.grpc.aio if is_grpc else tritonclient.http.aio
    address = triton_server.target if is_grpc else f"127.0.0.1:{triton_server.http_port}"
    return module, lambda: module.InferenceServerClient(address)


def test_many_requests_at_once(connect):
    module, make = connect

    async def ask():
        async with make() as client:
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


def test_large_answers(connect):
    """The HTTP client accepts compressed responses by itself."""
    module, make = connect
    sent = np.ones((4, 10_000), np.int16)
    tensor = module.InferInput("x", [4, 10_000], "INT16")
    tensor.set_data_from_numpy(sent)

    async def ask():
        async with make() as client:
            return await client.infer("plain", [tensor])

    assert (asyncio.run(ask()).as_numpy("y") == sent).all()


def test_everything_else(connect):
    _, make = connect

    async def ask():
        async with make() as client:
            return await asyncio.gather(
                client.get_server_metadata(),
                client.get_model_metadata("sums"),
                client.get_model_config("sums"),
                client.get_model_repository_index(),
                client.get_inference_statistics("sums"),
                client.get_trace_settings("sums"),
                client.get_log_settings(),
                client.get_system_shared_memory_status(),
                client.get_cuda_shared_memory_status(),
                client.is_model_ready("none_such"),
            )

    found = asyncio.run(ask())
    assert found.pop() is False
    names = [item["name"] if isinstance(item, dict) else item.name for item in found[:2]]
    assert names == ["tfs_lite", "sums"]


def test_stream(triton_server):
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
