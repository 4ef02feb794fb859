"""The check of what is in ``model.onnx``, before onnxruntime opens it.

A graph runs no code of its own, but it names files, may hold native code for other machines' processors (``EPContext``)
and constants that take all memory while it is loaded. Subgraphs and functions are looked at as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from tfs_lite.adapters.inspect.archive import damaged, unsafe
from tfs_lite.adapters.onnx.constants import KnownTensor, constant, result_of
from tfs_lite.adapters.onnx.model_file import (
    ARTEFACT,
    Function,
    ModelFile,
    OnnxNode,
    TensorHeader,
    function_nodes,
    initializers,
    nodes,
    outputs,
    shown,
    size_of,
    sparse_initializers,
)
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.core.yielding import Yielder

DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""The domains of operators that onnxruntime has itself."""
SIZES_FROM_VALUES = frozenset({"Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
"""Operators whose results may have another size for other values of the same shape."""
MAX_FOLDED_BYTES = 256 << 20
MAX_NODES = 1_000_000
"""The most nodes after all calls of functions are replaced by their nodes."""
MAX_DEPTH = 32
"""The largest depth of subgraphs, and of calls."""


def inspect_model(
    model: ModelFile, directory: str, trusted: bool, own_operators: bool = False, stored_bytes: int = 0
) -> int:
    """Checks the file, which is in ``directory``, and returns the bytes of its weights. With
    ``own_operators`` any domain is let through. The files of the version have ``stored_bytes``.

    PERMISSION_DENIED for what needs trust, and for weights in files outside the directory; FAILED_PRECONDITION for
    operators that nobody has; DATA_LOSS for a damaged file or missing weights.
    """
    inspection = _Inspection(model, directory, trusted)
    inspection.any_domain = own_operators
    inspection.most_folded = MAX_FOLDED_BYTES + stored_bytes  # weights may be rearranged once
    _check_calls(model.functions)
    for graph in model.graphs:
        inspection.graph(graph, {}, 0)
    inspection.functions()
    return inspection.weights


def sizes_need_values(model: ModelFile) -> bool:
    """Whether results may have another size for other values of the same shape, as far as the operators say it. Of a
    file that was inspected."""
    found = (*(nodes(graph) for graph in model.graphs), *map(function_nodes, model.functions))
    return any(
        node.op in SIZES_FROM_VALUES or node.domain not in DOMAINS for some in found for node in _all_nodes(some, 0)
    )


class _Inspection:
    """The state of one pass over a file. One thread."""

    any_domain = False
    most_folded = MAX_FOLDED_BYTES

    def __init__(self, model: ModelFile, directory: str, trusted: bool) -> None:
        self._directory = os.path.realpath(directory)
        self._trusted = trusted
        self._functions = {(function.domain, function.name): function for function in model.functions}
        self._bodies = dict[tuple[str, str], list[OnnxNode]]()
        self._folded = 0
        self._nodes = 0
        self._places = set[str]()
        self._yield = Yielder()
        self.weights = 0

    def graph(self, graph: memoryview, known: dict[str, KnownTensor], depth: int) -> None:
        """A graph whose names ``known`` are constants of the graphs around it."""
        if depth > MAX_DEPTH:
            raise damaged(f"{ARTEFACT} has graphs within graphs, more than {MAX_DEPTH} deep")
        known = dict(known)
        for header in initializers(graph):
            self._yield()
            self._tensor(header)
            self.weights += header.bytes
            known[header.name] = constant(header)
        for stored, whole in sparse_initializers(graph):
            self._tensor(stored)
            self._fold(constant(whole))
        self.nodes(nodes(graph), known, depth)
        for name in outputs(graph):
            if name in known and known[name].alias:
                self._fold(known[name])

    def nodes(self, found: Iterable[OnnxNode], known: dict[str, KnownTensor], depth: int) -> None:
        for node in found:
            self._yield()
            self._count()
            self._operator(node)
            for attribute in node.attributes:
                for header in attribute.tensors:
                    self._tensor(header)
                for header in attribute.dense:
                    self._fold(constant(header))
                for graph in attribute.graphs:
                    self.graph(graph, known, depth + 1)
            function = self._functions.get((node.domain, node.op))
            if function is not None:
                self._call(node, function, known, depth)
                continue
            result = result_of(node, known)
            if result is not None and node.outputs:
                known[node.outputs[0]] = result
                if not result.alias:
                    self._fold(result)

    def functions(self) -> None:
        """The functions that no node has called."""
        for key, function in self._functions.items():
            if key not in self._bodies:
                self.nodes(self._body(function), {}, 0)

    def _body(self, function: Function) -> list[OnnxNode]:
        key = (function.domain, function.name)
        if key not in self._bodies:
            self._bodies[key] = list(function_nodes(function))
        return self._bodies[key]

    def _call(self, node: OnnxNode, function: Function, known: dict[str, KnownTensor], depth: int) -> None:
        """A call is replaced by the function's nodes, so constants go in and come out."""
        given = zip(function.inputs, node.inputs, strict=False)
        inside = {name: known[argument] for name, argument in given if argument in known}
        self.nodes(self._body(function), inside, depth + 1)
        results = zip(function.outputs, node.outputs, strict=False)
        known |= {outer: inside[name] for name, outer in results if name in inside}

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise failed_precondition(f"{ARTEFACT} has more than {MAX_NODES} operators")

    def _operator(self, node: OnnxNode) -> None:
        if (node.domain, node.op) in self._functions:
            return
        if node.op == "EPContext" and not self._trusted:
            raise unsafe(f"{ARTEFACT} holds compiled code for a processor (operator EPContext)")
        if node.domain not in DOMAINS and not self.any_domain:
            raise failed_precondition(
                f"{ARTEFACT} needs the operator {shown(node.op)} of the domain {shown(node.domain)}, "
                "which onnxruntime has not; "
                'name the library that has it, a file of the version: parameters { key: "custom_ops" }'
            )

    def _fold(self, result: KnownTensor) -> None:
        self._folded += size_of(result.dims, result.dtype)
        if self._folded > self.most_folded and not self._trusted:
            raise unsafe(
                f"{ARTEFACT} makes constants of more than {MAX_FOLDED_BYTES >> 20} MiB beside its weights while it is "
                "loaded"
            )

    def _tensor(self, header: TensorHeader) -> None:
        """Values in another file: a plain one, of this version."""
        if header.location is None or header.location in self._places:
            return
        check_place(header.location, self._directory, f"weights {shown(header.name)}")
        self._places.add(header.location)


def check_place(location: str, directory: str, what: str) -> str:
    """The path of a file of the version, which ``location`` names. PERMISSION_DENIED if it may lead elsewhere,
    DATA_LOSS if there is no such file."""
    parts = location.split("/")
    if not location or "\0" in location or "\\" in location or os.path.isabs(location) or ".." in parts:
        raise _outside(what, location)
    path = os.path.realpath(os.path.join(directory, location))
    if os.path.commonpath((path, os.path.realpath(directory))) != os.path.realpath(directory):
        raise _outside(what, location)
    if not os.path.exists(path):
        raise damaged(f"{what} of {ARTEFACT}: the version has no file {shown(location)}")
    if not os.path.isfile(path):
        raise _outside(what, location)
    return path


def _outside(what: str, location: str) -> ServingError:
    return ServingError(
        StatusCode.PERMISSION_DENIED, f"{what} of {ARTEFACT}: {location[:200]!r} is no file of the version"
    )


def _check_calls(functions: tuple[Function, ...]) -> None:
    """Raises FAILED_PRECONDITION if functions call themselves, or become too many nodes: onnxruntime replaces every
    call."""
    calls = {
        (function.domain, function.name): [(node.domain, node.op) for node in _all_nodes(function_nodes(function), 0)]
        for function in functions
    }
    sizes = dict[tuple[str, str], int]()

    def size(key: tuple[str, str], depth: int) -> int:
        if depth > MAX_DEPTH:
            raise failed_precondition(f"{ARTEFACT} has functions that call one another, more than {MAX_DEPTH} deep")
        if key not in sizes:
            sizes[key] = sum(size(called, depth + 1) if called in calls else 1 for called in calls[key])
        if sizes[key] > MAX_NODES:
            raise failed_precondition(f"{ARTEFACT} has functions of more than {MAX_NODES} operators")
        return sizes[key]

    for key in calls:
        size(key, 0)


def _all_nodes(found: Iterable[OnnxNode], depth: int) -> Iterator[OnnxNode]:
    """Yields all nodes, those of subgraphs as well."""
    if depth > MAX_DEPTH:
        raise damaged(f"{ARTEFACT} has graphs within graphs, more than {MAX_DEPTH} deep")
    for node in found:
        yield node
        for attribute in node.attributes:
            for graph in attribute.graphs:
                yield from _all_nodes(nodes(graph), depth + 1)
