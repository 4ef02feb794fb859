"""The control tensors, which tell a model, besides a request's own inputs, where in its sequence the request stands,
and its id.

The config names a tensor for each of these facts, ``control_input``; clients neither see nor send them. A batch has one
row of each for every request, and for every null row: not ready, no start, no end, the id 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.sequence import CORRID, FLATTEN_PARAMETER
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.signature import DataType, Signature, format_shape
from tfs_lite.core.status import Status, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import Array, to_numpy

START, READY = "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY"
END = "CONTROL_SEQUENCE_END"
WIRE_NAMES = {DataType.STRING: "BYTES"}


@dataclass(frozen=True, slots=True)
class ControlTensor:
    """One input of the model. ``false_true`` are the values for no and for yes; empty for the id."""

    name: str
    kind: str
    data_type: DataType
    false_true: tuple[Any, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return to_numpy(self.data_type)

    def value(self, flags: SequenceFlags | None) -> Any:
        """One element. ``flags`` is None for a null row."""
        if self.kind == CORRID:
            return _id_value(0 if flags is None else flags.id, self.data_type)
        told = flags is not None and {START: flags.start, END: flags.end, READY: True}[self.kind]
        return self.false_true[told]


@dataclass(frozen=True, slots=True)
class Controls:
    """The control tensors of a model. Pure; any thread. Make it with :meth:`of`.

    A tensor has the shape [rows, 1], or [rows] with the parameter ``flatten_control_inputs``; [1] where there is no
    batch dimension.
    """

    tensors: tuple[ControlTensor, ...]
    batched: bool
    flat: bool = False

    @classmethod
    def of(cls, settings: ModelSettings) -> Controls:
        """Reads the controls of a config. INVALID_ARGUMENT for a parameter that is neither true nor false."""
        batching = settings.sequence_batching
        found = [(each.name, each.only) for each in (batching.control_input if batching else ())]
        tensors = [
            ControlTensor(name, told.kind, told.dtype, () if told.kind == CORRID else told.false_true)
            for name, told in found
        ]
        return cls(tuple(tensors), settings.max_batch_size > 0, _is_flat(settings))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.tensors)

    def refusal(self, flags: SequenceFlags, model: str) -> Status | None:
        """Returns INVALID_ARGUMENT for an id of a type that the model does not take."""
        sent = DataType.STRING if isinstance(flags.id, str) else DataType.UINT64
        for tensor in self.tensors:
            if tensor.kind == CORRID and (sent is DataType.STRING) != (tensor.data_type is DataType.STRING):
                return Status(
                    StatusCode.INVALID_ARGUMENT,
                    f"sequence batching control 'CORRID' data-type is '{_wire_name(sent)}', but model '{model}' "
                    f"expects '{_wire_name(tensor.data_type)}'",
                )
        return None

    def shapes(self, rows: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """The shape and numpy dtype of each control tensor in a batch of so many rows, by name."""
        shape = (1,) if not self.batched else (rows,) if self.flat else (rows, 1)
        return {tensor.name: (shape, tensor.dtype) for tensor in self.tensors}

    def write(self, arrays: Mapping[str, Array], rows: Sequence[SequenceFlags | None]) -> None:
        """Fills the arrays of :meth:`shapes`; a row without flags is a null row."""
        for tensor in self.tensors:
            elements = arrays[tensor.name].reshape(-1)
            for index, flags in enumerate(rows):
                elements[index] = tensor.value(flags)

    def check(self, signature: Signature, model: str) -> None:
        """Raises INVALID_ARGUMENT unless the model has every control tensor as an input, of that type and rank."""
        specs = {spec.name: spec for spec in signature.inputs}
        for name, (shape, dtype) in self.shapes(1).items():
            spec = specs.get(name)
            if spec is None:
                raise missing_input(model, f"control_input {name}", specs)
            if spec.dtype is not DataType.INVALID and to_numpy(spec.dtype) != dtype:
                raise invalid_argument(
                    f"sequence_batching: the control_input {name} is {dtype.name}, but the input of {model} is "
                    f"{spec.dtype.text}"
                )
            if spec.shape is not None and len(spec.shape) != len(shape):
                raise invalid_argument(
                    f"sequence_batching: the control_input {name} has {len(shape)} dimensions, but the input of "
                    f"{model} has the shape {format_shape(spec.shape)}; the parameter {FLATTEN_PARAMETER} says "
                    "whether it is [rows] or [rows,1]"
                )


def missing_input(model: str, what: str, known: Collection[str]) -> Exception:
    """The INVALID_ARGUMENT to raise for an input that the model lacks."""
    return invalid_argument(
        f"sequence_batching: {model} has no input for the {what}; its inputs are: {', '.join(sorted(known))}"
    )


def _is_flat(settings: ModelSettings) -> bool:
    text = settings.parameters.get(FLATTEN_PARAMETER, "false").lower()
    if text not in ("true", "false"):
        raise invalid_argument(f'the parameter {FLATTEN_PARAMETER} must be true or false, got "{text:.80}"')
    return text == "true"


def _id_value(number_or_text: int | str, data_type: DataType) -> Any:
    """The id in the tensor's type: of a number as many of its low bits as fit."""
    if data_type is DataType.STRING:
        return b"" if number_or_text == 0 else str(number_or_text).encode()
    dtype = to_numpy(data_type)
    bits = 8 * dtype.itemsize
    low = int(number_or_text) & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.kind == "i" and low >> (bits - 1) else low


def _wire_name(data_type: DataType) -> str:
    return WIRE_NAMES.get(data_type, data_type.name)
