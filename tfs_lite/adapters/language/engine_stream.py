"""The CUDA stream of one engine, and copies from the host to the device that do not wait for it.

Each engine has a stream of its own, so that the steps of two versions do not wait for one another, and because steps
cannot be captured on the default stream. An ordinary copy to a GPU waits for all earlier work, so the few numbers that
sampling needs would wait for the whole forward; a copy from pinned memory does not. torch allocates that memory anew
for each copy and does not reuse it before the copy is done, even if the tensor on the host is dropped at once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy.typing as npt
import torch

from tfs_lite.adapters.cuda.memory import STREAMS


class EngineStream:
    """The stream on which all work of one version on a GPU is done, in order. On the CPU there is no stream.

    The thread inside ``current`` works on it; one thread at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = STREAMS.take(device) if device.type == "cuda" else None

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        """Waits until all work on the stream is done."""
        with self.current():
            synchronize(self._device)

    def close(self) -> None:
        """Closes the stream: no thread may be inside ``current``, and nothing that was allocated on the stream may be
        used any more."""
        self.synchronize()
        stream, self._stream = self._stream, None
        if stream is not None:
            STREAMS.put_back(self._device, stream)


def synchronize(device: torch.device) -> None:
    """Waits for the current stream. Errors are dropped: the call that caused them has reported them."""
    if device.type == "cuda":
        with suppress(RuntimeError):
            torch.cuda.current_stream(device).synchronize()


def upload(numbers: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A list of numbers, or of lists of equal lengths, as a tensor on ``device``, copied on its current stream."""
    return on_host(numbers, dtype, device).to(device, non_blocking=True)


def upload_array(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Uploads an array as :func:`upload` does; on the CPU its memory is shared."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def on_host(numbers: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor on the host, in pinned memory for a GPU. It must not be written to afterwards."""
    return torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda")
