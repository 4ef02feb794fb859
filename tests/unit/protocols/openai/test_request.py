"""Bodies of OpenAI's API: what they ask for, and what is wrong with them."""

from __future__ import annotations

import pickle
from typing import Any

import orjson
import pytest

from tests.support import errors
from tfs_lite.core.generation import ChatPrompt, Generation, Sampling
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.openai.fields import MAX_TEXTS, NEUTRAL, REFUSED, Chat, Completion, FieldError
from tfs_lite.protocols.openai.request import MAX_IGNORED, MAX_PROMPT_TOKENS, OpenAiRequest, read_chat, read_completion

HELLO = [{"role": "user", "content": "hello"}]


def completion(**fields: Any) -> OpenAiRequest:
    return read_completion(orjson.dumps({"model": "m", "prompt": "hello", **fields}))


def chat(**fields: Any) -> OpenAiRequest:
    return read_chat(orjson.dumps({"model": "m", "messages": HELLO, **fields}))


def prompts(request: OpenAiRequest) -> list[Any]:
    return [text.prompt for text in request.texts]


def refusal(read: Any, **fields: Any) -> FieldError:
    with pytest.raises(FieldError) as caught:
        read(**fields)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    return caught.value


def test_request_that_says_nothing_has_openais_defaults_and_a_chat_may_fill_the_context() -> None:
    request = completion()
    assert request == OpenAiRequest("m", (Generation("hello", max_tokens=16),), chat=False)
    request = chat()
    assert request == OpenAiRequest("m", (Generation(ChatPrompt(tuple(HELLO))),), chat=True)


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ("one", ["one"]),
        ("", [""]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
    ids=["text", "empty text", "texts", "tokens", "lists of tokens"],
)
def test_prompt_has_four_forms(sent: Any, found: list[Any]) -> None:
    assert prompts(completion(prompt=sent)) == found


@pytest.mark.parametrize("rows", [1, 2])
def test_tokens_of_a_large_body_are_integers_too(rows: int) -> None:
    tokens = list(range(40_000))
    sent: Any = tokens if rows == 1 else [tokens, tokens]
    request = completion(prompt=sent)
    assert prompts(request) == [tuple(tokens)] * rows
    assert {type(token) for token in prompts(request)[0]} == {int}


@pytest.mark.parametrize(
    "sent",
    [None, 5, {}, [], [[]], ["a", 1], [1, "a"], [1, 1.5], [True], [["a"]], [[1], 2], [[1], [1.5]], [[1.5] * 40_000]],
    ids=repr,
)
def test_prompt_of_any_other_form_is_refused(sent: Any) -> None:
    error = refusal(completion, prompt=sent)
    assert (error.param, str(error).startswith("prompt: ")) == ("prompt", True)


def test_missing_prompt_model_and_messages_are_named() -> None:
    for read, body, name in [
        (read_completion, {"model": "m"}, "prompt"),
        (read_completion, {"prompt": "x"}, "model"),
        (read_chat, {"model": "m"}, "messages"),
    ]:
        with pytest.raises(FieldError, match=f"you must provide {name}") as caught:
            read(orjson.dumps(body))
        assert caught.value.param == name


def test_prompts_of_too_many_tokens_are_refused_before_they_are_taken_apart() -> None:
    body = b'{"model":"m","prompt":[' + b"1," * MAX_PROMPT_TOKENS + b"1]}"
    with pytest.raises(FieldError, match=f"{MAX_PROMPT_TOKENS + 1} tokens, at most {MAX_PROMPT_TOKENS}"):
        read_completion(body)


def test_choices_of_a_prompt_follow_each_other_and_differ_in_their_seeds() -> None:
    request = completion(prompt=["a", "b"], n=2, seed=7)
    assert [(text.prompt, text.seed_shift) for text in request.texts] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert {text.sampling.seed for text in request.texts} == {7}
    assert request.n == 2


