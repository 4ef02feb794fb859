import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tests.support.servers.platforms import write_script
from tfs_lite.adapters.pytorch.libtorch import open_script
from tfs_lite.config.model import ModelSettings, ModelTensor
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, TensorSpec, check_inputs
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings

ROW = np.arange(3, dtype=np.float32).reshape(1, 3)


@pytest.fixture
def opened(tmp_path, request_for):
    """Writes a module as TorchScript and opens it as a server does."""

    def open_module(module, settings=None):
        return open_script(request_for(write_script(tmp_path, module), settings, batch_rows=(1, 8)))

    return open_module


def signature_of(model):
    return model.signatures[DEFAULT_SIGNATURE]


def tensor(name, dtype=DataType.FLOAT, dims=(-1, 3)):
    return ModelTensor(name=name, data_type=dtype, dims=dims)


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.linear(features)


def test_names_come_from_the_script_and_the_rest_is_undeclared(opened):
    model = opened(Linear())
    assert signature_of(model).inputs == (TensorSpec("features"),)
    assert signature_of(model).outputs == (TensorSpec("output_0"),)
    assert model.run("", {"features": ROW}, ())["output_0"].shape == (1, 2)
    assert model.platform == "pytorch_libtorch"
    assert model.resident_bytes() == 4 * (6 + 2)


def test_script_runs_again_after_it_was_profiled(opened):
    model = opened(Linear())
    results = [model.run("", {"features": ROW}, ())["output_0"].tolist() for _ in range(5)]
    assert results == [results[0]] * 5


def test_loading_says_once_that_torchscript_is_deprecated(opened, caplog):
    opened(Linear())
    (record,) = [record for record in caplog.records if record.name.startswith("tfs_lite")]
    assert "deprecated" in record.message


def test_config_declares_types_and_shapes(opened):
    model = opened(Linear(), ModelSettings(max_batch_size=4, input=(tensor("features", dims=(3,)),)))
    (spec,) = signature_of(model).inputs
    assert (spec.dtype, spec.shape[0].maximum, spec.shape[1]) == (DataType.FLOAT, 4, 3)


def test_positions_in_names_of_the_config_are_positions(opened):
    config = ModelSettings(input=(tensor("INPUT__0"),), output=(tensor("OUTPUT__0", dims=(-1, 2)),))
    model = opened(Linear(), config)
    assert model.run("", {"INPUT__0": ROW}, ())["OUTPUT__0"].shape == (1, 2)


