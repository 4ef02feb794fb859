"""Results of every shape that models in Python have, as tensors by name."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from tests.support.errors import refusal
from tfs_lite.adapters.saving.outputs import by_flat_name
from tfs_lite.core.status import StatusCode

ONE, TWO = torch.zeros(2, 3), torch.ones(2)
Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Answer:
    scores: torch.Tensor
    extra: object = None


def _named(result):
    return by_flat_name(torch.nn.Identity(), (), result)


@pytest.mark.parametrize("result", [ONE, (ONE, TWO), [ONE]])
def test_a_tensor_and_a_row_of_tensors_stay_what_they_are(result):
    assert _named(result) is result


@pytest.mark.parametrize(
    ("result", "names"),
    [
        ({"a": ONE, "b": None}, ["a"]),
        (OrderedDict(z=ONE, a=TWO), ["z", "a"]),
        (Pair(ONE, TWO), ["left", "right"]),
        (Answer(ONE), ["scores"]),
        (Answer(ONE, {"mean": TWO, "none": None}), ["scores", "extra.mean"]),
        ({"states": (ONE, TWO), 7: ONE}, ["states.0", "states.1", "7"]),
        ((ONE, None, TWO), ["output_0", "output_2"]),
        ((ONE, Pair(ONE, TWO)), ["output_0", "output_1.left", "output_1.right"]),
        ({"deep": {"deeper": {3: ONE, 4.5: (TWO,)}}}, ["deep.deeper.3", "deep.deeper.4.5.0"]),
    ],
)
def test_everything_else_becomes_tensors_by_name(result, names):
    named = _named(result)
    assert list(named) == names
    assert all(isinstance(value, torch.Tensor) for value in named.values())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((ONE, "done"), "its output output_1 is a str, and only tensors can be served"),
        ({"count": 3}, "its output count is a number, and only tensors can be served. Return torch.full((), value)"),
        ({"a": {"b": ONE}, "a.b": TWO}, "returns two tensors called a.b"),
        ({1: ONE, "1": TWO}, "a dict returns two values called 1"),
        ((ONE, {"deep": {1: ONE, "1": TWO}}), "a dict returns two values called 1"),
        ("done", "its output output_0 is a str"),
        (None, "returns no tensor"),
        ((), "returns no tensor"),
    ],
)
def test_what_cannot_be_served_is_named(result, message):
    assert message in refusal(_named, result, code=StatusCode.FAILED_PRECONDITION)
