"""Sequences of requests: ``sequence_batching`` of a model's config, in Triton's names and meanings.

The scheduler gives the model inputs that clients never send: control inputs, which say where in its sequence a request
is, and states, which are what the model wrote for the request before. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from tfs_lite.config.scheduling import PreferredSize, UInt64
from tfs_lite.config.settings import Settings, problem
from tfs_lite.config.signatures import Name, file_below
from tfs_lite.config.tensors import Dims, ElementType, ElementTypeOrNone, one_of
from tfs_lite.core.signature import DataType

DEFAULT_IDLE_MICROSECONDS = 1_000_000
MAX_CANDIDATES = 65536
"""The most candidates of one instance."""
FLATTEN_PARAMETER = "flatten_control_inputs"
"""``true`` among a model's parameters: control inputs have the shape [rows] in a batch, not [rows, 1]."""
MAX_CONTROLS = 16
MAX_STATES = 64
KINDS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_CORRID")
CORRID = "CONTROL_SEQUENCE_CORRID"
CORRID_TYPES = (DataType.UINT64, DataType.INT64, DataType.UINT32, DataType.INT32, DataType.STRING)
VALUES = {"int32_false_true": DataType.INT32, "fp32_false_true": DataType.FLOAT, "bool_false_true": DataType.BOOL}
"""The fields that hold the two values of a flag, and the element types that follow from them."""

MAX_FLOAT = (2 - 2**-23) * 2.0**127
Number = Annotated[StrictFloat | StrictInt, Field(ge=-MAX_FLOAT, le=MAX_FLOAT)]


class Control(Settings):
    """The meaning of one control input. START, END and READY are flags with two values; CORRID is the sequence's id."""

    kind: Annotated[
        Literal["CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_CORRID"],
        one_of(KINDS, "kind of control"),
    ] = "CONTROL_SEQUENCE_START"
    int32_false_true: tuple[Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)], ...] = ()
    fp32_false_true: tuple[Number, ...] = ()
    bool_false_true: tuple[StrictBool, ...] = ()
    data_type: ElementTypeOrNone = None
    """The data type of CORRID."""

    @property
    def dtype(self) -> DataType:
        """The element type of the tensor."""
        return self.data_type if self.data_type is not None else VALUES[self._values_field]

    @property
    def false_true(self) -> tuple[int | float | bool, int | float | bool]:
        """The values of a flag that is not set, and of one that is."""
        no, yes = getattr(self, self._values_field)
        return no, yes

    @property
    def _values_field(self) -> str:
        return next(field for field in VALUES if getattr(self, field))

    @model_validator(mode="after")
    def _values_fit_the_kind(self) -> Control:
        given = [field for field in VALUES if getattr(self, field)]
        if self.kind == CORRID:
            self._check_id(given)
        elif self.data_type is not None:
            raise problem(f"is for {CORRID}; the type of {self.kind} follows from its values", "data_type")
        elif len(given) != 1:
            raise problem(f"{self.kind} needs exactly one of {', '.join(VALUES)}; got {len(given)}", *given[-1:])
        elif len(getattr(self, given[0])) != 2:
            raise problem(f"expected two values, false and true; got {len(getattr(self, given[0]))}", given[0])
        return self

    def _check_id(self, given: list[str]) -> None:
        if given:
            raise problem(f"{CORRID} takes a data_type and no values", given[0])
        if self.data_type not in CORRID_TYPES:
            raise problem(
                f"{CORRID} needs TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING", "data_type"
            )


class ControlInput(Settings):
    """An input of the model that the scheduler fills. In a batch it has the shape [rows, 1], else [1]."""

    name: Name
    control: tuple[Control, ...]

    @field_validator("control")
    @classmethod
    def _one_control(cls, controls: tuple[Control, ...]) -> tuple[Control, ...]:
        if len(controls) != 1:
            raise problem(f"a tensor holds one control; got {len(controls)}", *([1] if controls else []))
        return controls

    @property
    def only(self) -> Control:
        """The control that the tensor holds."""
        return self.control[0]


class InitialState(Settings):
    """The value of a state at the start of a sequence."""

    name: Name
    data_type: ElementType
    dims: Dims = ()
    zero_data: StrictBool | None = None
    """The field's presence means zeros, whatever its value."""
    data_file: Annotated[StrictStr, AfterValidator(file_below)] | None = None
    """A file of raw bytes in the model's directory ``initial_state``."""

    @model_validator(mode="after")
    def _one_source(self) -> InitialState:
        given = [field for field in ("zero_data", "data_file") if getattr(self, field) is not None]
        if len(given) != 1:
            raise problem(f"expected exactly one of zero_data, data_file; got {len(given)}", *given[-1:])
        return self


