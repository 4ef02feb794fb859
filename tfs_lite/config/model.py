"""The settings of one model: ``config.pbtxt`` or ``config.yaml`` beside its versions, in Triton's field names.

The file in ``BASE/<version>/`` replaces the one in ``BASE/`` for that version. All of it is optional: what is not
said is found out from the artefact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr, field_validator, model_validator

from tfs_lite.config.scheduling import DynamicBatching, InstanceGroup, check_instances
from tfs_lite.config.settings import Settings, nearest, problem
from tfs_lite.config.signatures import ModelSignature, Name, WarmupRequest, check_warmup
from tfs_lite.core.signature import DataType, Dim, Signature, SymbolicDim, TensorSpec
from tfs_lite.protocols.dtypes import FROM_CONFIG_NAME

BATCH_SYMBOL = "batch"


def _data_type(name: object) -> object:
    if isinstance(name, DataType):
        return name
    if not isinstance(name, str) or name not in FROM_CONFIG_NAME:
        raise problem(f'"{name}" is no data type{nearest(str(name), FROM_CONFIG_NAME)}')
    return FROM_CONFIG_NAME[name]


def _dim(size: int) -> int:
    if size < 1 and size != -1:
        raise problem(f"must be 1 or more, or -1 for any size; got {size}")
    return size


def _parameter(value: object) -> object:
    """A parameter is a text. Messages wrap it in ``string_value``; YAML may write numbers and booleans bare."""
    if isinstance(value, dict) and set(value) <= {"string_value"}:
        value = value.get("string_value", "")
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class ModelTensor(Settings):
    """One input or output. ``dims`` has no batch dimension; -1 is a size that a request chooses. Empty dims, which only
    YAML can write: one value, for each row where there is a batch."""

    name: Name
    data_type: Annotated[DataType, BeforeValidator(_data_type)]
    dims: tuple[Annotated[StrictInt, AfterValidator(_dim)], ...]


class ModelSettings(Settings):
    """What an operator says about a model. Defaults mean "find out from the artefact"."""

    name: StrictStr = ""
    """If given, it must be the model's name: a file copied to the wrong place is noticed."""
    platform: StrictStr = ""
    max_batch_size: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    """The most rows of one run; 0: the artefact decides whether there is a batch dimension."""
    input: tuple[ModelTensor, ...] = ()
    output: tuple[ModelTensor, ...] = ()
    parameters: Mapping[StrictStr, Annotated[StrictStr, BeforeValidator(_parameter)]] = {}
    dynamic_batching: DynamicBatching | None = None
    """None: nothing is said about batching."""
    instance_group: Annotated[tuple[InstanceGroup, ...], AfterValidator(check_instances)] = ()
    """How many copies of the model there are; empty: one."""
    signatures: Mapping[Name, ModelSignature] = {}
    """Ways to call the model beside its own, which stays ``serving_default`` unless that key is among these."""
    warmup: Annotated[tuple[WarmupRequest, ...], AfterValidator(check_warmup)] = ()
    """What is asked of a version before it becomes available."""

    @field_validator("input", "output")
    @classmethod
    def _distinct_names(cls, tensors: tuple[ModelTensor, ...]) -> tuple[ModelTensor, ...]:
        seen = set[str]()
        for index, tensor in enumerate(tensors):
            if tensor.name in seen:
                raise problem(f'"{tensor.name}" is listed twice', index, "name")
            seen.add(tensor.name)
        return tensors

    @model_validator(mode="after")
    def _preferred_sizes_fit(self) -> ModelSettings:
        largest = self.max_batch_size
        for index, size in enumerate(self.dynamic_batching.preferred_batch_size if self.dynamic_batching else ()):
            if 0 < largest < size:
                raise problem(
                    f"must be at most max_batch_size, {largest}; got {size}",
                    "dynamic_batching",
                    "preferred_batch_size",
                    index,
                )
        return self


def signature_of(settings: ModelSettings) -> Signature | None:
    """The signature that the settings declare; None if they declare no tensors.

    With ``max_batch_size`` above 0 every tensor gets a first dimension, the batch.
    """
    if not settings.input and not settings.output:
        return None
    return Signature(_specs(settings.input, settings), _specs(settings.output, settings))


def _specs(tensors: Sequence[ModelTensor], settings: ModelSettings) -> tuple[TensorSpec, ...]:
    batch: tuple[Dim, ...] = ()
    if settings.max_batch_size > 0:
        batch = (SymbolicDim(BATCH_SYMBOL, settings.max_batch_size),)
    return tuple(TensorSpec(tensor.name, tensor.data_type, batch + _dims(tensor)) for tensor in tensors)


def _dims(tensor: ModelTensor) -> tuple[Dim, ...]:
    return tuple(size if size > 0 else SymbolicDim(f"{tensor.name}_{axis}") for axis, size in enumerate(tensor.dims))
