"""Batches that every instance of a version runs before the version becomes available: Triton's ``model_warmup``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, model_validator

from tfs_lite.config.settings import Settings, problem
from tfs_lite.config.signatures import Name, Runs, file_below
from tfs_lite.config.tensors import ElementType

MAX_WARMUP_ELEMENTS = 2**30
"""The most elements of one input, all rows together."""
WARMUP_FOLDER = "warmup"
"""The name of the folder beside the versions; it has the files that a warm-up names."""
SOURCES = ("zero_data", "random_data", "input_data_file")


def _dim(size: int) -> int:
    if size < 1:
        raise problem(f"must be 1 or more; got {size}")
    return size


class ModelWarmupInput(Settings):
    """One row of an input, without the batch dimension, and where its values come from: exactly one of the three."""

    data_type: ElementType
    dims: tuple[Annotated[StrictInt, AfterValidator(_dim)], ...] = ()
    zero_data: StrictBool | None = None
    """The field's presence means zeros, whatever its value; so with ``random_data``. Texts are empty either way."""
    random_data: StrictBool | None = None
    input_data_file: Annotated[StrictStr, AfterValidator(file_below)] | None = None
    """A file of raw bytes in the model's directory ``warmup``; each text has its length before it, in four bytes."""

    @model_validator(mode="after")
    def _one_source(self) -> ModelWarmupInput:
        given = [field for field in SOURCES if getattr(self, field) is not None]
        if len(given) != 1:
            raise problem(f"expected exactly one of {', '.join(SOURCES)}; got {len(given)}", *given[-1:])
        return self


class ModelWarmup(Settings):
    """A sample: ``batch_size`` equal rows in one run, ``count`` times."""

    name: StrictStr = ""
    batch_size: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    """0: the sample is left out."""
    inputs: Mapping[Name, ModelWarmupInput]
    count: Runs = 1
    """0 counts as 1."""

    @model_validator(mode="after")
    def _of_bearable_size(self) -> ModelWarmup:
        if not self.inputs:
            raise problem("must not be empty", "inputs")
        for name, tensor in self.inputs.items():
            if math.prod(tensor.dims) * max(1, self.batch_size) > MAX_WARMUP_ELEMENTS:
                raise problem(f"more than {MAX_WARMUP_ELEMENTS} elements in all rows", "inputs", name, "dims")
        return self
