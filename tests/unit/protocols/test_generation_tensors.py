"""Tensors of language models: what a request asks for, and what its answer says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import errors
from tfs_lite.core.generation import Finish, Generation, Piece, Sampling, TokenLogprob, Usage, join_pieces
from tfs_lite.core.signature import DataType, check_input_names
from tfs_lite.protocols.dtypes import from_numpy, to_numpy
from tfs_lite.protocols.generation_tensors import (
    MAX_TEXTS,
    generation_signature,
    piece_outputs,
    texts_of,
    whole_outputs,
)
from tfs_lite.protocols.runs import Run, call_inputs

TEXT = generation_signature(True)
IDS = generation_signature(False)


def strings(*texts: str) -> np.ndarray[Any, Any]:
    return np.array([text.encode() for text in texts], object)


def tensor(name: str, *values: Any) -> np.ndarray[Any, Any]:
    (dtype,) = (spec.dtype for spec in TEXT.inputs if spec.name == name)
    return strings(*values) if dtype is DataType.STRING else np.array(values, to_numpy(dtype))


def refusal(inputs: dict[str, Any], parameters: dict[str, Any] | None = None) -> str:
    return errors.refusal(texts_of, inputs, parameters or {})


def test_model_without_a_tokenizer_takes_and_gives_no_texts():
    assert "text_input" in TEXT.input_names
    assert "text_output" in TEXT.output_names
    texts = {spec.name for spec in (*IDS.inputs, *IDS.outputs) if spec.dtype is DataType.STRING}
    assert texts == {"finish_reason"}


@pytest.mark.parametrize("signature", [TEXT, IDS], ids=["text", "ids"])
def test_every_input_may_be_left_out(signature):
    for name in signature.input_names:
        check_input_names(signature, {name})


def test_one_prompt_without_values_has_the_defaults():
    assert texts_of({"text_input": strings("hello")}) == [Generation("hello", max_tokens=16)]


def test_ids_are_one_text_or_one_for_each_row_and_may_be_left_to_the_model():
    assert texts_of({"input_ids": np.array([3, 4, 5])}) == [Generation([3, 4, 5], max_tokens=16)]
    two = texts_of({"input_ids": np.array([[3, 4], [5, 6]])})
    assert [text.prompt for text in two] == [[3, 4], [5, 6]]
    assert all(type(token) is int for text in two for token in text.prompt)
    assert texts_of({"input_ids": np.zeros((2, 0), np.int64)}) == [Generation([], max_tokens=16)] * 2


EVERY_VALUE = {
    "max_tokens": 7,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.25,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "presence_penalty": -0.5,
    "frequency_penalty": 1.0,
    "top_k": 9,
    "seed": 2**40,
    "ignore_eos": True,
    "echo": True,
    "priority": -3,
    "stop": "end",
    "stop_token_ids": 8,
}
EXPECTED = Generation(
    "hello",
    max_tokens=7,
    min_tokens=2,
    sampling=Sampling(0.5, 9, 0.25, 0.125, 1.5, -0.5, 1.0, seed=2**40),
    stop=("end",),
    stop_token_ids=(8,),
    ignore_eos=True,
    echo=True,
    priority=-3,
)


def test_every_value_has_its_place_as_an_input_and_as_a_parameter():
    assert set(EVERY_VALUE) | {"text_input", "input_ids"} == set(TEXT.input_names)
    prompt = {"text_input": strings("hello")}
    inputs = {**prompt, **{name: tensor(name, value) for name, value in EVERY_VALUE.items()}}
    assert texts_of(call_inputs(TEXT, Run("serving_default", inputs))) == [EXPECTED]
    assert texts_of(prompt, EVERY_VALUE) == [EXPECTED]


@given(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=MAX_TEXTS), st.booleans())
def test_values_are_for_each_text_or_one_for_all(limits, rank_two):
    prompts = np.zeros((len(limits), 3), np.int64)
    sent = np.array(limits, np.int32).reshape((-1, 1) if rank_two else (-1,))
    assert [text.max_tokens for text in texts_of({"input_ids": prompts, "max_tokens": sent})] == limits
    same = texts_of({"input_ids": prompts, "max_tokens": np.array(limits[0], np.int32)})
    assert {text.max_tokens for text in same} == {limits[0]}


def test_stops_are_for_all_texts_or_for_each_row():
    texts = texts_of(
        {"text_input": strings("a", "b"), "stop": strings("x", "y", "z"), "stop_token_ids": np.array([1, 2, 3])}
    )
    assert [(text.stop, text.stop_token_ids) for text in texts] == [(("x", "y", "z"), (1, 2, 3))] * 2
    inputs = {"text_input": strings("a", "b"), "stop": np.array([[b"x", b"y"], [b"z", b"w"]], object)}
    assert [text.stop for text in texts_of(inputs)] == [("x", "y"), ("z", "w")]


def test_texts_with_one_seed_are_told_apart_and_those_with_their_own_are_not():
    prompts = {"text_input": strings("a", "a", "a")}
    shared = texts_of({**prompts, "seed": tensor("seed", 5)})
    assert [(text.sampling.seed, text.seed_shift) for text in shared] == [(5, 0), (5, 1), (5, 2)]
    own = texts_of({**prompts, "seed": tensor("seed", 5, 6, 7)})
    assert [(text.sampling.seed, text.seed_shift) for text in own] == [(5, 0), (6, 0), (7, 0)]
    assert [text.seed_shift for text in texts_of(prompts)] == [0, 0, 0]


ONE = {"text_input": strings("a")}
REFUSED = {
    "no prompt": ({}, {}, "expected either text_input or input_ids, and neither came"),
    "two kinds of prompt": (
        {**ONE, "input_ids": np.array([1])},
        {},
        "expected either text_input or input_ids, and both came",
    ),
    "prompt in a parameter": ({}, {"text_input": "a"}, "text_input is an input, no parameter; a model without a tok"),
    "no text": ({"text_input": strings()}, {}, "text_input has 0 prompts, expected 1 to 128"),
    "too many": ({"input_ids": np.zeros((129, 1), np.int64)}, {}, "input_ids has 129 prompts, expected 1 to 128"),
    "a scalar": ({"input_ids": np.array(1)}, {}, "input_ids has shape [], expected [length] or [texts, length]"),
    "rank 3": (
        {"input_ids": np.zeros((1, 1, 1), np.int64)},
        {},
        "input_ids has shape [1, 1, 1], expected [length] or [texts, length]",
    ),
    "bytes": (
        {"text_input": np.array([b"ab\xff"], object)},
        {},
        "text_input is not UTF-8: invalid start byte at byte 2",
    ),
    "bytes in stop": (
        {**ONE, "stop": np.array([b"\xff"], object)},
        {},
        "stop is not UTF-8: invalid start byte at byte 0",
    ),
    "values for no text": ({**ONE, "top_k": tensor("top_k", 1, 2)}, {}, "top_k has 2 values, expected 1"),
    "values for some": (
        {"text_input": strings("a", "b", "c"), "top_k": tensor("top_k", 1, 2)},
        {},
        "top_k has 2 values, expected 1, or 3, one for each prompt",
    ),
    "no value": (
        {"text_input": strings("a", "b"), "top_k": tensor("top_k")},
        {},
        "top_k has 0 values, expected 1, or 2, one for each prompt",
    ),
    "many stops": ({**ONE, "stop": strings(*"abcdefghijklmnopq")}, {}, "stop has 17 entries, at most 16 are allowed"),
    "twice": ({**ONE, "top_k": tensor("top_k", 1)}, {"top_k": 1}, "top_k is sent both as an input and as a parameter"),
    "nearly known": (
        ONE,
        {"max_token": 1},
        'a language model has no parameter "max_token"; did you mean "max_tokens"?',
    ),
    "unknown": (
        ONE,
        {"q": 1},
        'a language model has no parameter "q"; known: echo, frequency_penalty, ignore_eos, max_tokens, min_p, '
        "min_tokens, presence_penalty, priority, repetition_penalty, seed, stop, stop_token_ids, temperature, top_k, "
        "top_p",
    ),
    "a prompt as a parameter": (ONE, {"input_ids": 1}, 'a language model has no parameter "input_ids"; known:'),
    "a text for a number": (ONE, {"max_tokens": "9"}, "parameter max_tokens is '9', expected an integer"),
    "a fraction": (ONE, {"max_tokens": 1.5}, "parameter max_tokens is 1.5, expected an inte"),
    "a truth for a number": (ONE, {"top_p": True}, "parameter top_p is True, expected a num"),
    "a number for a truth": (ONE, {"echo": 1}, "parameter echo is 1, expected true or false"),
    "a number for a text": (ONE, {"stop": 1}, "parameter stop is 1, expected a text"),
}


@pytest.mark.parametrize(("inputs", "parameters", "words"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_sense_is_refused_with_its_name(inputs, parameters, words):
    assert refusal(inputs, parameters).startswith(words)


def test_whole_number_will_do_for_a_fraction():
    (text,) = texts_of(ONE, {"temperature": 0})
    assert text.sampling.temperature == 0


def pieces() -> list[Piece]:
    return [
        Piece(1, (5,), "h", (TokenLogprob(5, -0.5),)),
        Piece(1, (6, 7), ""),
        Piece(1, (8,), "é!", (TokenLogprob(8, -1.0),), Finish.STOP, "end", Usage(4, 4)),
    ]


def test_pieces_of_a_text_are_joined_to_all_of_it():
    assert join_pieces(pieces()) == Piece(
        1, (5, 6, 7, 8), "hé!", (TokenLogprob(5, -0.5), TokenLogprob(8, -1.0)), Finish.STOP, "end", Usage(4, 4)
    )
    first = pieces()[0]
    assert join_pieces([first]) is first
    with pytest.raises(ValueError, match="one piece"):
        join_pieces([])


@pytest.mark.parametrize("has_text", [True, False], ids=["text", "ids"])
def test_answers_have_exactly_the_outputs_of_the_signature(has_text):
    specs = generation_signature(has_text).outputs
    for outputs in (
        whole_outputs([join_pieces(pieces()), Piece(0, finish=Finish.LENGTH, usage=Usage(2, 0))], has_text),
        piece_outputs(pieces()[0], has_text),
    ):
        assert list(outputs) == [spec.name for spec in specs]
        for spec in specs:
            assert spec.shape is not None
            assert (from_numpy(outputs[spec.name].dtype), outputs[spec.name].ndim) == (spec.dtype, len(spec.shape))


def test_shorter_texts_are_filled_up_with_what_is_no_token():
    short = Piece(0, (9,), "x", finish=Finish.LENGTH, usage=Usage(3, 1))
    outputs = whole_outputs([short, join_pieces(pieces())], True)
    assert outputs["token_ids"].tolist() == [[9, -1, -1, -1], [5, 6, 7, 8]]
    assert outputs["text_output"].tolist() == [b"x", "hé!".encode()]
    assert outputs["finish_reason"].tolist() == [b"length", b"stop"]
    assert outputs["prompt_tokens"].tolist() == [3, 4]
    assert outputs["completion_tokens"].tolist() == [1, 4]


def test_piece_says_how_a_text_ends_only_at_its_end():
    first, _, last = pieces()
    outputs = piece_outputs(first, True)
    assert (outputs["text_output"].tolist(), outputs["token_ids"].tolist()) == ([b"h"], [[5]])
    assert outputs["finish_reason"].tolist() == [b""]
    assert outputs["prompt_tokens"].tolist() == outputs["completion_tokens"].tolist() == [0]
    outputs = piece_outputs(last, True)
    assert outputs["finish_reason"].tolist() == [b"stop"]
    assert (outputs["prompt_tokens"].tolist(), outputs["completion_tokens"].tolist()) == ([4], [4])


def test_the_way_of_asking_is_no_parameter_of_the_model() -> None:
    assert texts_of(ONE, {"stream": True}) == texts_of(ONE)
    assert "no parameter" in errors.refusal(texts_of, ONE, {"stream": 1})
