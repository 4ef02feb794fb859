"""Size expressions of an exported program: checks and formats them.

torch's own loader hands them to ``sympy.sympify``, which evaluates Python.

A healthy one is what ``sympy.srepr`` prints, such as ``Mul(Integer(2), Symbol('s17', positive=True))``. Here it is
parsed, never evaluated, and only calls of known sympy functions on symbols and numbers pass. Powers are limited,
because ``9**9**9`` would keep sympy busy for years.
"""

from __future__ import annotations

import ast
import re

from tfs_lite.adapters.inspect.archive import unsafe

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
    """PERMISSION_DENIED unless ``text`` is arithmetic on symbols; ``name`` is the file for the message."""
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
