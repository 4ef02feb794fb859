"""Language models over the V2 protocol: whole answers, events, and the pieces of a gRPC stream."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import orjson
import pytest

from tests.support.language.language_servables import BROKEN, language
from tests.support.servers.process import wait_until
from tests.support.servers.v2_client import V2Client
from tests.support.servers.v2_fixture import V2Fixture
from tests.support.servers.v2_http_fixture import V2HttpFixture, error, events, serving_v2
from tfs_lite.protocols.v2.tensors import decode_raw
from tfs_lite.server.inference.pending import PART_BYTES, AnswerRoom

GENERATE, STREAM, INFER = (f"/v2/models/lm/{verb}" for verb in ("generate", "generate_stream", "infer"))
HEAD = {"model_name": "lm", "model_version": "1"}
WORDS = "grüße an dich"


@pytest.fixture
def served() -> Iterator[V2HttpFixture]:
    with serving_v2() as one:
        one.models.add("lm", language(WORDS))
        yield one


# One answer over HTTP.


def test_generate_answers_with_the_text_and_why_it_ended(served: V2HttpFixture) -> None:
    answer = served.post(GENERATE, {"id": "7", "text_input": "hi", "parameters": {"max_tokens": 64 - 3}})
    assert answer.json() == {"id": "7", **HEAD, "text_output": WORDS, "finish_reason": "stop"}
    answer = served.post(GENERATE, {"text_input": "hi", "max_tokens": 2})
    assert answer.json() == {**HEAD, "text_output": "gr", "finish_reason": "length"}
    assert served.models.count("OK", "lm") == 2


def test_sampling_values_reach_the_model(served: V2HttpFixture) -> None:
    served.models.add("hash", language(None, name="hash"))

    def text(**values: Any) -> str:
        body = {"text_input": "hi", "parameters": {"max_tokens": 8, **values}}
        found: str = served.post("/v2/models/hash/generate", body).json()["text_output"]
        return found

    assert text(temperature=0) == text(temperature=0, seed=5)
    assert text(temperature=1, seed=5) == text(seed=5) != text(seed=6)
    stopped = served.post(GENERATE, {"text_input": "hi", "parameters": {"stop": ["n d", "ß"], "stop_token_ids": []}})
    assert stopped.json() == {**HEAD, "text_output": "grü", "finish_reason": "stop"}


def test_generate_answers_several_texts_at_once(served: V2HttpFixture) -> None:
    answer = served.post(GENERATE, {"text_input": ["a", "b"], "max_tokens": [1, 20]}).json()
    assert (answer["text_output"], answer["finish_reason"]) == (["g", WORDS], ["length", "stop"])


def test_infer_gives_every_output_or_those_that_are_wanted(served: V2HttpFixture) -> None:
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [[2]]},
    ]
    answer = served.post(INFER, {"inputs": inputs}).json()
    assert {output["name"]: (output["shape"], output["data"]) for output in answer["outputs"]} == {
        "text_output": ([1], ["gr"]),
        "token_ids": ([1, 2], [*b"gr"]),
        "finish_reason": ([1], ["length"]),
        "prompt_tokens": ([1], [3]),
        "completion_tokens": ([1], [2]),
    }
    wanted = {"inputs": inputs[:1], "outputs": [{"name": "token_ids"}], "parameters": {"max_tokens": 1}}
    assert [output["data"] for output in served.post(INFER, wanted).json()["outputs"]] == [[ord("g")]]


def test_model_without_a_tokenizer_speaks_tokens(served: V2HttpFixture) -> None:
    served.models.add("ids", language("abc", name="ids", has_text=False))
    body = {"input_ids": [1, 2, 3]}
    answer = served.post("/v2/models/ids/generate", body).json()
    assert (answer["token_ids"], answer["finish_reason"], "text_output" in answer) == ([*b"abc", 256], "stop", False)
    stream = events(served.post("/v2/models/ids/generate_stream", body))
    assert [event["token_ids"] for event in stream] == [*b"abc", 256]
    assert ["finish_reason" in event for event in stream] == [False, False, False, True]


# Events.


def test_every_piece_of_text_is_an_event(served: V2HttpFixture) -> None:
    *some, last = events(served.post(STREAM, {"id": "4", "text_input": "hi", "max_tokens": 40}))
    assert some == [{"id": "4", **HEAD, "text_output": character} for character in WORDS]
    assert last == {"id": "4", **HEAD, "text_output": "", "finish_reason": "stop"}
    assert served.models.count("OK", "lm") == 1


def test_events_come_while_the_model_works(served: V2HttpFixture) -> None:
    model = served.models.servables["lm", 1]
    model.steps.let(2)
    with served.client.stream("POST", STREAM, json={"text_input": "hi"}) as response:
        lines = (line for line in response.iter_lines() if line)
        assert [orjson.loads(next(lines).removeprefix("data: "))["text_output"] for _ in "gr"] == ["g", "r"]
        model.steps.open()
        assert orjson.loads(list(lines)[-1].removeprefix("data: "))["finish_reason"] == "stop"


def test_a_failure_after_the_first_piece_is_an_event(served: V2HttpFixture) -> None:
    served.models.add("lm", language(f"ab{BROKEN}c"))
    answer = served.post(STREAM, {"text_input": "hi"})
    *some, last = events(answer)
    assert (answer.status_code, [event["text_output"] for event in some]) == (200, ["a", "b"])
    assert (list(last), "model lm version 1 failed on this text" in last["error"]) == (["error"], True)
    assert served.models.count("INTERNAL", "lm") == 1


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("unknown parameter", {"text_input": "hi", "temprature": 1}, 'no parameter "temprature"; did you mean "temper'),
    ("bad value", {"text_input": "hi", "temperature": -1}, "temperature is -1.0, expected at least 0.0"),
    ("wrong type", {"text_input": "hi", "max_tokens": "many"}, "attempt to access JSON non-signed-integer"),
    ("too long", {"text_input": "x" * 60, "max_tokens": 60}, "60"),
    ("no prompt", {"max_tokens": 4}, "expected either text_input or input_ids, and neither came"),
    ("empty list", {"text_input": []}, "expected either text_input or input_ids, and neither came"),
    ("two prompts", {"text_input": "hi", "input_ids": [1]}, "and both came"),
    ("too many values", {"text_input": "hi", "seed": [1, 2]}, "seed has 2 values, expected 1"),
]


@pytest.mark.parametrize("path", [GENERATE, STREAM], ids=["generate", "generate_stream"])
@pytest.mark.parametrize(("body", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_request_that_the_model_refuses_is_an_ordinary_error(
    served: V2HttpFixture, path: str, body: dict[str, Any], words: str
) -> None:
    answer = served.post(path, body)
    assert (answer.status_code, words in error(answer)) == (400, True), answer.text
    assert sum(served.models.count("INVALID_ARGUMENT", "lm", version) for version in ("", "1")) == 1


def test_stream_takes_one_text(served: V2HttpFixture) -> None:
    answer = served.post(STREAM, {"text_input": ["a", "b"]})
    expected = "the request has 2 texts for model 'lm', which takes one at a time"
    assert (answer.status_code, expected in error(answer)) == (400, True)


@pytest.mark.parametrize("path", [GENERATE, STREAM], ids=["generate", "generate_stream"])
def test_full_queue_is_an_error_with_a_hint(path: str) -> None:
    with serving_v2() as served:
        model = served.models.add("lm", language(WORDS, slots=1, max_queue=0))
        model.steps.shut()
        with hold(served):
            wait_until(lambda: model.steps.held, "the model works")
            answer = served.post(path, {"text_input": "hi"})
            assert (answer.status_code, "queue is full" in error(answer)) == (503, True)
            assert int(answer.headers["retry-after"]) > 0
            model.steps.open()


def hold(served: V2HttpFixture) -> socket.socket:
    """A client that asks for a stream and does not read it."""
    body = orjson.dumps({"text_input": "hi", "max_tokens": 50, "ignore_eos": True})
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=30)
    head = f"POST {STREAM} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_client_that_goes_frees_its_slot_in_the_model() -> None:
    with serving_v2() as served:
        model = served.models.add("lm", language(WORDS, slots=1))
        model.steps.shut()
        with hold(served):
            wait_until(lambda: model.steps.held, "the model works")
            assert model.state().running == 1
        wait_until(lambda: served.models.count("CANCELLED", "lm"), "it is counted as cancelled")
        model.steps.open()
        wait_until(lambda: model.state().running == 0 and served.models.handles == 0, "its slot is free")
        assert served.post(GENERATE, {"text_input": "hi", "max_tokens": 40}).json()["text_output"] == WORDS


def test_deadline_ends_a_text() -> None:
    with serving_v2(timeout_seconds=0.3) as served:
        model = served.models.add("lm", language(WORDS))
        model.steps.let(1)
        one, failure = events(served.post(STREAM, {"text_input": "hi"}))
        assert (one["text_output"], "the deadline passed" in failure["error"]) == ("g", True)
        assert served.models.count("DEADLINE_EXCEEDED", "lm") == 1
        model.steps.open()


def test_pieces_that_wait_are_bounded() -> None:
    with serving_v2(room=AnswerRoom(one=3 * PART_BYTES)) as served:
        model = served.models.add("lm", language(WORDS))
        model.steps.shut()

        def stall() -> None:
            """Keeps the loop busy while the model gives all of its text."""
            model.steps.open()
            wait_until(lambda: model.state().running == 0, "the text is over")

        with hold(served) as connection:
            wait_until(lambda: model.steps.held, "the model works")
            served.loop.loop.call_soon_threadsafe(stall)
            answer = read_all(connection)
        assert b"more slowly than the model makes them" in answer
        assert served.models.count("RESOURCE_EXHAUSTED", "lm") == 1


def read_all(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"0\r\n\r\n"):
        found += connection.recv(65536)
    return found


# gRPC.


@pytest.fixture
def models(models: V2Fixture) -> V2Fixture:
    models.add("lm", language(WORDS))
    return models


def asked(*texts: str, max_tokens: int = 40, outputs: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    contents = {"bytes_contents": [text.encode() for text in texts or ("hi",)]}
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [len(texts) or 1], "contents": contents}
    parameters = {"max_tokens": {"int64_param": max_tokens}, **fields.pop("parameters", {})}
    wanted = [{"name": name} for name in outputs]
    return {"model_name": "lm", "inputs": [tensor], "parameters": parameters, "outputs": wanted, **fields}


def outputs_of(response: Any) -> dict[str, Any]:
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {each.name: decode_raw(each.datatype, tuple(each.shape), raw).tolist() for each, raw in pairs}


def is_final(answer: Any) -> bool:
    found: bool = answer.infer_response.parameters["triton_final_response"].bool_param
    return found


def texts_of(answers: list[Any]) -> str:
    return b"".join(outputs_of(answer.infer_response)["text_output"][0] for answer in answers).decode()


EMPTY_FINAL = {"triton_enable_empty_final_response": {"bool_param": True}}


def test_model_infer_gives_the_whole_text(client: V2Client, models: V2Fixture) -> None:
    found = outputs_of(client.call("ModelInfer", **asked("a", "bc")))
    ids = [*WORDS.encode(), 256]
    assert found == {
        "text_output": [WORDS.encode()] * 2,
        "token_ids": [ids, ids],
        "finish_reason": [b"stop"] * 2,
        "prompt_tokens": [2, 3],
        "completion_tokens": [len(ids)] * 2,
    }
    assert outputs_of(client.call("ModelInfer", **asked(outputs=("text_output",)))) == {"text_output": [WORDS.encode()]}


def test_what_the_model_refuses_is_a_status(client: V2Client, models: V2Fixture) -> None:
    code, message = client.refusal("ModelInfer", **asked(parameters={"top_q": {"double_param": 0.5}}))
    assert (code, 'no parameter "top_q"; did you mean "top_p"' in message) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, message = client.refusal("ModelInfer", **asked(max_tokens=100))
    assert (code, "100" in message) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert client.refusal("ModelInfer", **asked(outputs=("text",)))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("parameters", [{}, EMPTY_FINAL], ids=["plain", "with empty final wanted"])
def test_stream_has_a_piece_for_every_token_and_the_last_is_final(client, models, parameters: dict[str, Any]) -> None:
    stream = client.stream()
    stream.send(**asked(id="5", parameters=parameters))
    stream.end()
    answers = stream.rest()
    assert [is_final(answer) for answer in answers] == [False] * len(WORDS.encode()) + [True]
    assert {answer.infer_response.id for answer in answers} == {"5"}
    assert texts_of(answers) == WORDS
    first, last = outputs_of(answers[0].infer_response), outputs_of(answers[-1].infer_response)
    assert (first["token_ids"], first["finish_reason"], first["completion_tokens"]) == ([[ord("g")]], [b""], [0])
    assert (last["finish_reason"], last["prompt_tokens"], last["completion_tokens"]) == ([b"stop"], [3], [len(answers)])
    assert models.count("OK", "lm") == 1


def test_texts_of_one_stream_go_on_side_by_side(client: V2Client, models: V2Fixture) -> None:
    steps = models.servables["lm", 1].steps
    steps.shut()
    stream = client.stream()
    stream.send(**asked(id="long"))
    stream.send(**asked(id="short", max_tokens=2, outputs=("text_output",)))
    wait_until(lambda: models.handles == 2, "both are inside")
    steps.open()
    stream.end()
    answers = stream.rest()
    ends = [answer.infer_response.id for answer in answers if is_final(answer)]
    assert ends == ["short", "long"]
    short = [answer for answer in answers if answer.infer_response.id == "short"]
    assert [outputs_of(answer.infer_response) for answer in short] == [{"text_output": [b"g"]}, {"text_output": [b"r"]}]
    assert texts_of([answer for answer in answers if answer.infer_response.id == "long"]) == WORDS


def test_failures_are_answers_and_the_stream_goes_on(client: V2Client, models: V2Fixture) -> None:
    stream = client.stream()
    stream.send(**asked("a", "b", id="several"))
    stream.send(**asked(id="unknown", parameters={"tmp": {"int64_param": 1}}))
    stream.send(**asked(id="good", max_tokens=1))
    stream.end()
    answers = {answer.infer_response.id: answer for answer in stream.rest()}
    assert "the request has 2 texts for model 'lm'" in answers["several"].error_message
    assert 'no parameter "tmp"' in answers["unknown"].error_message
    assert (answers["good"].error_message, texts_of([answers["good"]])) == ("", "g")
    assert all(map(is_final, answers.values()))


def test_stream_that_is_cancelled_frees_its_slots(client: V2Client, models: V2Fixture) -> None:
    model = models.servables["lm", 1]
    model.steps.let(1)
    stream = client.stream()
    stream.send(**asked())
    assert texts_of([stream.next()]) == "g"
    assert model.state().running == 1
    stream.calls.cancel()
    wait_until(lambda: models.count("CANCELLED", "lm"), "it is counted as cancelled")
    model.steps.open()
    wait_until(lambda: model.state().running == 0 and models.handles == 0, "its slot is free")


def test_tokens_may_be_sent_instead_of_texts(client: V2Client, models: V2Fixture) -> None:
    raw = np.array([[257, 1], [257, 2]], np.int64)
    tensor = {"name": "input_ids", "datatype": "INT64", "shape": raw.shape}
    found = client.call("ModelInfer", model_name="lm", inputs=[tensor], raw_input_contents=[raw.tobytes()])
    assert outputs_of(found)["text_output"] == [WORDS.encode()] * 2
