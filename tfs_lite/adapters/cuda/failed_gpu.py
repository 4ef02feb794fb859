"""A GPU that has failed: after some errors every call of this process to it fails, and only a new process can use it.

    a run fails -> GPU_WATCH.saw(error) -> the first such error -> each watcher, once

A process of a model ends then and is started again. The server drains and ends with an error, for whoever runs it to
start it again. No torch is imported here.

Source of the list: the errors of the CUDA runtime after which, as its reference says, "the process must be terminated
and relaunched", and those of the hardware.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LASTING = (
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "unspecified launch failure",
    "misaligned address",
    "an illegal instruction was encountered",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "hardware stack error",
    "the launch timed out and was terminated",
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected during the execution",
    "context is destroyed",
)
"""How torch's messages begin after "CUDA error: "."""
_BEGIN = "CUDA error: "
_TORCHS_ERROR = "AcceleratorError"
"""Torch's type for errors of devices. By its type an error differs from one whose text an artefact has chosen."""


def gpu_failure(error: BaseException) -> str | None:
    """The failure of a GPU for good, in CUDA's words; None for every other error."""
    if type(error).__name__ != _TORCHS_ERROR:
        return None
    line = str(error).partition("\n")[0].removeprefix(_BEGIN)
    return line if line.startswith(LASTING) else None


class GpuWatch:
    """Tells its watchers of the first GPU of this process that fails. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._failure: str | None = None
        self._watchers: list[Callable[[str], None]] = []

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Calls ``watcher`` with CUDA's words, once, on the thread whose run failed. Returns what ends that."""
        with self._lock:
            self._watchers.append(watcher)

        def end() -> None:
            with self._lock:
                self._watchers.remove(watcher)

        return end

    def saw(self, error: BaseException) -> None:
        """A run of a model has failed with this error."""
        found = gpu_failure(error)
        if found is None:
            return
        with self._lock:
            told, self._failure = self._failure is not None, found
            watchers = [] if told else list(self._watchers)
        for watcher in watchers:
            watcher(found)


GPU_WATCH = GpuWatch()
