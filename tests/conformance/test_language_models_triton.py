"""Triton's own clients on language models: whole responses, chunks in a stream, and the generate extension by HTTP."""

import asyncio
import json
import queue

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from tests.conformance.triton_fixtures import connected

PATIENCE = 60
LONG = 16_000
"""Tokens: many seconds of work for the model ``narrow``."""
GREEDY = {"temperature": 0.0, "max_tokens": 24}
OUTPUTS = ["text_output", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens"]


@pytest.fixture(scope="module")
def grpc_lm(language_server):
    with connected("grpc", language_server.process) as api:
        yield api


@pytest.fixture(scope="module", params=["grpc", "http"])
def lm(request, language_server):
    with connected(request.param, language_server.process) as api:
        yield api


@pytest.fixture
def post(language_server):
    """``post(path, body)``: an answer of requests."""
    with requests.Session() as session:
        yield lambda path, body, **how: session.post(
            f"{language_server.url}/v2/models/{path}", json=body, timeout=PATIENCE, **how
        )


@pytest.fixture
def responses(grpc_lm):
    """What comes out of a stream of the client: (result, error), in order."""
    found = queue.Queue()
    grpc_lm.client.start_stream(lambda result, error: found.put((result, error)))
    yield found
    grpc_lm.client.stop_stream()


def prompt(api, *texts):
    return api.input("text_input", np.array([text.encode() for text in texts], object))


def scalar(api, name, value, dtype):
    return api.input(name, np.array([value], dtype))


def text_of(result):
    return [text.decode() for text in result.as_numpy("text_output")]


def result_of(responses):
    result, error = responses.get(timeout=PATIENCE)
    assert error is None, error
    return result


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


def events(answer):
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith(b"data: ") for line in lines)
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


# Whole answers.


def test_infer_answers_what_transformers_writes(lm, answers):
    for answer in answers.values():
        result = lm.client.infer("writer", [prompt(lm, answer.asked)], parameters=GREEDY, request_id="7")
        assert text_of(result) == [answer.text]
        assert result.as_numpy("token_ids").tolist() == [answer.tokens]
        assert result.as_numpy("finish_reason").tolist() == [b"length"]
        assert result.as_numpy("prompt_tokens").tolist() == [len(answer.prompt)]
        assert result.as_numpy("completion_tokens").tolist() == [24]
        response = lm.plain(result.get_response())
        assert (response["model_name"], response["model_version"], response["id"]) == ("writer", "2", "7")


def test_values_for_sampling_are_inputs_as_well(lm, story):
    inputs = [
        lm.input("input_ids", np.array(story.prompt, np.int64)),
        scalar(lm, "temperature", 0, np.float32),
        scalar(lm, "max_tokens", 24, np.int32),
    ]
    result = lm.client.infer("writer", inputs, outputs=[lm.output("token_ids"), lm.output("text_output")])
    assert (result.as_numpy("token_ids").tolist(), text_of(result)) == ([story.tokens], [story.text])
    assert result.as_numpy("finish_reason") is None


def test_several_texts_in_one_request(lm, answers):
    limits = lm.input("max_tokens", np.array([24, 3, 7, 1], np.int32))
    stop = lm.input("stop", np.array([b"never there", next(iter(answers.values())).text[9:12].encode()], object))
    result = lm.client.infer("writer", [prompt(lm, *answers), limits, stop], parameters={"temperature": 0.0})
    first, *rest = answers.values()
    assert text_of(result) == [first.text[:9], *(each.text[:size] for each, size in zip(rest, (3, 7, 1), strict=True))]
    assert result.as_numpy("finish_reason").tolist() == [b"stop", b"length", b"length", b"length"]
    assert result.as_numpy("token_ids")[3].tolist() == [rest[2].tokens[0], *[-1] * 11]


def test_seed_makes_an_answer_repeatable(lm):
    def text(seed):
        return text_of(lm.client.infer("writer", [prompt(lm, "x")], parameters={"seed": seed, "max_tokens": 32}))

    assert text(7) == text(7) != text(8)


def test_versions_are_chosen(lm, story):
    texts = {
        version: text_of(lm.client.infer("writer", [prompt(lm, story.asked)], version, parameters=GREEDY))
        for version in ("", "1", "2")
    }
    assert texts[""] == texts["2"] == [story.text] != texts["1"]


