"""What made-up inputs show about a program before it is served."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tfs_lite.adapters.pytorch.self_check import MAX_ELEMENTS, check_itself
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec, check_inputs
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.conditions import read_conditions

ID = ServableId("m", 1)
BATCH, LENGTH = SymbolicDim("s0"), SymbolicDim("s1")
PLAIN = Signature((TensorSpec("x", DataType.FLOAT, (BATCH, 3)),), (TensorSpec("y", DataType.FLOAT, (BATCH, 3)),))


class Program:
    """Answers with what ``work`` makes of the input; notes the shapes."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.shapes = list[tuple[int, ...]]()

    def __call__(self, inputs: Any) -> dict[str, object]:
        x = torch.from_numpy(np.array(inputs["x"]))
        self.shapes.append(tuple(x.shape))
        return {"y": self.work(x)}


def takes_rows(signature: Signature, rows: int) -> bool:
    try:
        check_inputs(signature, {"x": (DataType.FLOAT, (rows, 3))})
    except Exception:
        return False
    return True


@pytest.mark.parametrize(("several", "shapes"), [(False, [(1, 3)]), (True, [(1, 3), (2, 3)])])
def test_program_that_answers_one_row_is_known_to_answer(several: bool, shapes: list[tuple[int, ...]]) -> None:
    program = Program(lambda x: x * 2)
    found = check_itself(ID, PLAIN, program, several=several, shares=False)
    assert (found.signature, found.answers) == (PLAIN, True)
    assert program.shapes == shapes


def test_operators_that_torch_does_not_know_are_tried_with_several_rows_too() -> None:
    program = Program(lambda x: x.sum(0, keepdim=True))
    assert check_itself(ID, PLAIN, program, shares=False).answers
    words = refusal(check_itself, ID, PLAIN, program, several=True, code=StatusCode.FAILED_PRECONDITION)
    assert "expected float[-1,3]" in words


def test_nothing_is_known_of_a_program_that_fails_one_row_and_is_too_large_for_two() -> None:
    rows = (TensorSpec("x", DataType.FLOAT, (BATCH, MAX_ELEMENTS)),)
    signature = Signature(rows, (TensorSpec("y", DataType.FLOAT, (BATCH, MAX_ELEMENTS)),))
    program = Program(lambda x: x[0])
    found = check_itself(ID, signature, program)
    assert (found.signature, found.answers) == (signature, False)
    assert program.shapes == [(1, MAX_ELEMENTS)]


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda x: x * 2 if len(x) > 1 else x[0], "output y as float[3], expected float[-1,3]"),
        (lambda x: x * 2 if len(x) > 1 else x.reshape(2, 3), "invalid for input of size 3"),
    ],
    ids=["another shape", "an error"],
)
def test_program_that_does_not_take_one_row_takes_two(work: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
    found = check_itself(ID, PLAIN, Program(work))
    assert found.answers
    assert [takes_rows(found.signature, rows) for rows in (1, 2, 5)] == [False, True, True]
    (line,) = [record.getMessage() for record in caplog.records]
    assert words in line


def test_conditions_of_the_program_stay() -> None:
    signature = Signature(PLAIN.inputs, PLAIN.outputs, conditions=read_conditions([("x", 0)], ["n0 <= 4"]))
    found = check_itself(ID, signature, Program(lambda x: x * 2 if len(x) > 1 else x[0]))
    assert [takes_rows(found.signature, rows) for rows in (1, 2, 4, 5)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (torch.zeros(2, 4), "expected float[-1,3]"),
        (torch.zeros(2, 3, dtype=torch.int64), "as int64"),
        (None, "output y is of type NoneType"),
    ],
)
def test_program_that_gives_something_else_than_it_declares_is_refused(result: Any, words: str) -> None:
    message = refusal(check_itself, ID, PLAIN, Program(lambda x: result), code=StatusCode.FAILED_PRECONDITION)
    assert words in message


def test_program_that_fails_on_made_up_inputs_shows_nothing() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("expected something else")

    found = check_itself(ID, PLAIN, Program(fails))
    assert (found.signature, found.answers) == (PLAIN, False)


def test_other_sizes_are_tried_until_the_program_takes_them() -> None:
    texts = TensorSpec("x", DataType.FLOAT, (BATCH, LENGTH))
    signature = Signature((texts,), (TensorSpec("y", DataType.FLOAT, (BATCH, LENGTH)),))
    program = Program(lambda x: x.unfold(1, 5, 1).sum((1, 2))[:, None] + x)
    assert check_itself(ID, signature, program).answers
    assert program.shapes == [(1, 2), (2, 2), (1, 8), (3, 8)]


def test_program_without_a_batch_runs_once_and_large_inputs_are_not_made() -> None:
    for size, shapes in ((4, [(4, 3)]), (MAX_ELEMENTS, [])):
        fixed = Signature((TensorSpec("x", DataType.FLOAT, (size, 3)),), (TensorSpec("y", DataType.FLOAT, (size, 3)),))
        program = Program(lambda x: x)
        assert check_itself(ID, fixed, program).answers == bool(shapes)
        assert program.shapes == shapes


def test_program_whose_rows_depend_on_each_other_runs_alone(caplog: pytest.LogCaptureFixture) -> None:
    found = check_itself(ID, PLAIN, Program(lambda x: x - x.mean(0)))
    assert found.answers
    assert found.signature.conditions is not None
    assert not found.signature.conditions.complete
    (line,) = [record.getMessage() for record in caplog.records]
    assert "output y for a row depends on the rows beside it" in line


def test_only_a_trace_is_asked_whether_it_kept_the_rows_of_its_example() -> None:
    def keeps(x: torch.Tensor) -> torch.Tensor:
        return x.view(1, 3)

    assert check_itself(ID, PLAIN, Program(keeps)).signature == PLAIN
    found = check_itself(ID, PLAIN, Program(keeps), traced=True)
    assert [takes_rows(found.signature, rows) for rows in (1, 2)] == [True, False]


def test_outputs_that_say_in_their_shape_how_many_rows_there_are_need_no_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    signature = Signature(PLAIN.inputs, (TensorSpec("y", DataType.FLOAT, (BATCH, BATCH)),))
    assert check_itself(ID, signature, Program(lambda x: x @ x.T)).signature == signature
    assert not caplog.records
