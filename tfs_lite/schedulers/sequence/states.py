"""Implicit state: the arrays that a model remembers of a sequence, kept for it between the requests.

    START: the initial state -> input of the model -> what it writes to the output -> input of the next request ...

Every sequence has one array for each ``state`` of the config, without a batch dimension, which is kept with its slot
between two of its requests. Clients see neither side of it, unless an output is named among the model's regular ones as
well.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.sequence import InitialState, SequenceState
from tfs_lite.core.signature import DataType, Signature, Tensor, format_shape
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import Array, to_numpy
from tfs_lite.schedulers.sequence.controls import missing_input
from tfs_lite.schedulers.sequence.request import SequenceId, SequenceSlot

DIRECTORY = "initial_state"
"""The directory next to the versions of a model with the files that ``initial_state`` may name."""
MAX_TEXT_BYTES = 1 << 20
"""The most bytes of one element of an initial state of texts."""

Values = Mapping[str, Array]
"""The state of one sequence, by the name of the input. Never written to."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """One state. ``dims``: without a batch dimension, -1 for any size."""

    input: str
    output: str
    data_type: DataType
    dims: tuple[int, ...]
    initial: Array

    def fault(self, value: Array) -> str:
        """The fault of a value that the model has written; empty if there is none."""
        dims = self.dims
        fits = len(value.shape) == len(dims) and all(
            dim in (-1, size) for dim, size in zip(dims, value.shape, strict=True)
        )
        if fits and value.dtype == self.initial.dtype:
            return ""
        return (
            f"wrote {value.dtype.name}{format_shape(value.shape)} to the state {self.output}, expected "
            f"{self.initial.dtype.name}{format_shape(dims)}"
        )


@dataclass(frozen=True, slots=True)
class States:
    """All states of a model. Pure after :meth:`of`, which reads files; any thread."""

    states: tuple[State, ...]
    batched: bool

    @classmethod
    def of(cls, settings: ModelSettings, directory: Path | None) -> States:
        """Reads the states of a config. ``directory`` has the model's versions and ``initial_state``. INVALID_ARGUMENT
        for a file that is missing or too short."""
        configured = settings.sequence_batching.state if settings.sequence_batching else ()
        return cls(tuple(_state(each, directory) for each in configured), settings.max_batch_size > 0)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(state.input for state in self.states)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(state.output for state in self.states)

    def initial(self) -> Values:
        """The state of a sequence before its first request."""
        return {state.input: state.initial for state in self.states}

    def written(self, row: Mapping[str, Tensor], before: Values, model: str) -> Values:
        """The state after a request, from its row of the outputs, which has no batch dimension; what the model did not
        write stays. INTERNAL for a value that is no such state."""
        after = dict(before)
        for state in self.states:
            if state.output not in row:
                continue
            value = cast(Array, row[state.output])
            fault = state.fault(value)
            if fault:
                raise ServingError(StatusCode.INTERNAL, f"{model} {fault}")
            after[state.input] = value
        return after

    def check(self, signature: Signature, model: str) -> None:
        """Raises INVALID_ARGUMENT unless the model has the inputs and outputs of every state."""
        known, written = signature.input_names, signature.output_names
        for state in self.states:
            if state.input not in known:
                raise missing_input(model, f"state {state.input}", known)
            if state.output not in written:
                raise invalid_argument(
                    f"sequence_batching: {model} has no output for the state {state.output}; its outputs are: "
                    f"{', '.join(sorted(written))}"
                )


def _state(state: SequenceState, directory: Path | None) -> State:
    shape = tuple(1 if dim == -1 else dim for dim in state.dims)
    initial = _zeros(shape, to_numpy(state.data_type))
    for configured in state.initial_state:
        initial = _initial(state, configured, directory)
    initial.flags.writeable = False
    return State(state.input_name, state.output_name, state.data_type, tuple(state.dims), initial)


def _initial(state: SequenceState, configured: InitialState, directory: Path | None) -> Array:
    shape, dtype = tuple(configured.dims), to_numpy(state.data_type)
    if configured.data_file is None:
        return _zeros(shape, dtype)
    name = f"{DIRECTORY}/{configured.data_file}"
    if directory is None:
        raise invalid_argument(f"the state {state.input_name} has a file, {name}, but the model has no directory")
    try:
        with (directory / DIRECTORY / configured.data_file).open("rb") as file:
            array = (
                np.array(list(_texts(file, math.prod(shape))), object)
                if dtype.hasobject
                else _numbers(file, shape, dtype)
            )
    except (OSError, ValueError, struct.error) as error:
        raise invalid_argument(
            f"the state {state.input_name} cannot be read from {name}: {getattr(error, 'strerror', None) or error}"
        ) from None
    return array.reshape(shape)


def _numbers(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    data = file.read(size)
    if len(data) < size:
        raise ValueError(f"it has {len(data)} bytes, {size} are needed")
    return np.frombuffer(data, dtype).copy()


def _texts(file: BinaryIO, count: int) -> Iterator[bytes]:
    """Reads texts, each behind its length, four bytes, the lowest first."""
    for _ in range(count):
        (size,) = struct.unpack("<I", file.read(4))
        data = file.read(min(size, MAX_TEXT_BYTES))
        if len(data) < size:
            raise ValueError(f"a text should have {size} bytes, at most {MAX_TEXT_BYTES}; it has {len(data)}")
        yield data


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.full(shape, b"", object) if dtype.hasobject else np.zeros(shape, dtype)


class Memory:
    """The states of sequences, at most one for each slot; bookkeeping only, not for several threads at once. No request
    finds that of another sequence there, because every sequence begins with a START, which asks for none. The state of
    a sequence whose id was started again before its last request ran may be kept until then."""

    def __init__(self) -> None:
        self._kept: dict[SequenceSlot, tuple[SequenceId, Values]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, slot: SequenceSlot) -> Values | None:
        kept = self._kept.get(slot)
        return None if kept is None else kept[1]

    def keep(self, slot: SequenceSlot, id: SequenceId, values: Values) -> None:
        self._kept[slot] = id, values

    def drop(self, slot: SequenceSlot) -> None:
        """Forgets the slot's state; does nothing if there is none."""
        self._kept.pop(slot, None)

    def forget(self, ids: Collection[SequenceId], needed: Callable[[SequenceSlot], bool]) -> None:
        """Drops the states of these sequences, unless a request will ask for one."""
        for slot in [slot for slot, (id, _) in self._kept.items() if id in ids and not needed(slot)]:
            del self._kept[slot]
