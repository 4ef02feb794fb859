"""What an exported program says of the sizes of its inputs beyond their shapes, as conditions on a request.

    sizes of the inputs (``8*s79``), their ranges        \\
    ``guards_code``: what the tracer decided by sizes     >  texts on n0, n1, ...  ->  SizeConditions
    ``_assert_scalar`` nodes of the graph                /

torch checks the same: the first two in the guards of ``ExportedProgram.module()``, the last as the graph runs. As there,
a minimum of at most 2 is none: the exporter reports 2 for sizes that run with 0 and 1 as well. Each of the file's texts
is parsed, never evaluated, and rebuilt from the few constructs of :mod:`tfs_lite.protocols.conditions`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfs_lite.adapters.exported.arguments import union
from tfs_lite.adapters.exported.document import Document
from tfs_lite.core.signature import SizeConditions
from tfs_lite.protocols.conditions import FUNCTIONS, check_condition, read_conditions

EXPORTER_MINIMUM = 2
ASSERTION = "torch.ops.aten._assert_scalar.default"
_COMPARISONS: Mapping[str, type[ast.cmpop]] = {
    **dict.fromkeys(("Equality", "Eq"), ast.Eq),
    **dict.fromkeys(("Unequality", "Ne"), ast.NotEq),
    **dict.fromkeys(("GreaterThan", "Ge"), ast.GtE),
    **dict.fromkeys(("LessThan", "Le"), ast.LtE),
    **dict.fromkeys(("StrictGreaterThan", "Gt"), ast.Gt),
    **dict.fromkeys(("StrictLessThan", "Lt"), ast.Lt),
}
_OPERATORS: Mapping[str, type[ast.operator]] = {
    "Add": ast.Add,
    "Mul": ast.Mult,
    "FloorDiv": ast.FloorDiv,
    "CleanDiv": ast.FloorDiv,
    "IntTrueDiv": ast.Div,
    "FloatTrueDiv": ast.Div,
    "Rational": ast.Div,
    "Mod": ast.Mod,
    "PythonMod": ast.Mod,
}
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow"})
_CALLS = {
    **{"Max": "max", "Min": "min", "Abs": "abs", "ToFloat": "float", "sqrt": "sqrt", "OpaqueUnaryFn_sqrt": "sqrt"},
    **{"floor": "floor", "FloorToInt": "floor", "ceiling": "ceil", "CeilToInt": "ceil"},
    **{"TruncToInt": "trunc", "TruncToFloat": "trunc", "RoundToInt": "round", "RoundDecimal": "round"},
    **{"OpaqueUnaryFn_log2": "log2", "sym_float": "float", "sym_int": "int", "sym_max": "max", "sym_min": "min"},
    "_sym_sqrt": "sqrt",
}
"""Functions of sympy and torch -> those of a condition."""

Replace = Callable[[ast.expr], ast.expr | None]
"""Returns what stands for a size; None if the node is none."""


class _Unreadable(Exception):
    """The text is no condition on sizes."""


def conditions_of(document: Document, inputs: Mapping[str, Sequence[Any]]) -> SizeConditions | None:
    """The conditions of the program; None if it has none. ``inputs`` are the sizes of each, as the file has them. They
    are not ``complete`` if there are guards that cannot be read. KeyError and the like for a document that is not as
    the schema says."""
    reader = _Reader(document, inputs)
    texts = list(dict.fromkeys((*reader.sizes(), *reader.guards(), *reader.assertions())))
    if not texts and not reader.unread:
        return None
    return read_conditions(list(reader.axes), texts, complete=not reader.unread)


def bounds_of(document: Document, expression: str) -> Mapping[str, int | None]:
    """The range of a size, with ``min_val`` and ``max_val``; empty if it has none."""
    ranges: Mapping[str, Any] = document.program["range_constraints"]
    symbol = _symbol_of(_parsed(expression))
    if symbol is not None or not ranges:
        return ranges.get(symbol) or {}
    wanted = _canonical(expression)
    return next((found for text, found in ranges.items() if _canonical(text) == wanted), {})


class _Reader:
    """One program's. ``axes`` are the sizes that the texts speak of, in the order of their numbers."""

    def __init__(self, document: Document, inputs: Mapping[str, Sequence[Any]]) -> None:
        self.axes: dict[tuple[str, int], int] = {}
        self.unread = list[str]()
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
        """That sizes are within their ranges, and that those which follow from others do."""
        seen = set[str]()
        for name, sizes in self._inputs.items():
            for axis, size in enumerate(sizes):
                kind, content = union(size)
                if kind != "as_int" and (not _plain_symbol(size) or _plain_symbol(size) not in seen):
                    seen.add(_plain_symbol(size))
                    yield from self._range(self._size(name, axis), str(content["expr_str"]))

    def guards(self) -> Iterator[str]:
        """Those of ``guards_code``."""
        for text in self._document.program.get("guards_code") or ():
            try:
                yield from _conditions(_rebuilt(_parsed(text), self._guarded))
            except (_Unreadable, ValueError, IndexError):
                self.unread.append(str(text))

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
                    yield from _conditions(_rebuilt(_parsed(value["as_expr"]["expr_str"]), self._symbol))
                except (_Unreadable, ValueError):
                    continue

    def _range(self, size: ast.expr, expression: str) -> Iterator[str]:
        tree, bounds = _parsed(expression), bounds_of(self._document, expression)
        if _symbol_of(tree) is None:
            yield from self._derived(size, tree)
        least = bounds.get("min_val")
        if least is not None and least > EXPORTER_MINIMUM:
            yield f"{ast.unparse(size)} >= {least:d}"

    def _derived(self, size: ast.expr, tree: ast.expr) -> Iterator[str]:
        """For a size such as ``8*s79``. A symbol that is no size itself is what makes the first such size right."""
        hidden = {symbol for node in ast.walk(tree) if (symbol := _symbol_of(node))} - self._known.keys()
        if not hidden:
            yield from _conditions(_compare(size, ast.Eq(), _rebuilt(tree, self._symbol)))
        elif len(hidden) == 1 and (line := _line(tree)) is not None:
            (symbol,), (factor, constant) = hidden, line
            rest = ast.BinOp(size, ast.Sub(), ast.Constant(constant)) if constant else size
            if factor > 1:
                yield f"{ast.unparse(ast.BinOp(rest, ast.Mod(), ast.Constant(factor)))} == 0"
            if constant > 0:
                yield f"{ast.unparse(size)} >= {constant}"
            self._known[symbol] = ast.BinOp(rest, ast.FloorDiv(), ast.Constant(factor))

    def _symbol(self, node: ast.expr) -> ast.expr | None:
        symbol = _symbol_of(node)
        if symbol is None:
            return None
        if symbol not in self._known:
            raise _Unreadable
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
                    factor = _call("max", [self._size_at(name, later), ast.Constant(1)])
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
            raise _Unreadable
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


