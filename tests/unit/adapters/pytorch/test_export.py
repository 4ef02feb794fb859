from __future__ import annotations

import gc
import io
import re
import struct
import threading
import weakref
import zipfile

import numpy as np
import pytest
import torch
from torch.fx.graph_module import _loader

from tests.support.errors import refusal
from tests.support.servers.platforms import rewrite_archive
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.config.model import ModelSettings, ModelTensor
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, SymbolicDim, TensorSpec, check_inputs
from tfs_lite.core.status import ServingError, StatusCode

DYNAMIC = torch.export.Dim.DYNAMIC


@pytest.fixture
def opened(tmp_path, request_for):
    """Exports a module and opens it as a server does."""

    def open_module(module, *args, settings=None, dynamic=None, batch_rows=(1,), **kwargs):
        program = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=dynamic)
        torch.export.save(program, tmp_path / "model.pt2")
        return open_exported(request_for(tmp_path, settings, batch_rows=batch_rows))

    return open_module


def signature_of(model):
    return model.signatures[DEFAULT_SIGNATURE]


class Mixed(torch.nn.Module):
    def forward(self, input, mask, *, scale):
        return input * scale, mask.logical_not()


def test_signature_comes_from_the_program(opened):
    batch = torch.export.Dim("batch", max=64)
    model = opened(
        Mixed(),
        torch.zeros(4, 2),
        torch.zeros(4, dtype=torch.bool),
        scale=torch.zeros(4, 1, dtype=torch.bfloat16),
        dynamic={"input": {0: batch}, "mask": {0: batch}, "scale": {0: batch}},
    )
    signature = signature_of(model)
    (rows, _) = signature.inputs[0].shape
    assert rows.maximum == 64
    assert signature.inputs == (
        TensorSpec("input", DataType.FLOAT, (rows, 2)),
        TensorSpec("mask", DataType.BOOL, (rows,)),
        TensorSpec("scale", DataType.BFLOAT16, (rows, 1)),
    )
    assert signature.outputs == (
        TensorSpec("output_0", DataType.FLOAT, (rows, 2)),
        TensorSpec("output_1", DataType.BOOL, (rows,)),
    )
    assert model.platform == "pytorch_export"


class Swapped(torch.nn.Module):
    def forward(self, x, *, a, b):
        return {"difference": x + a - b}


def test_keywords_in_another_order_keep_their_names(opened):
    model = opened(Swapped(), torch.zeros(2), b=torch.zeros(2), a=torch.zeros(2))
    arrays = {"x": np.zeros(2, np.float32), "a": np.full(2, 5, np.float32), "b": np.ones(2, np.float32)}
    assert model.run("", arrays, ())["difference"].tolist() == [4, 4]


class Unbounded(torch.nn.Module):
    def forward(self, x):
        return x * 2


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_dynamic_dimension_takes_any_size_whatever_the_exporter_says(opened, rows):
    model = opened(Unbounded(), torch.zeros(4, 3), dynamic={"x": {0: DYNAMIC}})
    (dim, _) = signature_of(model).inputs[0].shape
    assert isinstance(dim, SymbolicDim)
    assert dim.maximum is None
    assert model.run(DEFAULT_SIGNATURE, {"x": np.ones((rows, 3), np.float32)}, ())["output_0"].shape == (rows, 3)


class Evil:
    def __reduce__(self):
        return (print, ("you have been had",))


@pytest.mark.parametrize("trusted", [True, False])
def test_sample_inputs_are_never_unpickled(exported, request_for, capsys, trusted):
    samples = io.BytesIO()
    torch.save(((Evil(),), {}), samples)
    rewrite_archive(
        exported / "model.pt2",
        exported / "new",
        lambda name, data: samples.getvalue() if name.startswith("data/sample_inputs") else data,
    )
    (exported / "new").replace(exported / "model.pt2")
    model = open_exported(request_for(exported, trusted=trusted))
    assert model.run("", {"x": np.ones((1, 4), np.float32)}, ("y",))["y"].tolist() == [[2, 2, 2, 2]]
    assert capsys.readouterr().out == ""