class SequenceState(Settings):
    """A tensor that the scheduler keeps for each sequence: what the model wrote to ``output_name`` comes back as
    ``input_name``."""

    input_name: Name
    output_name: Name
    data_type: ElementType
    dims: Dims
    initial_state: tuple[InitialState, ...] = ()
    """None means zeros, with 1 for every size of -1."""
    use_same_buffer_for_input_output: StrictBool = False
    """The field has no effect, nor has the next one."""
    use_growable_memory: StrictBool = False

    @model_validator(mode="after")
    def _initial_state_fits(self) -> SequenceState:
        if len(self.initial_state) > 1:
            raise problem("there can be one initial state", "initial_state", 1)
        for initial in self.initial_state:
            if initial.data_type is not self.data_type:
                raise problem("must be the data_type of the state", "initial_state", 0, "data_type")
            if len(initial.dims) != len(self.dims):
                raise problem(f"expected {len(self.dims)} sizes, got {len(initial.dims)}", "initial_state", 0, "dims")
            for axis, (size, expected) in enumerate(zip(initial.dims, self.dims, strict=True)):
                if size == -1 or expected not in (-1, size):
                    wanted = "a size" if expected == -1 else str(expected)
                    raise problem(f"expected {wanted}, got {size}", "initial_state", 0, "dims", axis)
        return self


class StrategyDirect(Settings):
    """Each sequence has a row of an instance's batch for itself."""

    max_queue_delay_microseconds: UInt64 = 0
    minimum_slot_utilization: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)] = 0.0
    """The share of the rows that is worth running before the delay is over."""


class StrategyOldest(Settings):
    """Each sequence keeps to an instance, whose batches are formed from the oldest requests."""

    max_candidate_sequences: Annotated[StrictInt, Field(ge=0, le=MAX_CANDIDATES)] = 0
    """The number of sequences that an instance serves at a time; 0: ``max_batch_size``."""
    preferred_batch_size: tuple[PreferredSize, ...] = ()
    """Sizes worth running at once; empty: ``max_batch_size``."""
    max_queue_delay_microseconds: UInt64 = 0
    preserve_ordering: StrictBool = False


class SequenceBatching(Settings):
    """The requests of a sequence go to one instance, in order. That the field is there switches it on."""

    max_sequence_idle_microseconds: Annotated[UInt64, AfterValidator(lambda n: n or DEFAULT_IDLE_MICROSECONDS)] = (
        DEFAULT_IDLE_MICROSECONDS
    )
    """A sequence without a request for this long is forgotten. 0 counts as a second."""
    control_input: Annotated[tuple[ControlInput, ...], Field(max_length=MAX_CONTROLS)] = ()
    direct: StrategyDirect | None = None
    oldest: StrategyOldest | None = None
    """The strategy ``oldest``; at most one of both is set, and with neither it is direct."""
    state: Annotated[tuple[SequenceState, ...], Field(max_length=MAX_STATES)] = ()
    iterative_sequence: StrictBool = False
    """Never true."""

    @model_validator(mode="after")
    def _one_strategy(self) -> SequenceBatching:
        if self.direct is not None and self.oldest is not None:
            raise problem("direct and oldest exclude each other", "oldest")
        if self.iterative_sequence:
            raise problem("is not supported yet; leave it out", "iterative_sequence")
        return self

    @model_validator(mode="after")
    def _kinds_differ(self) -> SequenceBatching:
        seen = set[str]()
        for index, tensor in enumerate(self.control_input):
            if tensor.only.kind in seen:
                raise problem(f"a second tensor for {tensor.only.kind}", "control_input", index, "control", 0, "kind")
            seen.add(tensor.only.kind)
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> SequenceBatching:
        for names in (self._input_names(), self._output_names()):
            seen = set[str]()
            for name, *path in names:
                if name in seen:
                    raise problem(f'"{name}" is named twice', *path)
                seen.add(str(name))
        return self

    def _input_names(self) -> Iterator[tuple[str | int, ...]]:
        for index, tensor in enumerate(self.control_input):
            yield tensor.name, "control_input", index, "name"
        for index, state in enumerate(self.state):
            yield state.input_name, "state", index, "input_name"

    def _output_names(self) -> Iterator[tuple[str | int, ...]]:
        for index, state in enumerate(self.state):
            yield state.output_name, "state", index, "output_name"
