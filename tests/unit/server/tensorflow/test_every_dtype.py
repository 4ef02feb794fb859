"""Every element type that torch has, through a real exported program, gRPC and both encodings of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import torch

import tfs_lite
from tests.support.servers.in_process import ServerFixture, serving
from tfs_lite.adapters.pytorch.tensors import TORCH_DTYPES
from tfs_lite.core.signature import DataType
from tfs_lite.protocols import messages
from tfs_lite.protocols.dtypes import to_numpy
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode

PREDICT = "/tensorflow.serving.PredictionService/Predict"
DTYPES = list(TORCH_DTYPES)


def module() -> torch.nn.Module:
    """Turns one input of each type, by name: swapping rows and columns is what every type can."""
    names = ", ".join(dtype.text for dtype in DTYPES)
    body = ", ".join(f"'{dtype.text}': {dtype.text}.transpose(0, 1).clone()" for dtype in DTYPES)
    space: dict[str, Any] = {"Module": torch.nn.Module}
    exec(f"class Turned(Module):\n    def forward(self, {names}):\n        return {{{body}}}", space)
    made: torch.nn.Module = space["Turned"]()
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("dtypes")
    examples = tuple(torch.zeros(2, 3).to(TORCH_DTYPES[dtype]) for dtype in DTYPES)
    tfs_lite.save(module(), root / "m", example_inputs=examples, version=1, dynamic_shapes=[{} for _ in examples])
    with serving(root, model_name="m", model_base_path=str(root / "m")) as served:
        yield served


def values(dtype: DataType) -> np.ndarray[Any, Any]:
    """Bit patterns of the type: whatever they mean, they must come back."""
    numpy_dtype = to_numpy(dtype)
    if dtype is DataType.BOOL:
        return np.array([[True, False, True], [False, False, True]])
    bits = np.random.default_rng(0).integers(0, 256, 6 * numpy_dtype.itemsize, np.uint8)
    return bits.view(numpy_dtype).reshape(2, 3)


@pytest.mark.parametrize("as_content", [False, True], ids=["typed fields", "tensor_content"])
def test_every_type_of_torch_comes_back_bit_for_bit(served: ServerFixture, as_content: bool) -> None:
    request = messages.PredictRequest(model_spec={"name": "m"})
    for dtype in DTYPES:
        request.inputs[dtype.text].CopyFrom(encode(values(dtype), as_content))
    with grpc.insecure_channel(served.target) as channel:
        data = channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=60)
    answer = messages.PredictResponse.FromString(data)
    for dtype in DTYPES:
        sent, got = values(dtype), decode(answer.outputs[dtype.text], dtype.text)
        assert got.dtype == sent.dtype
        assert got.tobytes() == np.ascontiguousarray(sent.T).tobytes(), dtype
