"""OpenAI's own client against a real server: what it reads, and what it raises."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.language.openai_fixture import CREATED, PATIENCE, OpenAiServed, serving_openai

COMPLETIONS = "/completions"
SCRIPT = "Grüße, 世界!"


@pytest.fixture(scope="module")
def served() -> Iterator[OpenAiServed]:
    with serving_openai() as one:
        one.add("m", 2, script=SCRIPT)
        one.servables["gone"] = {}
        yield one


@pytest.fixture(scope="module")
def client(served: OpenAiServed) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=served.url, max_retries=0, timeout=PATIENCE) as one:
        yield one


def test_openais_client_reads_whole_answers(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="m", prompt="x", max_tokens=40, logprobs=1, user="me")
    assert (completion.choices[0].text, completion.system_fingerprint) == (SCRIPT, "m:2")
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[:2] == ["G", "r"]
    chat = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "q"}], logprobs=True, top_logprobs=2, extra_body={"top_k": 5}
    )
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == (SCRIPT, "stop")
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 2
    assert chat.usage is not None
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens


def test_openais_client_reads_streams(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="m", prompt="x", max_tokens=40, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == SCRIPT
    chunks = list(
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "q"}], stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == SCRIPT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(SCRIPT.encode()) + 1


def test_openais_client_knows_the_models(client: openai.OpenAI) -> None:
    assert "m" in [model.id for model in client.models.list()]
    assert client.models.retrieve("m").created == int(CREATED)


def test_openais_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nobody", prompt="x")
    assert (missing.value.code, missing.value.type) == ("model_not_found", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="temperature is 200") as bad:
        client.completions.create(model="m", prompt="x", temperature=200)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="gone", prompt="x")


def test_openais_client_sees_full_queues_and_failures_in_streams() -> None:
    with serving_openai() as served:
        full = served.add("full", script="a", slots=1, max_queue=0)
        broken = served.add("m", choose=lambda tokens, draw: ord("a") if draw.index < 3 else None)
        full.shut()
        with (
            served.raw(COMPLETIONS, {"model": "full", "prompt": "x"}),
            openai.OpenAI(api_key="none", base_url=served.url, max_retries=0, timeout=PATIENCE) as client,
        ):
            full.wait()
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(model="full", prompt="x")
            assert "retry-after" in refused.value.response.headers
            full.open()
            broken.shut()
            broken.let(2)
            stream = client.completions.create(model="m", prompt="x", stream=True)
            assert next(stream).choices[0].text
            broken.open()
            with pytest.raises(openai.APIError) as failed:
                list(stream)
            assert failed.value.type == "server_error"
