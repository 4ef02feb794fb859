"""The words of the product: templates of log lines and errors, and every other text with a space in it.

Read from the syntax trees, so what no test provokes is here too. Independent of files, their order and the names in
them: a hole of an f-string is ``{}`` with its conversion and format (``{!r:.80}``), equal lines are one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from golden_code import one_line, sources

_TYPES = ("cast", "TypeVar", "NewType", "TypeAliasType", "Literal", "namedtuple", "NamedTuple")
"""Calls and subscripts that hold types as texts."""


def listing() -> Iterator[str]:
    for path in sources():
        yield from _Texts().of(ast.parse(path.read_text(encoding="utf-8")))


class _Texts(ast.NodeVisitor):
    """Collects the texts of one module."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._speaks = 0
        """Inside how many calls the walk is whose texts are all for people, also those of one word."""

    def of(self, tree: ast.AST) -> list[str]:
        self.visit(tree)
        return self._found

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring, of whatever
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not _is_named(node.annotation, "TypeAlias"):
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Its annotation is none of ours."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not any(_is_named(node.value, name) for name in _TYPES):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        for part in (node.exc, node.cause):
            if isinstance(part, ast.Call):
                self._visit_speaking(part)
            elif part is not None:
                self.visit(part)

    def visit_Call(self, node: ast.Call) -> None:
        if any(_is_named(node.func, name) for name in _TYPES):
            return
        if _speaks(node.func):
            self._visit_speaking(node)
        else:
            self._visit_quietly(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._add(_template(node))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self._visit_quietly(part.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._add(node.value)

    def _visit_speaking(self, call: ast.Call) -> None:
        """What is said is an argument, or a choice between texts; a call inside says what it likes."""
        self._speaks += 1
        self.generic_visit(call)
        self._speaks -= 1

    def _visit_quietly(self, node: ast.AST) -> None:
        speaks, self._speaks = self._speaks, 0
        if isinstance(node, ast.Call):
            self.generic_visit(node)
        else:
            self.visit(node)
        self._speaks = speaks

    def _add(self, text: str) -> None:
        if " " in text.strip() or (self._speaks and any(character.isalpha() for character in text)):
            self._found.append(one_line(text))


def _speaks(function: ast.expr) -> bool:
    """A logger, or a maker of errors: those of core.status, and whatever else is called an error."""
    if isinstance(function, ast.Attribute):
        return _is_named(function.value, "logger") or function.attr.endswith("Error")
    name = function.id if isinstance(function, ast.Name) else ""
    return name.endswith("Error") or name in ("invalid_argument", "failed_precondition", "not_found", "Status")


def _is_named(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _template(node: ast.JoinedStr) -> str:
    return "".join(_part(value) for value in node.values)


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value).replace("{", "{{").replace("}", "}}")
    if isinstance(node, ast.FormattedValue):
        conversion = f"!{chr(node.conversion)}" if node.conversion != -1 else ""
        wanted = f":{_template(node.format_spec)}" if isinstance(node.format_spec, ast.JoinedStr) else ""
        return f"{{{conversion}{wanted}}}"
    raise TypeError(f"no part of an f-string: {ast.dump(node)}")
