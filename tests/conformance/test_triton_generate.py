"""The generate extension, which Triton's users call by plain HTTP."""

import json

import pytest

from tests.conformance.servers import post


@pytest.fixture
def generate(triton_server):
    """``generate(path, body)``: (status, content type, text)."""

    def send(path, body):
        answer = post(f"127.0.0.1:{triton_server.http_port}", f"/v2/models/{path}", body)
        return answer.status_code, answer.headers["Content-Type"], answer.text

    return send


def events(text):
    pieces = text.split("\n\n")
    assert pieces.pop() == ""
    assert all(piece.startswith("data: ") for piece in pieces)
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces]


def test_inputs_by_name_and_one_answer(generate):
    status, kind, text = generate("echo/generate", {"text_input": "one two", "id": "g", "temperature": 0.5})
    assert (status, kind.split(";")[0]) == (200, "application/json")
    assert json.loads(text) == {"model_name": "echo", "model_version": "1", "id": "g", "text_output": "two one"}


def test_inputs_may_be_among_the_parameters(generate):
    _, _, text = generate("echo/versions/1/generate", {"parameters": {"text_input": "a b c", "stream": False}})
    assert json.loads(text) == {"model_name": "echo", "model_version": "1", "text_output": "c b a"}


def test_stream_has_an_event_for_each_answer(generate):
    status, kind, text = generate("words/generate_stream", {"text_input": "to be or not"})
    assert (status, kind) == (200, "text/event-stream; charset=utf-8")
    assert [event["text_output"] for event in events(text)] == ["to", "be", "or", "not"]
    assert {event["model_name"] for event in events(text)} == {"words"}


def test_stream_of_an_ordinary_model_has_one_event(generate):
    _, _, text = generate("echo/generate_stream", {"text_input": "x y"})
    assert [event["text_output"] for event in events(text)] == ["y x"]


@pytest.mark.parametrize(("text", "works"), [("one", True), ("one two", False), ("", False)], ids=["1", "2", "0"])
def test_generate_wants_exactly_one_answer(generate, text, works):
    status, _, body = generate("words/generate", {"text_input": text})
    if works:
        assert (status, json.loads(body)["text_output"]) == (200, "one")
    else:
        assert status >= 400
        assert "generate expects model to produce exactly 1 response" in json.loads(body)["error"]


def test_numbers_take_the_datatype_and_shape_of_the_model(generate):
    _, _, text = generate("repeat/generate_stream", {"IN": [3, 4]})
    assert [(event["OUT"], event["IDX"]) for event in events(text)] == [(3, 0), (4, 1)]
    _, _, text = generate("sums/versions/1/generate", {"a": [1, 2, 3, 4], "b": [1, 1, 1, 1]})
    assert json.loads(text)["sum"] == [3, 4, 5, 6]


@pytest.mark.parametrize("how", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("path", "body", "statuses", "words"),
    [
        ("none_such", {"text_input": "x"}, (404,), "Request for unknown model: 'none_such' is not found"),
        ("echo", {}, (400,), "echo"),
        ("echo", {"text_input": {"a": 1}}, (400, 500), "text_input"),
        ("echo", {"text_input": "x", "parameters": 1}, (400, 500), "parameters"),
        ("echo", {"text_input": "x", "other": [1]}, (400,), "parameter 'other' has invalid type"),
        ("sums", {"a": [1, 2, 3], "b": [1, 1, 1, 1]}, (400,), "can not convert input"),
    ],
    ids=range(6),
)
def test_mistakes_are_plain_errors(generate, how, path, body, statuses, words):
    status, kind, text = generate(f"{path}/{how}", body)
    assert status in statuses
    assert kind.split(";")[0] == "application/json"
    assert words in json.loads(text)["error"]


def test_failure_of_the_model_is_an_event_of_a_stream(generate):
    status, kind, text = generate("fails/generate_stream", {"x": [1, 2]})
    assert (status, kind) == (500, "text/event-stream; charset=utf-8")
    (event,) = events(text)
    assert set(event) == {"error"}