class Several(torch.nn.Module):
    def forward(self, x):
        return {"sum": x.sum(1), "double": x * 2, "bits": x.bfloat16()}


def test_outputs_are_those_asked_for(opened):
    model = opened(Several(), torch.zeros(2, 3))
    x = {"x": np.ones((2, 3), np.float32)}
    assert list(model.run("", x, ())) == ["sum", "double", "bits"]
    assert list(model.run("", x, ("double",))) == ["double"]
    refusal(model.run, "other", x, (), code=StatusCode.FAILED_PRECONDITION)


class TakesDict(torch.nn.Module):
    def forward(self, features):
        return features["a"] + features["b"]


class TakesNumber(torch.nn.Module):
    def forward(self, x, n: int):
        return x * n


class ReturnsNested(torch.nn.Module):
    def forward(self, x):
        return x, [x + 1, x + 2]


class ReturnsNumber(torch.nn.Module):
    def forward(self, x):
        return x, 3


@pytest.mark.parametrize(
    ("module", "args", "message"),
    [
        (TakesDict(), ({"a": torch.zeros(2), "b": torch.zeros(2)},), "input features is a dict of values"),
        (TakesNumber(), (torch.zeros(2), 3), "input n is the constant 3"),
        (ReturnsNested(), (torch.zeros(2),), "result output_1 is a list of values"),
        (ReturnsNumber(), (torch.zeros(2),), "result output_1 is the constant 3"),
    ],
)
def test_what_is_no_plain_tensor_is_refused_at_load(opened, module, args, message):
    assert message in refusal(opened, module, *args, code=StatusCode.FAILED_PRECONDITION)


class WritesToItsInput(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


@pytest.mark.parametrize("module", [WritesToItsInput(), Unbounded()])
def test_callers_array_is_never_written_to(opened, module):
    model = opened(module, torch.zeros(2))
    array = np.ones(2, np.float32)
    first = model.run("", {"x": array}, ())["output_0"]
    second = model.run("", {"x": array}, ())["output_0"]
    assert array.tolist() == [1, 1]
    assert first.tolist() == second.tolist()


class ReturnsItsInput(torch.nn.Module):
    def forward(self, x):
        return x


def test_result_is_never_the_callers_array(opened):
    model = opened(ReturnsItsInput(), torch.zeros(2))
    array = np.ones(2, np.float32)
    result = model.run("", {"x": array}, ())["output_0"]
    array.fill(7)
    assert result.tolist() == [1, 1]


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count, self.count


def test_state_of_a_model_lives_on_and_results_stay_as_they_were(opened):
    model = opened(Counter(), torch.zeros(1))
    x = {"x": np.zeros(1, np.float32)}
    first, second = model.run("", x, ()), model.run("", x, ())
    assert (first["output_1"].tolist(), second["output_1"].tolist()) == ([1], [2])


class Branches(torch.nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.T
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)), y.float()


class NeedsEven(torch.nn.Module):
    def forward(self, x):
        return x.reshape(2, -1)


def test_size_that_only_the_program_can_check_is_the_requests_fault(opened):
    half = torch.export.Dim("half")
    model = opened(NeedsEven(), torch.zeros(8), dynamic={"x": {0: 2 * half}})
    assert model.run("", {"x": np.zeros(6, np.float32)}, ())["output_0"].shape == (2, 3)
    assert "\n" not in refusal(model.run, "", {"x": np.zeros(7, np.float32)}, ())


def test_failure_of_the_program_itself_is_internal_and_logged_once(opened, caplog):
    model = opened(Branches(), torch.zeros(2, 2))
    for _ in range(3):
        with pytest.raises(ServingError) as caught:
            model.run("", {"x": np.zeros((2, 3, 4), np.float32)}, ())
    assert caught.value.code is StatusCode.INTERNAL
    assert [record.name for record in caplog.records if "tfs_lite" in record.name] == ["tfs_lite.adapters.loaded_model"]


def settings(kind, name, dtype):
    return ModelSettings(**{kind: (ModelTensor(name=name, data_type=dtype, dims=(3,)),)})


