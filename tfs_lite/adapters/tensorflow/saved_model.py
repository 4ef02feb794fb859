"""The contents of ``saved_model.pb``, read without TensorFlow: its graphs by their tags, signatures, operators.

    saved_model.pb -> MetaGraph per set of tags -> the one that is wanted -> signatures; operators that may run

The file is read once and never mapped, and every bound is checked before memory is taken. Nothing in it is believed: a
damaged file is DATA_LOSS, one that says something impossible FAILED_PRECONDITION.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tfs_lite.adapters.inspect.archive import changed_meanwhile
from tfs_lite.adapters.inspect.wire import damaged, entries, fields, last_number, last_text, messages, texts
from tfs_lite.adapters.tensorflow.graph import Graph
from tfs_lite.core.signature import PREDICT_METHOD, DataType, Dim, ShapeContract, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, not_found

ARTEFACT = "saved_model.pb"
MAX_BYTES = (1 << 31) - 1
"""The largest file in bytes: no parser of protobuf takes more."""
MAX_META_GRAPHS = 64
MAX_SIGNATURES = 1_000
MAX_TENSORS = 10_000
"""Inputs and outputs of one signature."""
MAX_RANK = 255
SCHEMA_VERSION = 1
INIT_OP = "__saved_model_init_op"
INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_REFERENCE = 100
"""The number of a type of references is that of the type and this."""


@dataclass(frozen=True, slots=True)
class MetaGraph:
    """One of the graphs in the file. Its contents are read when they are asked for, while the file is open."""

    tags: frozenset[str]
    parts: tuple[memoryview, ...]

    @property
    def content(self) -> bytes:
        """The encoded message, which outlasts the file."""
        return b"".join(self.parts)

    def signatures(self) -> dict[str, Signature]:
        """All that clients may call, by key. FAILED_PRECONDITION if one has tensors that cannot be served."""
        found = dict[str, Signature]()
        for key, definition in self._signatures():
            if not key.startswith("__"):
                found[key] = _signature(key, definition)
            if len(found) > MAX_SIGNATURES:
                raise failed_precondition(f"the file has more than {MAX_SIGNATURES} signatures")
        return found

    def operators(self) -> tuple[frozenset[str], frozenset[str]]:
        """The operators that loading the graph and the calls of its signatures may run; and those that read the
        weights, in a graph that brings this along. RESOURCE_EXHAUSTED for a graph that is too large to be looked
        through."""
        graph = self._graph()
        own = graph.functions.keys()
        running = frozenset(graph.operators(self._roots())) - own
        return running, frozenset(graph.operators(self._restore_ops())) - own

    def operators_of(self, signatures: Mapping[str, Signature]) -> dict[str, frozenset[str]]:
        """The operators that calls of each of these signatures run. RESOURCE_EXHAUSTED as :meth:`operators`."""
        graph = self._graph() if signatures else Graph()
        return {
            key: frozenset(graph.operators(spec.tensor for spec in signature.outputs)) - graph.functions.keys()
            for key, signature in signatures.items()
        }

    def _graph(self) -> Graph:
        graph = Graph()
        for part in self.parts:
            for definition in messages(part, 2):
                graph.read(definition)
        return graph

    def _signatures(self) -> Iterator[tuple[str, memoryview]]:
        for part in self.parts:
            yield from entries(part, 5)

    def _restore_ops(self) -> list[str]:
        return [name for part in self.parts for saver in messages(part, 3) for name in texts(saver, 3)]

    def _roots(self) -> Iterator[str]:
        """The tensors and operations of the graph that are run."""
        for _, definition in self._signatures():
            for number in (1, 2):
                for _, info in entries(definition, number):
                    yield from _tensors_of(info)
        for part in self.parts:
            for key, collection in entries(part, 4):
                if key in INIT_COLLECTIONS:
                    for nodes in messages(collection, 1):
                        yield from texts(nodes, 1)


@dataclass(frozen=True, slots=True)
class SavedModel:
    """An open ``saved_model.pb``."""

    meta_graphs: tuple[MetaGraph, ...]

    def tagged(self, tags: Sequence[str]) -> MetaGraph:
        """The graph with exactly these tags, as in TensorFlow Serving. NOT_FOUND, naming those that are there."""
        wanted = frozenset(tags)
        for meta_graph in self.meta_graphs:
            if meta_graph.tags == wanted:
                return meta_graph
        known = "; ".join(",".join(sorted(graph.tags)) or "none" for graph in self.meta_graphs)
        raise failed_precondition(
            f"{ARTEFACT} has no graph with the tags {_shown(wanted)}; it has graphs with: {known:.500}"
            " (--saved_model_tags chooses)"
        )


@contextmanager
def open_saved_model(directory: str) -> Iterator[SavedModel]:
    """The contents of ``saved_model.pb`` in the directory, valid inside the block. NOT_FOUND, DATA_LOSS,
    FAILED_PRECONDITION; UNAVAILABLE if the file changes while it is read."""
    content = _read(os.path.join(directory, ARTEFACT))
    try:
        yield read_saved_model(memoryview(content))
    except ServingError as error:
        if error.code is not StatusCode.DATA_LOSS:
            raise
        failure = ServingError(error.code, f"{ARTEFACT}: {error.status.message}", error.status.reason)
    else:
        return
    raise failure


def read_saved_model(data: memoryview) -> SavedModel:
    """Reads the file. DATA_LOSS for bytes that are none, FAILED_PRECONDITION for a schema of the future."""
    graphs = list[MetaGraph]()
    version = last_number(data, 1)
    if version > SCHEMA_VERSION:
        raise failed_precondition(f"its schema has version {version}; version {SCHEMA_VERSION} is known here")
    for graph in messages(data, 2):
        graphs.append(_meta_graph(graph))
        if len(graphs) > MAX_META_GRAPHS:
            raise failed_precondition(f"it has more than {MAX_META_GRAPHS} graphs")
    if not graphs:
        raise damaged()
    return SavedModel(tuple(graphs))


def _read(path: str) -> bytes:
    """All of the file, read: a mapped file that becomes shorter would end the process."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise not_found(f"{ARTEFACT} is gone") from None
    with open(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size > MAX_BYTES:
            raise failed_precondition(f"{ARTEFACT} has {size} bytes; at most {MAX_BYTES} can be read")
        if not size:
            raise ServingError(StatusCode.DATA_LOSS, f"{ARTEFACT} is empty")
        content = file.readall()
    if len(content) != size:
        raise changed_meanwhile(ARTEFACT)
    return content


def _meta_graph(graph: memoryview) -> MetaGraph:
    tags = frozenset(tag for info in messages(graph, 1) for tag in texts(info, 4))
    return MetaGraph(tags, (graph,))


def _signature(key: str, definition: memoryview) -> Signature:
    inputs = _specs(key, "input", definition, 1)
    outputs = _specs(key, "output", definition, 2)
    batched = all(spec.shape and spec.shape[0] == _OPEN for spec in (*inputs, *outputs))
    return Signature(
        tuple(_with_symbols(spec, batched) for spec in inputs),
        tuple(_with_symbols(spec, batched) for spec in outputs),
        last_text(definition, 3) or PREDICT_METHOD,
        contract=ShapeContract.NONE,
    )


_OPEN = SymbolicDim("?")
"""A dimension that the file leaves open."""


def _specs(key: str, kind: str, definition: memoryview, number: int) -> list[TensorSpec]:
    """The specs in the order of their names, because the order in the file changes from save to save."""
    found = dict[str, TensorSpec]()
    for name, info in entries(definition, number):
        where = f'{kind} "{name}" of signature "{key}"'
        found[name] = TensorSpec(name, _dtype(info, where), _shape(info, where), last_text(info, 1))
        if len(found) > MAX_TENSORS:
            raise failed_precondition(f'signature "{key}" has more than {MAX_TENSORS} {kind}s')
    return [found[name] for name in sorted(found)]


def _dtype(info: memoryview, where: str) -> DataType:
    if any(True for number, _ in fields(info) if number in (4, 5)):
        raise failed_precondition(f"{where} is a sparse or composite tensor; save it as its dense parts")
    number = last_number(info, 2)
    number = number - _REFERENCE if number > _REFERENCE else number
    try:
        dtype = DataType(number)
    except ValueError:
        raise failed_precondition(f"{where} has the element type {number}, which is not known here") from None
    if dtype is DataType.INVALID:
        raise failed_precondition(f"{where} has no element type")
    return dtype


def _shape(info: memoryview, where: str) -> tuple[Dim, ...] | None:
    """The shape; None if the rank is not known."""
    found: tuple[Dim, ...] | None = None
    for shape in messages(info, 3):
        if last_number(shape, 3):
            return None
        sizes = [last_number(dim, 1) for dim in messages(shape, 2)]
        if len(sizes) > MAX_RANK or any(size < -1 for size in sizes):
            raise failed_precondition(f"{where} has an impossible shape")
        found = (*(found or ()), *(_OPEN if size == -1 else size for size in sizes))
    return found


def _with_symbols(spec: TensorSpec, batched: bool) -> TensorSpec:
    """Every open dimension has a symbol of its own; the first of a batched signature is the batch."""
    if spec.shape is None:
        return spec
    shape = tuple(
        dim if dim != _OPEN else SymbolicDim("batch" if batched and axis == 0 else f"{spec.name}.{axis}")
        for axis, dim in enumerate(spec.shape)
    )
    return replace(spec, shape=shape)


def _tensors_of(info: memoryview) -> Iterator[str]:
    """Yields the tensor names of a TensorInfo, whatever its encoding."""
    yield from texts(info, 1)
    for sparse in messages(info, 4):
        for number in (1, 2, 3):
            yield from texts(sparse, number)
    for component in messages(info, 5, 2):
        yield from _tensors_of(component)


def _shown(tags: frozenset[str]) -> str:
    return ",".join(sorted(tags)) or "none"
