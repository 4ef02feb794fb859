"""Which errors mean that a GPU has failed for good, and who is told of it."""

from __future__ import annotations

import pytest
import torch

from tfs_lite.adapters.cuda.failed_gpu import LASTING, GpuWatch, gpu_failure
from tfs_lite.adapters.failures import run_failure
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode

ILLEGAL = "CUDA error: an illegal memory access was encountered"
REST = "\nCUDA kernel errors might be asynchronously reported at some other API call.\n"


@pytest.mark.parametrize("words", LASTING)
def test_lasting_errors_of_the_device_are_failures(words: str) -> None:
    assert gpu_failure(torch.AcceleratorError(f"CUDA error: {words}{REST}")) == words


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(f"CUDA error: invalid configuration argument{REST}"),
        torch.AcceleratorError(f"CUDA error: out of memory{REST}"),
        torch.AcceleratorError(""),
        torch.OutOfMemoryError("CUDA out of memory"),
        ValueError("wrong"),
    ],
    ids=repr,
)
def test_others_are_not(error: Exception) -> None:
    assert gpu_failure(error) is None


def test_a_text_that_an_artefact_chose_stops_nobody() -> None:
    assert gpu_failure(RuntimeError(ILLEGAL)) is None


def test_every_watcher_is_told_of_the_first_failure_only() -> None:
    watch, told, other = GpuWatch(), list[str](), list[str]()
    watch.watch(told.append)
    end = watch.watch(other.append)
    end()
    for error in (ValueError("wrong"), torch.AcceleratorError(ILLEGAL + REST), torch.AcceleratorError(ILLEGAL)):
        watch.saw(error)
    assert (told, other) == (["an illegal memory access was encountered"], [])


def test_callers_may_ask_another_server() -> None:
    failure = run_failure(ServableId("m", 3), torch.AcceleratorError(ILLEGAL + REST), shapes_were_checked=True)
    assert failure.code is StatusCode.UNAVAILABLE
    assert failure.status.message == f"model m version 3 failed: {ILLEGAL}"