def test_config_may_repeat_what_the_program_says(opened):
    model = opened(Unbounded(), torch.zeros(4, 3), settings=settings("input", "x", DataType.FLOAT))
    assert signature_of(model).input_names == ("x",)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (settings("input", "y", DataType.FLOAT), 'input "y" of the config: the model has "x"'),
        (settings("input", "x", DataType.INT64), 'input "x" of the config is int64, the model\'s is float'),
        (settings("output", "y", DataType.FLOAT), 'output "y" of the config: the model has "output_0"'),
    ],
)
def test_config_must_not_contradict_the_program(opened, config, message):
    assert message in refusal(opened, Unbounded(), torch.zeros(4, 3), settings=config)


def test_branches_and_contexts_run(opened):
    model = opened(Branches(), torch.ones(2, 2))
    ones = np.ones((2, 2), np.float32)
    assert model.run("", {"x": ones}, ())["output_0"].tolist() == [[2, 2], [2, 2]]
    assert model.run("", {"x": -ones}, ())["output_0"].tolist() == [[-2, -2], [-2, -2]]


def test_memory_is_that_of_the_tensors(opened):
    class Weighted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(10, 10, bias=False)
            self.register_buffer("mask", torch.ones(5, dtype=torch.uint8), persistent=False)
            self.constant = torch.ones(3)

        def forward(self, x):
            return self.linear(x) + self.mask.sum() + self.constant.sum()

    assert opened(Weighted(), torch.zeros(2, 10)).resident_bytes() == 400 + 5 + 12


def test_several_threads_load_at_the_same_time(exported, request_for):
    answers = []

    def load():
        model = open_exported(request_for(exported))
        answers.append(model.run("", {"x": np.ones((1, 4), np.float32)}, ("y",))["y"].tolist())

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == [[[2, 2, 2, 2]]] * 4


def test_weight_that_differs_from_its_checksum_is_damage(exported, request_for):
    path = exported / "model.pt2"
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        (info,) = (info for info in archive.infolist() if info.filename.endswith("weight_0"))
    lengths = struct.unpack_from("<HH", data, info.header_offset + 26)
    data[info.header_offset + 30 + sum(lengths)] ^= 1
    path.write_bytes(data)
    assert "model.pt2 is truncated or damaged: Bad CRC-32" in refusal(
        open_exported, request_for(exported), code=StatusCode.DATA_LOSS
    )


def test_torch_keeps_nothing_of_a_version_that_was_opened(exported, request_for):
    before = set(_loader.eval_cache)
    model = open_exported(request_for(exported))
    assert model.run("", {"x": np.ones((1, 4), np.float32)}, ())
    assert set(_loader.eval_cache) == before


class TwiceNamed(torch.nn.Module):
    def forward(self, x):
        return {1: x, "1": x + 1}


def test_two_results_of_one_name_are_refused(opened):
    message = refusal(opened, TwiceNamed(), torch.zeros(2), code=StatusCode.FAILED_PRECONDITION)
    assert message == "result 1 is there twice; give each a name of its own"


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)


def addresses(model):
    return [tensor.untyped_storage().data_ptr() for tensor in model._program.weights]


def test_another_instance_has_the_same_weights_and_lives_on_alone(opened):
    first = opened(Weighted(), torch.zeros(4, 3))
    second = first.another("cpu")
    third = second.another("cpu")
    assert addresses(first) == addresses(second) == addresses(third)
    assert [model.resident_bytes() for model in (first, second, third)] == [48, 0, 0]
    assert [model.measured_bytes()["main"]["weights"] for model in (first, second, third)] == [48, 0, 0]
    x = {"x": np.ones((4, 3), np.float32)}
    expected = first.run("", x, ())["output_0"]
    first.close()
    assert [model.resident_bytes() for model in (second, third)] == [48, 0]
    np.testing.assert_array_equal(second.run("", x, ())["output_0"], expected)
    third.close()
    np.testing.assert_array_equal(second.run("", x, ())["output_0"], expected)
    second.close()


