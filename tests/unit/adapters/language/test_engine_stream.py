"""Streams of engines, and numbers on their way to the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tfs_lite.adapters.language.engine_stream import EngineStream, on_host, upload, upload_array

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([1, 2, 2**40], torch.int64),
        ([(1, -5), (2**31 - 1, -(2**31))], torch.int32),
        ([0.5, -float("inf")], torch.float32),
        ([[3], [4]], torch.float64),
        ([], torch.int64),
    ],
)
def test_lists_become_tensors_of_their_shape(numbers: list[object], dtype: torch.dtype) -> None:
    for found in (upload(numbers, dtype, CPU), on_host(numbers, dtype, CPU)):
        assert found.dtype == dtype
        assert found.tolist() == torch.tensor(numbers, dtype=dtype).tolist()
        assert found.shape == torch.tensor(numbers).shape


def test_arrays_keep_their_type() -> None:
    for array in (np.arange(4), np.ones((2, 3), np.float32), np.zeros(0, np.int64)):
        found = upload_array(array, CPU)
        assert found.numpy().dtype == array.dtype
        assert found.tolist() == array.tolist()


def test_on_the_cpu_an_engine_has_no_stream_of_its_own() -> None:
    stream = EngineStream(torch.device("cpu"))
    with stream.current():
        assert torch.ones(2).sum() == 2
    stream.synchronize()
    stream.close()
