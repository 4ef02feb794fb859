"""The stream of one engine on a GPU.

Each has its own, so that the steps of two versions do not wait for one another, and so that steps can be captured: that
cannot be done on the stream that all others share.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch

from tfs_lite.adapters.cuda_memory import STREAMS


class EngineStream:
    """Where all work of one version on a GPU is done, from its load to its end, in order. On the CPU there is none.

    Whatever thread is inside ``current`` works on it; one at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = STREAMS.take(device) if device.type == "cuda" else None

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def settle(self) -> None:
        """Waits until the device has done everything."""
        with self.current():
            settle(self._device)

    def close(self) -> None:
        """Nobody is inside, and what was allocated there is gone or will not be used any more."""
        self.settle()
        stream, self._stream = self._stream, None
        if stream is not None:
            STREAMS.put_back(self._device, stream)


def settle(device: torch.device) -> None:
    """Waits for the current stream. Its errors were reported by whoever caused them."""
    if device.type == "cuda":
        with suppress(RuntimeError):
            torch.cuda.current_stream(device).synchronize()