def test_the_weights_go_with_the_last_instance(opened):
    first = opened(Weighted(), torch.zeros(4, 3))
    second = first.another("cpu")
    weight = weakref.ref(first._program.weights[0])
    for model, left in ((first, True), (second, False)):
        model.close()
        gc.collect()
        assert (weight() is not None) == left


def test_a_program_that_keeps_state_has_weights_of_its_own(opened):
    assert opened(Counter(), torch.zeros(1)).another("cpu") is None


def test_weights_are_shared_on_one_device_only(opened):
    assert opened(Weighted(), torch.zeros(4, 3)).another("cuda:0") is None


class Squeezing(torch.nn.Module):
    """For one row it leaves out the rows as well."""

    def forward(self, x):
        return x.sum(1, keepdim=True).squeeze()


def test_program_that_loses_a_single_row_takes_two_and_says_so(opened, caplog):
    model = opened(Squeezing(), torch.ones(3, 2), dynamic={"x": {0: DYNAMIC}})
    assert model.run("", {"x": np.ones((2, 2), np.float32)}, ())["output_0"].tolist() == [2.0, 2.0]
    one = {"x": (DataType.FLOAT, (1, 2))}
    message = refusal(check_inputs, signature_of(model), one, code=StatusCode.INVALID_ARGUMENT)
    assert "input x has size 1 in dimension 0, at least 2 is needed" in message
    assert "takes no request of one row" in caplog.text


class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(4, 2)

    def forward(self, ids, offsets):
        return self.bag(ids, offsets)


@pytest.mark.parametrize(
    ("ids", "offsets", "words"),
    [
        ([0, 1, 2], [1, 2], r"offsets\[0\] has to be 0"),
        ([0, 1, 2], [0, 4], "can not be greater than input's length"),
        ([0, 1, 9], [0, 2], r"\b9\b|i < index_size"),  # torch has two kernels, and a text for each
    ],
)
def test_values_that_an_operator_refuses_are_the_requests_fault(opened, ids, offsets, words):
    dynamic = {"ids": {0: DYNAMIC}, "offsets": {0: DYNAMIC}}
    model = opened(Bags(), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2, 3]), dynamic=dynamic)
    answer = model.run("", {"ids": np.array([0, 1, 3]), "offsets": np.array([0, 1])}, ())["output_0"]
    assert answer.shape == (2, 2)
    sent = {"ids": np.array(ids), "offsets": np.array(offsets)}
    assert re.search(words, refusal(model.run, "", sent, (), code=StatusCode.INVALID_ARGUMENT))


class Sparse(torch.nn.Module):
    def forward(self, x):
        return x.to_sparse()


def test_sparse_results_of_a_program_are_dense(opened):
    x = np.eye(2, dtype=np.float32)
    assert opened(Sparse(), torch.from_numpy(x)).run("", {"x": x}, ())["output_0"].tolist() == x.tolist()


class ByNumber(torch.nn.Module):
    def forward(self, x):
        return {3: x, 4.5: x + 1}


def test_results_with_numbers_as_keys_have_them_as_names(opened):
    model = opened(ByNumber(), torch.zeros(2))
    assert list(model.run("", {"x": np.zeros(2, np.float32)}, ())) == ["3", "4.5"]


class TakesDict(torch.nn.Module):
    def forward(self, x):
        return x[0] + x[1]


def test_inputs_in_a_dict_with_numbers_as_keys_are_named_as_what_they_are(opened):
    """They are no reason for trust."""
    message = refusal(opened, TakesDict(), {0: torch.zeros(2), 1: torch.zeros(2)}, code=StatusCode.FAILED_PRECONDITION)
    assert "input x is a dict of values" in message


class MeanOverRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def test_program_that_merges_rows_gets_none_of_other_requests(opened, caplog):
    rows = {"x": {0: torch.export.Dim("rows")}}
    model = opened(MeanOverRows(), torch.ones(2, 3), dynamic=rows, batch_rows=(1, 8))
    assert not model.signatures[DEFAULT_SIGNATURE].conditions.complete
    assert "answers no two requests together" in caplog.text
