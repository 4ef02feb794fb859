"""Inputs and outputs as a model's config declares them, and the element types and sizes that they are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, StrictBool, StrictInt, StrictStr, model_validator

from tfs_lite.config.settings import Settings, nearest, problem
from tfs_lite.config.signatures import Name, file_below
from tfs_lite.core.signature import DataType
from tfs_lite.protocols.dtypes import FROM_CONFIG_NAME

UNSAID = "TYPE_INVALID"
"""The word of messages for a missing element type."""
MAX_SIZE = 2**63 - 1
FORMATS = ("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW")
INPUTS_ONLY = ("format", "allow_ragged_batch", "optional")
OUTPUTS_ONLY = ("label_filename",)


def one_of(names: tuple[str, ...], what: str) -> BeforeValidator:
    """A validator of names that a message has an enum for."""

    def check(name: object) -> object:
        if name not in names:
            raise problem(f'"{name}" is no {what}{nearest(str(name), filter(None, names))}')
        return name

    return BeforeValidator(check)


def _data_type(name: object) -> object:
    if isinstance(name, DataType):
        return name
    if not isinstance(name, str) or name not in FROM_CONFIG_NAME:
        raise problem(f'"{name}" is no data type{nearest(str(name), FROM_CONFIG_NAME)}')
    return FROM_CONFIG_NAME[name]


def _data_type_or_none(name: object) -> object:
    return None if name in (None, "", UNSAID) else _data_type(name)


def _dim(size: int) -> int:
    if size < 1 and size != -1:
        raise problem(f"must be 1 or more, or -1 for any size; got {size}")
    if size > MAX_SIZE:
        raise problem(f"must be at most {MAX_SIZE}; got {size:.3g}")
    return size


ElementType = Annotated[DataType, BeforeValidator(_data_type)]
ElementTypeOrNone = Annotated[DataType | None, BeforeValidator(_data_type_or_none)]
Dims = tuple[Annotated[StrictInt, AfterValidator(_dim)], ...]


class Reshape(Settings):
    """The shape that the model has instead of ``dims``, of as many elements. Empty: one value."""

    shape: Dims = ()


class ModelTensor(Settings):
    """One input or output. ``dims`` has no batch dimension; -1 is a size that a request chooses. Empty dims, which only
    YAML can write: one value, for each row where there is a batch."""

    name: Name
    data_type: ElementType
    dims: Dims
    reshape: Reshape | None = None
    """The dims that the model itself takes or gives; clients know ``dims``."""
    is_shape_tensor: StrictBool = False
    """Never true: no model that is served here has such inputs."""
    is_non_linear_format_io: StrictBool = False
    """The field has no effect."""
    format: Annotated[Literal["FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"], one_of(FORMATS, "format")] = "FORMAT_NONE"
    """The meaning of an input's dims. It has no effect."""
    allow_ragged_batch: StrictBool = False
    """Whether calls with different shapes of this input may share a run. They need not, and here they never do."""
    optional: StrictBool = False
    """Whether a request may leave this input out."""
    label_filename: Annotated[StrictStr, AfterValidator(file_below)] = ""
    """The file with one class label of this output per line."""

    @model_validator(mode="after")
    def _as_many_elements(self) -> ModelTensor:
        if self.reshape is not None and _elements(self.dims) != _elements(self.reshape.shape):
            raise problem(
                f"{list(self.reshape.shape)} has not as many elements as dims, {list(self.dims)}", "reshape", "shape"
            )
        return self

    @model_validator(mode="after")
    def _no_shape_tensor(self) -> ModelTensor:
        if self.is_shape_tensor:
            raise problem("shape tensors are not supported; leave it out", "is_shape_tensor")
        return self

    @model_validator(mode="after")
    def _images_have_three_dims(self) -> ModelTensor:
        if self.format != "FORMAT_NONE" and len(self.dims) != 3:
            raise problem(f"{self.format} needs 3 dims; got {len(self.dims)}", "format")
        return self


def check_tensors(tensors: tuple[ModelTensor, ...], foreign: Sequence[str]) -> tuple[ModelTensor, ...]:
    """A validator: names differ, and fields that are only for the other side, ``foreign``, are not there."""
    seen = set[str]()
    for index, tensor in enumerate(tensors):
        if tensor.name in seen:
            raise problem(f'"{tensor.name}" is listed twice', index, "name")
        seen.add(tensor.name)
        for field in foreign:
            if field in tensor.model_fields_set:
                raise problem(f"is for {'inputs' if field in INPUTS_ONLY else 'outputs'} only", index, field)
    return tensors


def _elements(dims: Dims) -> list[int]:
    """The number of elements before, between and behind the sizes that a request chooses."""
    return [math.prod(part) for part in _parts(dims)]


def _parts(dims: Dims) -> Iterator[list[int]]:
    part: list[int] = []
    for size in dims:
        if size == -1:
            yield part
            part = []
        else:
            part.append(size)
    yield part