class Weighted(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left - 2 * right


def test_names_of_the_config_that_the_script_does_not_know_stand_in_its_order(opened):
    model = opened(Weighted(), ModelSettings(input=(tensor("INPUT0"), tensor("INPUT1"))))
    answer = model.run("", {"INPUT1": ROW, "INPUT0": 3 * ROW}, ())
    np.testing.assert_allclose(next(iter(answer.values())), ROW)


@pytest.mark.parametrize("names", [("left", "INPUT1"), ("INPUT__0", "INPUT1"), ("INPUT0",)])
def test_names_of_the_config_of_which_some_are_known_are_not_guessed(opened, names):
    settings = ModelSettings(input=tuple(tensor(name) for name in names))
    assert "of the config: the script takes left, right" in refusal(opened, Weighted(), settings)


class Texts(torch.nn.Module):
    def forward(self, names: list[str], x: torch.Tensor) -> torch.Tensor:
        return x * sum([len(name) for name in names])


def test_texts_go_to_lists_of_strings(opened):
    model = opened(Texts())
    assert signature_of(model).inputs == (TensorSpec("names", DataType.STRING), TensorSpec("x"))
    names = np.array([b"abc", b"d"], dtype=object)
    assert model.run("", {"names": names, "x": np.ones(1)}, ())["output_0"].tolist() == [4]


@pytest.mark.parametrize("names", [np.array([[b"a"]], dtype=object), np.array([b"\xff"], dtype=object)])
def test_texts_that_a_script_cannot_take_are_refused(opened, names):
    assert "input names" in refusal(opened(Texts()).run, "", {"names": names, "x": np.ones(1)}, ())


@pytest.mark.parametrize(
    ("dims", "rows", "shape"),
    [((1,), 8, "[-1,1]"), ((-1, 2), 0, "[-1,2]"), ((), 0, "[]")],
    ids=["a list for each row", "lists", "one text"],
)
def test_texts_in_a_shape_that_no_script_can_take_are_refused_at_load(opened, dims, rows, shape):
    inputs = (tensor("names", DataType.STRING, dims=dims), tensor("x"))
    message = refusal(opened, Texts(), ModelSettings(input=inputs, max_batch_size=rows))
    assert message.startswith(f"input names of the config has the shape {shape} for the script")


def test_texts_of_rows_may_be_a_list(opened):
    inputs = (tensor("names", DataType.STRING, dims=()), tensor("x", dims=()))
    model = opened(Texts(), ModelSettings(input=inputs, max_batch_size=8))
    names = np.array([b"abc", b"d"], dtype=object)
    assert model.run("", {"names": names, "x": np.ones(2, np.float32)}, ())["output_0"].tolist() == [4, 4]


class Answer(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(x, x + 1)


class Tupled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x + 1


class Listed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x, x + 1]


class Recurrent(torch.nn.Module):
    """Its state is two tensors of one shape, which are two results."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        return x, (x + 1, x + 2)


class Layered(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return x, [x, x + 1]


class ByNumber(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[int, torch.Tensor]:
        return {3: x, 7: x + 1}


class Sometimes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return x, None


class Words(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[str]:
        return ["a", "b"]


class Keyed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"left": x, "right": x + 1}


@pytest.mark.parametrize(
    ("module", "declared", "returned"),
    [
        (Named(), (), ["left", "right"]),
        (Tupled(), ("output_0", "output_1"), ["output_0", "output_1"]),
        (Listed(), (), ["output_0", "output_1"]),
        (Keyed(), (), ["left", "right"]),
        (Recurrent(), ("output_0", "output_1.0", "output_1.1"), ["output_0", "output_1.0", "output_1.1"]),
        (Layered(), (), ["output_0", "output_1.0", "output_1.1"]),
        (ByNumber(), (), ["3", "7"]),
        (Sometimes(), (), ["output_0"]),
        (Words(), ("output_0",), ["output_0"]),
    ],
)
def test_outputs_are_declared_as_far_as_the_type_tells(opened, module, declared, returned):
    model = opened(module)
    assert signature_of(model).output_names == declared
    answer = model.run("", {"x": ROW}, ())
    assert list(answer) == returned
    assert all(array.shape in (ROW.shape, (2,)) for array in answer.values())


def test_output_of_the_config_that_is_not_returned_is_the_models_fault(opened):
    model = opened(Keyed(), ModelSettings(input=(tensor("x"),), output=(tensor("middle"),)))
    assert "did not return output middle; it returned: left, right" in refusal(
        model.run, "", {"x": ROW}, (), code=StatusCode.INTERNAL
    )


class Optional(torch.nn.Module):
    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None, scale: int = 2) -> torch.Tensor:
        return x * scale if bias is None else x * scale + bias


def test_parameters_with_defaults_are_inputs_only_if_the_config_says_so(opened):
    assert signature_of(opened(Optional())).input_names == ("x",)
    model = opened(Optional(), ModelSettings(input=(tensor("x"), tensor("bias"))))
    assert model.run("", {"x": ROW, "bias": ROW}, ())["output_0"].tolist() == [[0, 3, 6]]


class TakesNumber(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n


def test_parameter_that_no_request_can_carry_is_refused_at_load(opened):
    assert "input n of the script is of type int" in refusal(opened, TakesNumber(), code=StatusCode.FAILED_PRECONDITION)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([tensor("nonsense")], "input nonsense of the config: the script takes names, x"),
        ([tensor("x")], "feed x; the script takes names, x"),
        ([tensor("INPUT__7")], "input INPUT__7 of the config"),
        ([tensor("names"), tensor("x")], "input names of the config is float, the script takes texts"),
        ([tensor("names", DataType.STRING), tensor("INPUT__1", DataType.STRING)], "the script takes a tensor"),
        ([tensor("x"), tensor("X__1"), tensor("names", DataType.STRING)], "feed x, x, names"),
    ],
)
def test_config_must_fit_the_script(opened, inputs, message):
    assert message in refusal(opened, Texts(), ModelSettings(input=tuple(inputs)))


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (None, StatusCode.INVALID_ARGUMENT),
        (ModelSettings(input=(tensor("features", dims=(-1, -1)),)), StatusCode.INTERNAL),
    ],
)
def test_shape_that_does_not_fit_is_the_requests_fault_if_nothing_was_declared(opened, settings, code):
    message = refusal(opened(Linear(), settings).run, "", {"features": np.zeros((1, 5), np.float32)}, (), code=code)
    assert "mat1 and mat2 shapes cannot be multiplied" in message
    assert "File" not in message


class WritesToItsInput(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


def test_callers_array_is_never_written_to(opened):
    array = np.ones(2, np.float32)
    assert opened(WritesToItsInput()).run("", {"x": array}, ())["output_0"].tolist() == [2, 2]
    assert array.tolist() == [1, 1]


class BurntRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(int(x.shape[0]), 3) * 2


class Unrolled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[row] * 2 for row in range(int(x.shape[0]))])


class MeanOverRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class NormInTraining(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)


class MeanOfTokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.table(x).mean(1)
        return found - found.mean(0)


def traced(directory, module, rows, example=None):
    """The directory of a version that ``torch.jit.trace`` made from so many rows."""
    directory.mkdir(parents=True, exist_ok=True)
    example = torch.rand(rows, 3) if example is None else example
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(module, example, check_trace=False), directory / "model.pt")
    return directory


def rows_of(dtype=DataType.FLOAT):
    """The config of a model that takes up to 8 rows, and batches."""
    return ModelSettings(
        max_batch_size=8, input=(tensor("x", dtype, dims=(3,)),), output=(tensor("output_0", dims=(3,)),)
    )


def taken(model):
    return [rows for rows in range(1, 6) if _takes(model, rows)]


def _takes(model, rows):
    try:
        check_inputs(signature_of(model), {"x": (DataType.FLOAT, (rows, 3))})
    except ServingError:
        return False
    return True


def shares_runs(model):
    return BatchRule.of(signature_of(model), BatchSettings(max_batch_size=8)) is not None


@pytest.mark.parametrize("module", [BurntRows(), Unrolled()], ids=["a view", "a loop"])
@pytest.mark.parametrize("rows", [1, 2])
def test_trace_that_kept_the_rows_of_its_example_takes_so_many(tmp_path, request_for, caplog, module, rows):
    model = open_script(request_for(traced(tmp_path, module, rows), rows_of()))
    assert taken(model) == [rows]
    assert f"takes no request of more than {rows} rows" in caplog.text
    assert "condition" not in refusal(model.run, "", {"x": np.zeros((3, 3), np.float32)}, ())
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    assert np.array_equal(model.run("", {"x": x}, ())["output_0"], 2 * x)


@pytest.mark.parametrize(
    ("module", "dtype", "example"),
    [
        (MeanOverRows(), DataType.FLOAT, None),
        (NormInTraining(), DataType.FLOAT, None),
        (MeanOfTokens(), DataType.INT64, torch.ones(2, 3, dtype=torch.int64)),
    ],
    ids=["a mean", "a batch norm in training", "tokens"],
)
def test_script_that_merges_rows_gets_none_of_other_requests(tmp_path, request_for, caplog, module, dtype, example):
    model = open_script(request_for(traced(tmp_path, module, 2, example), rows_of(dtype), batch_rows=(1, 8)))
    assert not shares_runs(model)
    x = np.ones((4, 3), np.float32 if dtype is DataType.FLOAT else np.int64)
    assert model.run("", {"x": x}, ())["output_0"].shape == (4, 3)
    assert "answers no two requests together" in caplog.text


def test_check_at_the_load_leaves_no_traces_in_a_script(tmp_path, request_for):
    directory = traced(tmp_path, NormInTraining(), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch.jit.load(directory / "model.pt").state_dict()
    model = open_script(request_for(directory, rows_of()))
    assert all(torch.equal(value, before[name]) for name, value in model._module.state_dict().items())


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Remembers(torch.nn.Module):
    seen: list[torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        return x + len(self.seen)


@pytest.mark.parametrize("module", [Counts(), Remembers()])
def test_script_that_counts_is_not_run_at_the_load(opened, module):
    model = opened(module, rows_of())
    assert model.run("", {"x": ROW}, ())["output_0"].tolist() == (ROW + 1).tolist()


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 256), torch.nn.ReLU(), torch.nn.Linear(256, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize("module", [Plain(), Noisy()], ids=["layers", "random numbers"])
def test_script_whose_rows_do_not_know_of_each_other_shares_runs(opened, caplog, module):
    model = opened(module, rows_of())
    assert shares_runs(model)
    assert taken(model) == [1, 2, 3, 4, 5]
    assert len(caplog.records) == 1


def test_layers_that_are_quantised_as_they_run_share_runs(tmp_path, request_for, caplog):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(Plain().eval(), {torch.nn.Linear}, dtype=torch.qint8)
    model = open_script(request_for(traced(tmp_path, module, 2), rows_of(), batch_rows=(1, 8)))
    assert shares_runs(model), caplog.text
