"""Modules that cannot be exported: one paragraph each, which says where it is and what to write instead."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

from tests.support.errors import refusal
from tfs_lite import save
from tfs_lite.core.status import StatusCode

ROWS = torch.ones(4, 3)


class Decides(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x


class Halves(torch.nn.Module):
    def forward(self, x):
        while x.abs().max() > 1:
            x = x / 2
        return x


class AnswersText(torch.nn.Module):
    def forward(self, x):
        return {"scores": x, "comment": "fine"}


class AnswersSize(torch.nn.Module):
    def forward(self, x):
        return {"scores": x, "rows": x.shape[0]}


class OneTensorARow(torch.nn.Module):
    def forward(self, x):
        return list(x)


class FixedRows(torch.nn.Module):
    def forward(self, x):
        return x.reshape(4, 3) * 2


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Draws(torch.nn.Module):
    def forward(self, x):
        return x + random.random()


class Scales(torch.nn.Module):
    def forward(self, x):
        return x * random.random()


class Remembers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return x + self.seen[0]


class UsesNumpy(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.sort(x.numpy()))


class Adds(torch.nn.Module):
    def forward(self, a, b):
        return a + b


class Eights(torch.nn.Module):
    def forward(self, x):
        return x.reshape(x.shape[0], -1, 8).sum(-1)


class OneRow(torch.nn.Module):
    def forward(self, x):
        return x.reshape(3) * 2


TWO_SIZES = {"dynamic_dims": {"a": {1: "length"}, "b": {1: "width"}}}


@pytest.mark.parametrize(
    ("module", "examples", "options", "expected"),
    [
        (
            Decides(),
            (ROWS,),
            {},
            ["test_refusals.py (`if x.sum() > 0:`)", "values in a tensor", "torch.where(condition"],
        ),
        (Halves(), (ROWS,), {}, ["(`while x.abs().max() > 1:`)", "torch.where(condition"]),
        (AnswersText(), (ROWS,), {}, ["its output comment is a str", "leave everything else out"]),
        (AnswersSize(), (ROWS,), {}, ["its output rows is a number", "torch.full((), value)"]),
        (
            OneTensorARow(),
            (ROWS,),
            {},
            ['dimension 0 of x ("batch")', "a list of as many tensors", "dynamic_batch=False"],
        ),
        (FixedRows(), (ROWS,), {}, ['dimension 0 of x ("batch")', "one number of rows", "reshape(x.shape[0], -1)"]),
        (Counts(), (ROWS,), {}, ["differently from call to call (output output_0)", "self.register_buffer"]),
        (Draws(), (ROWS,), {}, ["differently from call to call", "draw random numbers with torch"]),
        (Scales(), (torch.zeros(4, 3),), {}, ["differently from call to call", "draw random numbers with torch"]),
        (Remembers(), (ROWS,), {}, ["answers other values differently: output_0", "a list on self"]),
        (UsesNumpy(), (ROWS,), {}, ["`return torch.from_numpy(np.sort(x.numpy()))`", "leaves torch for NumPy"]),
        (
            Adds(),
            (ROWS, ROWS),
            TWO_SIZES,
            ["dimension 1 of b", "dimension 1 of a", '"length" for both in dynamic_dims'],
        ),
        (
            Eights(),
            (torch.ones(4, 16),),
            {"dynamic_dims": {"x": {1: "length"}}},
            ['dimension 1 of x ("length")', 'write 8*torch.export.Dim("_length") in place of "length"'],
        ),
        (Adds(), (ROWS,), {}, ["example inputs (a float32[4, 3])", "missing 1 required positional argument: 'b'"]),
        (Adds(), (ROWS, ROWS, ROWS), {}, ["takes 3 positional arguments but 4 were given"]),
        (Adds(), {"a": ROWS, "c": ROWS}, {}, ["unexpected keyword argument 'c'", "change example_inputs"]),
        (OneRow(), (ROWS[:1],), {}, ["takes the one row of the example, but not two", "dynamic_batch=False"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_the_paragraph_says_where_it_is_and_what_to_write(tmp_path, capfd, module, examples, options, expected):
    random.seed(0)  # two draws that are nearly the same would hide that they are draws
    message = refusal(save, module, tmp_path, example_inputs=examples, code=StatusCode.FAILED_PRECONDITION, **options)
    assert type(module).__name__ in message
    assert [part for part in expected if part not in message] == []
    assert "\n" not in message
    assert len(message) < 900
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_the_remedies_of_two_paragraphs_work(tmp_path):
    dims = {"x": {1: 8 * Dim("_length")}}
    assert save(Eights(), tmp_path, example_inputs=(torch.ones(4, 16),), dynamic_dims=dims).name == "1"
    same = {"a": {1: "length"}, "b": {1: "length"}}
    assert save(Adds(), tmp_path, example_inputs=(ROWS, ROWS), dynamic_dims=same).name == "2"


class KeepsItsAttention(torch.nn.Module):
    def forward(self, x):
        self.attention = x.softmax(-1)
        return self.attention * 2


def test_what_is_kept_on_the_side_and_changes_nothing_is_no_reason(tmp_path):
    assert save(KeepsItsAttention(), tmp_path, example_inputs=(ROWS,)).name == "1"


def test_two_draws_that_happen_to_be_the_same_are_draws_all_the_same(tmp_path, monkeypatch):
    """The example is answered twice alike, the other values are not."""
    drawn = iter([0.5, 0.25, 0.5, 0.75])
    monkeypatch.setattr(random, "random", lambda: 0.125 if torch.compiler.is_exporting() else next(drawn))
    message = refusal(save, Draws(), tmp_path, example_inputs=(ROWS,), code=StatusCode.FAILED_PRECONDITION)
    assert "differently from call to call" in message


class Squeezes(torch.nn.Module):
    def forward(self, x):
        return x.sum(1, keepdim=True).squeeze()


class TakesAnotherWayForOneRow(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x * 3


class NeedsTwoRows(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.batch_norm(x, None, None, training=True)


class TakesAnotherWayForLongTexts(torch.nn.Module):
    def forward(self, x, ids):
        long = not torch.compiler.is_exporting() and ids.shape[1] > 5
        return x[:, :1] * ids.sum(1, keepdim=True) * (2 if long else 1)


class LeavesTheDevice(torch.nn.Module):
    def forward(self, x):
        return x.to("meta")


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            Squeezes(),
            "for one row its output output_0 has the shape [], for others [-1]. The reason is mostly squeeze()",
        ),
        (
            TakesAnotherWayForOneRow(),
            "answers one row differently: output_0. Usual reasons are Python code that decides",
        ),
        (NeedsTwoRows(), "for one row, the module itself fails: Expected more than 1 value per channel"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_module_that_does_not_take_one_row_like_several_says_what_to_write(tmp_path, module, message, rows):
    """The example says nothing about it: one row of it is two in the export."""
    told = refusal(save, module, tmp_path, example_inputs=(ROWS[:rows],), code=StatusCode.FAILED_PRECONDITION)
    assert message in told
    assert "dynamic_batch=False" in told
    assert list(tmp_path.iterdir()) == []
    save(Squeezes(), tmp_path, example_inputs=(ROWS,), dynamic_batch=False)


def test_other_sizes_than_the_examples_are_asked_for_too(tmp_path):
    examples = {"x": ROWS, "ids": torch.ones(4, 5, dtype=torch.int64)}
    message = refusal(
        save,
        *(TakesAnotherWayForLongTexts(), tmp_path),
        example_inputs=examples,
        dynamic_dims={"ids": {1: "length"}},
        code=StatusCode.FAILED_PRECONDITION,
    )
    assert 'answers size 6 of "length" differently: output_0' in message


def test_every_error_of_a_save_is_a_refusal(tmp_path):
    message = refusal(save, LeavesTheDevice(), tmp_path, example_inputs=(ROWS,), code=StatusCode.FAILED_PRECONDITION)
    assert message.startswith("LeavesTheDevice cannot be saved: NotImplementedError: ")
    message = refusal(save, LeavesTheDevice(), tmp_path, example_inputs={0: ROWS}, code=StatusCode.INVALID_ARGUMENT)
    assert message == "example input 0: inputs have names that Python can write, such as x"


@pytest.mark.parametrize("base", ["s3://models/ranker", "hf://org/name", "http://x/y?sig=secret", Path("s3://m/x")])
def test_a_url_is_refused_with_the_command_that_publishes_there(tmp_path, monkeypatch, base):
    monkeypatch.chdir(tmp_path)
    message = refusal(save, torch.nn.Linear(3, 3), base, example_inputs=(ROWS,))
    assert message.endswith("then publish it: tfs-lite publish DIRECTORY/VERSION --base URL")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
def test_quantised_modules_and_sparse_tensors_are_named_as_what_they_are(tmp_path):
    float_module = torch.nn.Sequential(torch.nn.Linear(3, 3))
    quantised = torch.ao.quantization.quantize_dynamic(float_module, {torch.nn.Linear})
    message = refusal(save, quantised, tmp_path, example_inputs=(ROWS,), code=StatusCode.FAILED_PRECONDITION)
    assert "its layers are quantised with torch.ao.quantization" in message
    assert "torch.jit.script" in message
    message = refusal(save, MakesSparse(), tmp_path, example_inputs=(ROWS,), code=StatusCode.FAILED_PRECONDITION)
    assert "(`return x.to_sparse()`) a program does not make or keep sparse tensors" in message


class MakesSparse(torch.nn.Module):
    def forward(self, x):
        return x.to_sparse()


class Sparse(torch.nn.Module):
    """Exchanges a layer when it is called with few columns, as BigBird does."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.ReLU()

    def forward(self, x):
        if x.shape[1] < 10:
            self.inner = torch.nn.GELU()
        return self.inner(x)


def test_a_module_that_chooses_its_layers_by_the_example_is_refused(tmp_path):
    said = refusal(save, Sparse(), tmp_path, example_inputs=(ROWS,), code=StatusCode.FAILED_PRECONDITION)
    assert "exchanges inner (ReLU becomes GELU)" in said
    assert save(Sparse(), tmp_path, example_inputs=(torch.ones(4, 12),)).name == "1"


def test_a_mixture_of_experts_is_told_which_of_its_ways_needs_no_trust(tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra `generate` is not installed")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, **heads}
    config = transformers.MixtralConfig(**small, num_local_experts=2, vocab_size=30, use_cache=False)
    module, ids = transformers.MixtralForCausalLM(config).eval(), torch.randint(0, 30, (1, 6))
    said = refusal(save, module, tmp_path, example_inputs={"input_ids": ids}, code=StatusCode.FAILED_PRECONDITION)
    assert 'model.set_experts_implementation("batched_mm")' in said
    assert "trusted" not in said
    module.set_experts_implementation("batched_mm")
    assert save(module, tmp_path, example_inputs={"input_ids": ids}).name == "1"
