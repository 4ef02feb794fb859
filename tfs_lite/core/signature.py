"""The inputs and outputs of a model: dtypes, tensor specs, signatures, and the check of a request against them.

The dtype numbers and texts are those of ``tensorflow.DataType``. Exported programs run here without torch's guards: the
guards' demands on sizes are in the signature, as shapes and as :class:`SizeConditions`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument

MAX_SHOWN_NAMES = 32
DEFAULT_SIGNATURE = "serving_default"
PREDICT_METHOD = "tensorflow/serving/predict"
CLASSIFY_METHOD = "tensorflow/serving/classify"
REGRESS_METHOD = "tensorflow/serving/regress"
METHODS = {"predict": PREDICT_METHOD, "classify": CLASSIFY_METHOD, "regress": REGRESS_METHOD}


class DataType(enum.IntEnum):
    """Element types by their TensorFlow number. INVALID in a spec means "not declared": any type is let through."""

    INVALID = 0
    FLOAT = 1
    DOUBLE = 2
    INT32 = 3
    UINT8 = 4
    INT16 = 5
    INT8 = 6
    STRING = 7
    COMPLEX64 = 8
    INT64 = 9
    BOOL = 10
    BFLOAT16 = 14
    UINT16 = 17
    COMPLEX128 = 18
    HALF = 19
    UINT32 = 22
    UINT64 = 23
    FLOAT8_E5M2 = 24
    FLOAT8_E4M3FN = 25
    FLOAT8_E4M3FNUZ = 26
    FLOAT8_E5M2FNUZ = 28

    @property
    def text(self) -> str:
        """The lower-case name that TensorFlow uses in error messages, e.g. ``float``."""
        return self.name.lower()


class Tensor(Protocol):
    """The tensor that crosses rooms: a numpy array, C-contiguous; strings as an object array of ``bytes``.

    bfloat16 and float8 use the dtypes of ``ml_dtypes``. torch appears only inside adapters.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """A dimension whose size a request chooses. Equal symbols in one request must have equal sizes.

    ``maximum`` is inclusive; None means unbounded. A minimum is one of the signature's ``conditions``.
    """

    symbol: str
    maximum: int | None = None

    @property
    def is_named(self) -> bool:
        """Whether a person chose the symbol, and so recognises it in a message. Exporters number theirs."""
        return not any(character.isdigit() for character in self.symbol)


Dim = int | SymbolicDim


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a signature."""

    name: str
    dtype: DataType = DataType.INVALID
    """INVALID: not declared."""
    shape: tuple[Dim, ...] | None = None
    """Numbers, and ``SymbolicDim`` for sizes that a request chooses; None: the rank is not declared."""
    tensor: str = ""
    """The name of the tensor in the model's graph, if clients may read it."""

    @property
    def batch(self) -> str | None:
        """The symbol of the first dimension; None if that dimension has a fixed size or is not declared."""
        first = self.shape[0] if self.shape else None
        return first.symbol if isinstance(first, SymbolicDim) else None


_SIZE = re.compile(r"\bn(\d+)\b")
_AT_LEAST = re.compile(r"n\d+ >= (\d+)")
_MULTIPLE = re.compile(r"n\d+ % (\d+) == 0")


