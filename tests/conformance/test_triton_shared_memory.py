"""Tensors in the system's shared memory, made by Triton's client."""

import uuid

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import serialize_byte_tensor

SIZE = 4096


@pytest.fixture
def region(api):
    """A region that the server knows: (name, key, handle)."""
    name = f"region-{uuid.uuid4().hex}"
    key = f"/{name}"
    handle = shm.create_shared_memory_region(name, key, SIZE)
    api.client.register_system_shared_memory(name, key, SIZE)
    yield name, key, handle
    api.client.unregister_system_shared_memory(name)
    shm.destroy_shared_memory_region(handle)


def regions(api, name=""):
    found = api.plain(api.client.get_system_shared_memory_status(name))
    found = list(found["regions"].values()) if api.is_grpc else found
    return {item["name"]: (item["key"], int(item["offset"]), int(item["byte_size"])) for item in found}


def test_region_is_shown_while_it_is_registered(api, region):
    name, key, _ = region
    assert regions(api, name) == {name: (key, 0, SIZE)}
    assert regions(api)[name] == (key, 0, SIZE)
    api.client.unregister_system_shared_memory(name)
    assert name not in regions(api)
    words = f"Unable to find system shared memory region: '{name}'"
    api.refused("NOT_FOUND", words, api.client.get_system_shared_memory_status, name)
    api.client.register_system_shared_memory(name, key, 64, offset=128)
    assert regions(api, name) == {name: (key, 128, 64)}


def test_name_without_regions_ends_them_all(api, region):
    api.client.unregister_system_shared_memory()
    assert regions(api) == {}


def test_name_that_is_taken_is_refused(api, region):
    name, key, _ = region
    api.refused("ALREADY_EXISTS", name, api.client.register_system_shared_memory, name, key, SIZE)


@pytest.mark.parametrize(
    ("key", "size", "offset"),
    [("/no-such-object", 64, 0), (None, SIZE + 1, 0), (None, SIZE, 1), ("/../x", 64, 0)],
    ids=["unknown", "too large", "offset", "path"],
)
def test_regions_that_are_not_there_are_refused(api, region, key, size, offset):
    def register():
        api.client.register_system_shared_memory("other", key or region[1], size, offset=offset)

    api.refused("INVALID_ARGUMENT", "", register)
    assert "other" not in regions(api)


def tensor(api, name, region, size, offset=0, shape=(1, 4), datatype="FP32"):
    found = api.module.InferInput(name, list(shape), datatype)
    found.set_shared_memory(region, size, offset=offset)
    return found


def test_inputs_and_outputs_are_there(api, region):
    name, _, handle = region
    a, b = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
    shm.set_shared_memory_region(handle, [a, b])
    inputs = [tensor(api, "a", name, 16), tensor(api, "b", name, 16, 16)]
    outputs = [api.output("sum"), api.output("difference")]
    outputs[0].set_shared_memory(name, 64, offset=1024)
    result = api.client.infer("sums", inputs, model_version="1", outputs=outputs)
    assert shm.get_contents_as_numpy(handle, np.float32, [1, 4], 1024).tolist() == [[11, 12, 13, 14]]
    assert result.as_numpy("difference").tolist() == [[-9, -8, -7, -6]]
    placed = result.get_output("sum")
    parameters = api.plain(placed)["parameters"]
    size = parameters["shared_memory_byte_size"]
    assert int(size["int64_param"] if api.is_grpc else size) == 16


def test_texts_are_there(api, region):
    name, _, handle = region
    text = serialize_byte_tensor(np.array([b"one two"], dtype=object))
    shm.set_shared_memory_region(handle, [text])
    output = api.output("text_output")
    output.set_shared_memory(name, 256, offset=512)
    inputs = [tensor(api, "text_input", name, 4 + 7, shape=(1,), datatype="BYTES")]
    api.client.infer("echo", inputs, outputs=[output])
    assert shm.get_contents_as_numpy(handle, np.object_, [1], 512).tolist() == [b"two one"]


def test_texts_that_are_cut_name_the_input(api, region):
    name, _, handle = region
    shm.set_shared_memory_region(handle, [np.frombuffer(b"\x09\0\0\0short", np.uint8)])
    inputs = [tensor(api, "text_input", name, 9, shape=(1,), datatype="BYTES")]
    words = "incomplete string data for inference input 'text_input' for model 'echo'"
    api.refused("INVALID_ARGUMENT", words, api.client.infer, "echo", inputs)


def test_shared_and_sent_inputs_may_be_mixed(api, region):
    name, _, handle = region
    shm.set_shared_memory_region(handle, [np.ones(4, np.float32)])
    for order in ("ab", "ba"):
        tensors = {"a": tensor(api, "a", name, 16), "b": api.input("b", np.full((1, 4), 2, np.float32))}
        result = api.client.infer("sums", [tensors[each] for each in order], model_version="1")
        assert result.as_numpy("difference").tolist() == [[0, 0, 0, 0]]


def test_places_that_cannot_be_are_refused(api, region):
    name, _, _ = region
    other = api.input("b", np.ones((1, 4), np.float32))

    def refused(code, *words, given, outputs=None):
        api.refused(code, words, api.client.infer, "sums", [given, other], outputs=outputs)

    words = "Unable to find shared memory region: 'nowhere'"
    refused("NOT_FOUND", words, given=tensor(api, "a", "nowhere", 16))
    refused("INVALID_ARGUMENT", name, given=tensor(api, "a", name, 16, offset=SIZE - 8))
    words = "input byte size mismatch for input 'a' for model 'sums'. Expected 16, got 12"
    refused("INVALID_ARGUMENT", words, given=tensor(api, "a", name, 12))
    small = api.output("sum")
    small.set_shared_memory(name, 8)
    refused("INVALID_ARGUMENT", "at least 16 bytes", given=tensor(api, "a", name, 16), outputs=[small])


def test_cuda_regions_are_not_supported(api):
    call = api.client.register_cuda_shared_memory
    api.refused("UNIMPLEMENTED", "", call, "gpu", b"aGFuZGxl", 0, 64)
    found = api.plain(api.client.get_cuda_shared_memory_status())
    assert not (found["regions"] if api.is_grpc else found)
    api.client.unregister_cuda_shared_memory()
