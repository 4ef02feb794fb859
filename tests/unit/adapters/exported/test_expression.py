import ast
import contextlib

import pytest

from tests.support.errors import refusal
from tfs_lite.adapters.exported.expression import (
    Unreadable,
    canonical,
    check_expression,
    format_expression,
    parsed,
    rebuilt,
    symbol_of,
)
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.conditions import check_condition

HEALTHY = [
    "Symbol('s17', positive=True, integer=True)",
    "Symbol('zuf0')",
    "Mul(Integer(2), Symbol('s17', positive=True, integer=True))",
    "Add(Symbol('s0', integer=True), Integer(-1))",
    "Pow(Symbol('s0', integer=True), Integer(2))",
    "Pow(Symbol('s0', integer=True), Integer(-1))",
    "FloorDiv(Symbol('s0', integer=True), Integer(2))",
    "GreaterThan(Symbol('u0', integer=True), Integer(0))",
    "Float('0.5', precision=53)",
    "Max(Integer(1), Symbol('u0', integer=True))",
    "2*s0 + 1",
    "s0**2",
    "(s0 - 1)//2",
    "oo",
    "int_oo",
    "-int_oo",
]

HOSTILE = [
    "__import__('os').system('touch /tmp/x')",
    "open('/etc/passwd')",
    "Symbol('s0').__class__",
    "Symbol('__import__(1)')",
    "lambda: 1",
    "[x for x in ()]",
    "s0 if s1 else s2",
    "f'{s0}'",
    "exec",
    "Symbol('s0', 5)",
    "Symbol('s0', integer=open('x'))",
    "sympify('s0')",
    "Lambda(s0, s0)",
    "Symbol(*s0)",
    "Symbol('s0', **s1)",
    "Integer('9'*99)",
    "(s0 := 1)",
    "b'x'",
    "...",
    "S.oo",
    "",
    "s0; s1",
    "\x00",
    "(" * 500 + "s0" + ")" * 500,
    "s0+" * 5000 + "s0",
]

HANGING = [
    "9**9**9",
    "9**999999999",
    "Pow(Integer(9), Integer(999999999))",
    "Pow(Pow(Pow(Integer(9), Integer(64)), Integer(64)), Integer(64))",
    "LShift(Integer(1), Integer(99999999999))",
    "PowByNatural(Integer(10), Mul(Integer(9999999), Integer(9999999)))",
    "10**(s0 - s0 + 999999999)",
    "Float('1e99999999999')",
    "Integer('9'*9999999999)",
    "'9'*9999999999",
    "[0]*9999999999",
    "9" * 4000,
]


@pytest.mark.parametrize("text", HEALTHY)
def test_arithmetic_on_symbols_passes(text):
    check_expression(text, "model.pt2")


@pytest.mark.parametrize("text", HOSTILE + HANGING)
def test_everything_else_is_unsafe(text):
    assert len(refusal(check_expression, text, "model.pt2", code=StatusCode.PERMISSION_DENIED)) < 300


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Symbol('s17', positive=True, integer=True)", "s17"),
        ("Integer(3)", "3"),
        ("Mul(Integer(2), Symbol('s0'))", "2*s0"),
        ("Add(Integer(1), Symbol('s0'))", "s0 + 1"),
        ("Mul(Integer(2), Add(Symbol('s0'), Integer(1)))", "2*(s0 + 1)"),
        ("FloorDiv(Symbol('s0'), Integer(2))", "(s0//2)"),
        ("Max(Integer(1), Symbol('u0'))", "Max(1, u0)"),
        ("(", "("),
    ],
)
def test_sizes_are_shown_as_arithmetic(text, shown):
    assert format_expression(text) == shown


SYMPY_AND_PYTHON = {
    "Mod(Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1)), Integer(8))": "(2 * n0 + -1) % 8",
    "Equality(FloorDiv(Symbol('s0'), Integer(2)), Symbol('s1'))": "n0 // 2 == n1",
    "GreaterThan(TruncToInt(FloatTrueDiv(ToFloat(Symbol('s0')), Float('1.5', precision=53))), Integer(3))": (
        "trunc(float(n0) / 1.5) >= 3"
    ),
    "Piecewise(ExprCondPair(Integer(1), Equality(Symbol('s0'), Integer(1))), ExprCondPair(Symbol('s1'), true))": (
        "1 if n0 == 1 else n1"
    ),
    "And(Not(Eq(Symbol('s0'), Integer(3))), Or(Lt(Symbol('s0'), Integer(9)), false))": (
        "not n0 == 3 and (n0 < 9 or False)"
    ),
    "Max(Integer(1), ModularIndexing(Symbol('s0'), Integer(2), Integer(3)), PowByNatural(Symbol('s1'), Integer(2)))": (
        "max(1, n0 // 2 % 3, power(n1, 2))"
    ),
    "math.ceil(torch.sym_float(s0) * 0.5) - 1 >= -s1 ** 2": "ceil(float(n0) * 0.5) + -1 >= -power(n1, 2)",
}


@pytest.mark.parametrize(("text", "wanted"), SYMPY_AND_PYTHON.items())
def test_sympys_texts_and_python_become_arithmetic_that_can_be_computed(text, wanted):
    tree = rebuilt(parsed(text), lambda node: ast.Name(f"n{symbol_of(node)[1:]}") if symbol_of(node) else None)
    assert ast.unparse(tree) == wanted
    check_condition(wanted)


@pytest.mark.parametrize(
    "text",
    [
        *("os.system('x')", "s0.real", "[s0]", "lambda: s0", "s0 +", "Symbol(s0)", "foo(s0)", "torch.save(s0)", "'s0'"),
        *("Piecewise(1, 2)", "f(*s0)", "(" * 300 + "s0" + ")" * 300, "Mod(s0)", "math.pi"),
    ],
)
def test_other_texts_cannot_be_read(text):
    with pytest.raises(Unreadable):
        rebuilt(parsed(text), lambda node: node if symbol_of(node) else None)


@pytest.mark.parametrize(
    "text", ["-" * 90 + "s0", "Integer(" * 60 + "s0" + ")" * 60, "Identity(" * 60 + "s0" + ")" * 60]
)
def test_what_is_nested_is_read_in_one_walk(text):
    walked = []
    with contextlib.suppress(Unreadable):
        rebuilt(parsed(text), lambda node: walked.append(node) or (node if symbol_of(node) else None))
    assert len(walked) < 200


def test_ranges_are_found_whoever_wrote_the_expression():
    assert canonical("2*s0 + 1") == canonical("Add(Integer(1), Mul(Symbol('s0', positive=True), Integer(2)))")
    assert canonical("s0 - 1") == canonical("Add(Symbol('s0'), Integer(-1))")
    assert canonical("2*s0") != canonical("3*s0")
    assert canonical("s0*s1*3") == canonical("Mul(Integer(3), Symbol('s1'), Symbol('s0'))")