def test_prompts_times_choices_are_bounded() -> None:
    assert len(completion(prompt=["a"] * 4, n=MAX_TEXTS // 4).texts) == MAX_TEXTS
    assert refusal(completion, prompt=["a"] * 5, n=MAX_TEXTS // 4).param == "n"
    assert refusal(completion, prompt=["a"] * (MAX_TEXTS + 1)).param == "prompt"
    assert refusal(chat, n=MAX_TEXTS + 1).param == "n"


def test_every_field_reaches_the_text_or_the_request() -> None:
    request = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-1,
        frequency_penalty=1,
        logit_bias={"5": -100, "0": 1.5},
        seed=-3,
        logprobs=True,
        top_logprobs=4,
    )
    expected = Sampling(0.5, 40, 0.9, 0.1, 1.2, -1, 1, {5: -100, 0: 1.5}, -3, 4)
    assert (request.texts[0].sampling, request.top) == (expected, 4)
    request = completion(
        max_tokens=5,
        min_tokens=2,
        stop="\n",
        stop_token_ids=[3, 4],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        priority=-2,
        echo=True,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        return_token_ids=True,
        timeout=2,
    )
    text = Generation(
        "hello", 5, 2, Sampling(), ("\n",), (3, 4), True, True, skip_special_tokens=False, echo=True, priority=-2
    )
    expected = OpenAiRequest("m", (text,), False, stream=True, include_usage=True, token_ids=True, timeout=2.0)
    assert request == expected


def test_null_is_the_same_as_nothing_for_every_field() -> None:
    named = {"model", "prompt", "messages"}
    nulls: dict[str, Any] = dict.fromkeys({*Completion.model_fields, *NEUTRAL, *REFUSED} - named)
    assert completion(**nulls) == completion()
    nulls = dict.fromkeys({*Chat.model_fields, *NEUTRAL, *REFUSED} - named)
    assert chat(**nulls) == chat()


def test_top_k_of_minus_one_is_off_as_vllm_has_it() -> None:
    assert completion(top_k=-1).texts[0].sampling.top_k == 0


def test_logprobs_score_an_echoed_prompt_and_a_chat_tells_others_only_if_asked() -> None:
    assert completion(echo=True, logprobs=0).texts[0].score_prompt
    assert not completion(echo=True).texts[0].score_prompt
    assert not completion(logprobs=0).texts[0].score_prompt
    assert (chat(logprobs=True).top, chat(logprobs=False).top, chat().top) == (0, None, None)
    assert refusal(chat, top_logprobs=2).param == "top_logprobs"


def test_both_names_of_the_limit_count_in_a_chat() -> None:
    assert chat(max_tokens=5).texts[0].max_tokens == 5
    assert chat(max_completion_tokens=6).texts[0].max_tokens == 6
    assert chat(max_tokens=7, max_completion_tokens=7).texts[0].max_tokens == 7
    assert refusal(chat, max_tokens=5, max_completion_tokens=6).param == "max_completion_tokens"
    assert completion(max_completion_tokens=6).texts[0].max_tokens == 6
    assert refusal(completion, max_tokens=5, max_completion_tokens=6).param == "max_completion_tokens"


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_neutral_field_changes_nothing(name: str) -> None:
    assert chat(**{name: "anything"}) == chat()
    assert completion(**{name: {"a": [1]}}) == completion()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_field_that_would_change_the_answer_is_refused_by_name(name: str) -> None:
    error = refusal(chat, **{name: {"type": "something"}})
    assert (error.param, str(error).startswith(f"{name} is not supported")) == (name, True)
    assert refusal(completion, **{name: [1]}).param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "none"),
        ("modalities", ["text"]),
        ("suffix", ""),
        ("use_beam_search", False),
        ("best_of", 1),
        ("length_penalty", 1.0),
    ],
)
def test_refused_field_may_ask_for_what_is_done_anyway(name: str, value: Any) -> None:
    assert completion(**{name: value}) == completion()


def test_best_of_has_to_be_n() -> None:
    assert len(completion(n=3, best_of=3).texts) == 3
    assert refusal(completion, n=2, best_of=3).param == "best_of"
    assert refusal(completion, best_of=True).param == "best_of"


@pytest.mark.parametrize("name", ["tools", "response_format", "modalities", "best_of"])
def test_refused_field_of_many_numbers_is_refused_like_any_other(name: str) -> None:
    assert refusal(completion, **{name: [1] * 40_000}).param == name