@dataclass(frozen=True, slots=True)
class SizeConditions:
    """Conditions on the sizes of one run beyond those that the shapes of its inputs state. Made by
    :func:`~tfs_lite.protocols.conditions.read_conditions`.

    ``axes`` are the (input, dimension) of the sizes ``n0``, ``n1``, ... of which the ``texts`` speak: ``n0 % 8 == 0``.
    ``failing`` returns the number of the first text that does not hold for these sizes, None if all hold; any thread.
    ``complete`` is False if the program has more conditions, which it checks itself, run by run.
    """

    axes: tuple[tuple[str, int], ...]
    texts: tuple[str, ...]
    failing: Callable[[tuple[int, ...]], int | None] = field(compare=False, repr=False)
    complete: bool = True

    def fault(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """The condition that inputs of these shapes break, for a message; empty if they break none. Ranks were
        checked."""
        sizes = tuple([shapes[name][axis] for name, axis in self.axes])
        number = self.failing(sizes)
        return "" if number is None else self._fault(self.texts[number], sizes)

    def renamed(self, names: Mapping[str, str]) -> SizeConditions:
        """The same for inputs with other names."""
        return replace(self, axes=tuple((names[name], axis) for name, axis in self.axes))

    def shown(self) -> tuple[str, ...]:
        """The conditions for people: ``x.shape[0] >= 5``."""
        return tuple(_SIZE.sub(self._place, text) for text in self.texts)

    def _place(self, size: re.Match[str]) -> str:
        name, axis = self.axes[int(size[1])]
        return f"{name}.shape[{axis}]"

    def _fault(self, text: str, sizes: tuple[int, ...]) -> str:
        used = dict.fromkeys(_SIZE.findall(text))
        (name, axis), size = self.axes[int(next(iter(used)))], sizes[int(next(iter(used)))]
        if found := _AT_LEAST.fullmatch(text):
            return f"input {name} has size {size} in dimension {axis}, at least {found[1]} is needed"
        if found := _MULTIPLE.fullmatch(text):
            return f"input {name} has size {size} in dimension {axis}, which has to be a multiple of {found[1]}"
        values = [f"{_SIZE.sub(self._place, f'n{number}')} is {sizes[int(number)]}" for number in used]
        return f"the sizes do not fit: {_SIZE.sub(self._place, text)} is needed, {' and '.join(values)}"


class ShapeContract(enum.Enum):
    """The part of the declared shapes that is sure to hold. A file may declare less or more than its model takes and
    gives; who loads it says here what is sure.

    |        | inputs of a request | outputs | calls share runs |
    |--------|---------------------|---------|------------------|
    | ALL    | are checked         | are checked by the model | by the declaration |
    | ROWS   | are checked         | as they come; runs at the load had a row for each row | the same |
    | INPUTS | are checked         | as they come | as far as runs have shown a row for each row |
    | NONE   | the model decides   | as they come | the same, if their inputs are as declared; others run alone |
    """

    ALL = "all"
    ROWS = "rows"
    INPUTS = "inputs"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Signature:
    """One way to call a model: its inputs and outputs."""

    inputs: tuple[TensorSpec, ...]
    """The inputs in the order of ``forward``'s parameters."""
    outputs: tuple[TensorSpec, ...]
    """The outputs in the order in which ``forward`` returns them."""
    method_name: str = PREDICT_METHOD
    """The method that it is meant for, by TensorFlow Serving's name."""
    defaults: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    """Values of inputs that a request leaves out: one row without its batch dimension, which is repeated for every row,
    if the input's first dimension is symbolic (the batch); else the whole tensor."""
    optional: frozenset[str] = frozenset()
    """Inputs that a request may leave out as well; the model does not get them then."""
    conditions: SizeConditions | None = None
    """The conditions of an exported program on its sizes beyond the shapes."""
    contract: ShapeContract = field(default=ShapeContract.ALL, compare=False)
    """The part of the declared shapes that is sure to hold."""
    model: str = field(default="", compare=False)
    """The model's name, for messages; set by :func:`served`."""
    max_rows: int = field(default=0, compare=False)
    """The most rows of a request: above 0, the first dimension of every input is the batch. Set by :func:`served`."""

    @property
    def dispensable(self) -> Set[str]:
        """The inputs that a request may leave out."""
        return self.defaults.keys() | self.optional

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.outputs)


def served(signatures: Mapping[str, Signature], model: str, max_rows: int = 0) -> dict[str, Signature]:
    """The signatures as requests meet them: those of ``model``, whose config limits a request to ``max_rows`` rows; 0
    means that it names no limit."""
    return {key: _served(signature, model, max_rows) for key, signature in signatures.items()}


def _served(signature: Signature, model: str, max_rows: int) -> Signature:
    inputs = tuple(_limited(spec, max_rows) for spec in signature.inputs) if max_rows else signature.inputs
    return replace(signature, inputs=inputs, model=model, max_rows=max_rows)


