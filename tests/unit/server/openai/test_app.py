"""OpenAI's API over HTTP: whole answers, models, and everything that can go wrong before an answer begins."""

from __future__ import annotations

import gzip
import logging
import math
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from tests.support.language.byte_codec import ByteCodec
from tests.support.language.openai_fixture import CREATED, PATIENCE, OpenAiServed, error, serving_openai
from tests.support.servers.process import wait_until
from tests.support.servers.v2_fixture import SIMPLE, FunctionModel, FunctionServable
from tfs_lite.core.model import Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.server.openai.app import OpenAiSettings
from tfs_lite.server.openai.errors import openai_error, retry_after

COMPLETIONS, CHAT = "/completions", "/chat/completions"
SCRIPT = "Grüße, 世界!"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def served() -> Iterator[OpenAiServed]:
    with serving_openai() as one:
        one.add("m", script="the old one")
        one.add("m", 2, script=SCRIPT)
        one.add("hash", length=256)
        one.add("numbers", text=False)
        one.add("plain", script=SCRIPT, codec=ByteCodec(has_chat_template=False))
        one.add("a:b@3", script="odd")
        one.labels["m", "stable"] = 1
        sums = FunctionModel(SIMPLE, lambda inputs: {})
        one.servables["sums"] = {1: FunctionServable(sums, ServableId("sums", 1))}
        one.servables["gone"] = {}
        yield one


def texts(served: OpenAiServed, **fields: Any) -> list[str]:
    answer = served.post(COMPLETIONS, {"model": "hash", "prompt": "x", **fields})
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def test_ignored_names_are_counted_by_their_object_and_each_is_logged_once(
    served: OpenAiServed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served.registry.register(served.app.ignored.collector)
    sent = {"model": "m", "messages": [{**HELLO[0], "id": "1"}], "stream": True, "stream_options": {"odd": 1}}
    for _ in range(2):
        assert served.post(CHAT, sent).status_code == 200
    for kind in ("messages", "stream_options"):
        labels = {"object": kind}
        assert served.registry.get_sample_value("tfs_lite_openai_ignored_names_total", labels) == 2
    lines = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert lines == [
        f"ChatCompletions: requests have the name '{name}', which is not known and is ignored"
        for name in ("messages.id", "stream_options.odd")
    ]


def test_completion_is_the_models_text(served: OpenAiServed) -> None:
    answer = served.post(COMPLETIONS, {"model": "m", "prompt": "x", "max_tokens": 40})
    tree = answer.json()
    assert (answer.status_code, answer.headers["x-model-version"]) == (200, "2")
    assert (tree["model"], tree["system_fingerprint"], tree["created"]) == ("m", "m:2", int(CREATED))
    assert tree["id"].startswith("cmpl-")
    (choice,) = tree["choices"]
    assert (choice["text"], choice["finish_reason"]) == (SCRIPT, "stop")
    assert tree["usage"]["completion_tokens"] == len(SCRIPT.encode()) + 1


def test_completion_ends_after_sixteen_tokens_unless_asked(served: OpenAiServed) -> None:
    answer = served.post(COMPLETIONS, {"model": "m", "prompt": "x", "ignore_eos": True}).json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (16, "length")


def test_chat_goes_through_the_template_and_on_to_the_end(served: OpenAiServed) -> None:
    answer = served.post(CHAT, {"model": "m", "messages": HELLO}).json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": SCRIPT, "refusal": None}
    assert answer["usage"]["prompt_tokens"] == len("_user: hello\nassistant:")


def test_every_choice_is_what_its_own_seed_gives(served: OpenAiServed) -> None:
    together = texts(served, prompt=["x", "y"], n=2, seed=5)
    alone = [texts(served, prompt=prompt, seed=seed)[0] for prompt in "xy" for seed in (5, 6)]
    assert together == alone
    assert len(set(together)) == 4


def test_prompt_may_be_tokens(served: OpenAiServed) -> None:
    as_text = texts(served, prompt="ab", temperature=0)
    assert texts(served, prompt=ByteCodec().encode("ab"), temperature=0) == as_text
    assert texts(served, prompt=[ByteCodec().encode("ab")] * 2, temperature=0) == as_text * 2


def test_echo_scores_the_prompt_without_a_new_token(served: OpenAiServed) -> None:
    body = {"model": "hash", "prompt": "ab", "echo": True, "logprobs": 2, "max_tokens": 0}
    (choice,) = served.post(COMPLETIONS, body).json()["choices"]
    logprobs = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["<s>", "a", "b"], [0, 0, 1])
    assert [value is None for value in logprobs["token_logprobs"]] == [True, False, False]
    assert logprobs["top_logprobs"][0] is None
    assert len(logprobs["top_logprobs"][1]) == 3