def test_model_without_a_tokenizer_answers_in_tokens(lm):
    ids = lm.input("input_ids", np.array([[1, 2, 3], [4, 5, 6]], np.int64))
    result = lm.client.infer("numbers", [ids], parameters={**GREEDY, "ignore_eos": True})
    assert result.as_numpy("token_ids").shape == (2, 24)
    assert result.as_numpy("text_output") is None


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"temprature": 1.0}, 'no parameter "temprature"; did you mean "temperature"'),
        ({"temperature": -1.0}, "temperature is -1.0, expected at least 0.0"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 512}, "512"),
    ],
    ids=["unknown parameter", "value", "type", "too long"],
)
def test_bad_values_are_refused(lm, parameters, words):
    lm.refused("INVALID_ARGUMENT", words, lm.client.infer, "writer", [prompt(lm, "x")], parameters=parameters)


def test_request_without_a_prompt_is_refused(lm):
    call = lambda: lm.client.infer("writer", [scalar(lm, "max_tokens", 3, np.int32)])  # noqa: E731
    lm.refused("INVALID_ARGUMENT", "expected either text_input or input_ids", call)


def test_full_queue_is_unavailable(lm, post, language_server):
    with post("narrow/generate_stream", {"text_input": "x", "max_tokens": LONG}, stream=True) as answer:
        lines = answer.iter_lines()
        next(lines)
        lm.refused("UNAVAILABLE", "queue", lm.client.infer, "narrow", [prompt(lm, "x", "y")])
    language_server.wait_idle("narrow")


# Metadata, configuration, statistics.


def test_metadata_and_config(lm):
    found = lm.plain(lm.client.get_model_metadata("writer"))
    assert (found["versions"], found["platform"]) == (["1", "2"], "transformers")
    inputs = {each["name"]: each["datatype"] for each in found["inputs"]}
    assert inputs["text_input"] == "BYTES"
    assert inputs["input_ids"] == inputs["seed"] == "INT64"
    assert (inputs["temperature"], inputs["max_tokens"], inputs["ignore_eos"]) == ("FP32", "INT32", "BOOL")
    assert [each["name"] for each in found["outputs"]] == OUTPUTS
    config = lm.plain(lm.client.get_model_config("writer"))
    config = config.get("config", config)
    assert {each["name"] for each in config["input"] if each["optional"]} == set(inputs)
    assert [each["name"] for each in config["output"]] == OUTPUTS
    assert (config["name"], config["platform"], config["max_batch_size"]) == ("writer", "transformers", 0)
    numbers = lm.plain(lm.client.get_model_metadata("numbers"))
    assert {each["name"] for each in numbers["inputs"]} == set(inputs) - {"text_input", "stop", "echo"}
    assert lm.client.is_model_ready("writer", "2")
    assert not lm.client.is_model_ready("writer", "3")


def test_statistics_count_requests(lm):
    def stats():
        found = lm.plain(lm.client.get_inference_statistics("writer", "1"))["model_stats"][0]["inference_stats"]
        return [int(found[name].get("count", 0)) for name in ("success", "queue", "compute_infer", "fail")]

    before = stats()
    lm.client.infer("writer", [prompt(lm, "x")], "1")
    assert stats() == [*(count + 1 for count in before[:3]), before[3]]


def test_statistics_count_texts(lm):
    def stats():
        found = lm.plain(lm.client.get_inference_statistics("writer", "1"))["model_stats"][0]
        return [int(found.get(name, 0)) for name in ("inference_count", "execution_count")]

    before = stats()
    lm.client.infer("writer", [prompt(lm, "x", "y", "z")], "1")
    assert stats() == [before[0] + 3, before[1] + 1]


# Streams.


def test_stream_gives_chunks_and_the_last_one_is_final(grpc_lm, responses, answers):
    for answer in answers.values():
        for empty in (False, True):
            how = {"parameters": GREEDY, "request_id": answer.asked, "enable_empty_final_response": empty}
            grpc_lm.client.async_stream_infer("writer", [prompt(grpc_lm, answer.asked)], **how)
            found = [result_of(responses)]
            while not is_final(found[-1]):
                found.append(result_of(responses))
            assert {result.get_response().id for result in found} == {answer.asked}
            assert "".join(text for result in found for text in text_of(result)) == answer.text
            assert np.concatenate([result.as_numpy("token_ids")[0] for result in found]).tolist() == answer.tokens
            reasons = [result.as_numpy("finish_reason").tolist() for result in found if result.get_response().outputs]
            assert reasons == [[b""]] * (len(reasons) - 1) + [[b"length"]]
            assert len(found) > 1
    assert responses.empty()


def test_texts_of_one_stream_come_side_by_side(grpc_lm, responses, answers):
    for asked in answers:
        how = {"parameters": GREEDY, "request_id": f"<{asked}>"}
        grpc_lm.client.async_stream_infer("writer", [prompt(grpc_lm, asked)], **how)
    texts, ended = dict.fromkeys(answers, ""), 0
    while ended < len(answers):
        result = result_of(responses)
        texts[result.get_response().id[1:-1]] += "".join(text_of(result))
        ended += is_final(result)
    assert texts == {asked: answer.text for asked, answer in answers.items()}