def _limited(spec: TensorSpec, max_rows: int) -> TensorSpec:
    """The input with at most so many rows."""
    first = spec.shape[0] if spec.shape else None
    if spec.shape is None or not isinstance(first, SymbolicDim) or (first.maximum or max_rows) < max_rows:
        return spec
    return replace(spec, shape=(replace(first, maximum=max_rows), *spec.shape[1:]))


def named(error: ServingError, model: str) -> ServingError:
    """The refusal of a request, with the model's name behind its message."""
    if not model:
        return error
    return ServingError(error.code, f"{error.status.message} (model {model})", error.status.reason)


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Refusals of the block have the model's name behind their message, unless they name it already."""
    try:
        yield
    except ServingError as error:
        if f"'{model}'" in error.status.message:
            raise
        raise named(error, model) from None


def too_many_rows(most: int, model: str) -> ServingError:
    """INVALID_ARGUMENT for a request with more rows than the model's config allows, in Triton's words."""
    return invalid_argument(f"inference request batch-size must be <= {most} for '{model}'")


def known_signatures(signatures: Mapping[str, Signature]) -> str:
    """``Model m has: classify,serving_default``, for a message about a signature that it has not."""
    model = next((signature.model for signature in signatures.values()), "")
    return f"{f'Model {model}' if model else 'The model'} has: {_join(signatures)}"


def find_signature(signatures: Mapping[str, Signature], key: str) -> Signature:
    """The signature under ``key`` (empty: the default). FAILED_PRECONDITION if there is none."""
    key = key or DEFAULT_SIGNATURE
    try:
        return signatures[key]
    except KeyError:
        raise failed_precondition(
            f'Serving signature key "{key:.2000}" not found. {known_signatures(signatures)}'
        ) from None


def check_input_names(signature: Signature, sent: Collection[str]) -> None:
    """INVALID_ARGUMENT unless the signature's inputs were sent, all but those with a default, and no others. Runs
    before anything is decoded."""
    expected, got = set(signature.input_names), set(sent)
    if expected == got:
        return
    missing, extra = expected - got - signature.dispensable, got - expected
    if not missing and not extra:
        return
    if len(got) == len(expected) or (signature.dispensable and len(got) < len(expected)):
        reasons = []
        if missing:
            reasons.append(
                f"Signature input alias: {_join(missing)} not found in request and no default value provided."
            )
        if extra:
            reasons.append(f"Inputs contains invalid name: {_join(extra)}.")
        raise invalid_argument(" ".join(reasons))
    raise invalid_argument(
        f"input size does not match signature: {len(got)}!={len(expected)} "
        f"len({{{_join(got)}}}) != len({{{_join(expected)}}}). "
        f"Sent extra: {{{_join(extra)}}}. Missing but required: {{{_join(missing)}}}."
    )


def check_output_filter(signature: Signature, wanted: Sequence[str]) -> None:
    """INVALID_ARGUMENT if an output is unknown or named twice. An empty filter asks for all outputs."""
    known, seen = set(signature.output_names), set[str]()
    for name in wanted:
        if name not in known:
            raise invalid_argument(f"output tensor alias not found in signature: {name}. Outputs: {{{_join(known)}}}.")
        if name in seen:
            raise invalid_argument(f"duplicate output tensor alias: {name}")
        seen.add(name)


def check_rows(signature: Signature, shapes: Iterable[tuple[int, ...]]) -> None:
    """INVALID_ARGUMENT if an input with one of these shapes has more rows than the model's config allows."""
    most = signature.max_rows
    if most and any(shape and shape[0] > most for shape in shapes):
        raise too_many_rows(most, signature.model)


