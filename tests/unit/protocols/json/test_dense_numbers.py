"""Large arrays of numbers: what becomes an array is, bit for bit, what parsing number by number gives."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.protocols.json.chunks import read_large
from tfs_lite.protocols.json.dense_numbers import large_arrays
from tfs_lite.protocols.json.tree import read

PIECES = [64, 300, 100_000]

INTEGERS = st.integers(-100, 100).map(str)
ALL_INTEGERS = st.one_of(INTEGERS, st.integers(-(2**63), 2**63 - 1).map(str))
UNSIGNED = st.integers(0, 2**64 - 1).map(str)
BEYOND = st.integers(-(2**80), 2**80).map(str)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(json.dumps)
ODD_FLOATS = st.sampled_from(["-0.0", "-0", "5e-324", "1E-400", "1.7976931348623157e+308", "0.1e1", "2.50"])
WORDS = st.sampled_from(["NaN", "Inf", "-Inf", "Infinity", "-Infinity"])
KINDS = st.sampled_from([INTEGERS, ALL_INTEGERS, UNSIGNED, BEYOND, FLOATS, ODD_FLOATS | FLOATS, FLOATS | INTEGERS])
NUMBERS = st.one_of(KINDS, st.just(WORDS | FLOATS), st.just(WORDS | UNSIGNED))
SPACES = st.sampled_from(["", "", "", " ", "\n  ", "\r\t"])


@st.composite
def array_texts(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    """The text of an array, with white space here and there, and its shape."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    numbers = draw(NUMBERS)
    space = draw(st.sampled_from([st.just(""), SPACES]))
    after_comma = draw(SPACES)

    def write(shape: tuple[int, ...]) -> str:
        if not shape:
            return draw(space) + draw(numbers) + draw(space)
        items = ("," + after_comma).join(write(shape[1:]) for _ in range(shape[0]))
        return draw(space) + "[" + items + "]" + draw(space)

    return write(shape), shape


def expected(text: str) -> np.ndarray:
    """By the standard library, number by number."""
    numbers: list[int | float] = []

    def integer(digits: str) -> None:
        number = int(digits)
        numbers.append(number if -(2**63) <= number < 2**64 else float(number))

    words = text.replace("Infinity", "Inf").replace("Inf", "Infinity")
    json.loads(
        words,
        parse_int=integer,
        parse_float=lambda t: numbers.append(float(t)),
        parse_constant=lambda t: numbers.append(float(t)),
    )
    if all(isinstance(number, int) for number in numbers):
        for dtype in (np.int64, np.uint64):
            if all(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max for number in numbers):
                return np.array(numbers, dtype)
    return np.array([float(number) for number in numbers])


def found_in(text: bytes, chunk_bytes: int) -> list[tuple[bytes, np.ndarray]]:
    return [(text[start:end], array) for start, end, array in large_arrays(text, 2, chunk_bytes)]


@pytest.mark.parametrize("chunk_bytes", PIECES)
@given(
    array=array_texts(),
    before=st.sampled_from(["", '"a":', '["x",', '{"b":[["]",']),
    after=st.sampled_from(["", "]", "}]}", ',"x"']),
)
def test_arrays_are_what_their_numbers_are(
    chunk_bytes: int, array: tuple[str, tuple[int, ...]], before: str, after: str
) -> None:
    text, shape = array
    reference = expected(text)
    ((exact, found),) = found_in((before + text + after).encode(), chunk_bytes)
    assert exact == text.strip().encode()
    assert found.shape == shape
    assert found.dtype == reference.dtype
    assert found.tobytes() == reference.tobytes()


@given(array_texts(), st.sampled_from(PIECES))
def test_both_paths_agree_bit_for_bit(array: tuple[str, tuple[int, ...]], chunk_bytes: int) -> None:
    text = ('{"a":[{"b":' + array[0] + '},"x"]}').encode()
    by_lists: Any = read(text)
    by_arrays: Any = read_large(text, 64, 2)
    numbers, found = np.array(by_lists["a"][0]["b"], object), by_arrays["a"][0]["b"]
    assert isinstance(found, np.ndarray)
    assert found.shape == numbers.shape
    assert found.tobytes() == numbers.astype(found.dtype).tobytes()


