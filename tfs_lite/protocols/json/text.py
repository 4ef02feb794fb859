"""JSON bodies: text -> tree, tree -> text.

The grammar is JSON's with ``NaN``, ``Inf``, ``Infinity``, ``-Inf`` and ``-Infinity`` as numbers. Bodies are not
trusted: names that come twice in an object, text after the value, bad UTF-8, numbers beyond a double and deep nesting
are refused; none of them costs more than its length, and nothing here recurses.

orjson parses small bodies at once, and large ones in chunks, on the caller's thread, so that other threads get the
interpreter lock in between; large arrays of numbers become numpy arrays directly.

    scan            positions of strings, brackets and words
    tree            one text -> tree
    chunks          a large text -> chunks
    dense_numbers   a large array of numbers -> numpy
    diagnosis       the mistake in a text, and its position
    writer          tree -> text
"""

from __future__ import annotations

from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.json.chunks import read_large
from tfs_lite.protocols.json.diagnosis import Fault, find_fault
from tfs_lite.protocols.json.tree import MAX_DEPTH, MAX_VALUES, Json, JsonRefused, TooMany, read
from tfs_lite.protocols.json.writer import dumps

__all__ = ["COMFORTABLE_BYTES", "MAX_DEPTH", "Json", "dumps", "loads"]

COMFORTABLE_BYTES = 64 * 1024
"""A body up to this size may be parsed or printed on the event loop; larger ones belong on a background thread."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def loads(data: bytes) -> Json:
    """The tree of a JSON text in UTF-8, with or without a byte order mark. Safe on any thread.

    Integers that fit into 64 bits (signed or unsigned) are int, all other numbers float. In a text of more than
    ``COMFORTABLE_BYTES``, a rectangular nested list of nothing but numbers that takes 8 KB or more may come as one
    array: int64 if all of them are integers that fit, uint64 if only that fits, else float64. An array of a shape
    with a zero never comes. Besides such arrays a tree has at most ``MAX_VALUES`` values.
    INVALID_ARGUMENT ``JSON Parse error: REASON at offset: N``, in bytes, for anything else.
    """
    try:
        text = data.removeprefix(_BYTE_ORDER_MARK)
        return read(text) if len(text) <= COMFORTABLE_BYTES else read_large(text)
    except JsonRefused:
        raise _refusal(data) from None
    except TooMany:
        raise invalid_argument(
            f"JSON Parse error: more than {MAX_VALUES} values besides large arrays of nothing but numbers"
        ) from None


def _refusal(data: bytes) -> ServingError:
    if not data:
        return invalid_argument("JSON Parse error: The document is empty")
    text = data.removeprefix(_BYTE_ORDER_MARK)
    fault = find_fault(text) or Fault("Invalid value.", len(text))
    return invalid_argument(f"JSON Parse error: {fault.reason} at offset: {fault.offset + len(data) - len(text)}")
