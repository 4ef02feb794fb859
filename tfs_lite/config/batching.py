"""How requests are put together into batches: the file of ``--batching_parameters_file``.

The shape is that of the message ``tensorflow.serving.BatchingParameters``. There, most numbers are wrapped:
``max_batch_size { value: 64 }``. YAML may write the same, or the bare number. Sizes are counted in rows.
"""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from tfs_lite.config.settings import Settings, problem

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


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Size = Annotated[StrictInt, Field(ge=1, le=INT64_MAX)]
Number = Annotated[StrictInt, Field(ge=0, le=INT64_MAX), _unwrapped(0)]
WrappedSize = Annotated[Size, _unwrapped(0)]


class BatchingParameters(Settings):
    """Defaults are those of TensorFlow Serving for a file that leaves the field out."""

    max_batch_size: WrappedSize = 1000
    """The most rows of one request and, without splitting, of one run."""
    batch_timeout_micros: Number = 0
    """How long a batch that is not full waits for more."""
    max_enqueued_batches: Number = 10
    """As written; see ``enqueued_batches``."""
    num_batch_threads: Annotated[StrictInt, Field(ge=1, le=MAX_THREADS), _unwrapped(0)] = Field(default_factory=_cpus)
    thread_pool_name: Annotated[StrictStr, _unwrapped("")] = POOL_NAME
    allowed_batch_sizes: tuple[Size, ...] = ()
    """Batches are filled up to the next of these; empty: any size is run."""
    pad_variable_length_inputs: StrictBool = False
    enable_large_batch_splitting: Annotated[StrictBool, _unwrapped(False)] = False
    max_execution_batch_size: WrappedSize | None = None
    """As written; see ``execution_batch_size``."""

    @property
    def enqueued_batches(self) -> int:
        """How many batches may wait in one queue."""
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
    """What ``--enable_batching`` alone means."""
    return BatchingParameters(thread_pool_name=POOL_NAME_WITHOUT_FILE)
