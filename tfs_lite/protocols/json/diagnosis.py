"""Finds the mistake in a JSON text and its position, for error messages.

The parsers of bodies are quick and give no reasons. A text that they refuse is read once more here, token by token and
without recursion, up to the first mistake; no value is built. A large text is first read in chunks, so that only the
chunk with the mistake is read by tokens.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import orjson

from tfs_lite.protocols.json.chunks import PieceReader, Position
from tfs_lite.protocols.json.scan import SLICE_BYTES, SPACE, end_of_run, string_end
from tfs_lite.protocols.json.tree import MAX_DEPTH, JsonRefused

_SHOWN_NAME = 64
"""Characters of a name that a message shows."""

_INTEGER = re.compile(rb"0|[1-9][0-9]*+")
_DIGITS = re.compile(rb"[0-9]++")
_EXPONENT = re.compile(rb"[eE][+-]?+")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(
    rb"\\(?:[\"\\/bfnrt]"
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
    rb"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})?+"
)
"""A backslash with what makes it an escape (two surrogates make one), or a bare backslash."""
_UNIT = re.compile(rb"\\u[0-9a-fA-F]{4}")
_WORDS = {b"t": b"true", b"f": b"false", b"n": b"null", b"N": b"NaN", b"I": b"Inf"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a text. ``reason``: a sentence; ``offset``: of the byte at which it shows."""

    reason: str
    offset: int


class _Found(Exception):
    def __init__(self, reason: str, offset: int) -> None:
        self.fault = Fault(reason, offset)


def find_fault(text: bytes, chunk_bytes: int = SLICE_BYTES) -> Fault | None:
    """The first fault of ``text``: bad syntax, a name twice in an object, more than ``MAX_DEPTH`` levels.

    None if it is a JSON value, with or without white space around it, and nothing else. Special numbers (``NaN``,
    ``Inf``, ``Infinity``, with a minus ``-Inf``, ``-Infinity``) are legal; numbers beyond a double are not.
    """
    position = Position(0)
    if len(text) > chunk_bytes:
        reader = PieceReader(text, keep=False, chunk_bytes=chunk_bytes)
        try:
            reader.whole()
        except JsonRefused:
            position = reader.position
    try:
        _Walk(text, position).to_the_end()
    except _Found as found:
        return found.fault
    return None


