"""ONNX files as a function of bytes that raises when a promise is broken, see ``targets``.

The file is inspected as that of a version that is not trusted, without onnxruntime: it is accepted, or refused with a
status in one short line. Neither takes more memory or time than a file of a few kilobytes is worth.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from pathlib import Path

from promises import check_error, require
from targets_programs import LOAD_BYTES, LOAD_SECONDS, memory_peak, reset_memory_peak

from tfs_lite.adapters.onnx.model import inspect_onnx
from tfs_lite.adapters.onnx.model_file import ARTEFACT
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import ServingError, StatusCode

REFUSALS = frozenset(
    {
        StatusCode.DATA_LOSS,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.INVALID_ARGUMENT,
        StatusCode.PERMISSION_DENIED,
        StatusCode.UNIMPLEMENTED,
    }
)
MAX_REASON = 1000
"""Characters."""


def onnx(data: bytes) -> None:
    """``model.onnx``, beside a file of weights called ``weights.bin``."""
    directory = _version()
    (directory / ARTEFACT).write_bytes(data)
    files = VersionFiles(os.fspath(directory), frozenset({ARTEFACT, "weights.bin"}), len(data))
    before, began = reset_memory_peak(), time.process_time()
    try:
        _, weights = inspect_onnx(files, False, ModelSettings())
        require(weights >= 0, f"weights of {weights} bytes")
    except ServingError as error:
        check_error(error, REFUSALS)
        reason = str(error)
        require(len(reason) <= MAX_REASON and "\n" not in reason, f"a reason: {reason!r:.600}")
        require(os.fspath(directory) not in reason, f"a reason with a path: {reason!r:.600}")
    took, memory = time.process_time() - began, memory_peak() - before
    require(took < LOAD_SECONDS, f"inspection took {took:.1f} s")
    require(memory < LOAD_BYTES, f"inspection took {memory >> 20} MB")


@functools.cache
def _version() -> Path:
    """The directory of the version, which every input writes anew."""
    directory = Path(tempfile.mkdtemp(prefix="onnx-"))
    (directory / "weights.bin").write_bytes(bytes(64))
    return directory
