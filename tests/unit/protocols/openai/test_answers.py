"""Answers in OpenAI's shapes, from pieces of texts."""

from __future__ import annotations

import math
from typing import Any

import orjson

from tests.support.language.byte_codec import BEGIN, ByteCodec
from tfs_lite.core.generation import Finish, Generation, Piece, TokenLogprob, Usage
from tfs_lite.protocols.openai.answers import AnswerHead, Printer, error_text, model_text, models_text, printed_size
from tfs_lite.protocols.openai.request import OpenAiRequest

HEAD = AnswerHead("id-1", 1_700_000_000, "m:3")
A, B = ord("a"), ord("b")
CODEC = ByteCodec()


def printer(chat: bool = False, texts: int = 1, codec: ByteCodec | None = CODEC, **fields: Any) -> Printer:
    return Printer(HEAD, OpenAiRequest("m@3", (Generation("x"),) * texts, chat, **fields), codec)


def chunks(one: Printer, piece: Piece) -> list[dict[str, Any]]:
    return [orjson.loads(chunk) for chunk in one.chunks(piece)]


def whole_text(index: int = 0, text: str = "ab") -> Piece:
    return Piece(index, (A, B), text, (), Finish.LENGTH, None, Usage(5, 2, 3))


def test_completion_has_openais_shape() -> None:
    assert orjson.loads(printer().whole([whole_text()])) == {
        "id": "id-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "m@3",
        "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
        "system_fingerprint": "m:3",
    }


def test_chat_completion_has_openais_shape() -> None:
    answer = orjson.loads(printer(chat=True).whole([whole_text()]))
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ab", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]


def test_prompt_of_several_choices_is_counted_once() -> None:
    pieces = [Piece(index, usage=Usage(10, index + 1, 4)) for index in range(4)]
    usage = orjson.loads(printer(texts=4, n=2).whole(pieces))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 10, 30)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 8}


