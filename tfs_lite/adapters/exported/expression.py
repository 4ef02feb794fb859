"""Size expressions of an exported program: checks, formats and rebuilds them.

torch's own loader hands them to ``sympy.sympify``, which evaluates Python.

A healthy one is what ``sympy.srepr`` prints, such as ``Mul(Integer(2), Symbol('s17', positive=True))``. Here it is
parsed, never evaluated, and only calls of known sympy functions on symbols and numbers pass. Powers are limited,
because ``9**9**9`` would keep sympy busy for years. :func:`rebuilt` makes what :mod:`tfs_lite.protocols.conditions` can
compute out of it, or of the Python that guards are written in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

from tfs_lite.adapters.inspect.archive import unsafe
from tfs_lite.protocols.conditions import FUNCTIONS

MAX_LENGTH = 8192
MAX_EXPONENT = 64
MAX_INTEGER = 2**64
SYMBOL = re.compile(r"[a-z_]{1,16}\d{1,6}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,60})?(e[+-]?\d{1,3})?", re.ASCII)
_POWER = re.compile("Pow|PowByNatural|FloatPow|LShift|RShift")
_FUNCTION = re.compile(
    "Integer|Rational|Add|Mul|Max|Min|Abs|Mod|And|Or|Not|Xor|floor|ceiling|sqrt|Piecewise|ExprCondPair|Tuple|"
    "GreaterThan|LessThan|StrictGreaterThan|StrictLessThan|Equality|Unequality|Eq|Ne|Ge|Gt|Le|Lt|FloorDiv|"
    "ModularIndexing|Where|PythonMod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|FloatTrueDiv|IntTrueDiv|TruncToFloat|"
    "TruncToInt|RoundToInt|RoundDecimal|ToFloat|Identity|IsNonOverlappingAndDenseIndicator|(Negative)?(Int)?Infinity"
)
_CONSTANTS = frozenset({"oo", "int_oo", "true", "false", "nan", "pi", "E"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)


def check_expression(text: str, name: str) -> None:
    """Raises PERMISSION_DENIED unless ``text`` is arithmetic on symbols; ``name`` is the file for the message."""
    if not _is_arithmetic(text):
        raise unsafe(f"{name} has a size that is no plain arithmetic: {text!r:.80}")


def _is_arithmetic(text: str) -> bool:
    if len(text) > MAX_LENGTH:
        return False
    try:
        return _harmless(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _harmless(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value):
            return isinstance(value, int | float) and abs(value) <= MAX_INTEGER
        case ast.Name(name):
            return name in _CONSTANTS or SYMBOL.fullmatch(name) is not None
        case ast.UnaryOp(_, operand):
            return _harmless(operand)
        case ast.BinOp(left, ast.Pow(), right):
            return _harmless_power(left, right)
        case ast.BinOp(left, operator, right):
            return isinstance(operator, _OPERATORS) and _harmless(left) and _harmless(right)
        case ast.Compare(left, _, others):
            return all(map(_harmless, [left, *others]))
        case ast.Call(ast.Name(function), arguments, keywords):
            assumptions = all(isinstance(keyword.value, ast.Constant) and keyword.arg for keyword in keywords)
            return assumptions and _harmless_call(function, arguments)
    return False


def _harmless_call(function: str, arguments: list[ast.expr]) -> bool:
    match function, arguments:
        case "Symbol", [ast.Constant(str(text))]:
            return SYMBOL.fullmatch(text) is not None
        case "Float", [ast.Constant(str(text))]:
            return _NUMBER.fullmatch(text) is not None
        case name, [base, exponent] if _POWER.fullmatch(name):
            return _harmless_power(base, exponent)
    return _FUNCTION.fullmatch(function) is not None and all(map(_harmless, arguments))


def _harmless_power(base: ast.expr, exponent: ast.expr) -> bool:
    """The exponent is a symbol or a small number, and the base has no power in it."""
    return _harmless(base) and not any(map(_is_power, ast.walk(base))) and _is_small(exponent)


def _is_power(node: ast.AST) -> bool:
    match node:
        case ast.Call(ast.Name(function)):
            return _POWER.fullmatch(function) is not None
    return isinstance(node, ast.Pow)


def _is_small(node: ast.expr) -> bool:
    match node:
        case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
            return _is_small(operand)
        case ast.Constant(value):
            return isinstance(value, int | float) and abs(value) <= MAX_EXPONENT
        case ast.Call(ast.Name("Integer" | "Rational"), arguments):
            return all(map(_is_small, arguments))
        case ast.Name() | ast.Call(ast.Name("Symbol")):
            return _harmless(node)
    return False


def format_expression(text: str) -> str:
    """The expression as sympy prints it, such as ``2*s17``; ``text`` itself if it is none."""
    try:
        return _format(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


def _format(node: ast.expr) -> str:
    match node:
        case ast.Call(ast.Name("Symbol" | "Integer" | "Float"), [ast.Constant(value), *_]):
            return str(value)
        case ast.Call(ast.Name("Add"), terms):
            return " + ".join(sorted(map(_format, terms), key=str.isdecimal))
        case ast.Call(ast.Name("Mul"), factors):
            return "*".join(f"({_format(factor)})" if _is_sum(factor) else _format(factor) for factor in factors)
        case ast.Call(ast.Name("FloorDiv"), [dividend, divisor]):
            return f"({_format(dividend)}//{_format(divisor)})"
        case ast.Call(ast.Name(function), arguments):
            return f"{function}({', '.join(map(_format, arguments))})"
    return ast.unparse(node)


def _is_sum(node: ast.expr) -> bool:
    match node:
        case ast.Call(ast.Name("Add")):
            return True
    return False


_COMPARISONS: Mapping[str, type[ast.cmpop]] = {
    **dict.fromkeys(("Equality", "Eq"), ast.Eq),
    **dict.fromkeys(("Unequality", "Ne"), ast.NotEq),
    **dict.fromkeys(("GreaterThan", "Ge"), ast.GtE),
    **dict.fromkeys(("LessThan", "Le"), ast.LtE),
    **dict.fromkeys(("StrictGreaterThan", "Gt"), ast.Gt),
    **dict.fromkeys(("StrictLessThan", "Lt"), ast.Lt),
}
_BINARY: Mapping[str, type[ast.operator]] = {
    "Add": ast.Add,
    "Mul": ast.Mult,
    "Rational": ast.Div,
    **dict.fromkeys(("FloorDiv", "CleanDiv"), ast.FloorDiv),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), ast.Div),
    **dict.fromkeys(("Mod", "PythonMod"), ast.Mod),
}
_CALLS: Mapping[str, str] = {
    **dict.fromkeys(("Pow", "PowByNatural", "FloatPow"), "power"),
    **dict.fromkeys(("Max", "sym_max"), "max"),
    **dict.fromkeys(("Min", "sym_min"), "min"),
    **dict.fromkeys(("ToFloat", "sym_float"), "float"),
    **dict.fromkeys(("OpaqueUnaryFn_sqrt", "_sym_sqrt", "sym_sqrt"), "sqrt"),
    **dict.fromkeys(("FloorToInt",), "floor"),
    **dict.fromkeys(("ceiling", "CeilToInt"), "ceil"),
    **dict.fromkeys(("TruncToInt", "TruncToFloat"), "trunc"),
    **dict.fromkeys(("RoundToInt", "RoundDecimal"), "round"),
    "Abs": "abs",
    "sym_int": "int",
    "OpaqueUnaryFn_log2": "log2",
}
"""Functions of sympy and torch -> those of a condition."""


class Unreadable(ValueError):
    """A text is no arithmetic on sizes."""


def parsed(text: object) -> ast.expr:
    """Raises Unreadable."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        raise Unreadable
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unreadable from None


