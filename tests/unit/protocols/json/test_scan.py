"""What is found in a text without parsing it, held against a byte-by-byte reading."""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tfs_lite.protocols.json import scan as json_scan
from tfs_lite.protocols.json.scan import (
    SLICE_BYTES,
    SPACE,
    SPECIAL,
    colons_and_brackets,
    end_of_run,
    few_colons,
    is_deeper,
    long_gaps,
    may_have_special,
    replace_special,
    slices,
)

SIZES = [1, 2, 7, 40, 100_000]
NUMBERS = {word: b"<%b>" % word for word in (b"NaN", b"Inf", b"-Inf", b"Infinity", b"-Infinity")}

PARTS = st.sampled_from(
    [
        *(b'"', b"\\", b'\\"', b"\\\\", b"{", b"}", b"[", b"]", b":", b",", b" "),
        *(b"NaN", b"-Inf", b"Infinity", b"12.5e-7", b"x" * 50, "é".encode()),
        *(b'"abc"', b'"a\\"b"', b'"[{:,"', b'""'),
    ]
)
TEXTS = st.lists(PARTS, max_size=30).map(b"".join)
WORDS = re.compile(rb'[ \t\r\n,:\[\]{}"]')
"""What may be beside a word of JSON; longer stretches without are no JSON, and may be cut anywhere."""
TREES = st.recursive(
    st.integers() | st.text('ab:"\\[{é', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a:"\\]', max_size=3), inner, max_size=3),
    max_leaves=15,
)


def plain_reading(text: bytes) -> Iterator[tuple[int, int, bool]]:
    """Offset and value of every byte, and whether it is in a string (its quotes are not)."""
    inside = escaped = False
    for offset, byte in enumerate(text):
        if escaped:
            escaped = False
            yield offset, byte, inside
        elif byte == ord("\\"):
            escaped = True
            yield offset, byte, inside
        elif byte == ord('"'):
            inside = not inside
            yield offset, byte, False
        else:
            yield offset, byte, inside


@pytest.mark.parametrize("size", SIZES)
@given(text=TEXTS)
def test_slices_cover_the_text_and_know_what_is_in_strings(size: int, text: bytes) -> None:
    covered, brackets, colons = b"", [], []
    for part in slices(text, 0, size):
        assert part.start == len(covered)
        assert 0 < part.view.size <= size + 1
        covered += part.view.tobytes()
        indexes, steps = part.brackets()
        brackets += list(zip((indexes + part.start).tolist(), steps.tolist(), strict=True))
        colons += (part.find(ord(":")) + part.start).tolist()
    assert covered == text
    outside = [(offset, byte) for offset, byte, inside in plain_reading(text) if not inside]
    assert brackets == [(offset, 1 if byte in b"[{" else -1) for offset, byte in outside if byte in b"[]{}"]
    assert colons == [offset for offset, byte in outside if byte == ord(":")]


@given(TEXTS, st.sampled_from(SIZES))
def test_a_slice_may_begin_anywhere_outside_strings(text: bytes, size: int) -> None:
    text = b'"a\\"[" ' + text
    tail = [part.view.tobytes() for part in slices(text, 7, size)]
    assert b"".join(tail) == text[7:]


@given(TREES, st.booleans())
def test_brackets_and_colons_of_valid_texts_are_counted(tree: Any, ascii_only: bool) -> None:
    text = json.dumps(tree, ensure_ascii=ascii_only).encode()
    outside = [byte for _, byte, inside in plain_reading(text) if not inside]
    colons, brackets = colons_and_brackets(text)
    assert colons == outside.count(ord(":"))
    assert brackets == bytes(byte for byte in outside if byte in b"[]{}").translate(bytes.maketrans(b"{}", b"[]"))
    assert few_colons(text) in (-1, text.count(b":"))


@given(st.recursive(st.just("1"), lambda inner: st.lists(inner, max_size=3), max_leaves=40))
def test_depth_is_exact(tree: Any) -> None:
    text = json.dumps(tree).encode()
    levels = np.cumsum([1 if byte == ord("[") else -1 for byte in text if byte in b"[]"])
    depth = int(max(levels, default=0))
    brackets = colons_and_brackets(text)[1]
    assert not is_deeper(brackets, depth)
    assert depth == 0 or is_deeper(brackets, depth - 1)
    if few_colons(text) >= 0:
        assert depth <= json_scan.FEW


@given(TEXTS, st.sampled_from(SIZES), st.integers(1, 30))
def test_gaps_are_the_stretches_between_strings(text: bytes, size: int, least: int) -> None:
    quotes = [-1]
    inside = False
    for offset, byte, in_string in plain_reading(text):
        if byte == ord('"') and not in_string and not _escaped(text, offset):
            quotes.append(offset)
            inside = not inside
    ends = [*quotes[1:], *([] if inside else [len(text)])]
    gaps = [(start + 1, end) for start, end in list(zip(quotes, ends, strict=False))[::2] if end - start - 1 >= least]
    assert list(long_gaps(text, least, size)) == gaps


def _escaped(text: bytes, offset: int) -> bool:
    before = text[:offset]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


@pytest.mark.parametrize("size", [64, 100_000])
@given(text=TEXTS)
def test_words_are_replaced_outside_strings_only(size: int, text: bytes) -> None:
    assume(
        not any(len(word) > json_scan._LONGEST_TOKEN and json_scan.SPECIAL.search(word) for word in WORDS.split(text))
    )
    strings = [inside for *_, inside in plain_reading(text)]
    expected, done = b"", 0
    for match in json_scan.SPECIAL.finditer(text):
        if not strings[match.start()]:
            expected += text[done : match.start()] + NUMBERS[match.group()]
            done = match.end()
    assert replace_special(text, NUMBERS, size) == expected + text[done:]


@pytest.mark.parametrize("text", [b"NaN1", b"1NaN", b"-NaN", b"--Inf", b"+Inf", b"Infi", b"xInf", b"NaN.5", b"1-Inf"])
def test_a_part_of_another_word_is_no_number(text: bytes) -> None:
    assert replace_special(text, NUMBERS) == text


@pytest.mark.parametrize("size", [0, 1, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES])
@pytest.mark.parametrize("behind", [b"", b"x", b"]"])
def test_run_of_white_space_ends_where_it_ends_however_long_it_is(size: int, behind: bytes) -> None:
    text = b"[" + b" " * size + behind
    assert end_of_run(SPACE, text, 1) == 1 + size
    assert end_of_run(SPACE, text, 0) == 0


@pytest.mark.parametrize("word", [*NUMBERS, b"xNaN", b"NaNx", b"1Inf", b"nan"])
@pytest.mark.parametrize("before", [0, 1, SLICE_BYTES - 12, SLICE_BYTES - 4, SLICE_BYTES, 2 * SLICE_BYTES + 5])
def test_number_that_is_a_word_is_found_across_slices(word: bytes, before: int) -> None:
    text = b" " * before + word + b" " * (SLICE_BYTES // 2)
    assert may_have_special(text) == (SPECIAL.search(text) is not None)
