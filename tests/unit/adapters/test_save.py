from __future__ import annotations

import zipfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

from tfs_lite import save
from tfs_lite.adapters.pytorch_export import open_exported
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, SymbolicDim
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.errors import refusal

Pair = namedtuple("Pair", ["left", "right"])


class Dropping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.dropout = torch.nn.Dropout(0.9)

    def forward(self, x, bias):
        return Pair(self.dropout(self.linear(x)) + bias, x.shape[0] * bias)


@pytest.fixture
def load(request_for):
    def load_version(path):
        return open_exported(request_for(Path(path)))

    return load_version


def test_saved_version_is_published_and_answers_like_the_module(tmp_path, load):
    module = Dropping()
    path = save(module, tmp_path / "m", example_inputs=(torch.randn(4, 3), torch.randn(4, 2)))
    assert path == tmp_path / "m" / "1"
    assert sorted(file.name for file in path.iterdir()) == ["model.pt2", MANIFEST_NAME]
    x, bias = torch.randn(7, 3), torch.randn(7, 2)
    answer = load(path).run(DEFAULT_SIGNATURE, {"x": x.numpy(), "bias": bias.numpy()}, ())
    with torch.no_grad():
        expected = module.eval()(x, bias)
    assert np.allclose(answer["left"], expected.left.numpy(), atol=1e-5)
    assert np.allclose(answer["right"], expected.right.numpy())


def test_version_numbers_go_up_and_none_is_overwritten(tmp_path):
    examples = (torch.zeros(2, 3), torch.zeros(2, 2))
    assert save(Dropping(), tmp_path, example_inputs=examples, version=7).name == "7"
    assert save(Dropping(), tmp_path, example_inputs=examples).name == "8"
    refusal(save, Dropping(), tmp_path, example_inputs=examples, version=7, code=StatusCode.ALREADY_EXISTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "8"]


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.inner = torch.nn.Dropout()

    def forward(self, x):
        self.count.add_(1)
        x.mul_(1)
        return self.inner(x) + self.count


def test_module_and_examples_stay_as_they_were(tmp_path):
    module = Counting().train()
    module.inner.eval()
    example = torch.ones(2, 3)
    save(module, tmp_path, example_inputs=(example,))
    assert (module.training, module.inner.training) == (True, False)
    assert module.count.tolist() == [0]
    assert example.tolist() == torch.ones(2, 3).tolist()


def test_archive_holds_no_pickle(tmp_path):
    path = save(Counting(), tmp_path, example_inputs=(torch.zeros(2, 3),))
    with zipfile.ZipFile(path / "model.pt2") as archive:
        samples = [info for info in archive.infolist() if "sample_inputs" in info.filename]
    assert [info.file_size for info in samples] == [0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, SymbolicDim("s", None)),
        ({"max_batch_size": 16}, SymbolicDim("s", 16)),
        ({"dynamic_batch": False}, 4),
        ({"dynamic_shapes": {"x": {1: torch.export.Dim("width", max=9)}}}, 4),
    ],
)
def test_batch_is_dynamic_unless_told_otherwise(tmp_path, load, options, expected):
    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    model = load(save(Double(), tmp_path, example_inputs=(torch.zeros(4, 3),), **options))
    rows = model.signatures[DEFAULT_SIGNATURE].inputs[0].shape[0]
    if isinstance(expected, int):
        assert rows == expected
    else:
        assert rows.maximum == expected.maximum


def test_examples_by_name_of_any_type(tmp_path, load):
    class Masked(torch.nn.Module):
        def forward(self, x, *, mask, scale):
            return {"y": x * mask * scale}

    examples = {
        "x": torch.randn(1, 3).bfloat16(),
        "mask": torch.ones(1, 3, dtype=torch.bool),
        "scale": torch.tensor(2, dtype=torch.bfloat16),
    }
    model = load(save(Masked(), tmp_path, example_inputs=examples))
    signature = model.signatures[DEFAULT_SIGNATURE]
    assert {spec.name: (spec.dtype, len(spec.shape)) for spec in signature.inputs} == {
        "x": (DataType.BFLOAT16, 2),
        "mask": (DataType.BOOL, 2),
        "scale": (DataType.BFLOAT16, 0),
    }
    assert signature.output_names == ("y",)


def test_module_that_never_answers_twice_the_same_can_be_saved(tmp_path):
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    save(Noise(), tmp_path, example_inputs=(torch.zeros(2, 3),))


class Branching(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Fixed(torch.nn.Module):
    def forward(self, x):
        return x.reshape(4, 3) * 2


@pytest.mark.parametrize("module", [Branching(), Fixed()])
def test_module_that_cannot_be_exported_says_why_and_leaves_nothing(tmp_path, module):
    with pytest.raises(ServingError, match=f"{type(module).__name__} cannot be exported: ") as caught:
        save(module, tmp_path, example_inputs=(torch.ones(4, 3),))
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    assert caught.value.__cause__ is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("examples", "options", "message"),
    [
        (torch.zeros(2), {}, "example_inputs is a Tensor, expected a tuple"),
        ((torch.zeros(2), 3), {}, "example input 1 is a int, expected a tensor"),
        ({"x": [1.0]}, {}, "example input x is a list"),
        ((torch.zeros(2, 3), torch.zeros(4, 3)), {}, "have 2, 4 rows"),
        ((torch.zeros(0, 3),), {}, "have no rows"),
        ((torch.zeros(4, 3),), {"max_batch_size": 3}, "max_batch_size is 3: expected at least 4"),
        ((torch.zeros(1, 3),), {"max_batch_size": 1}, "max_batch_size is 1: expected at least 2"),
    ],
)
def test_examples_that_do_not_fit_are_refused(tmp_path, examples, options, message):
    assert message in refusal(save, Counting(), tmp_path, example_inputs=examples, **options)


@torch.library.custom_op("tfs_lite_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_operator_of_a_library_needs_trust(tmp_path):
    class Custom(torch.nn.Module):
        def forward(self, x):
            return twice(x)

    with pytest.raises(ServingError, match="--trusted_model_base_paths"):
        save(Custom(), tmp_path, example_inputs=(torch.zeros(2, 3),))
    assert save(Custom(), tmp_path, example_inputs=(torch.zeros(2, 3),), trusted=True).name == "1"
