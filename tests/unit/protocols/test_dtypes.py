"""The table of element types."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.core.signature import DataType
from tfs_lite.protocols.dtypes import FROM_CONFIG_NAME, TABLE, from_numpy, to_numpy
from tfs_lite.protocols.messages import TensorProto, TritonModelConfig


def test_every_element_type_has_one_numpy_dtype_and_back() -> None:
    assert {row.dtype for row in TABLE} == set(DataType) - {DataType.INVALID}
    assert len({row.numpy for row in TABLE}) == len(TABLE)
    for row in TABLE:
        assert from_numpy(to_numpy(row.dtype)) is row.dtype


def test_numbers_are_those_of_the_wire() -> None:
    wire = TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_name
    assert {f"DT_{dtype.name}": dtype.value for dtype in DataType}.items() <= {
        name: value.number for name, value in wire.items()
    }.items()


def test_config_names_are_those_of_the_model_config() -> None:
    known = TritonModelConfig.DESCRIPTOR.fields_by_name["input"].message_type.fields_by_name["data_type"].enum_type
    assert set(FROM_CONFIG_NAME) == set(known.values_by_name) - {"TYPE_INVALID"}


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.dtype(">f4"), DataType.FLOAT),
        (np.dtype(">i8"), DataType.INT64),
        (np.dtype("longlong"), DataType.INT64),
        (np.dtype("S5"), DataType.STRING),
        (np.dtype("U5"), DataType.STRING),
        (np.dtype(ml_dtypes.bfloat16), DataType.BFLOAT16),
    ],
)
def test_byte_order_and_kinds_of_text_do_not_matter(dtype: np.dtype[Any], expected: DataType) -> None:
    assert from_numpy(dtype) is expected


@pytest.mark.parametrize("dtype", ["M8[s]", "V3", "g", "i4,f4"])
def test_a_dtype_without_counterpart_is_an_invalid_argument(dtype: str) -> None:
    assert "cannot be sent" in refusal(from_numpy, np.dtype(dtype))
