"""The settings of batching: the file of ``--batching_parameters_file``, or one in each version.

The shape is that of the message ``tensorflow.serving.BatchingParameters``. There, most numbers are wrapped:
``max_batch_size { value: 64 }``. YAML may write the same, or the bare number. Sizes are counted in rows.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from tfs_lite.config.settings import Settings, build, config_error, problem
from tfs_lite.config.text import MAX_FILE_BYTES, read_document
from tfs_lite.core.manifest import open_unlinked
from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument
from tfs_lite.core.threads import usable_cpus
from tfs_lite.protocols import messages

VERSION_FILE = "batching_params.pbtxt"
"""The name of the file in the directory of a version, for servers with settings per model."""
INT64_MAX = 2**63 - 1
MAX_THREADS = 4096
POOL_NAME = "batch_threads"
POOL_NAME_WITHOUT_FILE = "model_server_batch_threads"


def _unwrapped(zero: int | bool | str) -> BeforeValidator:
    """``{ value: X }`` is X. Text format leaves out a value that is ``zero``."""

    def bare(value: object) -> object:
        if isinstance(value, dict) and set(value) <= {"value"}:
            return value.get("value", zero)
        return value

    return BeforeValidator(bare)


Size = Annotated[StrictInt, Field(ge=1, le=INT64_MAX)]
Number = Annotated[StrictInt, Field(ge=0, le=INT64_MAX), _unwrapped(0)]
WrappedSize = Annotated[Size, _unwrapped(0)]


class BatchingParameters(Settings):
    """Defaults are those of TensorFlow Serving for a file that leaves the field out."""

    max_batch_size: WrappedSize = 1000
    """The most rows of one request and, without splitting, of one run."""
    batch_timeout_micros: Number = 0
    """The time, in microseconds, that a batch which is not full waits for more."""
    max_enqueued_batches: Number = 10
    """The number as written; see ``enqueued_batches``."""
    num_batch_threads: Annotated[StrictInt, Field(ge=1, le=MAX_THREADS), _unwrapped(0)] = Field(
        default_factory=usable_cpus
    )
    thread_pool_name: Annotated[StrictStr, _unwrapped("")] = POOL_NAME
    allowed_batch_sizes: tuple[Size, ...] = ()
    """Batches are filled up to the next of these; empty: any size is run."""
    pad_variable_length_inputs: StrictBool = False
    enable_large_batch_splitting: Annotated[StrictBool, _unwrapped(False)] = False
    max_execution_batch_size: WrappedSize | None = None
    """The size as written; see ``execution_batch_size``."""

    @property
    def enqueued_batches(self) -> int:
        """The number of batches that may wait in one queue."""
        return max(self.max_enqueued_batches, 1)

    @property
    def execution_batch_size(self) -> int:
        """The most rows of one run."""
        return self.max_execution_batch_size or self.max_batch_size

    @field_validator("allowed_batch_sizes")
    @classmethod
    def _ascending(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        for index in range(1, len(sizes)):
            if sizes[index] <= sizes[index - 1]:
                raise problem(f"sizes must ascend; {sizes[index]} comes after {sizes[index - 1]}", index)
        return sizes

    @model_validator(mode="after")
    def _largest_allowed(self) -> BatchingParameters:
        sizes, largest = self.allowed_batch_sizes, self.max_batch_size
        if sizes and sizes[-1] != largest:
            raise problem(
                f"Last entry in allowed_batch_sizes must match max_batch_size: got {sizes[-1]}, expected {largest}",
                "allowed_batch_sizes",
                len(sizes) - 1,
            )
        return self

    @model_validator(mode="after")
    def _room_for_pieces(self) -> BatchingParameters:
        if self.enable_large_batch_splitting and not self.max_enqueued_batches:
            raise problem("must be 1 or more with enable_large_batch_splitting; got 0", "max_enqueued_batches")
        return self

    @model_validator(mode="after")
    def _size_of_pieces(self) -> BatchingParameters:
        size, largest = self.execution_batch_size, self.max_batch_size
        if size > largest:
            raise problem(f"must be at most max_batch_size, {largest}; got {size}", "max_execution_batch_size")
        if size < largest and not self.enable_large_batch_splitting:
            raise problem(
                "has a meaning only with enable_large_batch_splitting; without it batches are as large as "
                f"max_batch_size, {largest}",
                "max_execution_batch_size",
            )
        return self


def parameters_without_file() -> BatchingParameters:
    """The settings of ``--enable_batching`` without a file."""
    return BatchingParameters(thread_pool_name=POOL_NAME_WITHOUT_FILE)


def read_version_parameters(version_directory: Path) -> BatchingParameters | None:
    """Reads the version's own file; None if it has none.

    INVALID_ARGUMENT for mistakes, with file, line, column and field, for links and anything but a plain file of
    bearable size. FAILED_PRECONDITION if the system does not let it be read.
    """
    name = f"{version_directory.name}/{VERSION_FILE}"
    data = _plain_file(version_directory / VERSION_FILE, name)
    if data is None:
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise config_error(name, data.count(b"\n", 0, error.start) + 1, 1, "not UTF-8 text") from None
    return build(BatchingParameters, read_document(text, name, messages.BatchingParameters))


def combined(server: BatchingParameters, version: BatchingParameters | None) -> BatchingParameters | None:
    """The settings that count for a version on a server with settings per model: its own file, with the server's
    threads. Without one it is not batched: None."""
    if version is None:
        return None
    threads = {"num_batch_threads": server.num_batch_threads, "thread_pool_name": server.thread_pool_name}
    return version.model_copy(update=threads)


def _plain_file(path: Path, name: str) -> bytes | None:
    try:
        _check(path.lstat(), name)
        with open(path, "rb", opener=open_unlinked) as file:
            _check(os.fstat(file.fileno()), name)
            data = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise failed_precondition(f"{name}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise _too_large(name)
    return data


def _check(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = "a link" if stat.S_ISLNK(status.st_mode) else "something else"
        raise invalid_argument(f"{name}: has to be a plain file of the version, not {what}")
    if status.st_size > MAX_FILE_BYTES:
        raise _too_large(name)


def _too_large(name: str) -> ServingError:
    return invalid_argument(f"{name}: larger than {MAX_FILE_BYTES} bytes")
