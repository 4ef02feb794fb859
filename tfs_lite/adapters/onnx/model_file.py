"""``model.onnx`` as it is on disk: a protobuf ``ModelProto``, read field by field.

Tensors stay where they are: of weights only names, shapes and places are read. Fields that a parser would merge are all
looked at, as :mod:`tfs_lite.adapters.inspect.wire` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tfs_lite.adapters.inspect.archive import damaged
from tfs_lite.adapters.inspect.wire import as_bytes, fields, last_number, last_text, messages, numbers, text, texts
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.adapters.spare import SPARE
from tfs_lite.core.status import failed_precondition

ARTEFACT = "model.onnx"
MAX_BYTES = 1 << 31
_ROUNDED = 1 << 20
"""Bytes: files of nearly the same size use the same memory, one after the other."""
MAX_RANK = 64
MAX_SHOWN = 200
ITEM_BYTES = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 1),  # uint8, int8, bool, float8
    **dict.fromkeys((4, 5, 10, 16), 2),  # 16 bits
    **dict.fromkeys((1, 6, 12), 4),  # float, int32, uint32
    **dict.fromkeys((7, 11, 13, 14), 8),  # int64, double, uint64, complex64
    15: 16,  # complex128
    8: 32,  # string: the object without its text
}
"""Bytes of an element by ``TensorProto.DataType``; those of less than a byte count as one."""
INT64 = 7
_EXTERNAL = 1
# ModelProto
_GRAPH, _OPSETS, _FUNCTIONS = 7, 8, 25
# GraphProto
_NODES, _INITIALIZERS, _INPUTS, _OUTPUTS, _SPARSE = 1, 5, 11, 12, 15


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """A tensor without its values. ``integers`` are those of a small int64 tensor. ``location``: the file that has the
    values; None: this one."""

    name: str
    dtype: int
    dims: tuple[int, ...]
    location: str | None = None
    integers: tuple[int, ...] | None = None

    @property
    def bytes(self) -> int:
        return size_of(self.dims, self.dtype)


def size_of(dims: tuple[int, ...], dtype: int) -> int:
    """Bytes of a dense tensor; sizes below 0 count as 0."""
    return prod(max(0, size) for size in dims) * ITEM_BYTES.get(dtype, 1)


def shown(name: str) -> str:
    """A text of the file for a message: at most 200 characters in one line, escaped where they are not printable."""
    text = name[:MAX_SHOWN]
    return text if text.isprintable() else repr(text)[1:-1]


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a node: whichever of its values are there. ``dense`` are the dense shapes of sparse tensors."""

    name: str = ""
    integers: tuple[int, ...] = ()
    tensors: tuple[TensorHeader, ...] = ()
    dense: tuple[TensorHeader, ...] = ()
    graphs: tuple[memoryview, ...] = ()


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A call of the operator or function ``op`` of ``domain``."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[Attribute, ...]

    def attribute(self, name: str) -> Attribute:
        return next((found for found in self.attributes if found.name == name), Attribute())


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the file: calls of it are replaced by its nodes."""

    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: memoryview


@dataclass(frozen=True, slots=True)
class Value:
    """An input or an output. ``dims``: a size, a symbol, or None for neither; None if the rank is not declared.
    ``dtype`` 0 with ``kind`` other than ``tensor``: a sequence, map, optional or sparse tensor."""

    name: str
    kind: str
    dtype: int = 0
    dims: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The facts that a file states about its model."""

    opsets: dict[str, int]
    graphs: tuple[memoryview, ...]
    functions: tuple[Function, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()


def artefact_path(files: VersionFiles) -> str:
    """The file, in the version's directory, or in a folder of its name there, as Triton has it."""
    path = os.path.join(files.directory, ARTEFACT)
    return path if ARTEFACT in files.names else os.path.join(path, ARTEFACT)


def read_model_file(path: str) -> ModelFile:
    """Reads all of it: a mapped file that becomes shorter would end the process. The memory is that of weights, which
    the next version uses again: to free it would hold the interpreter lock for milliseconds. DATA_LOSS if it is cut
    off, empty or no such file; FAILED_PRECONDITION if protobuf does not take a file of this size."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size >= MAX_BYTES:
                raise failed_precondition(f"{ARTEFACT} has 2 GiB or more; save its weights as external data")
            view, filled = SPARE.map((size // _ROUNDED + 1) * _ROUNDED).data, 0
            while filled < size and (count := file.readinto(view[filled:size])):
                filled += count
            return _read(view[:filled].toreadonly())
    except OSError as error:
        raise damaged(f"{ARTEFACT} cannot be read: {error.strerror}") from None


def _read(view: memoryview) -> ModelFile:
    opsets = {last_text(entry, 1): last_number(entry, 2) for entry in messages(view, _OPSETS)}
    graphs = tuple(messages(view, _GRAPH))
    if not graphs:
        raise damaged(f"{ARTEFACT} is damaged: it has no graph")
    given = {header.name for graph in graphs for header in initializers(graph)}
    inputs = [_value(value) for graph in graphs for value in messages(graph, _INPUTS)]
    return ModelFile(
        opsets,
        graphs,
        tuple(_function(body) for body in messages(view, _FUNCTIONS)),
        tuple(value for value in inputs if value.name not in given),
        tuple(_value(value) for graph in graphs for value in messages(graph, _OUTPUTS)),
    )


def nodes(graph: memoryview) -> Iterator[OnnxNode]:
    """The nodes of a graph, in its order."""
    for message in messages(graph, _NODES):
        yield _node(message)


def function_nodes(function: Function) -> Iterator[OnnxNode]:
    for message in messages(function.body, 7):
        yield _node(message)


def outputs(graph: memoryview) -> Iterator[str]:
    """The names of a graph's outputs."""
    for message in messages(graph, _OUTPUTS):
        yield last_text(message, 1)


def initializers(graph: memoryview) -> Iterator[TensorHeader]:
    for message in messages(graph, _INITIALIZERS):
        yield _tensor(message)


def sparse_initializers(graph: memoryview) -> Iterator[tuple[TensorHeader, TensorHeader]]:
    """Yields the stored values, and the dense tensor that they become."""
    for message in messages(graph, _SPARSE):
        yield from _sparse(message)


def _function(body: memoryview) -> Function:
    return Function(last_text(body, 10), last_text(body, 1), tuple(texts(body, 4)), tuple(texts(body, 5)), body)


def _node(message: memoryview) -> OnnxNode:
    op, domain, inputs, outputs, attributes = "", "", list[str](), list[str](), list[Attribute]()
    for number, value in fields(message):
        if number == 1:
            inputs.append(text(as_bytes(value)))
        elif number == 2:
            outputs.append(text(as_bytes(value)))
        elif number == 4:
            op = text(as_bytes(value))
        elif number == 5:
            attributes.append(_attribute(as_bytes(value)))
        elif number == 7:
            domain = text(as_bytes(value))
    return OnnxNode(op, domain, tuple(inputs), tuple(outputs), tuple(attributes))


def _attribute(message: memoryview) -> Attribute:
    name, integers, graphs = "", list[int](), list[memoryview]()
    tensors, dense = list[TensorHeader](), list[TensorHeader]()
    for number, value in fields(message):
        if number == 1:
            name = text(as_bytes(value))
        elif number == 3 and isinstance(value, int):
            integers.append(value)
        elif number in (5, 10):
            tensors.append(_tensor(as_bytes(value)))
        elif number in (6, 11):
            graphs.append(as_bytes(value))
        elif number in (22, 23):
            for stored, whole in _sparse(as_bytes(value)):
                tensors.append(stored)
                dense.append(whole)
    if not integers and name in ("value_ints",):
        integers = numbers(message, 8, MAX_RANK)
    return Attribute(name, tuple(integers), tuple(tensors), tuple(dense), tuple(graphs))


def _sparse(message: memoryview) -> Iterator[tuple[TensorHeader, TensorHeader]]:
    dims = tuple(numbers(message, 3, MAX_RANK))
    for values in messages(message, 1):
        stored = _tensor(values)
        yield stored, TensorHeader(stored.name, stored.dtype, dims)
    for indices in messages(message, 2):
        stored = _tensor(indices)
        yield stored, TensorHeader("", stored.dtype, ())


def _tensor(message: memoryview) -> TensorHeader:
    name, dtype, external, location = "", 0, False, ""
    raw: memoryview | None = None
    for number, value in fields(message):
        if number == 2 and isinstance(value, int):
            dtype = value
        elif number == 8:
            name = text(as_bytes(value))
        elif number == 9:
            raw = as_bytes(value)
        elif number == 13:
            external = True
            entry = as_bytes(value)
            if last_text(entry, 1) == "location":
                location = last_text(entry, 2)
        elif number == 14:
            external = external or value == _EXTERNAL
    dims = tuple(numbers(message, 1, MAX_RANK))
    integers = None
    if dtype == INT64 and not external and prod(dims) <= MAX_RANK:
        integers = _integers(message, raw)
    return TensorHeader(name, dtype, dims, location if external else None, integers)


def _integers(message: memoryview, raw: memoryview | None) -> tuple[int, ...]:
    if raw is not None and len(raw) % 8 == 0 and len(raw) <= 8 * MAX_RANK:
        return tuple(int.from_bytes(raw[at : at + 8], "little", signed=True) for at in range(0, len(raw), 8))
    return tuple(numbers(message, 7, MAX_RANK))


SEQUENCE, SEQUENCE_OF_MAPS = "a sequence of tensors", "a sequence of maps"
_KINDS = {5: "a map", 7: "an opaque value", 8: "a sparse tensor", 9: "an optional value"}


def _value(message: memoryview) -> Value:
    name = last_text(message, 1)
    for kind in messages(message, 2):
        for number, found in fields(kind):
            if number == 1:
                tensor = as_bytes(found)
                return Value(name, "tensor", last_number(tensor, 1), _dims(tensor))
            if number == 4:
                return Value(name, SEQUENCE_OF_MAPS if _has_maps(as_bytes(found)) else SEQUENCE)
            if number in _KINDS:
                return Value(name, _KINDS[number])
    return Value(name, "a value without a type")


def _has_maps(sequence: memoryview) -> bool:
    return any(number == 5 for kind in messages(sequence, 1) for number, _ in fields(kind))


def _dims(tensor: memoryview) -> tuple[int | str | None, ...] | None:
    """The dimensions of a tensor; None if there is no shape at all, which is another thing than one without
    dimensions."""
    shapes = list(messages(tensor, 2))
    if not shapes:
        return None
    return tuple(_dim(dim) for shape in shapes for dim in messages(shape, 1))


def _dim(message: memoryview) -> int | str | None:
    """A number below 0 means any size, as it does for onnxruntime: some exporters write -1."""
    symbol = last_text(message, 2)
    if symbol:
        return symbol
    size = last_number(message, 1)
    return size if size > 0 or (not size and any(number == 1 for number, _ in fields(message))) else None