def test_what_ended_a_choice_is_told() -> None:
    piece = Piece(0, (A,), "a", finish=Finish.STOP, stop="\n")
    (choice,) = orjson.loads(printer().whole([piece]))["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "\n")


def test_token_numbers_are_told_to_those_who_asked() -> None:
    (choice,) = orjson.loads(printer(token_ids=True).whole([whole_text()]))["choices"]
    assert choice["token_ids"] == [A, B]
    one, *_ = [
        each for each in chunks(printer(chat=True, token_ids=True), Piece(0, (A,))) if "token_ids" in each["choices"][0]
    ]
    assert one["choices"][0]["token_ids"] == [A]


def test_chunks_of_a_completion_are_text_and_its_end() -> None:
    one = printer()
    (first,), (last,) = chunks(one, Piece(0, (A,), "a")), chunks(one, Piece(0, (), "", (), Finish.STOP, 256))
    assert (first["object"], first["id"], "usage" in first) == ("text_completion", "id-1", False)
    assert first["choices"] == [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None, "stop_reason": None}]
    assert (last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == ("", "stop")


def test_chat_begins_with_the_role_and_ends_with_an_empty_delta() -> None:
    one = printer(chat=True)
    deltas = [
        (chunk["object"], chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"])
        for piece in (Piece(0, (A,), "a"), Piece(0, (B,), "b"), Piece(0, (), "c", (), Finish.LENGTH))
        for chunk in chunks(one, piece)
    ]
    kind = "chat.completion.chunk"
    assert deltas == [
        (kind, {"role": "assistant", "content": ""}, None),
        (kind, {"content": "a"}, None),
        (kind, {"content": "b"}, None),
        (kind, {"content": "c"}, None),
        (kind, {}, "length"),
    ]


def test_each_choice_of_a_chat_has_its_own_beginning() -> None:
    one = printer(chat=True, texts=2, n=2)
    roles = [
        chunk["choices"][0]["index"]
        for index in (0, 1, 0, 1)
        for chunk in chunks(one, Piece(index, (A,), "a"))
        if "role" in chunk["choices"][0]["delta"]
    ]
    assert roles == [0, 1]


def test_usage_comes_in_a_chunk_without_choices_and_is_null_before() -> None:
    one = printer(include_usage=True)
    (chunk,) = chunks(one, Piece(0, (A,), "a"))
    assert chunk["usage"] is None
    last = orjson.loads(one.usage_chunk([Usage(5, 1), None]))
    assert (last["choices"], last["usage"]["total_tokens"], last["object"]) == ([], 6, "text_completion")


def logprobs_of(entries: list[TokenLogprob], chat: bool = False, **fields: Any) -> Any:
    piece = Piece(0, tuple(entry.token for entry in entries), "", tuple(entries), Finish.STOP)
    return orjson.loads(printer(chat, **fields).whole([piece]))["choices"][0]["logprobs"]


def test_log_probabilities_of_a_completion_are_lists_of_finite_numbers() -> None:
    found = logprobs_of([TokenLogprob(A, -1.5, ((B, -0.5),)), TokenLogprob(B, -0.25, ((B, -0.25),))], top=1)
    assert found == {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.5, -0.25],
        "top_logprobs": [{"b": -0.5, "a": -1.5}, {"b": -0.25}],
        "text_offset": [0, 1],
    }
    found = logprobs_of([TokenLogprob(A, -math.inf, ((B, -math.inf),))], top=1)
    assert found["token_logprobs"] == [-9999.0]
    assert found["top_logprobs"] == [{"b": -9999.0, "a": -9999.0}]


def test_first_token_of_a_scored_prompt_has_no_log_probability() -> None:
    found = logprobs_of([TokenLogprob(A, None), TokenLogprob(B, -1.0)], top=0)
    assert (found["token_logprobs"], found["top_logprobs"]) == ([None, -1.0], None)
    assert logprobs_of([TokenLogprob(A, None)], top=1)["top_logprobs"] == [None]


def test_log_probabilities_of_a_chat_are_entries_with_bytes() -> None:
    found = logprobs_of([TokenLogprob(A, -1.5, ((0xE4, -0.5),))], chat=True, top=1)
    assert found == {
        "content": [
            {
                "token": "a",
                "logprob": -1.5,
                "bytes": [97],
                "top_logprobs": [{"token": "\ufffd", "logprob": -0.5, "bytes": [0xE4]}],
            }
        ],
        "refusal": None,
    }


def test_offsets_count_characters_of_the_text_over_chunks() -> None:
    """A token in the middle of a character begins where that does, and a special token takes no room."""
    one = printer(top=0)
    data = "aß世b".encode()
    offsets = []
    for token in (BEGIN, *data):
        (chunk,) = chunks(one, Piece(0, (token,), "", (TokenLogprob(token, -1.0),)))
        offsets += chunk["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 0, 1, 1, 2, 2, 2, 3]


def test_token_that_looks_like_a_better_one_does_not_hide_it() -> None:
    found = logprobs_of([TokenLogprob(0x80, -3.0, ((0x81, -1.0),))], top=1)
    assert found["top_logprobs"] == [{r"bytes:\x81": -1.0, r"bytes:\x80": -3.0}]


def test_tokens_of_a_model_without_a_tokenizer_have_numbers_for_names() -> None:
    found = logprobs_of([TokenLogprob(7, -1.0, ((8, -0.5),))], top=1, codec=None)
    assert (found["tokens"], found["top_logprobs"], found["text_offset"]) == (
        ["token_id:7"],
        [{"token_id:8": -0.5, "token_id:7": -1.0}],
        [0],
    )
    (entry,) = logprobs_of([TokenLogprob(7, -1.0)], chat=True, top=0, codec=None)["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:7", None)


def test_size_of_pieces_grows_with_their_log_probabilities() -> None:
    entry = TokenLogprob(A, -1.0, ((B, -2.0),) * 20)
    body = printer(chat=True, top=20).whole([Piece(0, (A,) * 100, "a" * 100, (entry,) * 100)])
    size = printed_size([Piece(0, (A,) * 100, "a" * 100, (entry,) * 100)])
    assert len(body) / 3 < size < len(body) * 10


def test_error_has_openais_shape_whatever_it_says() -> None:
    assert orjson.loads(error_text("no \udcff", "server_error", "a\udcff", "x")) == {
        "error": {"message": "no ?", "type": "server_error", "param": "a?", "code": "x"}
    }
    assert orjson.loads(error_text("no", "t"))["error"] == {"message": "no", "type": "t", "param": None, "code": None}


def test_models_have_openais_shape() -> None:
    model = {"id": "m", "object": "model", "created": 5, "owned_by": "tfs_lite"}
    assert orjson.loads(model_text("m", 5)) == model
    assert orjson.loads(models_text({"m": 5})) == {"object": "list", "data": [model]}
