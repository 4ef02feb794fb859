"""Models that take and give other dimensions than their clients know."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

import tfs_lite
from tests.support.servers.platforms import write_python
from tfs_lite.adapters.python.model import open_python
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.adapters.reshape import reshaped, seen_by_model
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Document, build
from tfs_lite.core.signature import Signature
from tfs_lite.core.status import ServingError, StatusCode

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

    def open_one(wanted: ModelSettings, source: str = SOURCE):
        directory = write_python(tmp_path, source, None)
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


STEPS = """
class Model:
    def __init__(self, context): pass
    def preprocess(self, item):
        assert item["x"].shape == (6,), item["x"].shape
        return {"x": item["x"].reshape(3, 2) * 10}
    def predict(self, inputs):
        assert inputs["x"].shape[1:] == (3, 2), inputs["x"].shape
        return {"sums": inputs["x"].sum(2)}
    def postprocess(self, row):
        assert row["sums"].shape == (3,), row["sums"].shape
        return {"y": row["sums"] + 1, "seen": row["sums"]}
"""


def test_steps_for_items_get_the_dimensions_of_the_model(opened):
    wanted = settings([2, 3], [6], out=[1, 3], out_shape=[3])
    wanted = wanted.model_copy(
        update={"output": (wanted.output[0], wanted.output[1].model_copy(update={"dims": (3,)}))}
    )
    model = opened(wanted, STEPS)
    assert model.has_item_steps
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    prepared = model.preprocess("", {"x": x}, None)
    answer = model.postprocess("", model.run("", prepared, ()), None)
    assert answer["y"].tolist() == [[[11, 51, 91]], [[131, 171, 211]]]


class Shared:
    """A model with memory of its own, which was staged last."""

    signatures: Mapping[str, Signature] = {"serving_default": Signature((), ())}
    has_item_steps = False

    def stage(self, signature, shapes):
        self.staged = {name: np.zeros(*shape) for name, shape in shapes.items()}
        return self.staged

    def run(self, signature, inputs, outputs):
        self.ran = inputs
        return {}


def test_batches_are_formed_in_the_memory_of_the_model():
    inner = Shared()
    model = reshaped(inner, settings([2, 3], [6]))
    memory = model.stage("", {"x": ((4, 2, 3), np.dtype(np.float32)), "other": ((4, 1), np.dtype(np.int64))})
    assert {name: array.shape for name, array in memory.items()} == {"x": (4, 2, 3), "other": (4, 1)}
    model.run("", memory, ())
    assert inner.ran["x"].shape == (4, 6)
    assert all(np.shares_memory(inner.ran[name], inner.staged[name]) for name in memory)


def test_other_signatures_are_the_models_own(opened):
    model = opened(settings([2, 3], [6]))
    with pytest.raises(ServingError, match="other"):
        model.run("other", {"x": np.zeros((1, 2, 3), np.float32)}, ())
    with pytest.raises(ServingError, match="other"):
        list(model.parts("other", {"x": np.zeros((1, 2, 3), np.float32)}, ()))


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
