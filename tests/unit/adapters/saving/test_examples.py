"""Examples by position and by name, with dimensions of any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.export import Dim

from tests.support.errors import refusal
from tfs_lite import save
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.core.signature import DEFAULT_SIGNATURE, SymbolicDim
from tfs_lite.core.status import StatusCode


class Weighted(torch.nn.Module):
    def forward(self, ids, mask=None, kinds=None, weight=None):
        out = ids * 2.0
        for more in (mask, kinds, weight):
            out = out if more is None else out + more
        return out


IDS = torch.arange(12).reshape(2, 6)


@pytest.fixture
def saved(tmp_path, request_for):
    def save_and_load(module, examples, **options):
        return open_exported(request_for(save(module, tmp_path, example_inputs=examples, **options)))

    return save_and_load


@pytest.mark.parametrize(
    ("examples", "names"),
    [
        ({"ids": IDS, "mask": None, "kinds": None}, ("ids",)),
        ({"mask": IDS, "ids": IDS, "kinds": None}, ("mask", "ids")),
        ((IDS, None), ("ids",)),
        ((IDS, None, None, IDS * 0.5), ("ids", "weight")),
    ],
)
def test_inputs_that_are_none_are_left_out(saved, examples, names):
    assert saved(Weighted(), examples).signatures[DEFAULT_SIGNATURE].input_names == names


def test_dimensions_of_one_name_have_one_size_and_that_size_is_any(saved):
    dims = {"ids": {1: "length"}, "mask": {1: "length"}}
    model = saved(Weighted(), {"ids": IDS, "mask": IDS}, dynamic_dims=dims)
    first, second = model.signatures[DEFAULT_SIGNATURE].inputs
    assert first.shape == second.shape
    assert len(set(first.shape)) == 2
    assert all(isinstance(dim, SymbolicDim) for dim in first.shape)
    longer = np.ones((3, 11), np.int64)
    answer = model.run(DEFAULT_SIGNATURE, {"ids": longer, "mask": longer}, ())
    assert answer["output_0"].tolist() == (longer * 3.0).tolist()


def test_the_batch_may_be_named_or_another_dimension_0(saved):
    class Sums(torch.nn.Module):
        def forward(self, rows, table):
            return rows + table.sum(0)

    model = saved(Sums(), (torch.zeros(1, 3), torch.zeros(5, 3)), dynamic_dims={"table": {0: "lines"}})
    rows, table = model.signatures[DEFAULT_SIGNATURE].inputs
    assert rows.shape[0] != table.shape[0]
    answer = model.run(DEFAULT_SIGNATURE, {"rows": np.zeros((4, 3), "f"), "table": np.ones((7, 3), "f")}, ())
    assert answer["output_0"].tolist() == [[7.0] * 3] * 4


class Positions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(20.0))

    def forward(self, ids):
        return ids + self.table[: ids.shape[1]]


@pytest.mark.parametrize(("dim", "maximum"), [("length", 20), (Dim("length", max=9), 9)])
def test_bounds_are_the_authors_or_else_the_modules_own(saved, dim, maximum):
    model = saved(Positions(), (IDS,), dynamic_dims={"ids": {1: dim}})
    assert model.signatures[DEFAULT_SIGNATURE].inputs[0].shape[1].maximum == maximum


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"id": {1: "length"}}, 'dynamic_dims: there is no example input "id", only ids, mask'),
        ({"ids": {2: "length"}}, 'dynamic_dims["ids"]: the example has 2 dimensions, there is no dimension 2'),
        ({"ids": {1: "my length"}}, 'dynamic_dims["ids"][1] is "my length", expected a name such as "length"'),
        ({"mask": {1: "length"}}, 'dynamic_dims["mask"][1]: the example has size 1 there'),
        ({"ids": {0: "length", 1: "length"}}, '"length" is 2 in ids and 6 in ids'),
        ({"ids": {1: "batch"}}, '"batch" is 6 in ids and 2 in '),
    ],
)
def test_dimensions_that_do_not_fit_are_refused(tmp_path, dims, message):
    examples = {"ids": IDS, "mask": IDS[:, :1]}
    assert message in refusal(save, Weighted(), tmp_path, example_inputs=examples, dynamic_dims=dims)


def test_dims_and_shapes_are_not_given_together(tmp_path):
    options = {"dynamic_dims": {"ids": {1: "length"}}, "dynamic_shapes": ({},)}
    assert "give one" in refusal(save, Weighted(), tmp_path, example_inputs=(IDS,), **options)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ("length", "dynamic_dims is a str, expected such as"),
        ({"ids": "length"}, 'dynamic_dims["ids"] is a str, expected such as'),
        ({"ids": [1]}, 'dynamic_dims["ids"] is a list, expected such as'),
        ({"ids": {1: 7}}, 'dynamic_dims["ids"][1] is a int, expected a name'),
        ({"ids": {0: None}}, 'dynamic_dims["ids"][0] is a NoneType, expected a name'),
        ({"ids": {1: Dim.AUTO}}, 'dynamic_dims["ids"][1] is a _DimHint, expected a name'),
    ],
)
def test_dynamic_dims_of_another_form_are_refused_with_their_place(tmp_path, dims, message):
    assert message in refusal(save, Weighted(), tmp_path, example_inputs=(IDS,), dynamic_dims=dims)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.eye(3).to_sparse(), "example input ids is torch.sparse_coo, expected a dense tensor"),
        (torch.eye(3, device="meta"), "example input ids has no values (device meta)"),
    ],
)
def test_examples_without_dense_values_are_refused(tmp_path, example, message):
    assert message in refusal(save, Weighted(), tmp_path, example_inputs=(example,))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_no_module_of_python_is_refused(tmp_path):
    message = refusal(save, lambda x: x, tmp_path, example_inputs=(IDS,))
    assert message == "the module is a function, expected a torch.nn.Module"
    scripted = torch.jit.script(torch.nn.Linear(4, 3))
    assert "the module is TorchScript" in refusal(save, scripted, tmp_path, example_inputs=(IDS,))


def test_a_module_without_weights_is_refused_by_the_name_of_one(tmp_path):
    module = torch.nn.Linear(4, 3, device="meta")
    message = refusal(save, module, tmp_path, example_inputs=(torch.ones(2, 4),), code=StatusCode.FAILED_PRECONDITION)
    assert message == "Linear cannot be exported: weight has no values (device meta); load its weights first"


def test_instructions_without_a_compilation_are_refused(tmp_path):
    assert "isa" in refusal(save, Weighted(), tmp_path, example_inputs=(IDS,), isa="avx2")
