"""Models that take and give other dimensions than their clients know."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tfs_lite
from tfs_lite.adapters.python.model import open_python
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.adapters.reshape import reshaped, seen_by_model
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Document, build
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.servers.platforms import write_python

SOURCE = """
class Model:
    def __init__(self, context): pass
    def predict(self, inputs):
        return {"y": inputs["x"] + 0, "seen": inputs["x"].new_tensor([list(inputs["x"].shape)] * len(inputs["x"]))}
"""


def settings(dims, shape, batch=4, out=None, out_shape=None) -> ModelSettings:
    seen = len(shape) + (batch > 0)
    output = {"name": "y", "data_type": "TYPE_FP32", "dims": out or dims, "reshape": {"shape": out_shape or shape}}
    config = {
        "max_batch_size": batch,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": dims, "reshape": {"shape": shape}}],
        "output": [output, {"name": "seen", "data_type": "TYPE_FP32", "dims": [seen]}],
    }
    return build(ModelSettings, Document(config))


@pytest.fixture
def opened(tmp_path, request_for):
    models = []

    def open_one(wanted: ModelSettings):
        directory = write_python(tmp_path, SOURCE, None)
        inner = open_python(request_for(directory, seen_by_model(wanted), trusted=True))
        models.append(inner)
        return reshaped(inner, wanted)

    yield open_one
    for model in models:
        model.close()


@pytest.mark.parametrize(
    ("dims", "shape", "sent", "inside"),
    [
        ([1], [], (3, 1), [3]),
        ([2, 3], [6], (2, 2, 3), [2, 6]),
        ([6], [2, 1, 3], (1, 6), [1, 2, 1, 3]),
        ([-1, 1], [-1], (2, 5, 1), [2, 5]),
        ([-1, 1], [-1], (2, 0, 1), [2, 0]),
    ],
)
def test_model_sees_its_own_dimensions_and_clients_theirs(opened, dims, shape, sent, inside):
    model = opened(settings(dims, shape))
    x = np.arange(np.prod(sent), dtype=np.float32).reshape(sent)
    answer = model.run("", {"x": x}, ())
    np.testing.assert_array_equal(answer["y"], x)
    assert answer["seen"][0].tolist() == inside
    spec = model.signatures["serving_default"].inputs[0]
    assert [dim if isinstance(dim, int) else -1 for dim in spec.shape] == [-1, *dims]


def test_several_answers_are_reshaped_too(opened):
    model = opened(settings([1], []))
    (part,) = model.parts("", {"x": np.zeros((2, 1), np.float32)}, ("y",))
    assert part["y"].shape == (2, 1)


def test_model_without_reshape_is_left_alone():
    plain = build(ModelSettings, Document({"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]}))
    marker = object()
    assert reshaped(marker, plain) is marker
    assert seen_by_model(plain) is plain


def test_two_sizes_that_requests_choose_cannot_be_told_apart(opened):
    with pytest.raises(ServingError, match=r"input\[0\].reshape") as caught:
        opened(settings([-1, -1, 1], [-1, -1]))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


class Doubled(torch.nn.Module):
    def forward(self, x):
        return {"y": x * 2}


def test_conditions_of_the_model_are_about_its_own_dimensions(tmp_path, request_for):
    """They are checked as it runs, and nobody can say which of its calls may run together."""
    dims = {"x": {1: 3 * torch.export.Dim("threes")}}
    directory = tfs_lite.save(Doubled(), tmp_path, example_inputs=(torch.zeros(2, 6),), dynamic_dims=dims)
    tensor = {"data_type": "TYPE_FP32", "dims": [-1, 1], "reshape": {"shape": [-1]}}
    config = {"max_batch_size": 4, "input": [{"name": "x", **tensor}], "output": [{"name": "y", **tensor}]}
    wanted = build(ModelSettings, Document(config))
    model = reshaped(open_exported(request_for(directory, seen_by_model(wanted))), wanted)
    assert model.run("", {"x": np.ones((1, 3, 1), np.float32)}, ())["y"].shape == (1, 3, 1)
    with pytest.raises(ServingError, match=r"input x has size 4 in dimension 1.*multiple of 3"):
        model.run("", {"x": np.ones((1, 4, 1), np.float32)}, ())
    assert not model.signatures["serving_default"].conditions.complete
