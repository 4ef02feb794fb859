"""Requests to language models that cannot be answered, over every protocol: each has its code and names what is wrong,
at once, while a long text of the same model goes on undisturbed beside them, and the server serves on."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import orjson
import pytest

from tests.support.language.tiny_version import BYTES_OF_TEXT, CONTEXT, TEMPLATE, VOCABULARY, write_version
from tests.support.servers.process import ServerProcess, wait_until
from tests.support.servers.v2_client import V2Client
from tfs_lite.core.servable import ModelRef
from tfs_lite.protocols.messages import PredictRequest, PredictResponse
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode

pytestmark = pytest.mark.slow

PATIENCE = 20.0
AT_ONCE = 15.0
"""Seconds for a refusal, on a machine that does other things too; it takes a few milliseconds."""
MAX_BYTES = 1_000_000
MODELS: Mapping[str, Mapping[str, Any] | None] = {
    "lm": {**BYTES_OF_TEXT, "chat_template": TEMPLATE},
    "bare": BYTES_OF_TEXT,
    "ids": None,
}
COMPLETIONS, CHAT = "/openai/v1/completions", "/openai/v1/chat/completions"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
STREAMED = "/tfs_lite.GenerationService/PredictStreamed"
PLUS = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] + 1}
"""
PLUS_CONFIG = """platform: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
DTYPES: Mapping[str, Any] = {
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k", "priority"), np.int32),
    **dict.fromkeys(("seed", "input_ids", "stop_token_ids"), np.int64),
    **dict.fromkeys(("text_input", "stop"), object),
    "ignore_eos": np.bool_,
}
"""Of inputs; all others are float32."""
NAMES = {np.int32: "INT32", np.int64: "INT64", np.float32: "FP32", np.bool_: "BOOL", object: "BYTES"}
CODES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 501: "UNIMPLEMENTED"}


def array(name: str, value: Any) -> np.ndarray[Any, Any]:
    dtype = DTYPES.get(name, np.float32)
    if dtype is not object:
        return np.asarray(value, dtype)
    items = value if isinstance(value, list) else [value]
    found = np.empty(len(items), object)
    found[:] = [item.encode() for item in items]
    return found


class LongText:
    """Streams the same text of ``lm`` again and again, as long as the block runs. Each has to come whole, with the same
    tokens as the first, which was alone, and never to stop for long."""

    TOKENS = CONTEXT - 100

    def __init__(self, base_url: str) -> None:
        self._client = httpx.Client(base_url=base_url, timeout=PATIENCE)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="long-text")
        self._alone: list[int] = []
        self.whole = 0
        self.problems: list[str] = []

    def __enter__(self) -> LongText:
        self._alone = self._read()
        assert len(self._alone) == self.TOKENS
        assert len(set(self._alone)) > 20, "a text that says something"
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._client.close()

    def _read_on(self) -> None:
        while not self._stop.is_set():
            try:
                if self._read() != self._alone:
                    self.problems.append("the text came out another one")
            except Exception as error:
                self.problems.append(repr(error))
                return
            self.whole += 1

    def _read(self) -> list[int]:
        body = {"model": "lm", "prompt": "once upon a time", "max_tokens": self.TOKENS, "temperature": 0}
        body |= {"stream": True, "return_token_ids": True, "ignore_eos": True}
        tokens: list[int] = []
        with self._client.stream("POST", COMPLETIONS, json=body) as answer:
            *events, done, rest = b"".join(answer.iter_raw()).split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b""), done
        for event in events:
            (choice,) = orjson.loads(event.removeprefix(b"data: "))["choices"]
            tokens += choice["token_ids"]
        assert choice["finish_reason"] == "length"
        return tokens


@dataclass
class BadInputFixture:
    server: ServerProcess
    v2: V2Client
    channel: grpc.Channel
    http: httpx.Client
    root: Path
    beside: LongText
    greeting: list[int] = field(default_factory=list)

    def say(self) -> list[int]:
        """What the model answers to a good request."""
        body = {"model": "lm", "prompt": "hi", "max_tokens": 3, "temperature": 0, "return_token_ids": True}
        tokens: list[int] = self.http.post(COMPLETIONS, json=body).json()["choices"][0]["token_ids"]
        return tokens

    def over_http(self, path: str, body: Any, method: str = "POST", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        began = time.monotonic()
        answer = self.http.request(method, path, content=content, headers=headers)
        assert time.monotonic() - began < AT_ONCE
        return answer

    def over_grpc(self, call: Callable[[], Any]) -> tuple[str, str]:
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert time.monotonic() - began < AT_ONCE
        error: Any = caught.value
        return error.code().name, error.details()

    def predict(self, request: Any) -> Any:
        call = self.channel.unary_unary(PREDICT, _bytes, PredictResponse.FromString)
        return call(request, timeout=PATIENCE)

    def streamed(self, request: Any) -> list[Any]:
        call = self.channel.stream_stream(STREAMED, _bytes, PredictResponse.FromString)
        return list(call(iter([request]), timeout=PATIENCE))


def _bytes(request: Any) -> bytes:
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadInputFixture]:
    root = tmp_path_factory.mktemp("bad_input")
    for name, tokenizer in MODELS.items():
        write_version(root / name / "1", tokenizer)
    (root / "plus" / "1").mkdir(parents=True)
    (root / "plus" / "1" / "model.py").write_text(PLUS)
    (root / "plus" / "config.pbtxt").write_text(PLUS_CONFIG)
    flags = (
        f"--model_repository={root}",
        f"--trusted_model_base_paths={root}/plus",
        f"--max_message_bytes={MAX_BYTES}",
    )
    with contextlib.ExitStack() as inside:
        server = inside.enter_context(ServerProcess(*flags))
        url = f"http://127.0.0.1:{server.http_port}"
        channel = inside.enter_context(grpc.insecure_channel(server.target, [("grpc.max_send_message_length", -1)]))
        http = inside.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))
        v2 = V2Client(channel)
        for name in (*MODELS, "plus"):
            wait_until(lambda name=name: v2.call("ModelReady", name=name).ready, f"{name} is ready")  # type: ignore[misc]
        beside = inside.enter_context(LongText(url))
        fixture = BadInputFixture(server, v2, channel, http, root, beside)
        fixture.greeting = fixture.say()
        yield fixture
        wait_until(lambda: beside.whole or beside.problems, "a long text is over", PATIENCE)
    assert beside.problems == []
    assert server.exit_code == 0
    assert not server.leftovers()


@pytest.fixture
def fixture(started: BadInputFixture) -> Iterator[BadInputFixture]:
    """Whatever was sent, the server answers afterwards, and says the same as before; the long text goes on."""
    yield started
    assert started.server.exit_code is None, started.server.log()
    assert started.say() == started.greeting
    assert started.beside.problems == []


def check_words(text: str, fragment: str, fixture: BadInputFixture) -> None:
    assert fragment in text
    assert text.strip()
    assert str(fixture.root) not in text
    assert "Traceback" not in text
    assert len(text) < 1000


# The same mistake through every door


@dataclass(frozen=True)
class Ask:
    """``prompt``: a text, or tokens. ``values``: of sampling."""

    prompt: str | list[int]
    values: Mapping[str, Any]

    def inputs(self, **more: Any) -> dict[str, Any]:
        return {"text_input" if isinstance(self.prompt, str) else "input_ids": self.prompt, **self.values, **more}

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: array(name, value) for name, value in self.inputs().items()}

    def v2(self) -> dict[str, Any]:
        found = self.arrays()
        inputs = [
            {"name": name, "datatype": NAMES[DTYPES.get(name, np.float32)], "shape": value.shape or (1,)}
            for name, value in found.items()
        ]
        return {"model_name": "lm", "inputs": inputs, "raw_input_contents": [_raw(value) for value in found.values()]}


def _raw(value: np.ndarray[Any, Any]) -> bytes:
    if value.dtype != object:
        return value.tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in value.ravel().tolist())


def told_openai(answer: httpx.Response) -> tuple[int, str, str | None]:
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (list(answer.json()), list(error)) == (["error"], ["message", "type", "param", "code"])
    assert error["type"] == "invalid_request_error"
    return answer.status_code, error["message"], error["param"]


def told(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    return answer.status_code, answer.json()["error"]


def completions(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    code, text, _ = told_openai(fixture.over_http(COMPLETIONS, {"model": "lm", "prompt": ask.prompt, **ask.values}))
    return CODES[code], text


def completion_stream(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    body = {"model": "lm", "prompt": ask.prompt, "stream": True, **ask.values}
    code, text, _ = told_openai(fixture.over_http(COMPLETIONS, body))
    return CODES[code], text


def chat(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    messages = [{"role": "user", "content": ask.prompt}]
    code, text, _ = told_openai(fixture.over_http(CHAT, {"model": "lm", "messages": messages, **ask.values}))
    return CODES[code], text


def generate(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    code, text = told(fixture.over_http("/v2/models/lm/generate", ask.inputs()))
    return CODES[code], text


def generate_stream(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    prompt = Ask(ask.prompt, {}).inputs()
    code, text = told(fixture.over_http("/v2/models/lm/generate_stream", {**prompt, "parameters": dict(ask.values)}))
    return CODES[code], text


def infer(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    inputs = []
    for name, value in ask.arrays().items():
        data = [item.decode() for item in value.tolist()] if value.dtype == object else value.ravel().tolist()
        datatype = NAMES[DTYPES.get(name, np.float32)]
        inputs.append({"name": name, "datatype": datatype, "shape": value.shape or (1,), "data": data})
    code, text = told(fixture.over_http("/v2/models/lm/infer", {"inputs": inputs}))
    return CODES[code], text


def model_infer(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    return fixture.over_grpc(lambda: fixture.v2.call("ModelInfer", **ask.v2()))


def model_stream_infer(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    """The stream goes on after a mistake. Answers come in the order in which they are ready."""
    stream = fixture.v2.stream()
    stream.send(**ask.v2(), id="wrong")
    stream.send(**Ask("hi", {"max_tokens": 1}).v2(), id="right")
    answers = {answer.infer_response.id: answer for answer in (stream.next(), stream.next())}
    stream.end()
    stream.calls.cancel()
    wrong, right = answers["wrong"], answers["right"]
    assert right.error_message == ""
    return "INVALID_ARGUMENT", wrong.error_message


def _predict_request(ask: Ask) -> Any:
    inputs = {name: encode(value) for name, value in ask.arrays().items()}
    return PredictRequest(model_spec=model_spec(ModelRef("lm")), inputs=inputs)


def predict(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    return fixture.over_grpc(lambda: fixture.predict(_predict_request(ask)))


def predict_streamed(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    return fixture.over_grpc(lambda: fixture.streamed(_predict_request(ask)))


def rest(fixture: BadInputFixture, ask: Ask) -> tuple[str, str]:
    inputs = ask.inputs()
    if "text_input" in inputs:
        inputs["text_input"] = [inputs["text_input"]]
    code, text = told(fixture.over_http("/v1/models/lm:predict", {"inputs": inputs}))
    return CODES[code], text


TEXT_DOORS = (completions, completion_stream, chat, generate, generate_stream, infer, model_infer, model_stream_infer)
DOORS = {door.__name__: door for door in (*TEXT_DOORS, predict, predict_streamed, rest)}


def text(**values: Any) -> Ask:
    return Ask("hi", values)


SHARED: dict[str, tuple[Ask, str]] = {
    "negative_temperature": (text(temperature=-1.0), "temperature is -1.0, expected at least 0.0 and at most 100.0"),
    "temperature_is_no_number": (text(temperature=math.nan), "temperature is nan"),
    "endless_temperature": (text(temperature=math.inf), "temperature is inf"),
    "top_p_of_0": (text(top_p=0.0), "top_p is 0.0, expected more than 0.0 and at most 1.0"),
    "top_p_of_2": (text(top_p=2.0), "top_p is 2.0"),
    "negative_top_k": (text(top_k=-5), "top_k"),
    "min_p_of_2": (text(min_p=2.0), "min_p is 2.0"),
    "no_repetition_penalty": (text(repetition_penalty=0.0), "repetition_penalty is 0.0, expected more than 0.0"),
    "large_presence_penalty": (text(presence_penalty=9.0), "presence_penalty is 9.0"),
    "endless_frequency_penalty": (text(frequency_penalty=-math.inf), "frequency_penalty is -inf"),
    "no_max_tokens": (text(max_tokens=0), "max_tokens is 0"),
    "negative_max_tokens": (text(max_tokens=-1), "max_tokens is -1, expected at least 0"),
    "huge_max_tokens": (text(max_tokens=2**31 - 1), f"max_tokens is {2**31 - 1}, together more than the {CONTEXT}"),
    "negative_min_tokens": (text(min_tokens=-1), "min_tokens is -1"),
    "more_min_than_max_tokens": (text(min_tokens=9, max_tokens=8), "min_tokens is 9, more than max_tokens, 8"),
    "a_hundred_stops": (text(stop=["a"] * 100), "stop has 100 entries, at most 16 are allowed"),
    "empty_stop": (text(stop=[""]), "stop has a text of 0 characters, expected 1 to 1000"),
    "long_stop": (text(stop=["x" * 1001]), "stop has a text of 1001 characters"),
    "unknown_stop_token": (text(stop_token_ids=[VOCABULARY]), f"stop_token_ids: {VOCABULARY} is no token"),
    "too_many_stop_tokens": (text(stop_token_ids=[1] * 17), "stop_token_ids has 17 entries"),
    "prompt_longer_than_the_context": (Ask("x" * (CONTEXT + 100), {"max_tokens": 1}), "the prompt has "),
    "prompt_of_far_too_many_characters": (Ask("x" * 900_000, {"max_tokens": 1}), "the prompt has 9"),
    "prompt_and_output_too_long": (
        Ask("x" * 2000, {"max_tokens": 100}),
        f"max_tokens is 100, together more than the {CONTEXT}",
    ),
    "empty_prompt": (Ask("", {}), "the prompt is empty"),
    "token_past_the_vocabulary": (Ask([1, VOCABULARY], {}), f"the prompt has token {VOCABULARY}; the vocabulary has"),
    "negative_token": (Ask([-1], {}), "the prompt has token -1"),
    "too_many_tokens": (Ask([1] * (CONTEXT + 1), {}), f"the prompt has {CONTEXT + 1} tokens, more than the {CONTEXT}"),
}
OF_PROMPTS = ("empty_prompt", "token_past_the_vocabulary", "negative_token", "too_many_tokens")
"""A chat always has some text, and no tokens."""


@pytest.mark.parametrize(
    ("case", "door"), [(case, door) for case in SHARED for door in DOORS if not (door == "chat" and case in OF_PROMPTS)]
)
def test_mistake_is_invalid_and_told_the_same_through_every_door(
    fixture: BadInputFixture, case: str, door: str
) -> None:
    ask, fragment = SHARED[case]
    code, words = DOORS[door](fixture, ask)
    assert code == "INVALID_ARGUMENT", words
    check_words(words, fragment, fixture)


# Models that are not there, or are others


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("model", "code", "fragment"),
    [
        ("nobody", 404, "The model 'nobody' does not exist"),
        ("lm@9", 404, "The model 'lm' has no version 9 that is available; there are: 1"),
        (f"lm@{'9' * 30}", 404, "does not exist"),
        ("lm:best", 404, "The model 'lm' has no label 'best'"),
        ("plus", 400, "The model 'plus' is no language model"),
        ("", 400, "model"),
        (5, 400, "model: expected a valid string, got 5"),
        (None, 400, "model: expected a valid string, got None"),
        ("x" * 10_000, 404, "does not exist"),
    ],
    ids=str,
)
def test_model_that_openai_clients_cannot_have(
    fixture: BadInputFixture, model: Any, code: int, fragment: str, stream: bool
) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [{"role": "user", "content": "a"}]})):
        status, words, param = told_openai(fixture.over_http(path, {"model": model, "stream": stream, **body}))
        assert (status, param) == (code, "model"), words
        assert fragment in words


@pytest.mark.parametrize(
    ("model", "version", "code", "fragment"),
    [
        ("nobody", "", "NOT_FOUND", "'nobody' is not found"),
        ("lm", "9", "NOT_FOUND", "'lm' version 9 is not found"),
        ("lm", "x", "INVALID_ARGUMENT", "x"),
        ("plus", "", "INVALID_ARGUMENT", "plus"),
        ("ids", "", "INVALID_ARGUMENT", "text_input"),
    ],
)
def test_model_that_v2_clients_cannot_have(
    fixture: BadInputFixture, model: str, version: str, code: str, fragment: str
) -> None:
    fields = {**text().v2(), "model_name": model, "model_version": version}
    for found in (
        fixture.over_grpc(lambda: fixture.v2.call("ModelInfer", **fields)),
        *(_asked_v2(fixture, verb, model, version) for verb in ("generate", "generate_stream")),
    ):
        assert found[0] == code, found
        check_words(found[1], fragment, fixture)


def _asked_v2(fixture: BadInputFixture, verb: str, model: str, version: str) -> tuple[str, str]:
    path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/{verb}"
    code, words = told(fixture.over_http(path, {"text_input": "hi"}))
    return CODES[code], words


@pytest.mark.parametrize(
    ("ref", "signature", "code", "fragment"),
    [
        (ModelRef("nobody"), "", "NOT_FOUND", "nobody"),
        (ModelRef("lm", version=9), "", "NOT_FOUND", "Specific(lm, 9)"),
        (ModelRef("lm", label="best"), "", "INVALID_ARGUMENT", "label: best"),
        (ModelRef("lm"), "serve", "FAILED_PRECONDITION", '"serve"'),
        (ModelRef("ids"), "", "INVALID_ARGUMENT", "text_input"),
        (ModelRef("plus"), "", "", "plus"),
    ],
    ids=str,
)
def test_model_that_tensorflow_clients_cannot_have(
    fixture: BadInputFixture, ref: ModelRef, signature: str, code: str, fragment: str
) -> None:
    request = _predict_request(text())
    request.model_spec.CopyFrom(model_spec(ref))
    request.model_spec.signature_name = signature
    for call, other in ((fixture.predict, "INVALID_ARGUMENT"), (fixture.streamed, "UNIMPLEMENTED")):
        found = fixture.over_grpc(lambda call=call: call(request))  # type: ignore[misc]
        assert found[0] == (code or other), found
        check_words(found[1], fragment if code or call == fixture.streamed else "text_input", fixture)


# What only OpenAI's clients can get wrong


def said(**fields: Any) -> dict[str, Any]:
    return {"model": "lm", "prompt": "hi", "max_tokens": 2, **fields}


# What the body alone says is in the unit tests of protocols/openai; here is one of each kind, and what models decide.
OPENAI_FIELDS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "prompts_of_several_kinds": (said(prompt=["a", 1]), "prompt: its items", "prompt"),
    "tokens_beyond_64_bits": (said(prompt=[2**70]), "prompt: its items", "prompt"),
    "empty_prompt_among_others": (said(prompt=["a", ""]), "prompt 1: the prompt is empty", "prompt"),
    "half_a_choice": (said(n=1.5), "n: expected a valid integer", "n"),
    "negative_logprobs": (said(logprobs=-1), "logprobs: ", "logprobs"),
    "seed_beyond_64_bits": (said(seed=2**64), "seed: expected a valid integer", "seed"),
    "seed_just_beyond_64_bits": (said(seed=2**63), f"seed is {2**63}", "seed"),
    "seed_with_a_fraction": (said(seed=1.5), "seed: expected a valid integer", "seed"),
    "temperature_is_a_text": (
        said(temperature="warm"),
        "temperature: expected a valid number, got 'warm'",
        "temperature",
    ),
    "top_k_with_a_fraction": (said(top_k=1.5), "top_k: expected a valid integer", "top_k"),
    "huge_top_k": (said(top_k=2**40), f"top_k is {2**40}", "top_k"),
    "max_tokens_beyond_64_bits": (said(max_tokens=2**70), "max_tokens: ", "max_tokens"),
    "bias_of_an_unknown_token": (said(logit_bias={"9999": 1}), "logit_bias: 9999 is no token", "logit_bias"),
    "bias_too_strong": (said(logit_bias={"1": 1000}), "logit_bias is 1000.0", "logit_bias"),
    "echo_is_a_number": (said(echo=1), "echo: expected a valid boolean", "echo"),
    "stream_is_a_text": (said(stream="yes"), "stream: expected a valid boolean", "stream"),
    "priority_beyond_32_bits": (said(priority=2**40), "priority is ", "priority"),
    "timeout_is_negative": (said(timeout=-1), "timeout: expected greater than 0", "timeout"),
    "misspelt_field": (said(temprature=1), 'temprature; did you mean "temperature"?', "temprature"),
    "unknown_field": (said(**{"x" * 5000: 1}), "Unrecognized request argument supplied: xxx", "x" * 5000),
    "best_of": (said(best_of=2), "best_of is not supported", "best_of"),
    "text_to_a_model_of_tokens": (said(model="ids", return_token_ids=True), "has no tokenizer; send tokens", None),
    "text_wanted_of_tokens": (said(model="ids", prompt=[1]), "set return_token_ids", "return_token_ids"),
    "stop_in_tokens": (said(model="ids", prompt=[1], return_token_ids=True, stop="a"), "stop: the model has", "stop"),
    "echo_of_tokens": (said(model="ids", prompt=[1], return_token_ids=True, echo=True), "echo: the model has", "echo"),
}


@pytest.mark.parametrize("case", OPENAI_FIELDS)
def test_completion_that_is_wrong(fixture: BadInputFixture, case: str) -> None:
    body, fragment, param = OPENAI_FIELDS[case]
    status, words, named = told_openai(fixture.over_http(COMPLETIONS, body))
    assert (status, named) == (400, param), words
    check_words(words, fragment, fixture)


def talk(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "lm", "messages": [{"role": "user", "content": content}], "max_tokens": 2, **fields}


CHATS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "messages_is_null": (talk(messages=None), "messages: expected a valid list", "messages"),
    "unknown_role": (talk(messages=[{"role": "king", "content": "a"}]), "role is 'king'", "messages[0].role"),
    "image": (talk([{"type": "image_url", "image_url": {"url": "x"}}]), "'image_url'", "messages[0].content[0].type"),
    "too_many_messages": (talk(messages=[{"role": "user", "content": "a"}] * 10_001), "10001 entries", "messages"),
    "longer_than_the_context": (talk("x" * CONTEXT), "tokens, more than the 2048", None),
    "no_room_to_answer": (talk("x" * (CONTEXT - 17), max_tokens=None), "leaves no room for a single one", None),
    "no_template": (talk(model="bare"), "the model has no chat template", None),
    "no_tokenizer": (talk(model="ids", return_token_ids=True), "has no tokenizer; send tokens", None),
    "prompt": (talk(prompt="a"), "prompt", "prompt"),
    "top_logprobs_alone": (talk(top_logprobs=3), "top_logprobs is only of use with logprobs", "top_logprobs"),
    "too_many_top_logprobs": (talk(logprobs=True, top_logprobs=21), "top_logprobs: ", "top_logprobs"),
    "logprobs_is_a_number": (talk(logprobs=5), "logprobs: expected a valid boolean", "logprobs"),
    "two_bounds": (talk(max_completion_tokens=5), "they are the same", "max_completion_tokens"),
    "tools": (talk(tools=[{"type": "function"}]), "tools is not supported", "tools"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("case", CHATS)
def test_chat_that_is_wrong(fixture: BadInputFixture, case: str, stream: bool) -> None:
    body, fragment, param = CHATS[case]
    status, words, named = told_openai(fixture.over_http(CHAT, {**body, "stream": stream}))
    assert (status, named) == (400, param), words
    check_words(words, fragment, fixture)


# What only tensors can get wrong


def two(**values: Any) -> dict[str, Any]:
    return {**text().arrays(), **values}


def strings(*items: bytes) -> np.ndarray[Any, Any]:
    found = np.empty(len(items), object)
    found[:] = items
    return found


TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "expected either text_input or input_ids, and neither came"),
    "no_prompt": ({"max_tokens": np.int32(1)}, "expected either text_input or input_ids, and neither came"),
    "two_prompts": (two(input_ids=np.array([1])), "expected either text_input or input_ids, and both came"),
    "unknown_input": (two(sed=np.array([1])), "sed"),
    "other_type_of_text": ({"text_input": np.array([1])}, "text_input"),
    "other_type_of_tokens": ({"input_ids": np.array([1], np.int32)}, "input_ids"),
    "other_type_of_a_value": (two(temperature=np.array([1.0])), "temperature"),
    "text_that_is_no_utf8": ({"text_input": strings(b"\xff")}, "text_input is not UTF-8: invalid start byte at byte 0"),
    "stop_that_is_no_utf8": (two(stop=strings(b"\xff")), "stop is not UTF-8"),
    "no_texts": ({"text_input": strings()}, "text_input has 0 prompts, expected 1 to 128"),
    "texts_in_rows": ({"text_input": strings(b"a").reshape(1, 1)}, "text_input"),
    "too_many_texts": ({"text_input": strings(*[b"a"] * 129)}, "129"),
    "no_tokens": ({"input_ids": np.zeros((0,), np.int64)}, "the prompt is empty"),
    "no_rows_of_tokens": ({"input_ids": np.zeros((0, 3), np.int64)}, "input_ids has 0 prompts"),
    "tokens_in_three_dimensions": ({"input_ids": np.ones((1, 1, 1), np.int64)}, "input_ids has shape [1, 1, 1]"),
    "values_for_other_texts": (two(top_k=np.array([1, 2], np.int32)), "top_k has 2 values, expected 1"),
    "no_values": (two(top_k=np.array([], np.int32)), "top_k has 0 values, expected 1"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_wrong(fixture: BadInputFixture, case: str) -> None:
    arrays, fragment = TENSORS[case]
    inputs = {name: encode(np.asarray(value)) for name, value in arrays.items()}
    request = PredictRequest(model_spec=model_spec(ModelRef("lm")), inputs=inputs)
    shaped = {name: np.atleast_1d(value) for name, value in arrays.items()}
    types = {np.dtype(dtype): word for dtype, word in {**NAMES, np.float64: "FP64"}.items()}
    fields = {
        "model_name": "lm",
        "inputs": [{"name": name, "datatype": types[a.dtype], "shape": a.shape} for name, a in shaped.items()],
        "raw_input_contents": [_raw(a) for a in shaped.values()],
    }
    for call in (
        lambda: fixture.predict(request),
        lambda: fixture.streamed(request),
        lambda: fixture.v2.call("ModelInfer", **fields),
    ):
        code, words = fixture.over_grpc(call)
        assert code == "INVALID_ARGUMENT", words
        one_at_a_time = case == "too_many_texts" and "one at a time" in words
        check_words(words, "texts for model 'lm'" if one_at_a_time else fragment, fixture)


def test_unknown_output_is_named(fixture: BadInputFixture) -> None:
    request = _predict_request(text())
    request.output_filter.append("logits")
    for call in (fixture.predict, fixture.streamed):
        code, words = fixture.over_grpc(lambda call=call: call(request))  # type: ignore[misc]
        assert (code, "logits" in words) == ("INVALID_ARGUMENT", True), words
    code, words = fixture.over_grpc(lambda: fixture.v2.call("ModelInfer", **text().v2(), outputs=[{"name": "logits"}]))
    assert (code, "'logits'" in words) == ("INVALID_ARGUMENT", True), words


def test_more_texts_than_the_model_has_room_for_are_refused(fixture: BadInputFixture) -> None:
    status, words, _ = told_openai(fixture.over_http(COMPLETIONS, said(prompt=["a"] * 120)))
    assert (status, "120 texts are wanted" in words, "room for 80 at most" in words) == (400, True, True), words


def test_stream_takes_one_text_at_a_time(fixture: BadInputFixture) -> None:
    status, words = told(fixture.over_http("/v2/models/lm/generate_stream", {"text_input": ["a", "b"]}))
    assert (status, "the request has 2 texts for model 'lm'" in words) == (400, True), words


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"request_state": 1}, "predict_streamed_options.request_state"),
        ({"split_dimensions": {"x": 1}}, "predict_streamed_options.request_state"),
        ({"return_single_response": True}, "predict_streamed_options.return_single_response"),
    ],
    ids=["split", "dimensions", "single"],
)
def test_option_of_streams_that_is_not_supported(
    fixture: BadInputFixture, options: dict[str, Any], fragment: str
) -> None:
    request = _predict_request(text())
    request.predict_streamed_options.CopyFrom(PredictRequest(predict_streamed_options=options).predict_streamed_options)
    code, words = fixture.over_grpc(lambda: fixture.streamed(request))
    assert (code, fragment in words) == ("INVALID_ARGUMENT", True), words


V2_PARAMETERS: dict[str, tuple[Any, str]] = {
    "sed": (1, 'no parameter "sed"; did you mean "seed"?'),
    "temprature": (0.5, 'no parameter "temprature"; did you mean "temperature"?'),
    "logprobs": (5, 'no parameter "logprobs"'),
    "n": (2, 'no parameter "n"'),
    "top_k": ("many", "top_k"),
    "max_tokens": (1.5, "max_tokens"),
    "temperature": ("warm", "temperature"),
    "top_p": (True, "top_p"),
    "ignore_eos": (1, "ignore_eos"),
    "stop": (5, "stop"),
    "input_ids": (5, "input_ids"),
}


@pytest.mark.parametrize("name", V2_PARAMETERS)
def test_parameter_of_v2_that_is_wrong(fixture: BadInputFixture, name: str) -> None:
    value, fragment = V2_PARAMETERS[name]
    inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]
    for path, body in (
        ("/v2/models/lm/infer", {"inputs": inputs, "parameters": {name: value}}),
        ("/v2/models/lm/generate", {"text_input": "hi", "parameters": {name: value}}),
        ("/v2/models/lm/generate_stream", {"text_input": "hi", name: value}),
    ):
        status, words = told(fixture.over_http(path, body))
        assert status == 400, words
        check_words(words, fragment, fixture)


GENERATE: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "expected either text_input or input_ids, and neither came"),
    "text_is_a_number": ({"text_input": 5}, "text_input"),
    "text_is_null": ({"text_input": None}, "text_input"),
    "text_is_an_object": ({"text_input": {"a": 1}}, "text_input"),
    "tokens_are_texts": ({"input_ids": ["a"]}, "input_ids"),
    "tokens_with_fractions": ({"input_ids": [1.5]}, "input_ids"),
    "seed_beyond_64_bits": ({"text_input": "a", "seed": 2**64}, "seed"),
    "priority_beyond_32_bits": ({"text_input": "a", "priority": 2**40}, "priority"),
    "max_tokens_beyond_32_bits": ({"text_input": "a", "max_tokens": 2**40}, "max_tokens"),
    "two_temperatures": ({"text_input": "a", "temperature": [1, 2]}, "temperature has 2 values"),
    "value_comes_twice": ({"text_input": "a", "top_k": 1, "parameters": {"top_k": 1}}, "top_k"),
    "two_prompts": ({"text_input": "a", "input_ids": [1]}, "and both came"),
}


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize("case", GENERATE)
def test_body_of_generate_that_is_wrong(fixture: BadInputFixture, case: str, verb: str) -> None:
    body, fragment = GENERATE[case]
    status, words = told(fixture.over_http(f"/v2/models/lm/{verb}", body))
    assert status == 400, words
    check_words(words, fragment, fixture)


# Bodies and paths that are wrong whatever is asked


PATHS = {
    "completions": COMPLETIONS,
    "chat": CHAT,
    "generate": "/v2/models/lm/generate",
    "generate_stream": "/v2/models/lm/generate_stream",
    "infer": "/v2/models/lm/infer",
    "predict": "/v1/models/lm:predict",
}
BODIES: dict[str, tuple[bytes, int]] = {
    "no_json": (b"{ this is no json", 400),
    "empty": (b"", 400),
    "a_list": (b"[]", 400),
    "a_text": (b'"hello"', 400),
    "not_utf8": (b'{"prompt": "\xff"}', 400),
    "half_a_surrogate_pair": (b'{"prompt": "\\ud800"}', 400),
    "name_twice": (b'{"prompt": "a", "prompt": "b"}', 400),
    "too_deep": (b'{"prompt": ' + b"[" * 101 + b"]" * 101 + b"}", 400),
    "far_too_deep": (b"[" * 500_000, 400),
    "far_too_deep_objects": (b'{"a":' * 150_000, 400),
    "number_too_large": (b'{"temperature": 1e999}', 400),
    "too_large": (b" " * (MAX_BYTES + 1), 413),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", BODIES)
def test_body_that_is_no_request(fixture: BadInputFixture, case: str, path: str) -> None:
    content, code = BODIES[case]
    answer = fixture.over_http(PATHS[path], content)
    words = told_openai(answer)[1] if PATHS[path].startswith("/openai/") else told(answer)[1]
    assert answer.status_code == code, words
    check_words(words, str(MAX_BYTES) if code == 413 else "", fixture)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", COMPLETIONS, 405),
        ("PUT", CHAT, 405),
        ("DELETE", "/openai/v1/models/lm", 405),
        ("POST", "/openai/v1/models", 405),
        ("POST", "/openai/v1/embedding", 404),
        ("GET", "/openai/v1/models/nobody", 404),
        ("GET", "/openai/v1/models/plus", 404),
        ("GET", "/openai/v1/models/%ff%00", 404),
        ("GET", "/openai/", 404),
    ],
)
def test_path_of_openai_that_does_not_answer(fixture: BadInputFixture, method: str, path: str, code: int) -> None:
    status, words, _ = told_openai(fixture.over_http(path, b"", method))
    assert status == code, words
    check_words(words, "", fixture)


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_generate_takes_post_only(fixture: BadInputFixture, verb: str) -> None:
    status, words = told(fixture.over_http(f"/v2/models/lm/{verb}", b"", "GET"))
    assert (status, "answers POST" in words) == (405, True), words


@pytest.mark.parametrize("value", ["abc", "-1", "0", "nan", "inf", "1e9"])
def test_timeout_in_a_header_that_is_wrong(fixture: BadInputFixture, value: str) -> None:
    status, words, param = told_openai(fixture.over_http(COMPLETIONS, said(), timeout=value))
    assert (status, param, value in words) == (400, "timeout", True), words


@pytest.mark.parametrize("size", [1, MAX_BYTES], ids=["junk", "huge"])
def test_message_that_is_no_request(fixture: BadInputFixture, size: int) -> None:
    data = b"\xff\xff" * size
    expected = "INVALID_ARGUMENT" if size == 1 else "RESOURCE_EXHAUSTED"
    for call in (fixture.predict, fixture.streamed):
        code, words = fixture.over_grpc(lambda call=call: call(data))  # type: ignore[misc]
        assert code == expected, words
        check_words(words, "", fixture)


def test_every_protocol_says_the_same_in_the_end(fixture: BadInputFixture) -> None:
    ask = Ask("hi", {"max_tokens": 3, "temperature": 0})
    answer = fixture.predict(_predict_request(ask))
    (piece,) = fixture.v2.call("ModelInfer", **ask.v2(), outputs=[{"name": "token_ids"}]).raw_output_contents
    streamed = [decode(one.outputs["token_ids"], "token_ids") for one in fixture.streamed(_predict_request(ask))]
    assert decode(answer.outputs["token_ids"], "token_ids").tolist() == [fixture.greeting]
    assert np.frombuffer(piece, np.int64).tolist() == fixture.greeting
    assert np.concatenate(streamed, axis=1).tolist() == [fixture.greeting]


def test_long_text_went_on_through_it_all(fixture: BadInputFixture) -> None:
    before = fixture.beside.whole
    wait_until(lambda: fixture.beside.whole > before or fixture.beside.problems, "a long text is over", PATIENCE)
    assert fixture.beside.problems == []
