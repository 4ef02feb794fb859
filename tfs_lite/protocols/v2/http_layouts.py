"""Bodies of V2 requests over HTTP that differ from an earlier one in their numbers and their id only.

    JSON -> cut at its id and at each "data": [numbers] -> [the pieces of an earlier body?] -> its form, or None
         -> the numbers of each list, and of the bytes after the JSON -> PlainRequest

What lists of numbers and an id mean follows from the text around them, so bodies of equal pieces mean the same except
for the lists and the id. That the cuts are where they seem to be is tried when a form is learned: with other numbers
and another id in their places the whole body has to be read as exactly these.
"""

from __future__ import annotations

import math
import re
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import randbits
from typing import Any, NamedTuple

import numpy as np
import orjson

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import Array, to_numpy
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES, loads
from tfs_lite.protocols.json.tree import JsonRefused, read
from tfs_lite.protocols.v2.json_values import read_data
from tfs_lite.protocols.v2.plain import PlainForm, PlainRequest
from tfs_lite.protocols.v2.request import InferRequest
from tfs_lite.protocols.v2.tensors import decode, dtype_of
from tfs_lite.transport.remembered import Remembered

MAX_FORMS = 128
MAX_KNOWN_BYTES = 4096
"""The most bytes of a body that a form keeps."""
_MAX_DIGITS = 10
_LEVELS = 3
"""Containers around ``data``: the request, its inputs and the input."""

_SPACE = rb"[ \t\r\n]*+"
_ID = re.compile(rb'\{%b"id"%b:%b"([0-9A-Za-z_.-]*+)"' % (_SPACE, _SPACE, _SPACE))
_DATA = re.compile(rb'"data"%b:%b(\[[-+0-9.eE, \t\r\n\[\]]*\])' % (_SPACE, _SPACE))

_CODES: Mapping[DataType, str] = {
    DataType.FLOAT: "f",
    DataType.DOUBLE: "d",
    DataType.INT8: "b",
    DataType.INT16: "h",
    DataType.INT32: "i",
    DataType.INT64: "q",
    DataType.UINT8: "B",
    DataType.UINT16: "H",
    DataType.UINT32: "I",
    DataType.UINT64: "Q",
}
"""How ``array`` calls the types that have a form in JSON."""


class _Cut(NamedTuple):
    """A JSON text, cut. ``pieces`` are what a form is known by; ``id`` None means that the text does not begin with
    one."""

    pieces: tuple[bytes, ...]
    lists: Sequence[bytes]
    id: bytes | None