def test_echo_goes_on_after_the_prompt(served: OpenAiServed) -> None:
    answer = served.post(
        COMPLETIONS, {"model": "m", "prompt": ["ä", "b"], "echo": True, "max_tokens": 40, "logprobs": 0}
    )
    choices = answer.json()["choices"]
    assert [choice["text"] for choice in choices] == ["ä" + SCRIPT, "b" + SCRIPT]
    assert len(choices[0]["logprobs"]["tokens"]) == len(("_ä" + SCRIPT).encode()) + 1


def test_stop_text_ends_a_choice_and_is_told(served: OpenAiServed) -> None:
    body = {"model": "m", "prompt": "x", "stop": ["ße", "zz"], "max_tokens": 40}
    (choice,) = served.post(COMPLETIONS, body).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Grü", "stop", "ße")
    (choice,) = served.post(COMPLETIONS, {**body, "include_stop_str_in_output": True}).json()["choices"]
    assert choice["text"] == "Grüße"


def test_log_probabilities_of_a_chat_tell_as_many_others_as_wanted(served: OpenAiServed) -> None:
    body = {"model": "m", "messages": HELLO, "logprobs": True, "top_logprobs": 3, "max_tokens": 3}
    content = served.post(CHAT, body).json()["choices"][0]["logprobs"]["content"]
    assert [bytes(entry["bytes"]) for entry in content] == [bytes([byte]) for byte in SCRIPT.encode()[:3]]
    assert {len(entry["top_logprobs"]) for entry in content} == {3}


def test_large_answer_with_log_probabilities_is_printed_and_packed(served: OpenAiServed) -> None:
    body = {"model": "hash", "prompt": "x", "n": 4, "max_tokens": 100, "logprobs": 20, "ignore_eos": True}
    answer = served.post(COMPLETIONS, body)
    assert answer.headers["content-encoding"] == "gzip"
    assert [len(choice["logprobs"]["tokens"]) for choice in answer.json()["choices"]] == [100] * 4


@pytest.mark.parametrize(
    ("model", "text", "version"),
    [("m", SCRIPT, "2"), ("m@1", "the old one", "1"), ("m:stable", "the old one", "1"), ("a:b@3", "odd", "1")],
)
def test_model_may_be_named_with_version_or_label(served: OpenAiServed, model: str, text: str, version: str) -> None:
    answer = served.post(COMPLETIONS, {"model": model, "prompt": "x", "max_tokens": 40})
    assert (answer.json()["choices"][0]["text"], answer.headers["x-model-version"]) == (text, version)
    assert answer.json()["model"] == model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nobody", "The model 'nobody' does not exist"),
        ("nobody@1", "The model 'nobody@1' does not exist"),
        ("nobody:stable", "does not exist"),
        ("@1", "does not exist"),
        (":x", "does not exist"),
        ("m@7", "The model 'm' has no version 7 that is available; there are: 1, 2"),
        ("m@" + "9" * 19, "has no version"),
        ("m:canary", "The model 'm' has no label 'canary'"),
    ],
)
def test_unknown_model_is_404_in_openais_words(served: OpenAiServed, model: str, message: str) -> None:
    for path, body in (
        (COMPLETIONS, {"prompt": "x"}),
        (CHAT, {"messages": HELLO}),
        (CHAT, {"messages": HELLO, "stream": True}),
    ):
        answer = served.post(path, {"model": model, **body})
        found = error(answer)
        assert (answer.status_code, message in found["message"]) == (404, True)
        assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", "model", "model_not_found")


def test_known_model_without_a_version_is_503(served: OpenAiServed) -> None:
    answer = served.post(COMPLETIONS, {"model": "gone", "prompt": "x"})
    found = error(answer)
    assert (answer.status_code, answer.headers["retry-after"], found["type"]) == (503, "1", "server_error")
    assert found["message"] == "The model 'gone' has no version that is available now"
    assert served.post(COMPLETIONS, {"model": "gone@3", "prompt": "x"}).status_code == 503


def test_model_without_a_tokenizer_answers_numbers_to_those_who_ask(served: OpenAiServed) -> None:
    answer = served.post(
        COMPLETIONS, {"model": "numbers", "prompt": [1, 2], "return_token_ids": True, "ignore_eos": True}
    )
    (choice,) = answer.json()["choices"]
    assert (choice["text"], len(choice["token_ids"])) == ("", 16)


