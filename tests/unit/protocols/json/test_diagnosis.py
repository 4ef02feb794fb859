"""The first fault of a text. Which texts have which is told by ``test_json_text``; here are the hard cases."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.protocols.json.diagnosis import Fault, find_fault


@given(
    st.recursive(
        st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=15,
    )
)
def test_a_valid_text_has_no_fault(tree: Any) -> None:
    assert find_fault(json.dumps(tree).encode()) is None
    assert find_fault(json.dumps(tree, ensure_ascii=False, indent=1).encode()) is None


@given(st.text(max_size=20), st.integers(0, 20))
def test_the_first_byte_that_is_not_utf8_is_named(text: str, place: int) -> None:
    before = json.dumps(text[:place], ensure_ascii=False).encode()[:-1]
    found = find_fault(b"[" + before + b"\xff" + json.dumps(text[place:]).encode()[1:] + b"]")
    assert found == Fault("A string is not UTF-8.", 1 + len(before))


@pytest.mark.parametrize(
    ("text", "reason", "offset"),
    [
        (b'"\\q\xff\n', "Invalid escape character in string.", 1),
        (b'"\n\\q\xff', "A control character in a string is not escaped.", 1),
        (b'"\xff\n\\q', "A string is not UTF-8.", 1),
        (b'"\xc3', "A string is not UTF-8.", 1),
        (b'"\\', "Invalid escape character in string.", 1),
        (b'"\\u', "Four hexadecimal digits must follow \\u.", 1),
        (b'"\\ud83d\\ude00\\ud83d"', "The surrogate pair in string is invalid.", 13),
        (b'"\\ud83d\\ud83d\\ude00"', "The surrogate pair in string is invalid.", 1),
        (b'"\\uD83Dx\\uDE00"', "The surrogate pair in string is invalid.", 1),
        (b'"\\ud83d\\u12"', "The surrogate pair in string is invalid.", 1),
        (b'["\\\\\\\\","\\\\\\"', "Missing a closing quotation mark in string.", 13),
        (b'{"a":{"b":1},"b":{"a":1},"a":0}', "The name 'a' comes twice in an object.", 25),
        (
            b'{"' + b"n" * 100 + b'":1,"' + b"n" * 100 + b'":1}',
            f"The name '{'n' * 64}...' comes twice in an object.",
            106,
        ),
        (b'{"a":1,"a"', "The name 'a' comes twice in an object.", 7),
        (b"[-I]", "Invalid value.", 3),
        (b"[Infinit]", "Missing a comma or ] after an array element.", 4),
        (b"[-0123]", "Missing a comma or ] after an array element.", 3),
        (b"[0x1]", "Missing a comma or ] after an array element.", 2),
        (b"[1e5.5]", "Missing a comma or ] after an array element.", 4),
        (b"[" + b"9" * 5000 + b"]", "Number too big to be stored in double.", 1),
        (b"[0." + b"9" * 5000 + b"e309]", "Number too big to be stored in double.", 1),
        (b"{}" + b" " * 10 + b"\0", "Something follows the document.", 12),
    ],
)
def test_the_first_of_several_faults_counts(text: bytes, reason: str, offset: int) -> None:
    for chunk_bytes in (1, 64, 1 << 30):
        assert find_fault(text, chunk_bytes) == Fault(reason, offset)
