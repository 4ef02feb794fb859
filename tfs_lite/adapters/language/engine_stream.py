"""The stream of one engine on a GPU.

Each has its own, so that the steps of two versions do not wait for one another, and so that steps can be captured: that
cannot be done on the stream that all others share.

Numbers of the host on their way to where a network is, without waiting for it.

An ordinary copy to a GPU waits until the GPU has done all that it was asked before: the few numbers that a draw needs
would cost the whole forward. A copy from pinned memory does not wait. The memory is torch's own, fresh for each copy,
and torch does not use it again before the copy has taken place, however soon the tensor on the host is dropped.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy.typing as npt
import torch

from tfs_lite.adapters.cuda.memory import STREAMS


class EngineStream:
    """Where all work of one version on a GPU is done, from its load to its end, in order. On the CPU there is none.

    Whatever thread is inside ``current`` works on it; one at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = STREAMS.take(device) if device.type == "cuda" else None

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        """Waits until the device has done everything."""
        with self.current():
            synchronize(self._device)

    def close(self) -> None:
        """Nobody is inside, and what was allocated there is gone or will not be used any more."""
        self.synchronize()
        stream, self._stream = self._stream, None
        if stream is not None:
            STREAMS.put_back(self._device, stream)


def synchronize(device: torch.device) -> None:
    """Waits for the current stream. Its errors were reported by whoever caused them."""
    if device.type == "cuda":
        with suppress(RuntimeError):
            torch.cuda.current_stream(device).synchronize()


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
