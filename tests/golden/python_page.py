"""``docs/python-api.md``: signatures, fields and docstrings of what a Python program uses."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from golden_code import find
from golden_flags import CLI

import tfs_lite
from tfs_lite.core import servable, signature, status
from tfs_lite.serving.options import ServerOptions

HEAD = """\
# The Python API

{made}

```python
import tfs_lite
```

imports nothing heavy: `tfs_lite.save` and `tfs_lite.Server` load torch when they are first used, `tfs_lite.Client`
never does. Each other class stands below with the module that it comes from. Every failure is a
[`ServingError`](#servingerror)."""

WIDTH = 100
"""Characters of a line of code."""
PROSE = 120


def page(made: str) -> str:
    """The page; ``made`` says where it comes from."""
    client = find("Client", "tfs_lite.client").__module__
    parts = [HEAD.format(made=made), *_function("tfs_lite.save", tfs_lite.save)]
    parts += _class(tfs_lite.Server, "tfs_lite.Server")
    parts += _options()
    parts += _class(tfs_lite.Client, "tfs_lite.Client")
    for name in ("Prediction", "ModelMetadata"):
        parts += _class(find(name, client))
    for kind in (servable.VersionStatus, servable.VersionState, signature.Signature, signature.TensorSpec):
        parts += _class(kind)
    for kind in (signature.DataType, status.ServingError, status.Status, status.StatusCode):
        parts += _class(kind)
    parts += _class(find("ModelContext"))
    return "\n".join(parts) + "\n"


def _function(name: str, function: Any) -> Iterator[str]:
    yield from (
        "",
        f"## {name.rpartition('.')[2]}",
        "",
        *_code(_signature(name, function)),
        "",
        *_text(function.__doc__),
    )


def _class(kind: type, name: str = "") -> Iterator[str]:
    yield from ("", f"## {kind.__name__}", "")
    if not name:
        yield from (f"`from {kind.__module__} import {kind.__name__}`", "")
    if "__init__" in vars(kind) and not dataclasses.is_dataclass(kind):
        yield from (*_code(_signature(name or kind.__name__, kind.__init__)), "")
    yield from _text(kind.__doc__)
    if "__init__" in vars(kind) and kind.__init__.__doc__ and not dataclasses.is_dataclass(kind):
        yield from ("", *_text(kind.__init__.__doc__))
    if issubclass(kind, enum.Enum):
        yield from ("", *_members(kind))
    elif dataclasses.is_dataclass(kind):
        yield from ("", *_fields(kind, _field_docs(kind)))
    yield from _properties(kind)
    for member, function in _methods(kind):
        yield from ("", f"### {kind.__name__}.{member}", "", *_code(_signature(member, function)), "")
        yield from _text(function.__doc__)


def _options() -> Iterator[str]:
    """Fields by the groups of the flags, in their order; those without a docstring are said as the flag's help says."""
    docs = _field_docs(ServerOptions)
    flags = find("FLAGS", CLI)
    helps = {flag.name: flag.help for flag in flags}
    fields = {field.name: field for field in dataclasses.fields(ServerOptions)}
    yield from ("", "## ServerOptions", "", f"`from {ServerOptions.__module__} import ServerOptions`", "")
    yield from (*_text(ServerOptions.__doc__), "")
    yield from (
        "Each field is [the flag of the same name](flags.md). Without `Server(port=8500)` the ports are free ones.",
        "",
    )
    yield from ("| field | type | default | |", "|---|---|---|---|")
    for flag in flags:
        if flag.name in fields:
            yield _field(fields[flag.name], docs.get(flag.name) or helps[flag.name])


def _members(kind: type[enum.Enum]) -> Iterator[str]:
    listed = ", ".join(f"`{member.name}` ({member.value})" for member in kind)
    yield textwrap.fill(f"{listed}.", PROSE)


def _fields(kind: Any, docs: dict[str, str]) -> Iterator[str]:
    yield from ("| field | type | default | |", "|---|---|---|---|")
    yield from (_field(field, docs.get(field.name, "")) for field in dataclasses.fields(kind))


def _field(field: dataclasses.Field[Any], text: str) -> str:
    default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
    if isinstance(field.default, enum.Enum):
        default = f"`{field.default.name}`"
    return f"| `{field.name}` | `{_escaped(str(field.type))}` | {default} | {_escaped(_inline(text))} |"


def _field_docs(kind: type) -> dict[str, str]:
    """The strings that stand below the fields of a class."""
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(inspect.cleandoc(text.value.value).split())
        for field, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _properties(kind: type) -> Iterator[str]:
    found = {name: value for name, value in vars(kind).items() if isinstance(value, property) and name[0] != "_"}
    if found:
        yield from ("", "| property | type | |", "|---|---|---|")
    for name, value in found.items():
        assert value.fget is not None
        returned = value.fget.__annotations__.get("return")
        text = " ".join(inspect.cleandoc(value.__doc__ or "").split())
        yield f"| `{name}` | `{_escaped(str(returned))}` | {_escaped(_inline(text))} |"


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function) and not name.startswith("_") and function.__doc__:
            yield name, function


def _signature(name: str, function: Any) -> str:
    found = inspect.signature(function)
    words, star = [], False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words, star = [*words, "*"], True
        prefix = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
        word = f"{prefix}{parameter.name}: {parameter.annotation}"
        words.append(word if parameter.default is parameter.empty else f"{word} = {parameter.default!r}")
    returned = "" if found.return_annotation in ("None", found.empty) else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(words)}){returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){returned}"])


def _code(text: str) -> tuple[str, str, str]:
    return ("```python", text, "```")


def _text(docstring: str | None) -> Iterator[str]:
    """A docstring as Markdown: its paragraphs, and as code what stands further in."""
    for number, part in enumerate(re.split(r"\n\n+", inspect.cleandoc(docstring or ""))):
        if number:
            yield ""
        if all(line.startswith("    ") for line in part.splitlines()):
            yield from _code(textwrap.dedent(part))
        else:
            yield textwrap.fill(_inline(part), PROSE, break_long_words=False, break_on_hyphens=False)


def _inline(text: str) -> str:
    """``x`` and :class:`x` of docstrings as `x`."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