NO_ARRAYS = {
    "irregular": ["[[1,2],[3]]", "[[1,2],3]", "[1,[2,3]]", "[[1],[[2]]]", "[[[1,2],[3,4]],[[5,6]]]"],
    "empty": ["[]", "[[],[]]", "[[1],[ ]3]"],
    "commas": ["[1,]", "[,1]", "[1,,2]", "[1 2]"],
    "numbers beside lists": [
        "[[1,2]3,[4,5]]",
        "[[1,2],4[3,5]]",
        "[1[,2]]",
        "[[1],2[ ]]",
        "[[1,2] 7,[4,5]]",
        "[[1 ]\n1,[2]]",
    ],
    "brackets": [
        "[[1][2]]",
        "[[1,2],[3,4]],[5,6]",
        "[1,2],[3,4]",
        "[[1,2],[3,4]",
        "[[1,2}}",
        "[" * 65 + "1" + "]" * 65,
    ],
    "words": ["[1,true]", "[1,null]", "[1,nan]", "[1,-NaN]", "[1,NaN NaN]", "[1,{}]"],
    "numbers": ["[1,1e400]", "[1,01]", "[1,1.]", "[1,-]", "[1,1\x0b]"],
    "long white space": ["[1" + " " * 101 + "]"],
}


@pytest.mark.parametrize("chunk_bytes", PIECES)
@pytest.mark.parametrize("text", [text for texts in NO_ARRAYS.values() for text in texts])
def test_what_is_no_array_is_left_alone(text: str, chunk_bytes: int) -> None:
    assert found_in(text.encode(), chunk_bytes) == [] or text.endswith("  ]")
    assert found_in(b'{"a":' + text.encode() + b"}", chunk_bytes) == [] or text.endswith("  ]")


@pytest.mark.parametrize("chunk_bytes", PIECES)
def test_every_array_of_a_text_is_found_and_nothing_in_strings_is(chunk_bytes: int) -> None:
    text = b'{"a":[[1,2],[3,4]],"[1,2,3]":"[4,5]","b\\"[6]":{"c":[ 1.5 , 2 ],"d":["[9,9]",[7,8],"x"]},"e":[0]}'
    found = [(text, array.tolist()) for text, array in found_in(text, chunk_bytes)]
    assert found == [
        (b"[[1,2],[3,4]]", [[1, 2], [3, 4]]),
        (b"[ 1.5 , 2 ]", [1.5, 2.0]),
        (b"[7,8]", [7, 8]),
        (b"[0]", [0]),
    ]


def test_short_lists_stay_lists() -> None:
    text = b'[[1,2],"x",[1,2,3]]'
    assert [array.tolist() for _, _, array in large_arrays(text, 7)] == [[1, 2, 3]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint64])
@pytest.mark.parametrize("shape", [(30_000,), (1, 30_000), (30_000, 1), (100, 10, 30), (3, 1, 1, 10_000)])
def test_arrays_of_many_chunks_come_back(dtype: Any, shape: tuple[int, ...]) -> None:
    chance = np.random.default_rng(0)
    array = chance.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]
    array = np.where(np.isfinite(array), array, 0).astype(dtype)
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    ((start, end, found),) = large_arrays(text)
    assert (start, end) == (0, len(text))
    assert found.shape == shape
    assert found.dtype == (np.float64 if np.dtype(dtype).kind == "f" else dtype)
    assert found.astype(dtype).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("numbers", "dtype"), [("-1", np.float64), ("18446744073709551615", np.uint64), ("0.5", np.float64)]
)
def test_the_last_number_of_a_large_array_may_change_its_dtype(numbers: str, dtype: Any) -> None:
    first = "9223372036854775808" if numbers == "-1" else "3"
    text = f"[{first}{',1' * 100_000},{numbers}]".encode()
    ((_, _, found),) = large_arrays(text)
    assert found.dtype == dtype
    assert found.tolist() == [float(first) if dtype is np.float64 else int(first), *[1] * 100_000, json.loads(numbers)]