def test_unknown_field_is_told_with_the_nearest_name() -> None:
    error = refusal(completion, temprature=0.5)
    assert error.param == "temprature"
    assert str(error) == 'Unrecognized request argument supplied: temprature; did you mean "temperature"?'
    assert str(refusal(chat, zzzzzz=1)) == "Unrecognized request argument supplied: zzzzzz"
    assert refusal(completion, messages=HELLO).param == "messages"
    assert refusal(chat, prompt="x").param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"stream": 1}, "stream"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop_token_ids": [1, "a"]}, "stop_token_ids[1]"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "a"}}, "logit_bias.1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"seed": 2**70}, "seed"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 1e9}, "timeout"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
    ids=repr,
)
def test_value_of_the_wrong_kind_is_refused_and_its_field_named(fields: dict[str, Any], param: str) -> None:
    body = orjson.dumps(
        {"model": "m", "prompt": "x", **{name: value for name, value in fields.items() if name != "seed"}}
    )
    if "seed" in fields:
        body = body.replace(b"{", b'{"seed":%d,' % fields["seed"], 1)
    with pytest.raises(FieldError) as caught:
        read_completion(body)
    assert caught.value.param == param
    assert param.partition(".")[0] in str(caught.value)


def test_message_about_a_value_says_what_was_expected_and_what_came() -> None:
    assert str(refusal(completion, max_tokens="5")) == "max_tokens: expected a valid integer, got '5'"
    assert str(refusal(completion, stop={"a": 1})) == "stop: expected a valid list, got an object"
    assert len(str(refusal(completion, temperature="x" * 10_000))) < 300


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"null", b'"a"', b"\xff"])
def test_body_that_is_no_object_is_invalid(body: bytes) -> None:
    errors.refusal(read_chat, body)


def test_messages_keep_role_content_and_name_and_lose_what_is_empty() -> None:
    sent = [
        {"role": "developer", "content": "be kind", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [],
            "audio": None,
            "annotations": [{"type": "x"}],
        },
    ]
    (prompt,) = prompts(chat(messages=sent))
    assert prompt.messages == (
        {"role": "system", "content": "be kind", "name": "boss"},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": ""},
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "a"}, "messages[1].role"),
        ({"role": "tool", "content": "a"}, "messages[1].role"),
        ({"role": [1] * 20_000, "content": "a"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": ["a"]}, "messages[1].content[0].type"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
            "messages[1].content[1].type",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}, "messages[1].tool_calls"),
        ({"role": "assistant", "content": "a", "refusal": "no"}, "messages[1].refusal"),
        ({"role": "assistant", "content": "a", "prefix": True}, "messages[1].prefix"),
    ],
    ids=[f"message-{number}" for number in range(12)],
)
def test_message_of_another_kind_is_refused_and_its_place_named(message: dict[str, Any], param: str) -> None:
    error = refusal(chat, messages=[*HELLO, message])
    assert (error.param, param.rpartition(".type")[0] in str(error)) == (param, True)


def test_names_inside_objects_that_are_not_known_are_ignored_and_reported() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    said = {"id": "1", "type": "message", "reasoning_content": "hm", "weight": 1, "name": None, "more": None}
    request = chat(
        messages=[{"role": "user", "content": [part], **said}, {"role": "user", "content": "b", "id": "2"}],
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    assert prompts(request) == [ChatPrompt(({"role": "user", "content": "a"}, {"role": "user", "content": "b"}))]
    assert (request.stream, request.include_usage) == (True, True)
    assert request.ignored == (
        *("messages.content.cache_control", "messages.id", "messages.type", "messages.reasoning_content"),
        *("messages.weight", "stream_options.continuous_usage_stats"),
    )
    many = {f"x{number}": 1 for number in range(1000)}
    assert len(chat(messages=[{**HELLO[0], **many}]).ignored) == MAX_IGNORED


def test_null_is_absent_at_the_top_also_under_names_that_are_not_known() -> None:
    every = dict.fromkeys((*Chat.model_fields, *NEUTRAL, *REFUSED, "something_else"))
    assert chat(**{**every, "model": "m", "messages": HELLO}) == chat()
    assert refusal(chat, something_else=False).param == "something_else"


def test_chat_without_messages_or_with_other_things_is_refused() -> None:
    assert refusal(chat, messages=[]).param == "messages"
    assert refusal(chat, messages="hello").param == "messages"
    assert refusal(chat, messages=["hello"]).param == "messages[0]"


def test_error_about_a_field_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(FieldError("top_k", "top_k is odd")))
    assert (error.param, str(error), error.code) == ("top_k", "top_k is odd", StatusCode.INVALID_ARGUMENT)
