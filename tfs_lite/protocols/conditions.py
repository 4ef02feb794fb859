"""Conditions on sizes as texts: ``n0 % 8 == 0 and n1 > n0``, in which ``n0``, ``n1``, ... are the sizes. Pure.

They come from files and from other processes, so a text is parsed, checked against the few constructs below, and only
then compiled. Whole numbers stay small: a power has a bound, and a text its length.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from tfs_lite.core.signature import SizeConditions

MAX_LENGTH = 16384
MAX_CONDITIONS = 4096
MAX_SIZES = 100_000
REMEMBERED = 1024
"""Sizes of which it is remembered that they are taken."""
MAX_BITS = 64
"""The most bits of a power: sizes are whole numbers of 64 bits."""
_SIZE = re.compile(r"n(0|[1-9]\d{0,5})", re.ASCII)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_UNARY = (ast.USub, ast.UAdd, ast.Not)


def power(base: Any, exponent: Any) -> Any:
    """Computes ``base ** exponent``; OverflowError for a whole number of more than 64 bits."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise OverflowError("a size has more than 64 bits")
    return operator.pow(base, exponent)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(builtins, name) for name in ("abs", "bool", "float", "int", "max", "min", "round")},
    **{name: getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt", "log2")},
    "power": power,
}
"""The functions that a text may call."""


def read_conditions(axes: Sequence[tuple[str, int]], texts: Sequence[str], complete: bool = True) -> SizeConditions:
    """The conditions of these texts on the sizes in ``axes``. ValueError if one is no condition."""
    if len(texts) > MAX_CONDITIONS:
        raise ValueError(f"there are {len(texts)} conditions, at most {MAX_CONDITIONS} are read")
    codes = [_compiled(text, len(axes)) for text in texts]

    def failing(sizes: tuple[int, ...]) -> int | None:
        values = {f"n{number}": size for number, size in enumerate(sizes)}
        for number, code in enumerate(codes):
            try:
                if not eval(code, _GLOBALS, values):
                    return number
            except (ArithmeticError, ValueError, TypeError):  # such as a division by a size that is 0
                return number
        return None

    return SizeConditions(tuple(axes), tuple(texts), lru_cache(REMEMBERED)(failing), complete)


_GLOBALS: dict[str, Any] = {"__builtins__": {}, **FUNCTIONS}


def check_condition(text: str) -> None:
    """Raises ValueError if the text is no condition, on any number of sizes."""
    _compiled(text, MAX_SIZES)


def _compiled(text: str, sizes: int) -> CodeType:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a condition has {len(text)} characters, at most {MAX_LENGTH} are read")
    try:
        tree = ast.parse(text, mode="eval")
        if not (_is_plain(tree.body, sizes) and _speaks_of_sizes(tree)):
            raise ValueError(f"{text!r:.80} is no condition on sizes")
        return compile(tree, "<condition>", "eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r:.80} is no condition on sizes") from None


def _speaks_of_sizes(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id not in FUNCTIONS for node in ast.walk(tree))


def _is_plain(node: ast.expr, sizes: int) -> bool:
    match node:
        case ast.Constant(value):
            return isinstance(value, int | float) and abs(value) < 2**MAX_BITS
        case ast.Name(name):
            found = _SIZE.fullmatch(name)
            return found is not None and int(found[1]) < sizes
        case ast.UnaryOp(sign, operand):
            return isinstance(sign, _UNARY) and _is_plain(operand, sizes)
        case ast.BinOp(left, sign, right):
            return isinstance(sign, _OPERATORS) and _is_plain(left, sizes) and _is_plain(right, sizes)
        case ast.BoolOp(_, values):
            return all(_is_plain(value, sizes) for value in values)
        case ast.Compare(left, signs, others):
            return all(isinstance(sign, _COMPARISONS) for sign in signs) and all(
                _is_plain(value, sizes) for value in (left, *others)
            )
        case ast.IfExp(test, then, other):
            return all(_is_plain(value, sizes) for value in (test, then, other))
        case ast.Call(ast.Name(name), arguments, []):
            return name in FUNCTIONS and all(_is_plain(value, sizes) for value in arguments)
    return False
