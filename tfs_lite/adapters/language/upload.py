"""Numbers of the host on their way to where a network is, without waiting for it.

An ordinary copy to a GPU waits until the GPU has done all that it was asked before: the few numbers that a draw needs
would cost the whole forward. A copy from pinned memory does not wait. The memory is torch's own, fresh for each copy,
and torch does not use it again before the copy has taken place, however soon the tensor on the host is dropped.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


def upload(numbers: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A list of numbers, or of lists of equal lengths, as a tensor on ``device``, in the order of its current
    stream."""
    return on_host(numbers, dtype, device).to(device, non_blocking=True)


def upload_array(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The same for an array, which on the CPU is shared."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def on_host(numbers: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On the host, in memory that ``device`` copies from by itself. Nobody may write to it afterwards."""
    return torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda")
