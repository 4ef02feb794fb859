"""Which V2 requests fit a model, and what is said of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, ShapeContract, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.runs import Run
from tfs_lite.protocols.v2.checks import check_one_text, run_of
from tfs_lite.protocols.v2.request import InferRequest, SentTensor, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import RawTensor

BATCH = SymbolicDim("batch")
OUTPUTS = (TensorSpec("Y", DataType.FLOAT, (BATCH, 2)), TensorSpec("Z", DataType.FLOAT, (BATCH,)))
TWO = Signature(
    (TensorSpec("A", DataType.FLOAT, (BATCH, 2)), TensorSpec("B", DataType.STRING, (BATCH, SymbolicDim("n")))), OUTPUTS
)
OPTIONAL = Signature(TWO.inputs, OUTPUTS, defaults={"B": np.array([b"x"], object)})


def a(*shape: int, datatype: str = "FP32", size: int | None = None) -> RawTensor:
    shape = shape or (1, 2)
    return RawTensor("A", datatype, shape, data=b"\0" * (4 * int(np.prod(shape)) if size is None else size))


def b(*shape: int) -> RawTensor:
    shape = shape or (1, 1)
    return RawTensor("B", "BYTES", shape, data=b"\0\0\0\0" * int(np.prod(shape)))


def other(name: str) -> RawTensor:
    return RawTensor(name, "FP32", (1,), data=b"1234")


def run(
    *inputs: SentTensor, outputs: Any = (), signature: Signature = TWO, batch: int | None = 4, read: Any = None
) -> Run:
    request = InferRequest("m", inputs=list(inputs), outputs=[WantedOutput(name) for name in outputs])
    return run_of(request, {DEFAULT_SIGNATURE: signature}, "m", batch, read)


def test_a_request_that_fits_is_run() -> None:
    made = run(a(3, 2), b(3, 0), outputs=["Z"])
    assert made.signature == DEFAULT_SIGNATURE
    assert {name: array.shape for name, array in made.inputs.items()} == {"A": (3, 2), "B": (3, 0)}
    assert made.outputs == ("Z",)


def test_inputs_with_defaults_may_be_left_out() -> None:
    assert list(run(a(), signature=OPTIONAL).inputs) == ["A"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((a(), a()), "input 'A' already exists in request"),
        (
            (a(),),
            "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required input(s) ['B']"
            ". Please provide all required input(s).",
        ),
        ((a(), b(), other("C")), "expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['A','B','C']."),
        ((a(), other("C")), "unexpected inference input 'C' for model 'm'"),
        ((a(), RawTensor("B", "BYTES", ())), "input 'B' has no shape but model requires batch dimension for 'm'"),
        ((a(2, 2), b(1, 1)), "input 'B' batch size does not match other inputs for 'm'"),
        ((a(5, 2), b(5, 1)), "inference request batch-size must be <= 4 for 'm'"),
        ((a(datatype="FP64"), b()), "inference input 'A' data-type is 'FP64', but model 'm' expects 'FP32'"),
        ((a(datatype="FLOAT"), b()), "invalid datatype 'FLOAT' for input 'A' for model 'm'; V2 has"),
        ((a(-1, 2, size=8), b(-1, 1)), "All input dimensions should be specified for input 'A'"),
        ((a(1, 3), b()), "unexpected shape for input 'A' for model 'm'. Expected [-1,2], got [1,3]"),
        ((a(1, 2, 1), b()), "Expected [-1,2], got [1,2,1]"),
        ((a(size=4), b()), "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 4"),
        ((a(), RawTensor("B", "BYTES", (1, 2), data=b"\0\0\0\0")), "expected 2 string elements"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_refused(inputs: tuple[SentTensor, ...], message: str) -> None:
    assert message in refusal(run, *inputs)


def test_the_first_mistake_counts() -> None:
    assert "unexpected inference output 'Q'" in refusal(run, a(7, 3, size=1), outputs=["Q"])
    assert "batch-size" in refusal(run, a(7, 3, datatype="INT8", size=1), b(7, 1))
    assert "data-type" in refusal(run, a(1, 3, datatype="INT8", size=1), b())


def test_an_output_twice_and_a_number_of_inputs_out_of_range_are_refused() -> None:
    assert "Duplicate output name 'Z' is not allowed in a request" in refusal(run, a(), b(), outputs=["Z", "Z"])
    assert "expected number of inputs between 1 and 2 but got 3" in refusal(
        run, a(), b(), other("C"), signature=OPTIONAL
    )
    with pytest.raises(ServingError, match=r"missing required input\(s\) \['A'\]"):
        run(b(), signature=OPTIONAL)


@pytest.mark.parametrize("batch", [None, 0])
def test_without_batches_the_first_dimension_is_like_any_other(batch: int | None) -> None:
    run(a(9, 2), b(3, 1), batch=batch)


def test_what_is_in_shared_memory_is_read_in_its_turn() -> None:
    place = SharedMemorySlice("region", 8)
    tensor = SentTensor("A", "FP32", (1, 2), memory=place)
    array = np.ones((1, 2), np.float32)
    assert run(tensor, b(), read=lambda sent: array).inputs["A"] is array
    assert "unexpected shape" in refusal(
        run, SentTensor("A", "FP32", (1, 3), memory=place), b(), read=lambda sent: pytest.fail("read too early")
    )


def test_a_model_without_the_default_signature_is_refused() -> None:
    refusal(run_of, InferRequest("m"), {"other": TWO}, "m", 0, code=StatusCode.FAILED_PRECONDITION)


def test_optional_inputs_may_be_left_out_without_a_default() -> None:
    optional = Signature(TWO.inputs, OUTPUTS, optional=frozenset({"A", "B"}))
    assert run(signature=optional, batch=None).inputs == {}
    assert list(run(b(), signature=optional).inputs) == ["B"]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 1)])
def test_input_without_a_declared_shape_takes_any(shape: tuple[int, ...]) -> None:
    free = Signature((TensorSpec("A", DataType.FLOAT),), OUTPUTS)
    tensor = RawTensor("A", "FP32", shape, data=b"\0" * 4 * int(np.prod(shape)))
    assert run(tensor, signature=free, batch=None).inputs["A"].shape == shape


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (2, 1, 2)])
def test_shapes_that_are_no_contract_are_not_checked_and_types_are(shape: tuple[int, ...]) -> None:
    free = Signature(TWO.inputs[:1], OUTPUTS, contract=ShapeContract.NONE)
    tensor = RawTensor("A", "FP32", shape, data=b"\0" * 4 * int(np.prod(shape)))
    assert run(tensor, signature=free, batch=None).inputs["A"].shape == shape
    with pytest.raises(ServingError, match="data-type"):
        run(a(*shape, datatype="INT32"), signature=free, batch=None)


TEXTS: list[tuple[str, Any, int]] = [
    ("nothing", {}, 1),
    ("one text", {"text_input": np.array([b"a"], object)}, 1),
    ("two texts", {"text_input": np.array([b"a", b"b"], object)}, 2),
    ("one row", {"input_ids": np.ones((1, 9), np.int64)}, 1),
    ("flat", {"input_ids": np.ones(9, np.int64)}, 1),
    ("three rows", {"input_ids": np.ones((3, 2), np.int64)}, 3),
]


@pytest.mark.parametrize(("inputs", "count"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_only_one_text_can_be_streamed(inputs: Any, count: int) -> None:
    if count == 1:
        check_one_text(inputs, "m")
        return
    assert f"the request has {count} texts for model 'm'" in refusal(check_one_text, inputs, "m")