@dataclass(frozen=True, slots=True)
class _Source:
    """The place of one input's numbers: in the list ``index``, or, if that is None, in ``size`` bytes from ``offset``
    after the JSON."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    count: int
    index: int | None
    offset: int = 0


@dataclass(slots=True)
class _Form:
    plain: PlainForm
    sources: tuple[_Source, ...]
    id: str
    """That of a text that does not begin with its id."""
    binary_bytes: int

    def read(self, cut: _Cut, body: bytes, start: int) -> dict[str, Array] | None:
        """The inputs of a body whose bytes after the JSON begin at ``start``. None if its numbers do not fit."""
        if len(body) - start != self.binary_bytes:
            return None
        inputs: dict[str, Array] = {}
        for source in self.sources:
            if source.index is None:
                found: Array | None = np.frombuffer(body, to_numpy(source.dtype), source.count, start + source.offset)
            else:
                found = _numbers(cut.lists[source.index], source.dtype)
            if found is None or found.size != source.count:
                return None
            inputs[source.name] = found.reshape(source.shape)
        return inputs


_Key = tuple[str, int | None, bool, bool, tuple[bytes, ...]]


class HttpLayouts:
    """The forms seen last. Any thread. ``length`` is the header Inference-Header-Content-Length, None without it."""

    def __init__(self) -> None:
        self._forms = Remembered[_Key, _Form](MAX_FORMS)
        self._lock = threading.Lock()  # guards changes of the forms

    def find(self, model: str, version: int | None, body: bytes, length: str | None) -> PlainRequest | None:
        """The request of a body like an earlier one for the same model and version."""
        start = _start(body, length)
        if start is None:
            return None
        cut = _cut(body[:start])
        form = self._forms.get((model, version, length is None, cut.id is None, cut.pieces))
        if form is None:
            return None
        inputs = form.read(cut, body, start)
        if inputs is None:
            return None
        return PlainRequest(form.plain, form.id if cut.id is None else cut.id.decode(), inputs)

    def learn(self, body: bytes, length: str | None, request: InferRequest, plain: PlainForm) -> None:
        """Caches the form of a body that was read as ``request``, a plain one."""
        start = _start(body, length)
        if start is None:
            return
        cut = _cut(body[:start])
        if sum(map(len, cut.pieces)) > MAX_KNOWN_BYTES:
            return
        try:
            form = _form(plain, cut, body[:start], request)
            inputs = form.read(cut, body, start) if form is not None else None
            if form is None or inputs is None or not _same(inputs, request):
                return
        except ServingError:
            return
        with self._lock:
            self._forms.add((request.model, request.version, length is None, cut.id is None, cut.pieces), form)


def _start(body: bytes, length: str | None) -> int | None:
    """The end of the JSON. None for lengths that are errors or mean that there is no JSON, and for long texts."""
    if length is None:
        start = len(body)
    elif len(length) <= _MAX_DIGITS and length.isascii() and length.isdigit():
        start = int(length)
    else:
        return None
    return start if 0 < start <= min(len(body), COMFORTABLE_BYTES) else None


def _cut(text: bytes) -> _Cut:
    named = _ID.match(text)
    if named is not None:
        text = text[named.end() :]
    parts = _DATA.split(text)
    return _Cut(tuple(parts[::2]), parts[1::2], None if named is None else named[1])


def _numbers(text: bytes, dtype: DataType) -> Array | None:
    """The numbers of a list, flat. None if it is no valid list, or if one does not fit."""
    try:
        return np.frombuffer(array(_CODES[dtype], orjson.loads(text)), to_numpy(dtype))
    except (orjson.JSONDecodeError, OverflowError, ValueError):
        return None
    except TypeError:  # lists inside the list, or a float among integers
        pass
    try:
        return read_data(read(text, above=_LEVELS), dtype, "")
    except (JsonRefused, ServingError):
        return None


def _form(plain: PlainForm, cut: _Cut, text: bytes, request: InferRequest) -> _Form | None:
    """The form of a request; None if some of its lists are elsewhere than the cuts say."""
    tree: Any = loads(text)
    marks = [randbits(52) for _ in cut.lists]
    marked_id = b"%x" % randbits(52)
    opened = b"" if cut.id is None else b'{"id":"%b"' % marked_id
    filled = [b'"data":[%d]' % mark for mark in marks]
    changed = opened + b"".join(part for pair in zip(cut.pieces, [*filled, b""], strict=True) for part in pair)
    other: Any = loads(changed)
    sources: list[_Source] = []
    used = offset = 0
    for tensor, before, after in zip(request.inputs, tree["inputs"], other["inputs"], strict=True):
        dtype = dtype_of(tensor.datatype)
        count = math.prod(tensor.shape)
        if "data" in before:
            if used == len(marks) or after["data"] != [marks[used]] or dtype not in _CODES:
                return None
            after["data"] = before["data"]
            sources.append(_Source(tensor.name, dtype, tensor.shape, count, used))
            used += 1
        else:
            sources.append(_Source(tensor.name, dtype, tensor.shape, count, None, offset))
            offset += count * to_numpy(dtype).itemsize
    if cut.id is not None:
        if other["id"] != marked_id.decode():
            return None
        other["id"] = tree["id"]
    if used != len(marks) or other != tree:
        return None
    return _Form(plain, tuple(sources), request.id, offset)


def _same(inputs: Mapping[str, Array], request: InferRequest) -> bool:
    """Whether the numbers are those that were read in full."""
    return all(inputs[tensor.name].tobytes() == decode(tensor).tobytes() for tensor in request.inputs)
