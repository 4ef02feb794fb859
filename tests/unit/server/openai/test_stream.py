"""Server-sent events of OpenAI's API: whoever reads them, and however slowly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from dataclasses import replace
from typing import Any, cast

import httpx
import orjson
import pytest

from tests.support.language.byte_codec import ByteCodec
from tests.support.language.openai_fixture import PATIENCE, ROOT, Gate, OpenAiServed, serving_openai
from tests.support.servers.process import wait_until
from tfs_lite.core.generation import Finish, Piece, Usage
from tfs_lite.server.http.message import Headers, HttpHead, IncomingBody, Request, StreamResponse
from tfs_lite.server.openai.app import OpenAiSettings
from tfs_lite.server.openai.stream import DONE, WAITING, Choices

COMPLETIONS, CHAT = "/completions", "/chat/completions"
SCRIPT = "Grüße, 世界!"
HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"model": "m", "prompt": "x", "max_tokens": 40, "stream": True}


@pytest.fixture(scope="module")
def served() -> Iterator[OpenAiServed]:
    with serving_openai() as one:
        one.add("m", script=SCRIPT)
        one.add("hash", length=256)
        yield one


def events(data: bytes) -> list[dict[str, Any]]:
    """All but ``[DONE]``, which has to be the last, and comments."""
    *pieces, rest = data.split(b"\n\n")
    assert rest == b""
    found = [piece for piece in pieces if not piece.startswith(b":")]
    assert all(piece.startswith(b"data: ") for piece in found)
    if found[-1] == b"data: [DONE]":
        found.pop()
    return [orjson.loads(piece[6:]) for piece in found]


def open_within(served: OpenAiServed, gate: Gate, **fields: Any) -> bytes:
    """The whole stream of a request whose model is held up after its first piece."""
    with served.client.stream("POST", COMPLETIONS, json={**ASKED, **fields}) as response:
        received = response.iter_raw()
        data = next(received)
        gate.open()
        return data + b"".join(received)


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice.get("text", choice.get("delta", {}).get("content", "")) for choice in choices)


def test_stream_has_the_headers_that_keep_it_flowing(served: OpenAiServed) -> None:
    answer = served.post(COMPLETIONS, ASKED, **{"accept-encoding": "gzip"})
    assert answer.status_code == 200
    expected = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-model-version": "1",
        "transfer-encoding": "chunked",
    }
    assert {name: answer.headers.get(name) for name in expected} == expected
    assert "content-encoding" not in answer.headers
    assert answer.content.endswith(DONE)


def test_stream_is_the_whole_answer_in_pieces(served: OpenAiServed) -> None:
    chunks = events(served.post(COMPLETIONS, ASKED).content)
    assert text_of(chunks) == SCRIPT
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-1:]] == ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


def test_choices_of_a_stream_are_those_of_the_whole_answer(served: OpenAiServed) -> None:
    body = {"model": "hash", "messages": HELLO, "n": 3, "seed": 5, "max_tokens": 50, "logprobs": True}
    whole = served.post(CHAT, body).json()["choices"]
    chunks = events(served.post(CHAT, {**body, "stream": True}).content)
    for choice in whole:
        index = choice["index"]
        assert text_of(chunks, index) == choice["message"]["content"]
        own = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        assert (own[0]["delta"], own[-1]["delta"]) == ({"role": "assistant", "content": ""}, {})
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        entries = [entry for one in own if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]


def test_echo_and_its_log_probabilities_are_the_same_in_a_stream(served: OpenAiServed) -> None:
    body = {**ASKED, "prompt": ["ä", "bb"], "echo": True, "logprobs": 1}
    whole = served.post(COMPLETIONS, {**body, "stream": False}).json()["choices"]
    chunks = events(served.post(COMPLETIONS, body).content)
    for choice in whole:
        assert text_of(chunks, choice["index"]) == choice["text"]
        own = [one["logprobs"] for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        for name, values in choice["logprobs"].items():
            assert [value for one in own for value in one[name]] == values


def test_usage_is_the_last_chunk_for_those_who_want_it(served: OpenAiServed) -> None:
    whole = served.post(COMPLETIONS, {**ASKED, "stream": False, "prompt": ["x", "yy"]}).json()["usage"]
    body = {**ASKED, "prompt": ["x", "yy"], "stream_options": {"include_usage": True}}
    *chunks, last = events(served.post(COMPLETIONS, body).content)
    assert {chunk["usage"] for chunk in chunks} == {None}
    for usage in (whole, last["usage"]):
        usage.pop("prompt_tokens_details")  # the second time the prompts are known
    assert (last["choices"], last["usage"]) == ([], whole)


def test_pieces_arrive_while_the_model_goes_on() -> None:
    with serving_openai() as served:
        gate = served.add("m", script="abc", steps=1)
        with served.client.stream("POST", COMPLETIONS, json=ASKED) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: {"))
            for letter in "abc":
                assert orjson.loads(next(lines).removeprefix("data: "))["choices"][0]["text"] == letter
                gate.let()
            assert orjson.loads(next(lines).removeprefix("data: "))["choices"][0]["finish_reason"] == "stop"


def test_reader_that_waits_hears_that_it_does() -> None:
    with serving_openai(settings=OpenAiSettings(ping=0.02)) as served:
        gate = served.add("m", script="a", steps=0)
        with served.client.stream("POST", COMPLETIONS, json=ASKED) as response:
            assert response.status_code == 200
            received = response.iter_raw()
            assert next(received).startswith(WAITING)
            gate.let()
            data = b""
            while b'"text":"a"' not in data:
                data += next(received)
            while not data.endswith(WAITING):
                data += next(received)
            gate.open()
            data += b"".join(received)
        assert text_of(events(data)) == "a"


def test_failure_behind_the_first_piece_is_the_last_event() -> None:
    with serving_openai() as served:
        gate = served.add("m", choose=lambda tokens, draw: ord("a") if draw.index < 2 else None, steps=1)
        data = open_within(served, gate)
        *chunks, failure = events(data)
        assert (text_of(chunks), list(failure)) == ("aa", ["error"])
        assert (failure["error"]["type"], failure["error"]["code"]) == ("server_error", None)
        assert DONE not in data
        assert served.count("Completions", "INTERNAL") == 1


def test_deadline_within_a_stream_is_an_event() -> None:
    with serving_openai() as served:
        served.add("m", script="abc", steps=1)
        answer = served.post(COMPLETIONS, {**ASKED, "timeout": 0.5})
        one, failure = events(answer.content)
        assert (text_of([one]), failure["error"]["code"]) == ("a", "deadline_exceeded")
        assert served.count("Completions", "DEADLINE_EXCEEDED") == 1


def test_server_that_stops_ends_a_stream_with_an_event() -> None:
    with serving_openai() as served:
        served.add("m", script="abc", steps=1)
        with served.client.stream("POST", COMPLETIONS, json=ASKED) as response:
            received = response.iter_raw()
            data = next(received)
            served.loop.run(served.http.calls.drain(0.0))
            data += b"".join(received)
        assert events(data)[-1]["error"]["message"] == "the server is being stopped"


def test_client_that_goes_ends_its_texts() -> None:
    with serving_openai() as served:
        gate = served.add("m", script="a" * 40, steps=1)
        with served.client.stream("POST", COMPLETIONS, json={**ASKED, "n": 2}) as response:
            next(response.iter_raw())
        wait_until(lambda: served.count("Completions", "CANCELLED"), "it is counted as cancelled")
        gate.let(2)
        wait_until(served.is_empty, "its slots are free", PATIENCE)
        assert served.servables["m"][1].model.steps <= 4


def test_reader_that_takes_nothing_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """The model has long written everything, and the client has not read what the system keeps for it."""
    caplog.set_level("INFO")
    with serving_openai(settings=OpenAiSettings(stream_idle=0.3), patience=2.0) as served:
        served.add("m", script="a" * 250, length=256, slots=16, max_queue=128)
        body = {"model": "m", "messages": HELLO, "n": 64, "max_tokens": 200, "logprobs": True, "top_logprobs": 20}
        with served.raw(CHAT, {**body, "stream": True}, read_bytes=4096) as connection:
            wait_until(lambda: served.count("ChatCompletions", "CANCELLED"), "it is given up", PATIENCE)
            wait_until(served.is_empty, "nothing is left", PATIENCE)
            data = b""
            try:
                while piece := connection.recv(1 << 16):
                    data += piece
            except ConnectionResetError:
                pass
        assert DONE not in data
        assert "the client has read nothing of its answer on /openai/v1/chat/completions for 0.3 s" in caplog.text


def ask(served: OpenAiServed) -> Coroutine[Any, Any, StreamResponse]:
    """Asks the application as a connection would."""
    body = IncomingBody()
    body.feed(orjson.dumps(ASKED))
    body.end()
    length = str(body.held).encode()
    head = HttpHead("POST", f"{ROOT}{COMPLETIONS}", Headers([(b"content-length", length)]))
    request = Request(head, body, time.monotonic())
    return cast("Coroutine[Any, Any, StreamResponse]", served.app.completions(request, ""))


def test_pieces_for_a_slow_reader_leave_as_one_event() -> None:
    with serving_openai() as served:
        gate = served.add("m", script=SCRIPT, steps=1)
        found: list[bytes] = []

        async def scene() -> None:
            stream = await ask(served)
            chunks = cast("AsyncGenerator[bytes, None]", stream.chunks)
            found.append(await anext(chunks))
            gate.open()
            await asyncio.to_thread(wait_until, lambda: not served.handles, "the model is through")
            found.extend([chunk async for chunk in chunks])

        served.loop.run(scene())
        assert text_of([chunk for data in found[:-1] for chunk in events(data)]) == SCRIPT
        assert len(found) <= 4
        assert found[-1] == DONE


@pytest.mark.parametrize("whose", ["server", "model"])
def test_time_for_a_reader_to_read_on_is_the_servers_or_the_models(whose: str) -> None:
    settings = OpenAiSettings(stream_idle=0.1) if whose == "server" else None
    with serving_openai(settings=settings) as served:
        served.add("m", script=SCRIPT)
        if whose == "model":
            servable = served.servables["m"][1]
            servable.traits = replace(servable.traits, stream_idle_timeout=0.1)

        async def scene() -> None:
            stream = await ask(served)
            assert stream.write_timeout == 0.1
            await cast("AsyncGenerator[bytes, None]", stream.chunks).aclose()

        served.loop.run(scene())
        wait_until(served.is_empty, "its slot is free", PATIENCE)
        assert served.count("Completions", "CANCELLED") == 1


class Brittle(ByteCodec):
    """Cannot say what the letter b is."""

    def token_bytes(self, token: int) -> bytes:
        if token == ord("b"):
            raise RuntimeError("the secret is in /etc/secret")
        return super().token_bytes(token)


def test_what_nobody_expected_in_a_stream_is_an_event_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving_openai() as served:
        gate = served.add("m", script="abc", codec=Brittle(), steps=1)
        one, failure = events(open_within(served, gate, logprobs=0))
        assert (text_of([one]), failure["error"]["message"]) == ("a", "internal error")
        assert f"{ROOT}{COMPLETIONS} failed" in caplog.text


def test_pieces_are_joined_by_choice_and_told_when_there_is_something_to_tell() -> None:
    choices = Choices(2, eager=False)
    choices.add(Piece(0, (1,)))
    assert (choices.ready, choices.take()) == (False, [])
    choices.add(Piece(1, (5,), "x"))
    choices.add(Piece(0, (2,), "ab"))
    choices.add(Piece(1, (6,), "y", (), Finish.STOP, 6, Usage(3, 2)))
    assert choices.ready
    assert choices.take() == [Piece(1, (5, 6), "xy", (), Finish.STOP, 6, Usage(3, 2)), Piece(0, (1, 2), "ab")]
    assert (choices.take(), choices.usages) == ([], [None, Usage(3, 2)])


def test_tokens_without_text_are_told_to_the_eager() -> None:
    choices = Choices(1, eager=True)
    choices.add(Piece(0, (1,)))
    assert choices.take() == [Piece(0, (1,))]


def test_many_streams_at_once_do_not_mix(served: OpenAiServed) -> None:
    body = {"model": "hash", "prompt": "x", "max_tokens": 60, "stream": True}
    found: dict[int, str] = {}

    def read(seed: int) -> None:
        with httpx.Client(base_url=served.url, timeout=PATIENCE) as client:
            found[seed] = text_of(events(client.post(COMPLETIONS, json={**body, "seed": seed}).content))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = {
        seed: served.post(COMPLETIONS, {**body, "stream": False, "seed": seed}).json()["choices"][0]["text"]
        for seed in range(8)
    }
    assert found == alone