def test_stream_takes_one_text_of_a_request_and_goes_on_after_a_mistake(grpc_lm, responses, story):
    grpc_lm.client.async_stream_infer("writer", [prompt(grpc_lm, "a", "b")], request_id="bad")
    result, error = responses.get(timeout=PATIENCE)
    assert result is None
    assert "takes one at a time" in error.message()
    grpc_lm.client.async_stream_infer("writer", [prompt(grpc_lm, story.asked)], parameters=GREEDY)
    assert text_of(result_of(responses)) == [story.text[0]]


def test_cancelled_stream_ends_its_text(grpc_lm, language_server):
    found = queue.Queue()
    with language_server.ends("narrow", "cancelled"):
        grpc_lm.client.start_stream(lambda result, error: found.put((result, error)))
        grpc_lm.client.async_stream_infer("narrow", [prompt(grpc_lm, "x")], parameters={"max_tokens": LONG})
        result_of(found)
        grpc_lm.client.stop_stream(cancel_requests=True)


def test_client_timeout_is_the_deadline_of_the_text(grpc_lm, language_server):
    def call():
        grpc_lm.client.infer("narrow", [prompt(grpc_lm, "x")], parameters={"max_tokens": LONG}, client_timeout=0.3)

    with language_server.ends("narrow", "deadline", "cancelled"):
        grpc_lm.refused("DEADLINE_EXCEEDED", "", call)


def test_asyncio_clients(language_server, answers, story):
    async def ask(module, address):
        api = module.InferInput("text_input", [1], "BYTES")
        api.set_data_from_numpy(np.array([story.asked.encode()], object))
        async with module.InferenceServerClient(address) as client:
            many = await asyncio.gather(*(client.infer("writer", [api], parameters=GREEDY) for _ in range(20)))
            assert [text_of(result) for result in many] == [[story.text]] * 20
            if module is tritonclient.grpc.aio:
                return [item async for item in client.stream_infer(one(api))]
        return []

    async def one(tensor):
        yield {"model_name": "writer", "inputs": [tensor], "parameters": GREEDY, "request_id": "a"}

    asyncio.run(ask(tritonclient.http.aio, language_server.http))
    found = asyncio.run(ask(tritonclient.grpc.aio, language_server.target))
    assert [error for _, error in found] == [None] * len(found)
    assert "".join(text for result, _ in found for text in text_of(result)) == story.text
    assert [is_final(result) for result, _ in found] == [False] * (len(found) - 1) + [True]


# The generate extension.


def test_generate_answers_with_the_text(post, answers):
    for answer in answers.values():
        found = post("writer/generate", {"id": "g", "text_input": answer.asked, "parameters": GREEDY})
        assert (found.status_code, found.headers["content-type"]) == (200, "application/json")
        names = {"id": "g", "model_name": "writer", "model_version": "2"}
        assert found.json() == {**names, "text_output": answer.text, "finish_reason": "length"}
    older = post("writer/versions/1/generate", {"text_input": answer.asked, **GREEDY}).json()
    assert (older["model_version"], older["text_output"] != answer.text) == ("1", True)


def test_generate_stream_answers_with_chunks(post, answers):
    for answer in answers.values():
        body = {"text_input": answer.asked, "parameters": {**GREEDY, "stream": True}}
        with post("writer/generate_stream", body, stream=True) as found:
            chunks = events(found)
        assert "".join(chunk["text_output"] for chunk in chunks) == answer.text
        assert len(chunks) > 1
        assert [chunk.get("finish_reason") for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_stop_may_be_a_text_or_several(post, story):
    for stop in (story.text[9:12], ["never there", story.text[9:12]]):
        found = post("writer/generate", {"text_input": story.asked, "parameters": {**GREEDY, "stop": stop}})
        assert (found.json()["text_output"], found.json()["finish_reason"]) == (story.text[:9], "stop")


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_mistakes_are_plain_errors(post, verb):
    for body, words in (
        ({"text_input": "x", "temprature": 1}, "temprature"),
        ({"text_input": "x", "temperature": -1}, "temperature is -1.0"),
        ({}, "expected either text_input or input_ids"),
    ):
        found = post(f"writer/{verb}", body)
        assert (found.status_code, found.headers["content-type"]) == (400, "application/json")
        assert words in found.json()["error"]
    assert post(f"nobody/{verb}", {"text_input": "x"}).status_code == 404


def test_client_that_closes_ends_its_text(post, language_server):
    body = {"text_input": "x", "max_tokens": LONG}
    with language_server.ends("narrow", "cancelled"), post("narrow/generate_stream", body, stream=True) as answer:
        lines = answer.iter_lines()
        next(lines)
