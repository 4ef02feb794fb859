"""JSON bodies in and out, as their callers see it. How they are cut into chunks has tests of its own."""

import json
import math
import random
import resource
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import errors
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES, MAX_DEPTH, dumps, loads

LARGE = b" " * COMFORTABLE_BYTES
"""White space that makes a body large."""

ACCEPTED: list[tuple[str, Any]] = [
    ('{"a": [1, -2, 3.5, 1e3], "b": {"c": null}}', {"a": [1, -2, 3.5, 1000.0], "b": {"c": None}}),
    ('[true, false, null, "x"]', [True, False, None, "x"]),
    ("{}", {}),
    ("[[], {}]", [[], {}]),
    (" \t\r\n[ 1 , 2 ]\n", [1, 2]),
    ('"A top level that is no object"', "A top level that is no object"),
    ("7", 7),
    ("-0", 0),
    ("1E+2", 100.0),
    ("1e-400", 0.0),
    ("1.7976931348623157e308", 1.7976931348623157e308),
    ("9223372036854775807", 2**63 - 1),
    ("-9223372036854775808", -(2**63)),
    ("18446744073709551615", 2**64 - 1),
    ("18446744073709551616", 2.0**64),
    ("-9223372036854775809", -(2.0**63)),
    ("1" + "0" * 308, 1e308),
    ("[Inf, Infinity, -Inf, -Infinity]", [math.inf, math.inf, -math.inf, -math.inf]),
    ('{"NaN": "-Inf, NaN", "b": [ Infinity ]}', {"NaN": "-Inf, NaN", "b": [math.inf]}),
    ('["NaN \\" NaN", Inf, "\\\\", Inf, "Inf"]', ['NaN " NaN', math.inf, "\\", math.inf, "Inf"]),
    ('{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}', {"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}),
    ('{"a:b": "c:d", "e": ":::"}', {"a:b": "c:d", "e": ":::"}),
    ('{"[[": "]]}", "x": "\\"[{"}', {"[[": "]]}", "x": '"[{'}),
    ('"\\u00e9\\ud83d\\ude00\\n\\/"', "é😀\n/"),
    ('"é😀"', "é😀"),
    ('"\\u0000"', "\0"),
]

REFUSED: list[tuple[bytes, str, int]] = [
    (b"  ", "The document is empty.", 2),
    (b"{", "Missing a name for object member.", 1),
    (b'{"a":1,}', "Missing a name for object member.", 7),
    (b"{a:1}", "Missing a name for object member.", 1),
    (b"{1:1}", "Missing a name for object member.", 1),
    (b'{"a" 1}', "Missing a colon after a name of object member.", 5),
    (b'{"a"}', "Missing a colon after a name of object member.", 4),
    (b'{"a":}', "Invalid value.", 5),
    (b'{"a":1', "Missing a comma or } after an object member.", 6),
    (b'{"a":1 "b":2}', "Missing a comma or } after an object member.", 7),
    (b'{"a":1]', "Missing a comma or } after an object member.", 6),
    (b"[1 2]", "Missing a comma or ] after an array element.", 3),
    (b"[1", "Missing a comma or ] after an array element.", 2),
    (b"[1}", "Missing a comma or ] after an array element.", 2),
    (b"[01]", "Missing a comma or ] after an array element.", 2),
    (b"[", "Invalid value.", 1),
    (b"[1,]", "Invalid value.", 3),
    (b"[,1]", "Invalid value.", 1),
    (b"tru", "Invalid value.", 3),
    (b"nan", "Invalid value.", 1),
    (b"inf", "Invalid value.", 0),
    (b"-NaN", "Invalid value.", 1),
    (b"+1", "Invalid value.", 0),
    (b".5", "Invalid value.", 0),
    (b"-", "Invalid value.", 1),
    (b"\x0c1", "Invalid value.", 0),
    (b"1.", "Miss fraction part in number.", 2),
    (b"[1.e5]", "Miss fraction part in number.", 3),
    (b"1e", "Miss exponent in number.", 2),
    (b"[1e+]", "Miss exponent in number.", 4),
    (b"[1e400]", "Number too big to be stored in double.", 1),
    (b"-1e400", "Number too big to be stored in double.", 0),
    (b"1" + b"0" * 309, "Number too big to be stored in double.", 0),
    (b'"\\x"', "Invalid escape character in string.", 1),
    (b'["a\\u12g4"]', "Four hexadecimal digits must follow \\u.", 3),
    (b'"\\ud800"', "The surrogate pair in string is invalid.", 1),
    (b'"a\\ud800\\n"', "The surrogate pair in string is invalid.", 2),
    (b'"\\udc00"', "The surrogate pair in string is invalid.", 1),
    (b'"a', "Missing a closing quotation mark in string.", 2),
    (b'["a\\"]', "Missing a closing quotation mark in string.", 6),
    (b'["ab\xff"]', "A string is not UTF-8.", 4),
    (b'["\xed\xa0\x80"]', "A string is not UTF-8.", 2),
    (b'"a\n"', "A control character in a string is not escaped.", 2),
    (b'{"a":1,"b":2,"a":3}', "The name 'a' comes twice in an object.", 13),
    (b'{"a":"::","b":{"c":1,"\\u0063":2}}', "The name 'c' comes twice in an object.", 21),
    (b'{"\\u0061":1,"a":1}', "The name 'a' comes twice in an object.", 12),
    (b"1 2", "Something follows the document.", 2),
    (b"{}{}", "Something follows the document.", 2),
    (b"[1]]", "Something follows the document.", 3),
    (b"NaNs", "Something follows the document.", 3),
    (b"\xff", "Invalid value.", 0),
]


def refusal(data: bytes) -> str:
    return errors.refusal(loads, data)


@pytest.mark.parametrize(("text", "value"), ACCEPTED, ids=[text[:40] for text, _ in ACCEPTED])
def test_what_is_json_is_read_small_and_large(text: str, value: Any) -> None:
    for data in (text.encode(), LARGE + text.encode(), text.encode() + LARGE, b"\xef\xbb\xbf" + text.encode()):
        found = loads(data)
        assert found == value
        assert type(found) is type(value)


def test_nan_is_a_number() -> None:
    found = loads(b'{"a": [NaN, "NaN"]}')
    assert isinstance(found, dict)
    assert repr(found["a"]) == "[nan, 'NaN']"


@pytest.mark.parametrize(("text", "reason", "offset"), REFUSED, ids=[repr(text[:40]) for text, *_ in REFUSED])
def test_what_is_not_json_is_refused_with_reason_and_offset(text: bytes, reason: str, offset: int) -> None:
    for before in (b"", LARGE, b"\xef\xbb\xbf", b"\xef\xbb\xbf" + LARGE):
        assert refusal(before + text) == f"JSON Parse error: {reason} at offset: {offset + len(before)}"


def test_an_empty_body_is_refused_in_its_own_words() -> None:
    assert refusal(b"") == "JSON Parse error: The document is empty"


@pytest.mark.parametrize("filler", [b"1", b'"]]}"', b'{"[":"{"}', LARGE + b"1"], ids=["1", "]", "[", "large"])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b" [\n", b"\t] ")])
def test_a_hundred_levels_are_read_and_one_more_is_refused(opening: bytes, closing: bytes, filler: bytes) -> None:
    levels = MAX_DEPTH - filler.startswith(b"{")
    assert loads(opening * levels + filler + closing * levels)
    assert "More than 100 levels of nesting." in refusal(opening * (levels + 1) + filler + closing * (levels + 1))


