import ml_dtypes
import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tfs_lite.adapters.pytorch.tensors import DATA_TYPES, TORCH_DTYPES, to_arrays, to_tensor
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.dtypes import TABLE, to_numpy

CPU = torch.device("cpu")
NUMERIC = [row.dtype for row in TABLE if row.dtype is not DataType.STRING]


def sample(dtype, shape=(2, 3)):
    count = int(np.prod(shape))
    return (np.arange(count) % 2).reshape(shape).astype(to_numpy(dtype))


def test_every_numeric_type_of_the_protocols_has_a_torch_type():
    assert set(TORCH_DTYPES) == set(NUMERIC)
    assert {DATA_TYPES[torch_dtype] for torch_dtype in TORCH_DTYPES.values()} == set(NUMERIC)


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (1,)])
@pytest.mark.parametrize("dtype", NUMERIC)
def test_array_survives_the_way_to_torch_and_back(dtype, shape):
    array = sample(dtype, shape)
    tensor = to_tensor(array, CPU, share=False)
    assert (tensor.dtype, tuple(tensor.shape)) == (TORCH_DTYPES[dtype], shape)
    back = to_arrays({"y": tensor}, CPU)["y"]
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_bfloat16_keeps_its_values():
    tensor = to_tensor(np.array([1.5, -2], ml_dtypes.bfloat16), CPU, share=False)
    assert tensor.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.BFLOAT16, DataType.FLOAT8_E5M2])
@pytest.mark.parametrize(("writeable", "share"), [(False, True), (False, False), (True, False)])
def test_writing_to_the_tensor_leaves_the_callers_array_alone(dtype, writeable, share):
    array = sample(dtype)
    array.flags.writeable = writeable
    before = array.tobytes()
    to_tensor(array, CPU, share).zero_()
    assert array.tobytes() == before


def test_writable_array_is_shared_with_a_model_that_does_not_write():
    array = sample(DataType.FLOAT)
    assert to_tensor(array, CPU, share=True).data_ptr() == array.ctypes.data


def test_array_that_is_not_contiguous_or_of_another_byte_order_is_copied():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert to_tensor(array.T, CPU, share=True).tolist() == array.T.tolist()
    assert to_tensor(array.astype(">f4"), CPU, share=False).tolist() == array.tolist()
    assert to_tensor(array.astype(">f4"), CPU, share=True).tolist() == array.tolist()


def test_result_is_not_the_memory_that_the_model_returned():
    tensor = torch.zeros(3)
    array = to_arrays({"y": tensor}, CPU)["y"]
    tensor.fill_(7)
    assert array.tolist() == [0, 0, 0]
    array[0] = 1
    assert array.flags.c_contiguous


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6).reshape(2, 3).T, torch.zeros(2, requires_grad=True), torch.ones(2, dtype=torch.complex64).conj()],
)
def test_tensors_of_any_layout_become_arrays(tensor):
    array = to_arrays({"y": tensor}, CPU)["y"]
    assert array.tolist() == tensor.tolist()
    assert array.flags.c_contiguous


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (np.arange(3.0), np.float64, [0, 1, 2]),
        ([1, 2], np.int64, [1, 2]),
        (2.5, np.float64, 2.5),
        ("text", object, b"text"),
        (["a", "\u00e4"], object, [b"a", "\u00e4".encode()]),
        (np.array([b"a", "b"], dtype=object), object, [b"a", b"b"]),
        (np.array(["ab"]), object, [b"ab"]),
    ],
)
def test_values_that_are_no_tensors_become_arrays(value, dtype, expected):
    array = to_arrays({"y": value}, CPU)["y"]
    assert array.dtype == dtype
    assert array.tolist() == expected


@pytest.mark.parametrize("value", [None, {"a": 1}, object(), [1, [2, 3]], np.array([1, None]), [[1], [1, 2]]])
def test_value_that_no_tensor_type_fits_is_the_models_fault(value):
    assert "output y is of type" in refusal(to_arrays, {"y": value}, CPU, code=StatusCode.INTERNAL)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_results_are_given_dense(layout):
    assert to_arrays({"y": torch.eye(2).to_sparse(layout=layout)}, CPU)["y"].tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.filterwarnings("ignore")
def test_quantised_and_nested_results_are_named_as_what_they_are():
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8)
    message = refusal(to_arrays, {"y": quantised}, CPU, code=StatusCode.INTERNAL)
    assert "output y is quantised (torch.quint8)" in message
    assert "dequantize()" in message
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert "layout torch.jagged" in refusal(to_arrays, {"y": nested}, CPU, code=StatusCode.INTERNAL)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_tensor_without_numbers_has_torchs_strides(dtype):
    """numpy's are 0, and programs look at them: torch.view_as_complex wants the last one to be 1."""
    for share in (True, False):
        assert to_tensor(np.zeros((0, 2), dtype), CPU, share).stride() == (2, 1)
