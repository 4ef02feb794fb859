"""The generate extension: plain objects to tensors and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tests.support import errors
from tfs_lite.core.servable import ServableId
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.v2.binary import DeclaredInput
from tfs_lite.protocols.v2.generate import read_generate, write_generate
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest

TEXT = DeclaredInput("text_input", "BYTES", (-1, 1))
FLAG = DeclaredInput("stream", "BOOL", (1,))
NUMBERS = DeclaredInput("numbers", "INT32", (-1, 2, -1))
FIXED = DeclaredInput("fixed", "FP32", (2, 2))
INPUTS = (TEXT, FLAG, NUMBERS, FIXED)


def read(body: Any, inputs: tuple[DeclaredInput, ...] = INPUTS) -> InferRequest:
    return read_generate("m", None, body if isinstance(body, bytes) else orjson.dumps(body), inputs)


def arrays(request: InferRequest) -> dict[str, Any]:
    return {sent.name: (sent.shape, None if sent.array is None else sent.array.tolist()) for sent in request.inputs}


def refusal(body: Any, inputs: tuple[DeclaredInput, ...] = INPUTS) -> str:
    return errors.refusal(read, body, inputs)


def test_keys_that_name_inputs_become_them_and_others_parameters() -> None:
    body = {"text_input": "hi", "id": "5", "top": 3, "parameters": {"stream": True, "temperature": 0.5}, "priority": 2}
    request = read(body)
    assert arrays(request) == {"text_input": ((1, 1), [[b"hi"]]), "stream": ((1,), [True])}
    assert (request.id, request.priority) == ("5", 2)
    assert request.parameters == {"top": 3, "temperature": 0.5}


FILLED = [
    ("scalar", "numbers", 7, None),
    ("two", "numbers", [1, 2], (1, 2, 1)),
    ("eight", "numbers", list(range(8)), (1, 2, 4)),
    ("odd", "numbers", [1, 2, 3], None),
    ("fixed", "fixed", [1, 2, 3, 4.5], (2, 2)),
    ("fixed and too many", "fixed", list(range(8)), None),
    ("fixed and too few", "fixed", [1, 2], None),
    ("texts", "text_input", ["a", "b", "c"], (3, 1)),
]


@pytest.mark.parametrize(("name", "value", "shape"), [row[1:] for row in FILLED], ids=[row[0] for row in FILLED])
def test_innermost_free_size_takes_what_remains(name: str, value: Any, shape: tuple[int, ...] | None) -> None:
    if shape is None:
        assert f"can not convert input '{name}'" in refusal({name: value})
    else:
        assert [sent.shape for sent in read({name: value}).inputs] == [shape]


def test_lists_may_be_large_and_an_empty_one_has_neither_shape_nor_data() -> None:
    (sent,) = read({"numbers": list(range(50_000))}).inputs
    assert sent.array is not None
    assert (sent.shape, sent.array.ravel().tolist()) == ((1, 2, 25_000), list(range(50_000)))
    assert arrays(read({"text_input": []})) == {"text_input": ((), None)}


WRONG: list[tuple[str, Any, str]] = [
    ("no JSON", b"{", "failed to parse the request JSON buffer"),
    ("no object", b"[]", "failed to parse the request JSON buffer"),
    ("twice", b'{"text_input":"a","text_input":"b"}', "input 'text_input' already exists in request"),
    ("twice by parameters", {"text_input": "a", "parameters": {"text_input": "b"}}, "'text_input' already exists in"),
    ("parameter twice", {"top": 1, "parameters": {"top": 2}}, "parameter 'top' already exists in request"),
    ("parameter twice in the text", b'{"top":1,"top":2}', "comes twice in an object"),
    ("parameters no object", {"parameters": [1]}, "Expected JSON object for keyword: 'parameters'"),
    ("nested parameters", {"parameters": {"parameters": {}}}, "parameter 'parameters' has invalid type"),
    ("object", {"other": {"a": 1}}, "parameter 'other' has invalid type"),
    ("object for an input", {"text_input": {"a": 1}}, "attempt to access JSON non-string as string"),
    ("nested list", {"text_input": [["a"]]}, "attempt to access JSON non-string as string"),
    ("number for a text", {"text_input": 1}, "attempt to access JSON non-string as string"),
    ("text for a flag", {"stream": "yes"}, "attempt to access JSON non-boolean as boolean"),
    ("nothing", {"numbers": [1, None]}, "attempt to access JSON non-signed-integer as signed-integer"),
    ("id", {"id": 3}, "Unable to parse 'id'"),
    ("reserved", {"triton_x": 3}, "parameter keys starting with 'triton_' are reserved"),
    ("timeout", {"timeout": "3"}, "Unable to parse 'timeout'"),
    ("large matrix", {"numbers": [[1] * 5000, [2] * 5000]}, "attempt to access JSON non-string as string"),
]


@pytest.mark.parametrize(("body", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_body_is_refused_with_the_words_that_clients_know(body: Any, words: str) -> None:
    assert words in refusal(body)


def test_null_is_absent() -> None:
    sent = {"text_input": "hi", "numbers": None, "max_tokens": None, "id": None, "parameters": None}
    assert read(sent) == read({"text_input": "hi"})
    assert read({"text_input": "hi", "parameters": {"max_tokens": None, "top": 2}}) == read(
        {"text_input": "hi", "top": 2}
    )


def test_inputs_called_id_are_inputs_and_those_called_parameters_are_refused() -> None:
    assert "input 'parameters'" in refusal({}, (DeclaredInput("parameters", "BYTES", (1,)),))
    request = read({"id": "x"}, (DeclaredInput("id", "BYTES", (1,)),))
    assert (request.id, arrays(request)) == ("", {"id": ((1,), [b"x"])})


def written(outputs: dict[str, Array], **rest: Any) -> dict[str, Any]:
    tree: dict[str, Any] = orjson.loads(write_generate(InferAnswer(ServableId("m", 2), outputs=outputs, **rest)))
    return tree


def test_answer_has_a_key_for_every_output_and_none_for_an_id_that_is_missing() -> None:
    outputs = {
        "text_output": np.array([[b"hi"]], object),
        "scores": np.array([[0.5, 1.5]], np.float32),
        "length": np.array([2**62], np.int64),
        "done": np.array(True),
        "none": np.zeros((0, 3), np.int8),
        "words": np.array([b"a", b"b"], object),
    }
    assert written(outputs, id="9", parameters={"speed": 1}) == {
        "id": "9",
        "model_name": "m",
        "model_version": "2",
        "speed": 1,
        "text_output": "hi",
        "scores": [0.5, 1.5],
        "length": 2**62,
        "done": True,
        "none": [],
        "words": ["a", "b"],
    }
    assert list(written({}, id="")) == ["model_name", "model_version"]


def test_texts_that_json_cannot_hold_are_refused() -> None:
    assert "not UTF-8" in errors.refusal(written, {"y": np.array([b"\xff"], object)}, id="")
