"""The conditions of an exported program on the sizes of its inputs beyond their shapes, which requests are checked
against.

    sizes of the inputs (``8*s79``), their ranges        \\
    ``guards_code``: what the tracer decided by sizes     >  texts on n0, n1, ...  ->  SizeConditions
    ``_assert_scalar`` nodes of the graph                /

torch checks the same: the first two in the guards of ``ExportedProgram.module()``, the last as the graph runs. A
minimum of at most 2 is none, here as there: the exporter reports 2 for sizes that run with 0 and 1 as well. Each of the
file's texts is parsed, never evaluated, and rebuilt from the few constructs of :mod:`tfs_lite.protocols.conditions`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfs_lite.adapters.exported.arguments import union
from tfs_lite.adapters.exported.document import ProgramDocument
from tfs_lite.adapters.exported.expression import (
    Unreadable,
    called,
    canonical,
    compared,
    line_of,
    parsed,
    rebuilt,
    symbol_of,
)
from tfs_lite.core.signature import SizeConditions
from tfs_lite.protocols.conditions import FUNCTIONS, MAX_CONDITIONS, check_condition, read_conditions

EXPORTER_MINIMUM = 2
ASSERTION = "torch.ops.aten._assert_scalar.default"


def conditions_of(document: ProgramDocument, inputs: Mapping[str, Sequence[Any]]) -> SizeConditions | None:
    """The conditions of the program; None if it has none. ``inputs`` are the sizes of each, as the file has them. They
    are not ``complete`` if there are guards that cannot be read. KeyError and the like for a document that is not as
    the schema says."""
    reader = _Reader(document, inputs)
    texts = list(dict.fromkeys((*reader.sizes(), *reader.guards(), *reader.assertions())))
    complete = reader.complete and len(texts) <= MAX_CONDITIONS
    return read_conditions(list(reader.axes), texts[:MAX_CONDITIONS], complete) if texts or not complete else None


def bounds_of(document: ProgramDocument, expression: str) -> tuple[int | None, int | None]:
    """The smallest and the largest value of a size; None where it has no bound."""
    ranges: Mapping[str, Any] = document.program["range_constraints"]
    symbol = symbol_of(parsed(expression))
    if symbol is not None:
        found = ranges.get(symbol)
    else:
        wanted = canonical(expression) if ranges else ""
        found = next((bounds for text, bounds in ranges.items() if canonical(text) == wanted), None)
    if found is None:
        return None, None
    least, most = found["min_val"], found["max_val"]
    if not all(bound is None or type(bound) is int for bound in (least, most)):
        raise ValueError(f"the range of {expression:.80} is no range")
    return least, most


class _Reader:
    """One program's. ``axes`` are the sizes that the texts speak of, in the order of their numbers."""

    def __init__(self, document: ProgramDocument, inputs: Mapping[str, Sequence[Any]]) -> None:
        self.axes: dict[tuple[str, int], int] = {}
        self.complete = True
        """Whether all could be read."""
        self._document = document
        self._inputs = inputs
        self._known: dict[str, ast.expr] = {}
        """Symbols, as what they are in sizes of inputs."""
        for name, sizes in inputs.items():
            for axis, size in enumerate(sizes):
                symbol = _plain_symbol(size)
                if symbol and symbol not in self._known:
                    self._known[symbol] = self._size(name, axis)

    def sizes(self) -> Iterator[str]:
        """Yields the conditions that sizes are within their ranges, and that those which follow from others do."""
        seen = set[str]()
        for name, sizes in self._inputs.items():
            for axis, size in enumerate(sizes):
                kind, content = union(size)
                if kind != "as_int" and (not _plain_symbol(size) or _plain_symbol(size) not in seen):
                    seen.add(_plain_symbol(size))
                    yield from self._range(self._size(name, axis), str(content["expr_str"]))

    def guards(self) -> Iterator[str]:
        """Yields the conditions of ``guards_code``."""
        for text in self._document.program.get("guards_code") or ():
            try:
                yield from _conditions(rebuilt(parsed(text), self._guarded))
            except (ValueError, IndexError, RecursionError):
                self.complete = False

    def assertions(self) -> Iterator[str]:
        """Assertions of the graph that follow from sizes alone. Others are checked as it runs."""
        graph = self._document.program["graph_module"]["graph"]
        for node in graph["nodes"]:
            if node["target"] != ASSERTION:
                continue
            kind, content = union(node["inputs"][0]["arg"])
            value = graph["sym_bool_values"].get(content.get("as_name")) if kind == "as_sym_bool" else None
            if value and "as_expr" in value:
                try:
                    yield from _conditions(rebuilt(parsed(value["as_expr"]["expr_str"]), self._symbol))
                except ValueError:
                    continue

    def _range(self, size: ast.expr, expression: str) -> Iterator[str]:
        tree, (least, _) = parsed(expression), bounds_of(self._document, expression)
        if symbol_of(tree) is None:
            yield from self._derived(size, tree)
        if least is not None and least > EXPORTER_MINIMUM:
            yield f"{ast.unparse(size)} >= {least}"

    def _derived(self, size: ast.expr, tree: ast.expr) -> Iterator[str]:
        """Yields the conditions of a size such as ``8*s79``. A symbol that is no size itself is what makes the first
        such size right."""
        hidden = {symbol for node in ast.walk(tree) if (symbol := symbol_of(node))} - self._known.keys()
        if not hidden:
            try:
                yield from _conditions(compared(size, ast.Eq(), rebuilt(tree, self._symbol)))
            except ValueError:
                self.complete = False
        elif len(hidden) == 1 and (line := line_of(tree)) is not None:
            (symbol,), (factor, constant) = hidden, line
            rest = ast.BinOp(size, ast.Sub(), ast.Constant(constant)) if constant else size
            if factor > 1:
                yield f"{ast.unparse(ast.BinOp(rest, ast.Mod(), ast.Constant(factor)))} == 0"
            if constant > 0:
                yield f"{ast.unparse(size)} >= {constant}"
            self._known[symbol] = ast.BinOp(rest, ast.FloorDiv(), ast.Constant(factor))

    def _symbol(self, node: ast.expr) -> ast.expr | None:
        symbol = symbol_of(node)
        if symbol is None:
            return None
        if symbol not in self._known:
            raise Unreadable
        return self._known[symbol]

    def _guarded(self, node: ast.expr) -> ast.expr | None:
        """A guard speaks of inputs: ``L['x'].size()[0]``. They are contiguous here."""
        match node:
            case ast.Subscript(ast.Call(ast.Attribute(source, "size"), [], []), ast.Constant(int(axis))):
                return self._size_at(self._input(source), axis)
            case ast.Subscript(ast.Call(ast.Attribute(source, "stride"), [], []), ast.Constant(int(axis))):
                name = self._input(source)
                stride: ast.expr = ast.Constant(1)
                for later in range(axis + 1, len(self._inputs[name])):
                    factor = called("max", [self._size_at(name, later), ast.Constant(1)])
                    stride = ast.BinOp(stride, ast.Mult(), factor)
                return stride
            case ast.Call(ast.Attribute(source, "storage_offset"), [], []):
                self._input(source)
                return ast.Constant(0)
        return None

    def _input(self, source: ast.expr) -> str:
        """The input that a guard calls ``L['x']``, ``L['flat_args'][0]`` by its place, or ``L['args'][0]`` or
        ``L['kwargs']['x']`` if ``forward`` takes any number."""
        found = ""
        match source:
            case ast.Subscript(ast.Name("L"), ast.Constant(str(name))):
                found = name
            case ast.Subscript(ast.Subscript(ast.Name("L"), ast.Constant("flat_args")), ast.Constant(int(place))):
                found = list(self._inputs)[place]
            case ast.Subscript(ast.Subscript(ast.Name("L"), ast.Constant(str(many))), ast.Constant(key)):
                found = f"{many}_{key}" if isinstance(key, int) else str(key)
        if found not in self._inputs:
            raise Unreadable
        return found

    def _size_at(self, name: str, axis: int) -> ast.expr:
        """A size of an input; of equal ones, which the signature checks, the first."""
        size = self._inputs[name][axis]
        kind, content = union(size)
        if kind == "as_int":
            return ast.Constant(int(content))
        return self._known.get(_plain_symbol(size)) or self._size(name, axis)

    def _size(self, name: str, axis: int) -> ast.expr:
        return ast.Name(f"n{self.axes.setdefault((name, axis), len(self.axes))}")


def _plain_symbol(size: Mapping[str, Any]) -> str:
    """The symbol that a size is; empty if it is something else."""
    kind, content = union(size)
    return "" if kind == "as_int" else symbol_of(parsed(content["expr_str"])) or ""


def _conditions(tree: ast.expr) -> Iterator[str]:
    """The texts of a condition, without what always holds. ValueError if it is none."""
    match tree:
        case ast.BoolOp(ast.And(), values):
            for value in values:
                yield from _conditions(value)
            return
        case ast.BoolOp(ast.Or(), values) if any(map(_always_holds, values)):
            return
    if _always_holds(tree):
        return
    if any(isinstance(node, ast.Name) and node.id not in FUNCTIONS for node in ast.walk(tree)):
        text = ast.unparse(tree)
        check_condition(text)
        yield text


def _always_holds(tree: ast.expr) -> bool:
    match tree:
        case ast.Compare(left, [ast.Eq()], [right]):
            return ast.dump(left) == ast.dump(right)
    return False
