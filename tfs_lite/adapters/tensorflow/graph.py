"""The operators of a SavedModel that loading it or a request can run, found without TensorFlow.

What runs begins at a root: the tensors of the signatures, the operation that initialises the graph, and the one that
restores the weights. From there it goes on to the inputs of operations, and into the functions that their attributes
name. The functions of the saver, which are in every file, and those of the tree of Python objects are called by no
server, and are not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tfs_lite.adapters.inspect.wire import as_bytes, damaged, entries, fields, last_text, messages, text, texts
from tfs_lite.core.status import ServingError, StatusCode

MAX_OPERATIONS = 2_000_000
MAX_DEPTH = 64
"""The largest depth of functions as arguments of functions in one attribute."""
SWAPPED = "api_implements"
"""Functions with the same value of this attribute may be exchanged by TensorFlow before they run."""


@dataclass(slots=True)
class Operation:
    """One node of a graph: its operator, the names of its inputs, and the functions that its attributes name."""

    operator: str
    inputs: list[str]
    functions: list[str]


@dataclass(slots=True)
class LibraryFunction:
    """A function of the library. ``also`` are the functions that may run in its place."""

    operations: list[Operation] = field(default_factory=list)
    also: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Graph:
    """A graph's operations by name, and the library of functions. Of several with one name, all are kept."""

    nodes: dict[str, list[Operation]] = field(default_factory=dict)
    functions: dict[str, LibraryFunction] = field(default_factory=dict)
    _count: int = 0
    _interfaces: dict[bytes, set[str]] = field(default_factory=dict)

    def read(self, definition: memoryview) -> None:
        """Adds the contents of a GraphDef. DATA_LOSS for one that is damaged, RESOURCE_EXHAUSTED for one with more than
        :data:`MAX_OPERATIONS`."""
        for number, value in fields(definition):
            if number == 1:
                name, operation = self._operation(as_bytes(value))
                self.nodes.setdefault(name, []).append(operation)
            elif number == 2:
                for function in messages(as_bytes(value), 1):
                    self._function(function)

    def operators(self, tensors: Iterable[str]) -> Iterator[str]:
        """Every operator that these tensors of the graph need; some more than once."""
        waiting = [tensor.removeprefix("^").partition(":")[0] for tensor in tensors]
        called = list[str]()
        seen, entered = set[str](), set[str]()
        while waiting or called:
            while waiting:
                name = waiting.pop()
                if name in seen:
                    continue
                seen.add(name)
                for operation in self.nodes.get(name, ()):
                    yield operation.operator
                    waiting += [tensor.removeprefix("^").partition(":")[0] for tensor in operation.inputs]
                    called += operation.functions
                    called.append(operation.operator)  # a function may be called by its name
            while called:
                name = called.pop()
                function = self.functions.get(name)
                if function is None or name in entered:
                    continue
                entered.add(name)
                called += function.also
                for operation in function.operations:
                    yield operation.operator
                    called += operation.functions
                    called.append(operation.operator)

    def _operation(self, node: memoryview) -> tuple[str, Operation]:
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, f"the graph has more than {MAX_OPERATIONS} operations")
        name, operation = "", Operation("", [], [])
        for number, value in fields(node):
            if number == 1:
                name = text(as_bytes(value))
            elif number == 2:
                operation.operator = text(as_bytes(value))
            elif number == 3:
                operation.inputs.append(text(as_bytes(value)))
            elif number == 5:
                operation.functions += _functions_of_entry(as_bytes(value))
        return name, operation

    def _function(self, definition: memoryview) -> None:
        names, interfaces, operations = [""], list[bytes](), list[Operation]()
        for number, value in fields(definition):
            if number == 1:
                names += texts(as_bytes(value), 1)
            elif number == 3:
                operations.append(self._operation(as_bytes(value))[1])
        for key, value in entries(definition, 5):
            if key == SWAPPED:
                interfaces += [bytes(interface) for interface in messages(value, 2)]
        function = self.functions.setdefault(names[-1], LibraryFunction())
        function.operations += operations
        for interface in interfaces:
            alike = self._interfaces.setdefault(interface, set())
            alike.add(names[-1])
            function.also = alike if not function.also else function.also | alike


def _functions_of_entry(entry: memoryview, depth: int = 0) -> list[str]:
    """The functions that one attribute of an operation names."""
    return [name for value in messages(entry, 2) for name in _functions_of_value(value, depth)]


def _functions_of_value(value: memoryview, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise damaged()
    for number, part in fields(value):
        if number == 10:
            calls = [as_bytes(part)]
        elif number == 1:
            calls = list(messages(as_bytes(part), 9))
        else:
            continue
        for call in calls:
            yield last_text(call, 1)
            for entry in messages(call, 2):
                yield from _functions_of_entry(entry, depth + 1)