def symbol_of(node: ast.AST) -> str | None:
    """The symbol that a node is, in sympy's text or in Python; None for others."""
    match node:
        case ast.Call(ast.Name("Symbol"), [ast.Constant(str(name))]) | ast.Name(str(name)) if name[-1:].isdecimal():
            return name
    return None


def compared(left: ast.expr, sign: ast.cmpop, right: ast.expr) -> ast.Compare:
    return ast.Compare(left, [sign], [right])


def called(name: str, arguments: Sequence[ast.expr]) -> ast.Call:
    return ast.Call(ast.Name(name), list(arguments), [])


def rebuilt(node: ast.expr, replace: Callable[[ast.expr], ast.expr | None]) -> ast.expr:
    """The same as a condition has it, for a text as sympy writes it: ``Mod(Symbol('s0'), Integer(8))``, or Python:
    ``s0 % 8``. ``replace`` returns what stands for a size, and None for a node that is none. Raises Unreadable."""
    try:
        return _Rebuilder(replace).build(node)
    except (RecursionError, OverflowError, ValueError):
        raise Unreadable from None


class _Rebuilder:
    def __init__(self, replace: Callable[[ast.expr], ast.expr | None]) -> None:
        self._replace = replace

    def build(self, node: ast.expr) -> ast.expr:
        return self._replace(node) or self._plain(node) or self._arithmetic(node)

    def _plain(self, node: ast.expr) -> ast.expr | None:
        """Numbers and truth values; None for others."""
        match node:
            case ast.Constant(int() | float()):
                return node
            case ast.Name("true" | "false" as name):
                return ast.Constant(name == "true")
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
                return ast.Constant(-value)
            case ast.Call(ast.Name("Integer"), [ast.Constant(int() | str() as value)]):
                return ast.Constant(int(value))
            case ast.Call(ast.Name("Integer"), [ast.UnaryOp(ast.USub(), ast.Constant(int(value)))]):
                return ast.Constant(-value)
            case ast.Call(ast.Name("Float"), [ast.Constant(int() | float() | str() as value), *_]):
                return ast.Constant(float(value))
        return None

    def _arithmetic(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.UnaryOp(sign, operand):
                return ast.UnaryOp(sign, self.build(operand))
            case ast.BinOp(left, ast.Sub(), ast.Constant(int(value))):
                return ast.BinOp(self.build(left), ast.Add(), ast.Constant(-value))
            case ast.BinOp(left, sign, right):
                return _binary(self.build(left), sign, self.build(right))
            case ast.BoolOp(sign, values):
                return ast.BoolOp(sign, self._all(values))
            case ast.Compare(left, signs, others):
                return ast.Compare(self.build(left), signs, self._all(others))
            case ast.IfExp(test, then, other):
                return ast.IfExp(self.build(test), self.build(then), self.build(other))
            case ast.Call(ast.Name(name) | ast.Attribute(ast.Name("math" | "torch"), name), arguments):
                return self._structure(name, arguments) or self._function(name, self._all(arguments))
        raise Unreadable

    def _all(self, nodes: Sequence[ast.expr]) -> list[ast.expr]:
        return [self.build(node) for node in nodes]

    def _structure(self, name: str, given: Sequence[ast.expr]) -> ast.expr | None:
        """Rebuilds what is more than a function of numbers; None for others."""
        match name, given:
            case "Identity", [only]:
                return self.build(only)
            case "Not" | "sym_not", [only]:
                return ast.UnaryOp(ast.Not(), self.build(only))
            case "And" | "Or", [_, _, *_]:
                return ast.BoolOp(ast.And() if name == "And" else ast.Or(), self._all(given))
            case "ModularIndexing", [dividend, divisor, modulus]:
                return _binary(
                    _binary(self.build(dividend), ast.FloorDiv(), self.build(divisor)), ast.Mod(), self.build(modulus)
                )
            case "Piecewise", [*pairs, ast.Call(ast.Name("ExprCondPair"), [last, ast.Name("true")])]:
                return self._choice(pairs, self.build(last))
        return None

    def _choice(self, pairs: Sequence[ast.expr], otherwise: ast.expr) -> ast.expr:
        for pair in reversed(pairs):
            match pair:
                case ast.Call(ast.Name("ExprCondPair"), [value, condition]):
                    otherwise = ast.IfExp(self.build(condition), self.build(value), otherwise)
                case _:
                    raise Unreadable
        return otherwise

    def _function(self, name: str, arguments: Sequence[ast.expr]) -> ast.expr:
        if name in _COMPARISONS and len(arguments) == 2:
            return compared(arguments[0], _COMPARISONS[name](), arguments[1])
        if name in _BINARY and (len(arguments) == 2 or (name in ("Add", "Mul") and len(arguments) > 2)):
            first, *others = arguments
            for other in others:
                first = _binary(first, _BINARY[name](), other)
            return first
        known = _CALLS.get(name, name)
        if known not in FUNCTIONS:
            raise Unreadable
        return called(known, arguments)


def _binary(left: ast.expr, sign: ast.operator, right: ast.expr) -> ast.expr:
    return called("power", [left, right]) if isinstance(sign, ast.Pow) else ast.BinOp(left, sign, right)


def line_of(tree: ast.expr) -> tuple[int, int] | None:
    """Factor and constant of ``factor*symbol + constant``, for whole numbers with a factor above 0; None for others."""
    try:
        factor, constant = _line(rebuilt(tree, _as_name))
    except Unreadable:
        return None
    return (factor, constant) if factor > 0 else None


def _line(node: ast.expr) -> tuple[int, int]:
    match node:
        case ast.Name():
            return 1, 0
        case ast.Constant(int(number)):
            return 0, number
        case ast.BinOp(left, ast.Add(), right):
            (a, b), (c, d) = _line(left), _line(right)
            return a + c, b + d
        case ast.BinOp(left, ast.Mult(), right):
            (a, b), (c, d) = _line(left), _line(right)
            if not (a and c):
                return a * d + b * c, b * d
    raise Unreadable


def _as_name(node: ast.expr) -> ast.expr | None:
    symbol = symbol_of(node)
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
        return called(name, sorted(parts, key=ast.dump))


def canonical(text: str) -> str:
    """The canonical text of an expression: equal for two texts, sympy's or Python's, of the same sums and products."""
    try:
        return ast.dump(_Sorted().visit(rebuilt(parsed(text), _as_name)))
    except (Unreadable, RecursionError):
        return text
