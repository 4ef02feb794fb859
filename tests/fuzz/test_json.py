"""Hostile JSON bodies: whatever bytes come, reading answers with a tree or with INVALID_ARGUMENT.

What the standard library can judge too (it knows no ``Inf`` and takes half a surrogate pair) is judged as it does,
with names once, doubles that are finite and 100 levels. Run more with ``--hypothesis-profile=soak``.
"""

import json
import math
import re
import tracemalloc
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES, MAX_DEPTH, dumps, loads

SLACK = 1 << 20
MESSAGE = re.compile(r"JSON Parse error: (The document is empty|[^\n]*\. at offset: \d+)")
SPACE = b" " * (COMFORTABLE_BYTES + 1)

TOKENS = st.sampled_from(
    [
        *(
            b"[",
            b"]",
            b"{",
            b"}",
            b",",
            b":",
            b" ",
            b"\n",
            b"\t",
            b'"',
            b"\\",
            b'\\"',
            b"\0",
            b"\xff",
            b"\xc3\xa9",
            b"\xef\xbb\xbf",
        ),
        *(
            b'"a"',
            b'"a":',
            b'"b":',
            b'"\\u0061":',
            b'"[{,:]}"',
            b'"\\\\"',
            b'"\\ud83d\\ude00"',
            b'"\\ud83d"',
            b'"\\x"',
            b'"' + b"s" * 99 + b'"',
        ),
        *(
            b"0",
            b"-1",
            b"1.5",
            b"-0.0",
            b"1e5",
            b"01",
            b"1.",
            b".5",
            b"-",
            b"1e400",
            b"1e-400",
            b"1.7976931348623159e308",
        ),
        *(b"9" * 25, b"9" * 400, b"18446744073709551615", b"18446744073709551616", b"-9223372036854775809"),
        *(b"true", b"false", b"null", b"nul", b"NaN", b"nan", b"-NaN", b"Infinity", b"-Infinity", b"Inf", b"-Inf"),
        *(
            b"[]",
            b"{}",
            b"[1,2]",
            b"[[1,2],[3,4]]",
            b'{"a":1}',
            b'{"a":1,"a":2}',
            b"[" * 60,
            b"]" * 60,
            b'{"a":' * 60,
            b"}" * 60,
        ),
        *(
            b"[" + b"1.25,-3," * 1200 + b"7]",
            b"[" + b"[1,2]," * 2000 + b"[3,4]]",
            b"[" + b"[1,2]," * 2000 + b"[3]]",
            b"[" + b"NaN,1," * 2000,
        ),
    ]
)
SOUP = st.lists(TOKENS, max_size=25).map(b"".join)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([0.5] * 3000),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


class Refused(Exception):
    """The reference takes the document for bad."""


def reference(data: bytes) -> Any:
    """The tree as the standard library sees it; raises :class:`Refused`. LookupError if it cannot tell."""
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        raise Refused from None
    if re.search(r"\\u[dD][89a-fA-F]|Inf(?!inity)", text):
        raise LookupError
    try:
        tree = json.loads(text, object_pairs_hook=once, parse_int=integer, parse_float=finite, parse_constant=float)
    except (ValueError, RecursionError):
        raise Refused from None
    level, levels = [tree], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        levels += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    if levels > MAX_DEPTH:
        raise Refused
    return tree


def once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(members)) < len(members):
        raise ValueError
    return dict(members)


def finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError
    return number


def integer(digits: str) -> float:
    short = len(digits) < 25 and -(2**63) <= int(digits) < 2**64
    return int(digits) if short else finite(digits)


def same(found: Any, expected: Any) -> bool:
    """Whether two trees are equal, NaN being NaN. An array is equal to the list of its numbers."""
    if isinstance(found, np.ndarray):
        numbers = np.array(expected, object)
        return found.shape == numbers.shape and found.tobytes() == numbers.astype(found.dtype).tobytes()
    if type(found) is not type(expected):
        return False
    if isinstance(found, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in found)
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == expected or found != found != expected != expected


def check(data: bytes) -> None:
    tracemalloc.start()
    found: Any
    try:
        found = loads(data)
    except ServingError as error:
        found = error
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 100 * len(data) + SLACK
    if isinstance(found, ServingError):
        assert found.code is StatusCode.INVALID_ARGUMENT
        assert MESSAGE.fullmatch(str(found))
    try:
        assert same(found, reference(data))
    except Refused:
        assert isinstance(found, ServingError)
    except LookupError:
        pass
    if not isinstance(found, ServingError):
        assert dumps(loads(dumps(found))) == dumps(found)


@given(st.binary(max_size=60))
@examples(400)
def test_random_bytes_never_break_the_reader(data: bytes) -> None:
    check(data)


@given(SOUP, st.booleans())
@examples(600)
def test_soups_of_tokens_are_judged_as_by_the_standard_library(soup: bytes, large: bool) -> None:
    check(soup + SPACE if large else soup)


@given(TREES, st.booleans(), st.sampled_from([None, 0, 2]), st.booleans())
@examples(300)
def test_documents_are_judged_as_by_the_standard_library(
    tree: Any, ascii_only: bool, indent: int | None, large: bool
) -> None:
    data = json.dumps(tree, ensure_ascii=ascii_only, indent=indent).encode()
    check(SPACE + data if large else data)


@given(TREES, st.data(), st.booleans())
@examples(400)
def test_damaged_documents_are_judged_as_by_the_standard_library(tree: Any, data: st.DataObject, large: bool) -> None:
    damaged = bytearray(json.dumps(tree).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 3))] = data.draw(TOKENS)
    check(bytes(damaged) + SPACE if large else bytes(damaged))