@pytest.mark.parametrize("rank", [1, 2])
def test_the_dimensions_of_an_array_count_as_levels(rank: int) -> None:
    numbers = b"[" * rank + b"1," * 50_000 + b"1" + b"]" * rank
    for levels in (MAX_DEPTH - rank, MAX_DEPTH - rank - 1):
        found: Any = loads(b'{"a":' * levels + numbers + b"}" * levels)
        for _ in range(levels):
            found = found["a"]
        assert isinstance(found, np.ndarray)
    levels = MAX_DEPTH - rank + 1
    assert "More than 100 levels of nesting." in refusal(b'{"a":' * levels + numbers + b"}" * levels)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":[', b"[\n[ "])
@pytest.mark.parametrize("closing", [b"", b"]"])
def test_half_a_million_levels_are_refused_at_the_first_too_many(opening: bytes, closing: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "More than 100 levels of nesting." in refusal(opening * 500_000 + closing * 500_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,' * 50 + b'"a":1' + b"}" * 51,
        b"[" + b'{"k":1},' * 20_000 + b"}",
        b"{" + b",".join(b'"%d":[]' % index for index in range(20_000)) + b',"7":1}',
        b'"' + b'\\"' * 100_000,
        b'"' + b"\\" * 100_001,
        b"[" + b"1," * 100_000 + b"]",
        b"-" * 100_000,
        b"1" * 100_000,
        b"[1.5," + b" " * 100_000 + b",2]",
    ],
    ids=range(9),
)
def test_long_faulty_bodies_are_refused(text: bytes) -> None:
    assert refusal(text).startswith("JSON Parse error: ")


def test_a_large_dense_list_comes_as_one_array() -> None:
    values = np.random.default_rng(0).standard_normal((40, 20, 30)).astype(np.float32)
    data = json.dumps({"signature_name": "s", "instances": values.tolist(), "after": [1, 2]}).encode()
    found = loads(data)
    assert isinstance(found, dict)
    assert found["signature_name"] == "s"
    assert found["after"] == [1, 2]
    array = found["instances"]
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float64
    assert np.array_equal(array, values)


@pytest.mark.parametrize("times", [10, 1000, 30_000])
def test_a_loose_beginning_does_not_spoil_a_dense_rest(times: int) -> None:
    found: Any = loads(b'{\n  "instances": [' + b"[1,2,3]," * times + b"[1,2]]}")
    assert found == {"instances": [[1, 2, 3]] * times + [[1, 2]]}
    found = loads(b"\n[\n  [" + b"0," * times + b"1]]")
    assert list(np.ravel(found)) == [0] * times + [1]


def test_small_bodies_have_lists_only() -> None:
    data = json.dumps({"instances": [[1, 2]] * 6000}).encode()
    assert len(data) <= COMFORTABLE_BYTES
    assert loads(data) == {"instances": [[1, 2]] * 6000}


def test_a_special_number_does_not_make_a_large_array_a_list() -> None:
    values = np.random.default_rng(1).standard_normal((300, 50))
    values[7, 3:6] = [np.nan, np.inf, -np.inf]
    found = loads(dumps({"instances": values}))
    assert isinstance(found, dict)
    assert isinstance(found["instances"], np.ndarray)
    assert found["instances"].tobytes() == values.tobytes()


@pytest.mark.parametrize("rows", [20_000, 5])
def test_large_bodies_of_objects_are_the_same_in_chunks(rows: int) -> None:
    chance = random.Random(rows)
    instances = [
        {"id": index, "text": 'a"b\\[{,:' * chance.randrange(6), "x": [chance.random(), index], "deep": [[{}], []]}
        for index in range(rows)
    ]
    tree = {"instances": instances, "big": "x" * 200_000, "more": {"y": [["s", list(range(9))]] * 3000}}
    for indent in (None, 2):
        assert loads(json.dumps(tree, indent=indent).encode()) == tree


def test_a_body_with_many_numbers_takes_little_more_memory_than_its_array() -> None:
    data = dumps({"instances": np.zeros((1000, 1500), np.float32)})
    tracemalloc.start()
    loads(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000 * (8 + 4)  # lists of Python numbers take 32 bytes an element


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(TREES)
def test_any_tree_comes_back(tree: Any) -> None:
    assert loads(dumps(tree)) == tree


@given(TREES, st.booleans())
def test_the_standard_library_is_understood(tree: Any, ascii_only: bool) -> None:
    assert loads(json.dumps(tree, ensure_ascii=ascii_only).encode()) == tree
