from __future__ import annotations

import zipfile
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tfs_lite import save
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, SymbolicDim
from tfs_lite.core.status import ServingError, StatusCode

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


class TakesAnything(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Bilinear(3, 3, 2)

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class TakesMore(torch.nn.Module):
    def forward(self, x, *more, scale=None, **named):
        total = x + sum(more) + sum(named.values())
        return total if scale is None else total * scale


X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("module", "examples", "names"),
    [
        (TakesAnything(), (X, Y), ["args_0", "args_1"]),
        (TakesAnything(), {"input1": X, "input2": Y}, ["input1", "input2"]),
        (TakesMore(), (X,), ["x"]),
        (TakesMore(), (X, Y, Y), ["x", "more_0", "more_1"]),
        (TakesMore(), {"x": X, "bias": Y, "scale": Y}, ["x", "bias", "scale"]),
        (torch.nn.DataParallel(torch.nn.Linear(3, 2)), (X,), ["input"]),
        (torch.compile(torch.nn.Linear(3, 2), backend="eager"), (X,), ["input"]),
    ],
    ids=["args", "kwargs", "none of them", "more", "named", "DataParallel", "compile"],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_modules_with_any_number_of_inputs_take_those_of_the_example(tmp_path, load, module, examples, names, rows):
    """Their names are those of the call, and each has a batch."""
    if isinstance(examples, dict):
        examples = {name: value[:rows] for name, value in examples.items()}
    else:
        examples = tuple(value[:rows] for value in examples)
    saved = load(save(module, tmp_path, example_inputs=examples))
    signature = saved.signatures["serving_default"]
    assert list(signature.input_names) == names
    assert all(spec.batch for spec in signature.inputs)
    sent = {name: np.ones((5, 3), np.float32) for name in names}
    tensors = [torch.ones(5, 3) for _ in names]
    expected = module(**dict(zip(names, tensors, strict=True))) if isinstance(examples, dict) else module(*tensors)
    (answer,) = saved.run("", sent, ()).values()
    assert np.allclose(answer, expected.detach().numpy())


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
    assert caught.value.__suppress_context__
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


class Difference(torch.nn.Module):
    def forward(self, a, b):
        return a - 2 * b


def _given_twice():
    x = torch.randn(4, 3)
    return x, x


def _views_of_one_storage():
    x = torch.randn(8, 3)
    return x[:4], x[2:6]


def _one_expanded_from_the_other():
    x = torch.randn(1, 3)
    return x.expand(4, 3), x.expand(4, 3)


@pytest.mark.parametrize("examples", [_given_twice, _views_of_one_storage, _one_expanded_from_the_other])
@pytest.mark.parametrize("options", [{}, {"dynamic_batch": False}])
def test_inputs_that_share_memory_stay_two_inputs(tmp_path, load, examples, options):
    model = load(save(Difference(), tmp_path, example_inputs=examples(), **options))
    a, b = torch.randn(4, 3).numpy(), torch.randn(4, 3).numpy()
    assert np.array_equal(model.run(DEFAULT_SIGNATURE, {"a": a, "b": b}, ())["output_0"], a - 2 * b)


def test_parameter_given_as_an_input_stays_an_input(tmp_path, load):
    module = torch.nn.Linear(3, 3)
    model = load(save(module, tmp_path, example_inputs=(module.weight,)))
    x = torch.randn(3, 3)
    assert np.allclose(
        model.run(DEFAULT_SIGNATURE, {"input": x.numpy()}, ())["output_0"], module(x).detach().numpy(), atol=1e-6
    )


class ExportsOtherwise(torch.nn.Module):
    """Stands for an exporter that loses what an input is for: under export it takes ``a`` for ``b``."""

    def forward(self, a, b):
        other = a if torch.compiler.is_exporting() else b
        return torch.where(a.to(bool), other, b.flip(-1)) if b.dtype == torch.bool else a * 2 + other


@pytest.mark.parametrize(
    "example",
    [
        torch.randn(4, 3),
        torch.zeros(1, 3),
        torch.ones(2, 1),
        torch.arange(12).reshape(4, 3),
        torch.ones(4, 3, dtype=torch.bool),
        torch.full((4, 3), 0.5, dtype=torch.bfloat16),
        torch.randn(4, 3, dtype=torch.complex64),
        torch.tensor([[0.0, -torch.inf, torch.nan]] * 2),
        torch.arange(12, dtype=torch.uint8).reshape(4, 3),
    ],
    ids=lambda example: f"{str(example.dtype)[6:]}-{tuple(example.shape)}",
)
def test_program_that_differs_for_other_values_only_is_refused(tmp_path, example):
    message = refusal(
        save, ExportsOtherwise(), tmp_path, example_inputs=(example, example), code=StatusCode.FAILED_PRECONDITION
    )
    assert message.startswith("the exported ExportsOtherwise answers other values differently: output_0. ")
    assert list(tmp_path.iterdir()) == []


class OffByALittle(torch.nn.Module):
    """Under export its answers are wrong by less than a thousandth, or by less than a ten-thousandth of one."""

    def forward(self, x):
        wrong = torch.compiler.is_exporting()
        return (x + (50 if wrong else 0)) if x.dtype == torch.int64 else x * (2 if wrong else 1)


@pytest.mark.parametrize("example", [torch.full((2, 3), 100_000), torch.full((2, 3), 1e-5)])
def test_integers_are_compared_exactly_and_small_numbers_by_their_own_size(tmp_path, example):
    refusal(save, OffByALittle(), tmp_path, example_inputs=(example,), code=StatusCode.FAILED_PRECONDITION)


def test_program_that_fails_for_other_values_is_refused(tmp_path):
    class ExportsAnAssertion(torch.nn.Module):
        def forward(self, x):
            if torch.compiler.is_exporting():
                torch.ops.aten._assert_async.msg((x == 0).all(), "expected zeros")
            return x * 2

    message = refusal(
        save, ExportsAnAssertion(), tmp_path, example_inputs=(torch.zeros(2, 3),), code=StatusCode.FAILED_PRECONDITION
    )
    assert message.startswith("the exported ExportsAnAssertion fails for other values: ")
    assert "expected zeros" in message


class OnlyTheExample(torch.nn.Module):
    def forward(self, x):
        torch._assert_async((x == 1).all(), "expected ones")
        return x * 2


class CountedRows(torch.nn.Module):
    """A module that checks what its integers mean: the numbers of rows of each part."""

    def forward(self, x, counts):
        torch._assert_async(counts.sum() == 6, "the counts do not add up")
        return x.cumsum(0) * counts.max()


class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(10, 4)

    def forward(self, ids, offsets):
        return self.bag(ids, offsets)


class Running(torch.nn.Module):
    """A module whose answer depends on how often it was called, up to the third call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls.clamp(max=3)


@pytest.mark.parametrize(
    ("module", "examples"),
    [
        (OnlyTheExample(), (torch.ones(4, 3),)),
        (CountedRows(), (torch.randn(6, 3), torch.tensor([1, 2, 3]))),
        (Bags(), (torch.tensor([9, 0, 3, 5]), torch.tensor([0, 1, 3]))),
        (torch.nn.Embedding(10, 4), (torch.tensor([[9, 0], [3, 5]]),)),
        (Running(), (torch.randn(4, 3),)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_module_that_takes_the_example_only_can_be_saved(tmp_path, module, examples):
    assert save(module, tmp_path, example_inputs=examples, dynamic_batch=False).name == "1"


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


def test_disk_without_room_for_the_weights_is_named_before_torch_ends_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(ServingError, match=r"No space left on device \(24 bytes of weights, 10 are free\)") as caught:
        save(torch.nn.Linear(2, 2), tmp_path / "m", example_inputs=(torch.zeros(2, 2),))
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert list((tmp_path / "m").iterdir()) == []