REFUSED: list[tuple[str, dict[str, Any], str | None, str | None, str]] = [
    (CHAT, {"model": "sums"}, "model", None, "is no language model"),
    (CHAT, {"model": "plain"}, None, None, "no chat template"),
    (COMPLETIONS, {"model": "numbers", "prompt": [1, 2]}, "return_token_ids", None, "return_token_ids"),
    (COMPLETIONS, {"max_tokens": 64}, None, "context_length_exceeded", "64"),
    (COMPLETIONS, {"temperature": 101}, "temperature", None, ""),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens", None, ""),
    (COMPLETIONS, {"stop_token_ids": [258]}, "stop_token_ids", None, ""),
    (COMPLETIONS, {"logit_bias": {"300": 1}}, "logit_bias", None, ""),
    (COMPLETIONS, {"min_tokens": 20}, "min_tokens", None, ""),
    (COMPLETIONS, {"stop": [""]}, "stop", None, ""),
    (COMPLETIONS, {"prompt": [258]}, None, None, ""),
    (COMPLETIONS, {"tools": [{"type": "function"}]}, "tools", None, ""),
    (COMPLETIONS, {"unknown": 1}, "unknown", None, ""),
]


@pytest.mark.parametrize(("path", "fields", "param", "code", "words"), REFUSED, ids=repr)
@pytest.mark.parametrize("stream", [False, True])
def test_request_that_the_model_cannot_answer_is_400(
    served: OpenAiServed,
    path: str,
    fields: dict[str, Any],
    param: str | None,
    code: str | None,
    words: str,
    stream: bool,
) -> None:
    asked = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    answer = served.post(path, {"model": "m", **asked, "stream": stream, **fields})
    found = error(answer)
    assert (answer.status_code, found["type"], found["code"]) == (400, "invalid_request_error", code)
    assert found["param"] == param or param is None
    assert words in found["message"]


def test_body_that_cannot_be_read_is_told_with_a_status(served: OpenAiServed) -> None:
    broken = served.post(COMPLETIONS, b"{")
    assert (broken.status_code, "JSON Parse error" in error(broken)["message"]) == (400, True)
    large = served.post(COMPLETIONS, b" " * (9 << 20))
    assert (large.status_code, error(large)["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_packed_body_is_unpacked(served: OpenAiServed, encoding: str, pack: Any) -> None:
    body = pack(orjson.dumps({"model": "m", "prompt": "x", "max_tokens": 40}))
    answer = served.post(COMPLETIONS, body, **{"content-encoding": encoding})
    assert answer.json()["choices"][0]["text"] == SCRIPT


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/completions", 405),
        ("POST", "/models", 405),
        ("DELETE", "/models/m", 405),
        ("GET", "/chat", 404),
        ("POST", "/audio/speech", 404),
    ],
)
def test_other_paths_and_methods_have_openais_errors(served: OpenAiServed, method: str, path: str, status: int) -> None:
    answer = served.client.request(method, path)
    assert (answer.status_code, error(answer)["type"]) == (status, "invalid_request_error")
    assert ("allow" in answer.headers) == (status == 405)


def test_only_language_models_that_can_be_asked_are_listed(served: OpenAiServed) -> None:
    tree = served.client.get("/models").json()
    assert tree["object"] == "list"
    assert sorted(model["id"] for model in tree["data"]) == ["a:b@3", "hash", "m", "numbers", "plain"]
    model = {"id": "m", "object": "model", "created": int(CREATED), "owned_by": "tfs_lite"}
    assert model in tree["data"]
    assert served.client.get("/models/m").json() == model
    assert served.client.get("/models/m@1").json()["id"] == "m@1"
    assert served.client.get("/models/a%3Ab@3").json()["id"] == "a:b@3"


@pytest.mark.parametrize(
    ("name", "status"), [("nobody", 404), ("m@7", 404), ("sums", 404), ("gone", 503), ("%ff", 404)]
)
def test_model_that_cannot_be_asked_cannot_be_retrieved(served: OpenAiServed, name: str, status: int) -> None:
    answer = served.client.get(f"/models/{name}")
    assert (answer.status_code, error(answer)["code"] is not None) == (status, True)