class _Walk:
    """A position in the text, and the containers that are open there: the names so far, or None for a list."""

    def __init__(self, text: bytes, position: Position) -> None:
        self._text = text
        self._at = position.at
        self._open = [set(container) if isinstance(container, dict) else None for container in position.open]
        self._fresh = position.fresh
        self._after = position.after

    def to_the_end(self) -> None:
        before_a_value = self._behind() if self._after else self._before()
        while before_a_value:
            before_a_value = self._value() or self._behind()
        if self._next() != b"":
            raise _Found("Something follows the document.", self._at)

    def _next(self) -> bytes:
        """Goes to the next byte that is not white space; empty at the end."""
        self._at = end_of_run(SPACE, self._text, self._at)
        return self._text[self._at : self._at + 1]

    def _before(self) -> bool:
        """Goes to the value that comes next, past its name. False if an empty container was closed instead."""
        byte = self._next()
        if not self._open:
            if byte == b"":
                raise _Found("The document is empty.", self._at)
            return True
        names = self._open[-1]
        if self._fresh and byte == (b"]" if names is None else b"}"):
            return self._behind()
        if names is not None:
            self._name(names)
        return True

    def _behind(self) -> bool:
        """Goes past the brackets that close here and a comma to the next value. False if nothing is open any more."""
        while self._open:
            names = self._open[-1]
            byte = self._next()
            self._fresh = False
            if byte == b",":
                self._at += 1
                return self._before()
            if byte != (b"]" if names is None else b"}"):
                kind = "] after an array element." if names is None else "} after an object member."
                raise _Found(f"Missing a comma or {kind}", self._at)
            self._at += 1
            self._open.pop()
        return False

    def _value(self) -> bool:
        """Goes past the value that begins here. If it has items, goes to the first one and says True."""
        first = self._text[self._at : self._at + 1]
        if first in (b"{", b"["):
            if len(self._open) == MAX_DEPTH:
                raise _Found(f"More than {MAX_DEPTH} levels of nesting.", self._at)
            self._open.append(set() if first == b"{" else None)
            self._at += 1
            self._fresh = True
            return self._before()
        if first == b'"':
            self._at = _past_string(self._text, self._at)
        elif first in _WORDS:
            self._word(_WORDS[first])
        else:
            self._number()
        return False

    def _name(self, names: set[str]) -> None:
        if self._next() != b'"':
            raise _Found("Missing a name for object member.", self._at)
        start, self._at = self._at, _past_string(self._text, self._at)
        name = orjson.loads(self._text[start : self._at])
        if name in names:
            shown = name if len(name) <= _SHOWN_NAME else name[:_SHOWN_NAME] + "..."
            raise _Found(f"The name {shown!r} comes twice in an object.", start)
        names.add(name)
        if self._next() != b":":
            raise _Found("Missing a colon after a name of object member.", self._at)
        self._at += 1
        self._next()

    def _word(self, word: bytes) -> None:
        found = self._text[self._at : self._at + len(word)]
        if found != word:
            same = next((i for i, (a, b) in enumerate(zip(found, word, strict=False)) if a != b), len(found))
            raise _Found("Invalid value.", self._at + same)
        self._at += len(word)
        if word == b"Inf" and self._text[self._at : self._at + 5] == b"inity":
            self._at += 5

    def _number(self) -> None:
        text, start = self._text, self._at
        if text[self._at : self._at + 1] == b"-":
            self._at += 1
            if text[self._at : self._at + 1] == b"I":
                self._word(b"Inf")
                return
        self._digits(_INTEGER, "Invalid value.")
        if text[self._at : self._at + 1] == b".":
            self._at += 1
            self._digits(_DIGITS, "Miss fraction part in number.")
        exponent = _EXPONENT.match(text, self._at)
        if exponent:
            self._at = exponent.end()
            self._digits(_DIGITS, "Miss exponent in number.")
        if math.isinf(float(text[start : self._at])):
            raise _Found("Number too big to be stored in double.", start)

    def _digits(self, digits: re.Pattern[bytes], otherwise: str) -> None:
        found = digits.match(self._text, self._at)
        if found is None:
            raise _Found(otherwise, self._at)
        self._at = found.end()


def _past_string(text: bytes, start: int) -> int:
    """The offset behind the string whose quote is at ``start``. Raises what is wrong first in it."""
    end = string_end(text, start)
    try:
        orjson.loads(text[start:end])
    except orjson.JSONDecodeError:
        content = text[start + 1 : end - 1 if end else len(text)]
        faults = [fault for fault in (_bad_escape(content), _bad_character(content)) if fault]
        if not faults:
            raise _Found("Missing a closing quotation mark in string.", len(text)) from None
        first = min(faults, key=lambda fault: fault.offset)
        raise _Found(first.reason, start + 1 + first.offset) from None
    return end


def _bad_character(content: bytes) -> Fault | None:
    control = _CONTROL.search(content)
    end = control.start() if control else len(content)
    try:
        content[:end].decode()
    except UnicodeDecodeError as error:
        return Fault("A string is not UTF-8.", error.start)
    return Fault("A control character in a string is not escaped.", end) if control else None


def _bad_escape(content: bytes) -> Fault | None:
    for escape in _ESCAPE.finditer(content):
        if escape.end() == escape.start() + 1:
            return Fault(_why_no_escape(content, escape.start()), escape.start())
    return None


def _why_no_escape(content: bytes, at: int) -> str:
    if _UNIT.match(content, at):
        return "The surrogate pair in string is invalid."
    if content[at + 1 : at + 2] == b"u":
        return "Four hexadecimal digits must follow \\u."
    return "Invalid escape character in string."
