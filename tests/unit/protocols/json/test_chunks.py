"""A text read in chunks is the same tree, or refused like the whole. Pieces are tiny here."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.protocols.json import chunks as json_chunks
from tfs_lite.protocols.json.chunks import PieceReader, read_large
from tfs_lite.protocols.json.diagnosis import find_fault
from tfs_lite.protocols.json.tree import JsonRefused, TooMany, read

PIECES = [1, 64, 200, 1000]
NO_ARRAYS = 1 << 40
TOKENS = st.sampled_from(
    [
        *("[", "]", "{", "}", ",", ":", " ", "\n", " " * 90, '"', "\\", '\\"', "é"),
        *('"a"', '"b"', '"x,]["', '"\\\\"', '"' + "y" * 90 + '"', '"a":1', '"b":[1]', '{"a":{}}', '{"a":1,"a":2}'),
        *("1", "-1", "0.5", "01", "1.", "1e400", "18446744073709551615", "NaN", "-Inf", "true", "null"),
        *("[]", "{}", "[[],[]]", "[[1,2],[3,4]]", "[NaN,1]"),
    ]
)


@st.composite
def trees(draw: st.DrawFn) -> str:
    """A valid text with white space, special numbers, long strings and lists of numbers."""
    space = st.sampled_from(["", "", "", " ", "\n\t"])
    leaves = st.sampled_from(
        ["1", "-2.5", "NaN", '"a"', '"],["', '"\\""', '"\\\\"', "true", '"' + "z" * 80 + '"', "[[1,2],[3,4.5]]"]
    )
    names = st.text('ab:"\\[', max_size=3).map(json.dumps)

    def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        item = st.tuples(space, inner, space).map("".join)
        member = st.tuples(names, space, item)
        lists = st.lists(item, max_size=5).map(lambda items: f"[{','.join(items)}]")
        objects = st.lists(member, max_size=4, unique_by=lambda m: m[0]).map(
            lambda members: "{" + ",".join(f"{name}{gap}:{value}" for name, gap, value in members) + "}"
        )
        return lists | objects

    return draw(st.recursive(leaves, containers, max_leaves=25))


def outcome(read_text: Any, *arguments: Any) -> str:
    """The tree as text, with lists in place of arrays, or the refusal."""
    try:
        return repr(as_lists(read_text(*arguments)))
    except JsonRefused:
        return "refused"


def as_lists(tree: Any) -> Any:
    if isinstance(tree, np.ndarray):
        return tree.tolist()
    if isinstance(tree, list):
        return [as_lists(item) for item in tree]
    return {name: as_lists(item) for name, item in tree.items()} if isinstance(tree, dict) else tree


def check(text: bytes) -> None:
    whole = outcome(read, text)
    for chunk_bytes in PIECES:
        assert outcome(PieceReader(text, chunk_bytes=chunk_bytes).whole) == whole
        with_arrays = outcome(read_large, text, chunk_bytes, 3)
        assert with_arrays == whole or with_arrays.replace(".0", "") == whole.replace(".0", "")
        fault = find_fault(text, chunk_bytes)
        assert (fault is not None) == (whole == "refused")
        assert fault == find_fault(text, 1 << 30)


@given(trees())
def test_chunks_make_the_same_tree(text: str) -> None:
    check(text.encode())


@given(st.lists(TOKENS, max_size=20).map("".join))
def test_chunks_refuse_the_same_texts(text: str) -> None:
    check(text.encode())


@given(trees(), st.data())
def test_damage_is_found_in_chunks_as_in_the_whole(text: str, data: st.DataObject) -> None:
    damaged = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 2))] = data.draw(TOKENS).encode()
    check(bytes(damaged))


@pytest.mark.parametrize("chunk_bytes", PIECES)
@pytest.mark.parametrize(
    "text",
    [
        '{"a":1, "b":[1,2], "a":3}',
        '{"a":[' + "1," * 300 + '1], "b":' + '"x"' + ', "a":3}',
        '{"a":' + '"x' + "y" * 300 + '", "a":3}',
        "[" + "1," * 300 + "]",
        "[1,2" + " " * 300 + ",]",
        "[" + " " * 300 + "]]",
        "[" + " " * 300 + "}",
        '{"a"' + " " * 300 + ":1,}",
        "[" * 101 + "]" * 101,
        '{"a":' + "[" * 100 + " " * 300 + "]" * 100 + "}",
    ],
    ids=range(10),
)
def test_faults_between_chunks_are_found(text: str, chunk_bytes: int) -> None:
    with pytest.raises(JsonRefused):
        read_large(text.encode(), chunk_bytes, NO_ARRAYS)
    assert find_fault(text.encode(), chunk_bytes) == find_fault(text.encode()) is not None


@pytest.mark.parametrize("chunk_bytes", PIECES)
@pytest.mark.parametrize(
    "text",
    [
        "[" + " " * 300 + "]",
        "{" + " " * 300 + "}",
        " " * 300 + "7" + " " * 300,
        "[" + "9" * 300 + "," + " " * 300 + "1" + " " * 300 + "]",
        '{"' + "n" * 300 + '"' + " " * 300 + ":" + " " * 300 + '"' + "v" * 300 + '"' + " " * 300 + "}",
        '["' + '\\"' * 300 + '","' + "\\\\" * 300 + '"]',
        "[" * 100 + " " * 300 + "]" * 100,
        '[{"a":' * 50 + "1" * 200 + "}]" * 50,
        "[" * 40 + "1" * 100 + ",1]" * 40,
        "[" + ",".join(f'{{"a{i}":[[{i},"s"],{{}}]}}' for i in range(100)) + "]",
        "{" + ",".join(f'"a{i}":[[{i},"s"],{{}}]' for i in range(100)) + "}",
        '["' + "x" * 300 + '"]',
        '"' + "x" * 300 + '"',
    ],
    ids=range(13),
)
def test_long_tokens_and_white_space_are_read(text: str, chunk_bytes: int) -> None:
    assert read_large(text.encode(), chunk_bytes, NO_ARRAYS) == read(text.encode())
    assert find_fault(text.encode(), chunk_bytes) is None


def test_nothing_is_kept_if_told_so() -> None:
    reader = PieceReader(b'{"a":[1,2,[3]],"b":{"c":1}}' + b" " * 100 + b"x", keep=False, chunk_bytes=1)
    with pytest.raises(JsonRefused):
        reader.whole()
    assert reader.position.open == ()
    reader = PieceReader(b'{"a":[1,2,[3]],"b":{"c":1,"d":x}}', keep=False, chunk_bytes=1)
    with pytest.raises(JsonRefused):
        reader.whole()
    assert reader.position.open == ({"a": None, "b": None}, {"c": None})


@pytest.mark.parametrize(
    ("item", "kept"),
    [(b"[]", False), (b"{}", False), (b'"ab"', False), (b'{"a":"b"}', False), (b"12", True), (b"[1.5,2]", True)],
)
def test_a_body_cannot_unfold_into_more_values_than_the_bound(
    monkeypatch: pytest.MonkeyPatch, item: bytes, kept: bool
) -> None:
    monkeypatch.setattr(json_chunks, "MAX_VALUES", 50_000)
    body = b"[" + b",".join([item] * 60_000) + b"]"
    if kept:
        assert len(read_large(body)) == 60_000  # type: ignore[arg-type]
        return
    with pytest.raises(TooMany):
        read_large(body)