def _parsed(text: object) -> ast.expr:
    try:
        return ast.parse(str(text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _Unreadable from None


def _symbol_of(node: ast.AST) -> str | None:
    match node:
        case ast.Call(ast.Name("Symbol"), [ast.Constant(str(name))]) | ast.Name(str(name)) if name[-1:].isdecimal():
            return name
    return None


def _plain_symbol(size: Mapping[str, Any]) -> str:
    """The symbol that a size is; empty if it is something else."""
    kind, content = union(size)
    return "" if kind == "as_int" else _symbol_of(_parsed(content["expr_str"])) or ""


def _rebuilt(node: ast.expr, replace: Replace) -> ast.expr:
    """The same as a condition has it, for a text as sympy writes it: ``Mod(Symbol('s0'), Integer(8))``, or Python:
    ``s0 % 8``. Raises _Unreadable."""

    def build(node: ast.expr) -> ast.expr:
        replaced = replace(node)
        if replaced is not None:
            return replaced
        match node:
            case ast.Constant(int() | float()):
                return node
            case ast.Name("true" | "false" as name):
                return ast.Constant(name == "true")
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
                return ast.Constant(-value)
            case ast.UnaryOp(sign, operand):
                return ast.UnaryOp(sign, build(operand))
            case ast.BinOp(left, ast.Sub(), ast.Constant(int(value))):
                return ast.BinOp(build(left), ast.Add(), ast.Constant(-value))
            case ast.BinOp(left, ast.Pow(), right):
                return _call("power", [build(left), build(right)])
            case ast.BinOp(left, sign, right):
                return ast.BinOp(build(left), sign, build(right))
            case ast.BoolOp(sign, values):
                return ast.BoolOp(sign, [build(value) for value in values])
            case ast.Compare(left, signs, others):
                return ast.Compare(build(left), signs, [build(value) for value in others])
            case ast.IfExp(test, then, other):
                return ast.IfExp(build(test), build(then), build(other))
            case ast.Call(ast.Name(name) | ast.Attribute(ast.Name("math" | "torch"), name), arguments):
                return function(name, arguments)
        raise _Unreadable

    def function(name: str, given: Sequence[ast.expr]) -> ast.expr:
        match name, given:
            case "Integer" | "Float", [ast.Constant(int() | float() | str() as value), *_]:
                return ast.Constant(float(value) if name == "Float" else int(value))
            case "Integer", [ast.UnaryOp(ast.USub(), ast.Constant(int(value)))]:
                return ast.Constant(-value)
            case "Identity", [only]:
                return build(only)
            case "ModularIndexing", [dividend, divisor, modulus]:
                return ast.BinOp(ast.BinOp(build(dividend), ast.FloorDiv(), build(divisor)), ast.Mod(), build(modulus))
            case "Not" | "sym_not", [only]:
                return ast.UnaryOp(ast.Not(), build(only))
            case "And" | "Or", [_, _, *_]:
                return ast.BoolOp(ast.And() if name == "And" else ast.Or(), [build(value) for value in given])
            case "Piecewise", [*pairs]:
                return piecewise(pairs)
        arguments = [build(value) for value in given]
        if name in _COMPARISONS and len(arguments) == 2:
            return _compare(arguments[0], _COMPARISONS[name](), arguments[1])
        if name in _OPERATORS and len(arguments) > 1 and (len(arguments) == 2 or name in ("Add", "Mul")):
            first, *others = arguments
            for other in others:
                first = ast.BinOp(first, _OPERATORS[name](), other)
            return first
        if name in _POWERS and len(arguments) == 2:
            return _call("power", arguments)
        if (known := _CALLS.get(name, name)) in FUNCTIONS:
            return _call(known, arguments)
        raise _Unreadable

    def piecewise(pairs: Sequence[ast.expr]) -> ast.expr:
        found: ast.expr | None = None
        for pair in reversed(pairs):
            match pair:
                case ast.Call(ast.Name("ExprCondPair"), [value, condition]):
                    found = build(value) if found is None else ast.IfExp(build(condition), build(value), found)
                case _:
                    raise _Unreadable
        if found is None:
            raise _Unreadable
        return found

    try:
        return build(node)
    except (RecursionError, OverflowError):
        raise _Unreadable from None


def _conditions(tree: ast.expr) -> Iterator[str]:
    """The texts of a condition, without what always holds. ValueError if it is none."""
    match tree:
        case ast.BoolOp(ast.And(), values):
            for value in values:
                yield from _conditions(value)
            return
        case ast.Compare(left, [ast.Eq()], [right]) if ast.dump(left) == ast.dump(right):
            return
    text = ast.unparse(tree)
    check_condition(text)
    if any(isinstance(node, ast.Name) and node.id not in FUNCTIONS for node in ast.walk(tree)):
        yield text


def _line(tree: ast.expr) -> tuple[int, int] | None:
    """(factor, constant) of ``factor*symbol + constant``, for whole numbers with a factor above 0; None for others."""

    def line(node: ast.expr) -> tuple[int, int]:
        match node:
            case ast.Name():
                return 1, 0
            case ast.Constant(int(number)):
                return 0, number
            case ast.BinOp(left, ast.Add(), right):
                (a, b), (c, d) = line(left), line(right)
                return a + c, b + d
            case ast.BinOp(left, ast.Mult(), right):
                (a, b), (c, d) = line(left), line(right)
                if not (a and c):
                    return a * d + b * c, b * d
        raise _Unreadable

    try:
        factor, constant = line(_rebuilt(tree, _as_name))
    except _Unreadable:
        return None
    return (factor, constant) if factor > 0 else None


def _as_name(node: ast.expr) -> ast.expr | None:
    symbol = _symbol_of(node)
    return None if symbol is None else ast.Name(symbol)


class _Sorted(ast.NodeTransformer):
    """Sums and products of any number of parts, in one order."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add | ast.Mult):
            return node
        name, parts = type(node.op).__name__, list[ast.expr]()
        for side in (node.left, node.right):
            match side:
                case ast.Call(ast.Name(same), inner) if same == name:
                    parts += inner
                case _:
                    parts.append(side)
        return _call(name, sorted(parts, key=ast.dump))


def _canonical(text: str) -> str:
    """Equal for two texts, sympy's or Python's, of the same sums and products."""
    try:
        return ast.dump(_Sorted().visit(_rebuilt(_parsed(text), _as_name)))
    except _Unreadable:
        return text


def _compare(left: ast.expr, sign: ast.cmpop, right: ast.expr) -> ast.Compare:
    return ast.Compare(left, [sign], [right])


def _call(name: str, arguments: Sequence[ast.expr]) -> ast.Call:
    return ast.Call(ast.Name(name), list(arguments), [])