def test_requests_are_counted_under_their_models() -> None:
    with serving_openai() as served:
        served.add("m", script="a")
        served.post(COMPLETIONS, {"model": "m@1", "prompt": "x"})
        served.post(CHAT, {"model": "m", "messages": HELLO, "stream": True})
        served.post(CHAT, {"model": "m", "messages": HELLO, "n": 0})
        served.post(CHAT, {"model": "nobody", "messages": HELLO})
        served.client.get("/models")
        assert served.count("Completions", "OK") == 1
        assert served.count("ChatCompletions", "OK") == 1
        assert served.count("ChatCompletions", "INVALID_ARGUMENT", "", "") == 1
        assert served.count("ChatCompletions", "NOT_FOUND", "unknown", "") == 1
        assert served.count("ListModels", "OK", "", "") == 1


def test_full_queue_is_429_and_says_when_to_come_again() -> None:
    with serving_openai() as served:
        gate = served.add("m", script="a", slots=1, max_queue=0, steps=0)
        body = {"model": "m", "prompt": "x"}
        with served.raw(COMPLETIONS, body):
            gate.wait()
            for stream in (False, True):
                answer = served.post(COMPLETIONS, {**body, "stream": stream})
                found = error(answer)
                assert (answer.status_code, found["type"]) == (429, "rate_limit_error")
                assert found["code"] == "rate_limit_exceeded"
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert served.count("Completions", "UNAVAILABLE") == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["header", "body", "server"])
def test_time_that_is_up_is_504_and_frees_the_slot(where: str, stream: bool) -> None:
    settings = OpenAiSettings(timeout=0.2) if where == "server" else None
    with serving_openai(settings=settings) as served:
        gate = served.add("m", script="a", slots=1, steps=0)
        body = {"model": "m", "prompt": "x", "stream": stream, **({"timeout": 0.2} if where == "body" else {})}
        answer = served.post(COMPLETIONS, body, **({"timeout": "0.2"} if where == "header" else {}))
        assert (answer.status_code, error(answer)["code"]) == (504, "deadline_exceeded")
        assert answer.headers["x-should-retry"] == "false"
        assert served.count("Completions", "DEADLINE_EXCEEDED") == 1
        gate.open()
        wait_until(served.is_empty, "the slot is free", PATIENCE)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", ""])
def test_header_that_is_no_time_is_400(served: OpenAiServed, text: str) -> None:
    answer = served.post(COMPLETIONS, {"model": "m", "prompt": "x"}, timeout=text)
    assert (answer.status_code, error(answer)["param"]) == (400, "timeout")


def test_model_that_fails_is_500_without_its_reasons() -> None:
    with serving_openai() as served:
        served.add("m", choose=lambda tokens, draw: None)
        answer = served.post(COMPLETIONS, {"model": "m", "prompt": "x"})
        assert (answer.status_code, error(answer)["type"]) == (500, "server_error")


def test_what_nobody_expected_is_an_internal_error_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving_openai() as served:
        served.servables["m"] = {1: SimpleNamespace(traits=Traits("test"))}
        answer = served.post(COMPLETIONS, {"model": "m", "prompt": "x"})
        assert (answer.status_code, error(answer)["message"]) == (400, "The model 'm' is no language model")
        served.servables["m"] = 5  # type: ignore[assignment]
        answer = served.post(COMPLETIONS, {"model": "m", "prompt": "x"})
        assert (answer.status_code, error(answer)["message"]) == (500, "internal error")
        assert "POST /openai/v1/completions failed" in caplog.text
        del served.servables["m"]


def test_server_that_has_stopped_lets_nobody_in() -> None:
    with serving_openai() as served:
        gate = served.add("m", script="a", steps=0)
        with served.raw(COMPLETIONS, {"model": "m", "prompt": "x"}):
            gate.wait()
            served.loop.run(served.http.calls.drain(0.0))
        answer = served.post(CHAT, {"model": "m", "messages": HELLO})
        assert (answer.status_code, error(answer)["message"]) == (503, "the server is being stopped")


def test_client_that_goes_cancels_its_text() -> None:
    with serving_openai() as served:
        gate = served.add("m", script="a" * 40, steps=0)
        with served.raw(COMPLETIONS, {"model": "m", "prompt": "x", "max_tokens": 40}):
            gate.wait()
        wait_until(lambda: served.count("Completions", "CANCELLED"), "it is counted as cancelled")
        gate.let(2)
        wait_until(served.is_empty, "the slot is free", PATIENCE)
        assert served.servables["m"][1].model.steps <= 2


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (1.2, "2"), (math.inf, "60")])
def test_time_to_come_again_is_whole_and_bounded(seconds: float, header: str) -> None:
    full = ServingError(StatusCode.UNAVAILABLE, "full", Reason.QUEUE_FULL)
    assert openai_error(retry_after(full, seconds)).headers["retry-after"] == header
