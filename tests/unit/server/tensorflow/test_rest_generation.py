"""Language models over the REST API of TensorFlow Serving: optional inputs, in columns and in rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.support.language.language_servables import language
from tests.support.servers.rest_fixture import PREDICT, serving_rest

WORDS = "grüße an dich"


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with closing(language(WORDS, name="m")) as model, serving_rest(servable=model) as server:
        yield server.client


def predict(client: httpx.Client, body: Any) -> tuple[int, Any]:
    answer = client.post(PREDICT, json=body)
    return answer.status_code, answer.json()


def test_columns_may_leave_out_every_optional_input(client: httpx.Client) -> None:
    assert predict(client, {"inputs": {"text_input": ["a", "bc"], "max_tokens": 2}}) == (
        200,
        {
            "outputs": {
                "text_output": ["gr", "gr"],
                "token_ids": [[*b"gr"], [*b"gr"]],
                "finish_reason": ["length", "length"],
                "prompt_tokens": [2, 3],
                "completion_tokens": [2, 2],
            }
        },
    )


def test_every_row_is_a_text_with_values_of_its_own(client: httpx.Client) -> None:
    rows = [{"text_input": "a", "max_tokens": 1}, {"text_input": "b", "max_tokens": 16}]
    status, answer = predict(client, {"instances": rows})
    assert status == 200
    assert [row["text_output"] for row in answer["predictions"]] == ["g", WORDS]
    assert [row["finish_reason"] for row in answer["predictions"]] == ["length", "stop"]


def test_rows_of_tokens_are_texts(client: httpx.Client) -> None:
    status, answer = predict(client, {"instances": [{"input_ids": [257, 1]}, {"input_ids": [257, 2]}]})
    assert (status, [row["text_output"] for row in answer["predictions"]]) == (200, [WORDS, WORDS])


@pytest.mark.parametrize("first", [True, False], ids=["in the first row only", "in the second row only"])
def test_optional_input_in_some_rows_only_is_refused(client: httpx.Client, first: bool) -> None:
    rows = [{"text_input": "a", "seed": 1}, {"text_input": "b"}]
    status, answer = predict(client, {"instances": rows if first else rows[::-1]})
    assert status == 400
    assert "element: 1 of 'instances' list" in answer["error"]
    assert "every element has to have seed, or none of them" in answer["error"]


WRONG: list[tuple[str, Any, str]] = [
    ("unknown input", {"instances": [{"text_input": "a", "sed": 1}]}, "does not have named input: sed"),
    ("unknown column", {"inputs": {"text_input": ["a"], "max_tokns": 3}}, "max_tokns"),
    ("no prompt", {"inputs": {"max_tokens": 4}}, "expected either text_input or input_ids, and neither came"),
    ("empty rows", {"instances": [{}, {}]}, "expected either text_input or input_ids, and neither came"),
    ("bad value", {"inputs": {"text_input": ["a"], "top_p": 0}}, "top_p is 0.0, expected more than 0.0"),
    ("a text alone", {"inputs": "a"}, "the signature has several inputs"),
]


@pytest.mark.parametrize(("body", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_body_is_refused(client: httpx.Client, body: Any, words: str) -> None:
    status, answer = predict(client, body)
    assert (status, words in answer["error"]) == (400, True), answer
