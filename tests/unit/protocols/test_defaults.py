"""Defaults of inputs: read from JSON, put into requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import errors
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec, check_input_names, check_inputs
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import TABLE, from_numpy, to_numpy
from tfs_lite.protocols.runs import default_array, fill_defaults, parse_default

BATCH = SymbolicDim("batch")
ROWS = SymbolicDim("rows", 8)


def spec(dtype: DataType = DataType.FLOAT, *shape: int | SymbolicDim) -> TensorSpec:
    return TensorSpec("x", dtype, shape)


def default(text: str, of: TensorSpec) -> np.ndarray[Any, Any]:
    return default_array(parse_default(text), of)


def refusal(text: str, of: TensorSpec) -> str:
    with pytest.raises(ServingError) as raised:
        default(text, of)
    assert raised.value.code in (StatusCode.INVALID_ARGUMENT, StatusCode.UNIMPLEMENTED)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "of", "expected"),
    [
        ("1.5", spec(DataType.FLOAT, BATCH), 1.5),
        ("[1, 2.5]", spec(DataType.FLOAT, BATCH, 2), [1, 2.5]),
        ("[[1], [2]]", spec(DataType.INT64, BATCH, 2, 1), [[1], [2]]),
        ("[[1], [2]]", spec(DataType.INT8, 2, 1), [[1], [2]]),
        ("[1, 2, 3]", spec(DataType.INT32, BATCH, ROWS), [1, 2, 3]),
        ("18446744073709551615", spec(DataType.UINT64, BATCH), 2**64 - 1),
        ("true", spec(DataType.BOOL, BATCH), True),
        ('"Zürich"', spec(DataType.STRING, BATCH), "Zürich".encode()),
        ('[{"b64": "AAH/"}, "a"]', spec(DataType.STRING, BATCH, 2), [b"\0\1\xff", b"a"]),
        ("[]", spec(DataType.FLOAT, BATCH, ROWS), []),
        ("7", spec(DataType.FLOAT), 7),
        ("65504", spec(DataType.HALF, BATCH), 65504),
        ("-3", spec(DataType.BFLOAT16, BATCH), -3),
        ("0.5", spec(DataType.FLOAT8_E4M3FN, BATCH), 0.5),
    ],
)
def test_a_default_is_one_row_of_the_inputs_type(text: str, of: TensorSpec, expected: Any) -> None:
    array = default(text, of)
    assert from_numpy(array.dtype) is of.dtype
    assert array.tolist() == expected
    assert not array.flags.writeable
    assert array.flags.c_contiguous


def test_a_large_default_is_read_as_a_small_one_is() -> None:
    numbers = np.arange(40_000).reshape(2, 20_000)
    array = default(str(numbers.tolist()), spec(DataType.FLOAT, BATCH, 2, 20_000))
    np.testing.assert_array_equal(array, numbers.astype(np.float32))
    assert not array.flags.writeable


def test_infinite_and_undefined_numbers_are_numbers() -> None:
    array = default("[NaN, Infinity, -Infinity]", spec(DataType.FLOAT, BATCH, 3))
    np.testing.assert_array_equal(array, np.array([np.nan, np.inf, -np.inf], np.float32))


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("[1, 2]", DataType.INT64),
        ("[1, 2.5]", DataType.FLOAT),
        ("true", DataType.BOOL),
        ('"a"', DataType.STRING),
        ("[]", DataType.FLOAT),
    ],
)
def test_without_a_declared_type_the_values_decide(text: str, dtype: DataType) -> None:
    assert default(text, TensorSpec("x")).dtype == to_numpy(dtype)


@pytest.mark.parametrize(
    ("text", "of", "reason"),
    [
        ("128", spec(DataType.INT8, BATCH), "-128 to 127"),
        ("-1", spec(DataType.UINT32, BATCH), "uint32"),
        ("18446744073709551616", spec(DataType.UINT64, BATCH), "uint64"),
        ("1.0", spec(DataType.INT32, BATCH), "int32"),
        ("true", spec(DataType.INT32, BATCH), "int32"),
        ("1", spec(DataType.BOOL, BATCH), "bool"),
        ("true", spec(DataType.FLOAT, BATCH), "float"),
        ('"1"', spec(DataType.FLOAT, BATCH), "float"),
        ("1", spec(DataType.STRING, BATCH), "string"),
        ("null", spec(DataType.FLOAT, BATCH), "float"),
        ('{"a": 1}', spec(DataType.FLOAT, BATCH), "float"),
        ('{"b64": "?"}', spec(DataType.STRING, BATCH), "base64"),
        ("1e39", spec(DataType.FLOAT, BATCH), "too large for float"),
        ("70000", spec(DataType.HALF, BATCH), "too large for half"),
        ("[0, 1e6]", spec(DataType.FLOAT8_E4M3FN, BATCH, 2), "1e+06 is too large for float8_e4m3fn"),
        ("1", spec(DataType.COMPLEX64, BATCH), "complex64"),
        ("[1, [2]]", spec(DataType.FLOAT, BATCH, 2), "level"),
        ("[[1], [2, 3]]", spec(DataType.FLOAT, BATCH, 2, 1), "size"),
        ("1", spec(DataType.FLOAT, BATCH, 3), "shape [], one row has [3]"),
        ("[1]", spec(DataType.FLOAT, BATCH), "shape [1], one row has []"),
        ("[1, 2]", spec(DataType.FLOAT, BATCH, 3), "shape [2], one row has [3]"),
        ("[1]", spec(DataType.FLOAT, 2), "shape [1], the input has [2]"),
        ("[1,1,1,1,1,1,1,1,1]", spec(DataType.FLOAT, BATCH, ROWS), "shape [9], one row has [-1]"),
    ],
)
def test_a_default_that_does_not_fit_is_refused(text: str, of: TensorSpec, reason: str) -> None:
    assert reason in refusal(text, of)


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nul", "[" * 100_000, "1e999", "9" * 400, '"\ud800"', '"\\ud800"'])
def test_text_that_is_no_json_is_an_invalid_argument(text: str) -> None:
    refusal(text, TensorSpec("x"))


SIGNATURE = Signature(
    inputs=(
        TensorSpec("x", DataType.FLOAT, (BATCH, 2)),
        TensorSpec("y", DataType.INT64, (BATCH,)),
        TensorSpec("z", DataType.STRING, (2,)),
        TensorSpec("w", DataType.FLOAT, (ROWS, BATCH)),
    ),
    outputs=(),
    defaults={"y": np.array(7), "z": np.array([b"a", b"b"], object), "w": np.array([1.0], np.float32)},
)


def test_nothing_is_filled_when_everything_was_sent() -> None:
    arrays = {"x": np.zeros((3, 2), np.float32)}
    assert fill_defaults(Signature((SIGNATURE.inputs[0],), ()), arrays) is arrays
    sent = {name: np.zeros(1) for name in SIGNATURE.input_names}
    assert fill_defaults(SIGNATURE, sent) is sent


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_row_is_repeated_for_every_row_of_the_request(rows: int) -> None:
    filled = fill_defaults(SIGNATURE, {"x": np.zeros((rows, 2), np.float32)})
    assert filled["y"].tolist() == [7] * rows
    assert filled["y"].dtype == np.int64
    assert filled["y"].flags.c_contiguous
    assert filled["z"].tolist() == [b"a", b"b"]
    assert set(filled) == {"x", "y", "z", "w"}


def test_rows_are_counted_wherever_they_stand_and_an_input_without_default_stays_missing() -> None:
    filled = fill_defaults(SIGNATURE, {"w": np.zeros((2, 5), np.float32)})
    assert filled["y"].shape == (5,)
    assert fill_defaults(SIGNATURE, {"z": np.array([b"", b""], object)})["y"].tolist() == [7]
    assert "x" not in fill_defaults(SIGNATURE, {})


def test_a_request_cannot_make_defaults_fill_the_memory() -> None:
    message = errors.refusal(fill_defaults, SIGNATURE, {"x": np.zeros((10, 2), np.float32)}, max_bytes=79)
    assert "the default of input y would fill 80 bytes for 10 rows, at most 79" in message


def test_only_a_size_that_a_request_chooses_makes_rows() -> None:
    assert [item.batch is not None for item in SIGNATURE.inputs] == [True, True, False, True]
    assert TensorSpec("x").batch is None
    assert TensorSpec("x", DataType.FLOAT, ()).batch is None


NUMBERS = [row.dtype for row in TABLE if row.numpy.kind in "iub"]


@given(st.sampled_from(NUMBERS), st.integers(0, 1), st.integers(0, 3), st.integers(0, 3))
def test_what_is_filled_passes_the_checks_of_a_request(dtype: DataType, value: int, width: int, rows: int) -> None:
    optional = TensorSpec("o", dtype, (BATCH, width))
    row = str([bool(value) if dtype is DataType.BOOL else value] * width).lower()
    signature = Signature((SIGNATURE.inputs[0], optional), (), defaults={"o": default(row, optional)})
    sent = {"x": np.zeros((rows, 2), np.float32)}
    check_input_names(signature, sent)
    filled = fill_defaults(signature, sent)
    check_inputs(signature, {name: (from_numpy(array.dtype), array.shape) for name, array in filled.items()})


def test_any_number_of_empty_rows_is_filled_at_once() -> None:
    batch = SymbolicDim("batch")
    spec = TensorSpec("x", DataType.FLOAT, (batch, SymbolicDim("n")))
    empty = TensorSpec("y", DataType.FLOAT, (batch, SymbolicDim("m")))
    signature = Signature((spec, empty), (), defaults={"y": np.empty(0, np.float32)})
    filled = fill_defaults(signature, {"x": np.empty((2**40, 0), np.float32)})
    assert filled["y"].shape == (2**40, 0)