def check_inputs(signature: Signature, sent: Mapping[str, tuple[DataType, tuple[int, ...]]]) -> None:
    """INVALID_ARGUMENT unless dtype, rank and every size of every input fit, as far as the shapes are a contract; names
    were checked before.

    ``sent`` maps each input's name to its dtype and shape.
    """
    sizes: dict[str, tuple[str, int, int]] = {}
    for position, spec in enumerate(signature.inputs):
        if spec.name in signature.optional and spec.name not in sent:
            continue
        dtype, shape = sent[spec.name]
        if spec.dtype not in (DataType.INVALID, dtype):
            raise invalid_argument(
                f"Expects arg[{position}] to be {spec.dtype.text} but {dtype.text} is provided (input {spec.name})"
            )
        if spec.shape is not None and signature.contract is not ShapeContract.NONE:
            _check_shape(spec.name, spec.shape, shape, sizes)
    if signature.conditions is not None:
        fault = signature.conditions.fault({name: shape for name, (_, shape) in sent.items()})
        if fault:
            raise invalid_argument(fault)


def shapes_fault(signature: Signature, inputs: Mapping[str, Tensor]) -> str:
    """The difference between the inputs, whose names fit, and the declared shapes, whatever the contract; empty if they
    fit."""
    sizes: dict[str, tuple[str, int, int]] = {}
    try:
        for spec in signature.inputs:
            if spec.shape is not None and spec.name in inputs:
                _check_shape(spec.name, spec.shape, inputs[spec.name].shape, sizes)
    except ServingError as fault:
        return fault.status.message
    return ""


def _check_shape(
    name: str, declared: tuple[Dim, ...], shape: tuple[int, ...], sizes: dict[str, tuple[str, int, int]]
) -> None:
    if len(shape) != len(declared):
        raise invalid_argument(
            f"input {name} has rank {len(shape)}, expected {len(declared)}: "
            f"got shape {format_shape(shape)}, expected {format_shape(declared)}"
        )
    for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
        if isinstance(dim, int):
            if size != dim:
                raise invalid_argument(
                    f"input {name} has size {size} in dimension {axis}, expected {dim}: "
                    f"got shape {format_shape(shape)}, expected {format_shape(declared)}"
                )
            continue
        if dim.maximum is not None and size > dim.maximum:
            raise invalid_argument(
                f"input {name} has size {size} in dimension {axis}, at most {dim.maximum} is allowed"
            )
        other, where, known = sizes.setdefault(dim.symbol, (name, axis, size))
        if known != size:
            called = f" (both are {dim.symbol!r})" if dim.is_named else ""
            raise invalid_argument(
                f"input {name} has size {size} in dimension {axis}, but input {other} has {known} in dimension {where}"
                f", and these have to be equal{called}"
            )


def example_shapes(signature: Signature, size: int, rows: int = 0) -> dict[str, tuple[int, ...]] | None:
    """Shapes for made-up inputs, in which every size that requests choose is ``size``, or the largest that is allowed;
    with ``rows``, the first dimension that all inputs share is that instead. None if the signature takes no such
    inputs."""
    batch = common_batch(signature) if rows else None

    def example(dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        wanted = rows if dim.symbol == batch else size
        return min(dim.maximum or wanted, wanted)

    shapes = {spec.name: tuple(map(example, spec.shape or ())) for spec in signature.inputs}
    return None if signature.conditions is not None and signature.conditions.fault(shapes) else shapes


def common_batch(signature: Signature) -> str | None:
    """The symbol of the first dimension of all inputs; None if there is none."""
    firsts = {spec.batch for spec in signature.inputs}
    return firsts.pop() if len(firsts) == 1 else None


def format_shape(shape: tuple[Dim, ...] | None) -> str:
    """``[-1,28,28]`` for people; ``[?]`` when the rank is not declared."""
    if shape is None:
        return "[?]"
    return "[" + ",".join(str(dim) if isinstance(dim, int) else "-1" for dim in shape) + "]"


def _join(names: Collection[str]) -> str:
    """Sorted; of very many, some."""
    if len(names) <= MAX_SHOWN_NAMES:
        return ",".join(sorted(names))
    return f"{','.join(islice(names, MAX_SHOWN_NAMES))} and {len(names) - MAX_SHOWN_NAMES} more"
