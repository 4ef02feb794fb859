"""Answers to V2 inference requests: what is JSON, what is bytes, and what can only be bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest

from tests.support.errors import refusal
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import TABLE, Array
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.v2.json_answer import MAX_FRAMES, HttpAnswers, WrittenAnswer, printed_size, write_answer
from tfs_lite.protocols.v2.request import InferAnswer, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import encode_raw

NUMBERS = np.arange(6, dtype=np.int64).reshape(2, 3)
TEXTS = np.array([["a", "ü".encode()]], object)


def answer(outputs: dict[str, Array], *wanted: WantedOutput, **rest: Any) -> InferAnswer:
    return InferAnswer(ServableId("m", 3), rest.pop("id", ""), outputs, {one.name: one for one in wanted}, **rest)


def tree(written: WrittenAnswer) -> dict[str, Any]:
    parsed: dict[str, Any] = orjson.loads(written.body[: written.json_length])
    return parsed


def test_answer_in_json_has_every_output_flat_and_no_empty_members() -> None:
    written = write_answer(answer({"y": NUMBERS, "t": TEXTS}, id="7", parameters={"speed": 2}), binary=False)
    assert written.json_length is None
    assert tree(written) == {
        "id": "7",
        "model_name": "m",
        "model_version": "3",
        "parameters": {"speed": 2},
        "outputs": [
            {"name": "y", "datatype": "INT64", "shape": [2, 3], "data": [0, 1, 2, 3, 4, 5]},
            {"name": "t", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "ü"]},
        ],
    }
    assert list(tree(write_answer(answer({"y": NUMBERS}), False))) == ["model_name", "model_version", "outputs"]


def test_binary_outputs_follow_in_their_order_and_a_word_about_one_wins() -> None:
    written = write_answer(answer({"y": NUMBERS, "t": TEXTS, "n": -NUMBERS}, WantedOutput("t", binary=False)), True)
    y, t, n = tree(written)["outputs"]
    assert (y["parameters"], n["parameters"]) == ({"binary_data_size": 48}, {"binary_data_size": 48})
    assert t["data"] == ["a", "ü"]
    assert written.body[written.json_length :] == NUMBERS.tobytes() + (-NUMBERS).tobytes()
    written = write_answer(answer({"y": NUMBERS, "t": TEXTS}, WantedOutput("t", binary=True)), False)
    y, t = tree(written)["outputs"]
    assert (y["data"], t["parameters"]["binary_data_size"]) == ([0, 1, 2, 3, 4, 5], 11)
    assert written.body[written.json_length :] == encode_raw(TEXTS)


def test_binary_outputs_without_bytes_leave_nothing_but_json() -> None:
    written = write_answer(answer({"y": np.zeros((0, 4), np.float32)}), binary=True)
    assert written.json_length is None
    assert tree(written)["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [0, 4], "parameters": {"binary_data_size": 0}}
    ]


def test_output_in_shared_memory_is_only_named() -> None:
    place = SharedMemorySlice("r", 48, 8)
    written = write_answer(answer({"y": NUMBERS}, WantedOutput("y", memory=place)), binary=True)
    assert written.json_length is None
    (y,) = tree(written)["outputs"]
    place_in_json = {"shared_memory_region": "r", "shared_memory_byte_size": 48, "shared_memory_offset": 8}
    assert y["parameters"] == {**place_in_json, "binary_data_size": 0}


def test_numbers_are_printed_exactly_and_words_for_those_that_are_none() -> None:
    big = np.array([2**63 - 1, -(2**63)], np.int64)
    odd = np.array([np.nan, np.inf, -np.inf, 0.1], np.float32)
    text = write_answer(answer({"big": big, "odd": odd, "yes": np.array([True])}), False).body
    assert b"[9223372036854775807,-9223372036854775808]" in text
    assert b"[NaN,Infinity,-Infinity,0.1]" in text
    assert b"[true]" in text


ONLY_BYTES = [
    ("FP16", np.ones(2, np.float16), "sending FP16 data via JSON is not supported"),
    ("BF16", np.ones(2, ml_dtypes.bfloat16), "sending BF16 data via JSON is not supported"),
    ("no UTF-8", np.array([b"\xff"], object), "output 'y' has texts that are not UTF-8"),
]


@pytest.mark.parametrize(("array", "words"), [row[1:] for row in ONLY_BYTES], ids=[row[0] for row in ONLY_BYTES])
def test_what_json_cannot_hold_is_refused_there_and_sent_as_bytes(array: Array, words: str) -> None:
    assert words in refusal(write_answer, answer({"y": array}), binary=False)
    written = write_answer(answer({"y": array}), binary=True)
    assert written.body[written.json_length :] == encode_raw(array)


def test_size_is_told_before_anything_is_printed() -> None:
    texts = np.array([b"x" * 1000], object)
    assert printed_size(answer({"y": NUMBERS}), binary=True) == 48
    assert printed_size(answer({"y": NUMBERS}), binary=False) >= 48
    assert printed_size(answer({"y": texts}), binary=False) >= 1000


# Answers around cached text.

WORDS = np.array([np.nan, np.inf, -np.inf, 1.5, -0.0, 7.038531e-26], np.float32)
EVERY = {
    **{
        row.config: np.arange(4).reshape(2, 2).astype(row.numpy)
        for row in TABLE
        if row.config and not row.numpy.hasobject
    },
    "words": WORDS,
    "double words": WORDS.astype(np.float64),
    "no dimensions": np.array(2.5, np.float32),
    "no elements": np.zeros((0, 4), np.float32),
    "not contiguous": np.arange(12, dtype=np.int16).reshape(3, 4).T,
    "other byte order": np.arange(3, dtype=">f4"),
    "many": np.linspace(-1, 1, 4096, dtype=np.float32),
    "too many": np.linspace(-1, 1, 4097, dtype=np.float32),
    "many in bytes": np.linspace(-1, 1, 20_000, dtype=np.float32),
    "many texts": np.array([b"a"] * 5000, object),
    "texts": TEXTS,
    "no type of V2": np.ones(2, np.complex64),
}


def outcome(write: Callable[[], WrittenAnswer | None]) -> tuple[str, object]:
    try:
        return "answer", write()
    except ServingError as error:
        return "error", (error.code, str(error))


def assert_written_alike(answers: HttpAnswers, one: InferAnswer, binary: bool) -> None:
    got, expected = outcome(lambda: answers.write(one, binary)), outcome(lambda: write_answer(one, binary))
    if got == ("answer", None):
        assert printed_size(one, binary) > COMFORTABLE_BYTES
    else:
        assert got == expected


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_around_cached_text_has_the_bytes_of_one_that_is_printed_whole(name: str, binary: bool) -> None:
    answers, array = HttpAnswers(), EVERY[name]
    wanted = ([], [WantedOutput("y")], [WantedOutput("y", binary=not binary), WantedOutput('z"', binary=binary)])
    memory = WantedOutput("y", memory=SharedMemorySlice("r", 48))
    for _ in range(2):
        for request_id in ("", "7", '\u00fc"'):
            for chosen in (*wanted, [memory]):
                for outputs in ({"y": array}, {"y": array, 'z"': NUMBERS}, {"y": NUMBERS, 'z"': array}):
                    assert_written_alike(answers, answer(dict(outputs), *chosen, id=request_id), binary)
    assert_written_alike(answers, answer({"y": array}, parameters={"speed": 2}), binary)
    assert_written_alike(answers, answer({}), binary)


def test_cached_text_is_for_one_version_its_shapes_and_its_types() -> None:
    answers = HttpAnswers()
    for version in (3, 4):
        for array in (NUMBERS, NUMBERS.T, NUMBERS.astype(np.int32), NUMBERS[:1]):
            one = answer({"y": np.ascontiguousarray(array)})
            assert_written_alike(answers, replace(one, version=ServableId("m", version)), False)


def test_many_kinds_of_answers_are_written_alike() -> None:
    answers = HttpAnswers()
    for size in range(2 * MAX_FRAMES):
        assert_written_alike(answers, answer({"y": np.ones(size, np.int8)}), True)
