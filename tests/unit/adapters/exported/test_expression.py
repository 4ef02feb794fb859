import pytest

from tfs_lite.adapters.exported.expression import check_expression, format_expression
from tfs_lite.core.status import StatusCode
from tfs_lite.testing.errors import refusal

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
