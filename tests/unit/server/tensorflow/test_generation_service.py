"""PredictStreamed from a client's messages to a client's messages, and Predict of language models."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.grpc.grpc_choice import chosen
from tests.support.language.language_servables import BROKEN, language
from tests.support.servers.grpc_fixture import GrpcFixture
from tests.support.servers.process import wait_until
from tests.support.servers.v2_fixture import V2Fixture
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DataType
from tfs_lite.protocols.messages import PredictRequest, PredictResponse
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode
from tfs_lite.server.inference.classify_regress import Inferences
from tfs_lite.server.tensorflow.generation_service import METHOD, SERVICE, PredictStreamedService
from tfs_lite.server.tensorflow.prediction_service import PredictionService
from tfs_lite.server.tensorflow.settings import PredictSettings

pytestmark = pytest.mark.wire

WORDS = "grüße an dich"
CANCEL = {"request_state": "CANCEL"}


@pytest.fixture
def models() -> Iterator[V2Fixture]:
    models = V2Fixture()
    models.add("lm", language(WORDS))
    yield models
    models.close()
    wait_until(lambda: models.handles == 0, "handles")


@pytest.fixture
def channel(loop_thread: Any, models: V2Fixture) -> Iterator[grpc.Channel]:
    predictor, settings = models.predictor, PredictSettings(1 << 20)
    streamed = PredictStreamedService(predictor, models.metrics, settings)
    plain = PredictionService(predictor, Inferences(predictor), models.lookup, models.metrics, settings)
    with GrpcFixture(loop_thread, chosen(), [*streamed.methods(), *plain.methods()], -1) as server:
        yield server.channel


def asked(*texts: str, model: str = "lm", options: Any = None, outputs: tuple[str, ...] = (), **values: Any) -> Any:
    """``values``: of sampling, as they are or as arrays."""
    dtypes = {int: np.int32, float: np.float32}
    arrays = {name: np.asarray(value, dtypes.get(type(value))) for name, value in values.items()}
    if texts:
        arrays["text_input"] = np.array([text.encode() for text in texts], object)
    inputs = {name: encode(array) for name, array in arrays.items()}
    spec = model_spec(ModelRef(model))
    return PredictRequest(model_spec=spec, inputs=inputs, output_filter=outputs, predict_streamed_options=options)


def outputs_of(response: Any) -> dict[str, Any]:
    return {name: decode(tensor, name).tolist() for name, tensor in response.outputs.items()}


class Stream:
    """``send`` requests, ``end`` them, read answers."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        path = f"{SERVICE}/{METHOD}"
        method = channel.stream_stream(path, lambda data: data, PredictResponse.FromString)
        self.calls = method(iter(self._requests.get, None), timeout=30)

    def send(self, request: Any) -> None:
        self._requests.put(request if isinstance(request, bytes) else request.SerializeToString())

    def end(self) -> None:
        self._requests.put(None)

    def next(self) -> dict[str, Any]:
        return outputs_of(next(self.calls))

    def rest(self) -> list[dict[str, Any]]:
        return [outputs_of(answer) for answer in self.calls]

    def failure(self) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.rest()
        error: Any = caught.value
        return error.code(), error.details()


@pytest.fixture
def stream(channel: grpc.Channel) -> Iterator[Stream]:
    stream = Stream(channel)
    yield stream
    stream.end()
    stream.calls.cancel()


def count(models: V2Fixture, code: str, method: str = METHOD, model: str = "lm") -> float:
    labels = {"model": model, "version": "1", "method": method, "code": code}
    return models.registry.get_sample_value("tfs_lite_requests_total", labels) or 0


def text(pieces: list[dict[str, Any]]) -> str:
    return b"".join(piece["text_output"][0] for piece in pieces).decode()


# One text after the other.


def test_each_piece_is_an_answer_with_what_is_new(stream: Stream, models: V2Fixture) -> None:
    stream.send(asked("hi", max_tokens=40))
    stream.end()
    pieces = stream.rest()
    assert [piece["token_ids"] for piece in pieces] == [[[token]] for token in (*WORDS.encode(), 256)]
    assert text(pieces) == WORDS
    assert [piece["finish_reason"] for piece in pieces] == [[b""]] * len(WORDS.encode()) + [[b"stop"]]
    last = pieces[-1]
    assert (last["prompt_tokens"], last["completion_tokens"]) == ([3], [len(pieces)])
    assert stream.calls.code() is grpc.StatusCode.OK
    assert count(models, "OK") == 1


def test_answers_name_version_and_signature_and_have_the_wanted_outputs(stream: Stream) -> None:
    stream.send(asked("hi", outputs=("finish_reason", "text_output"), max_tokens=1))
    stream.end()
    (answer,) = stream.calls
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("lm", 1, "serving_default")
    assert outputs_of(answer) == {"finish_reason": [b"length"], "text_output": [b"g"]}


def test_next_text_begins_when_the_one_before_has_ended(stream: Stream, models: V2Fixture) -> None:
    steps = models.servables["lm", 1].steps
    steps.let(1)
    for limit in (2, 1, 2):
        stream.send(asked("hi", max_tokens=limit))
    assert stream.next()["token_ids"] == [[ord("g")]]
    assert models.handles == 1
    steps.open()
    stream.end()
    pieces = stream.rest()
    assert text(pieces) == "r" + "g" + "gr"
    assert [piece["finish_reason"] for piece in pieces] == [[b"length"], [b"length"], [b""], [b"length"]]
    assert count(models, "OK") == 3


def test_stream_without_requests_is_empty(stream: Stream) -> None:
    stream.end()
    assert stream.rest() == []


def test_tokens_may_be_sent_instead_of_texts(stream: Stream) -> None:
    stream.send(asked(input_ids=np.array([257, 1], np.int64), max_tokens=2))
    stream.end()
    assert text(stream.rest()) == "gr"


# Cancelling.


def test_cancel_ends_the_text_and_the_stream_goes_on(stream: Stream, models: V2Fixture) -> None:
    model = models.servables["lm", 1]
    model.steps.let(1)
    stream.send(asked("hi"))
    assert stream.next()["text_output"] == [b"g"]
    stream.send(asked(options=CANCEL))
    assert stream.next() == {"finish_reason": [b"cancelled"]}
    model.steps.open()
    stream.send(asked("hi", max_tokens=2))
    stream.end()
    assert text(stream.rest()) == "gr"
    wait_until(lambda: model.state().running == 0, "its slot is free")
    assert (count(models, "CANCELLED"), count(models, "OK")) == (1, 1)


def test_cancel_that_comes_too_late_is_no_failure(stream: Stream) -> None:
    stream.send(asked(options=CANCEL))
    stream.send(asked("hi", max_tokens=1))
    assert stream.next()["finish_reason"] == [b"length"]
    stream.send(asked(options=CANCEL))
    stream.send(asked("hi", max_tokens=1))
    stream.end()
    assert [piece["finish_reason"] for piece in stream.rest()] == [[b"length"]]


def test_client_that_goes_frees_its_slot(stream: Stream, models: V2Fixture) -> None:
    model = models.servables["lm", 1]
    model.steps.let(1)
    stream.send(asked("hi"))
    stream.next()
    assert model.state().running == 1
    stream.calls.cancel()
    wait_until(lambda: count(models, "CANCELLED"), "it is counted as cancelled")
    model.steps.open()
    wait_until(lambda: model.state().running == 0 and models.handles == 0, "its slot is free")


# Failures.


def test_a_failure_ends_the_stream_behind_the_pieces_before_it(stream: Stream, models: V2Fixture) -> None:
    models.add("lm", language(f"ab{BROKEN}"))
    stream.send(asked("hi"))
    stream.send(asked("hi"))
    assert [stream.next()["text_output"] for _ in "ab"] == [[b"a"], [b"b"]]
    code, message = stream.failure()
    assert (code, "failed on this text" in message) == (grpc.StatusCode.INTERNAL, True)
    assert count(models, "INTERNAL") == 1


WRONG: Mapping[str, tuple[Any, str]] = {
    "several texts": (asked("a", "b"), "the request has 2 texts for model 'lm', which takes one at a time"),
    "several rows": (asked(input_ids=np.ones((3, 2), np.int64)), "the request has 3 texts"),
    "bad value": (asked("hi", temperature=-1.0), "temperature is -1.0, expected at least 0.0"),
    "too long": (asked("hi", max_tokens=100), "100"),
    "nothing": (asked(), "expected either text_input or input_ids, and neither came"),
    "unknown input": (asked("hi", temp=1.0), "Inputs contains invalid name: temp"),
    "split": (asked("hi", options={"request_state": "SPLIT"}), "request_state: expected NONE"),
    "single answer": (asked("hi", options={"return_single_response": True}), "return_single_response is not supp"),
    "no message": (b"\xff\xff", "bytes are not a tensorflow.serving.PredictRequest"),
    "no model": (asked("hi", model=""), "ModelSpec has no name specified"),
}


@pytest.mark.parametrize(("request_sent", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_request_ends_the_stream_with_its_status(stream: Stream, request_sent: Any, words: str) -> None:
    stream.send(request_sent)
    code, message = stream.failure()
    assert (code, words in message) == (grpc.StatusCode.INVALID_ARGUMENT, True), message


def test_wrong_request_is_told_of_in_its_turn(stream: Stream) -> None:
    stream.send(asked("hi", max_tokens=3))
    stream.send(b"\xff\xff")
    assert [stream.next()["token_ids"][0][0] for _ in range(3)] == [*WORDS.encode()[:3]]
    assert stream.failure()[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_other_models_have_no_pieces(stream: Stream, models: V2Fixture) -> None:
    models.add_echo("echo", DataType.INT32, 1)
    stream.send(asked("hi", model="echo"))
    code, message = stream.failure()
    assert (code, "'echo' is no language model" in message) == (grpc.StatusCode.UNIMPLEMENTED, True)


def test_unknown_model_is_not_found(stream: Stream, models: V2Fixture) -> None:
    stream.send(asked("hi", model="nobody"))
    assert stream.failure()[0] is grpc.StatusCode.NOT_FOUND


def test_full_queue_is_a_status(stream: Stream, channel: grpc.Channel, models: V2Fixture) -> None:
    model = models.add("lm", language(WORDS, slots=1, max_queue=0))
    model.steps.let(1)
    stream.send(asked("hi"))
    stream.next()
    other = Stream(channel)
    other.send(asked("hi"))
    code, message = other.failure()
    assert (code, "queue is full" in message) == (grpc.StatusCode.UNAVAILABLE, True)
    other.end()
    model.steps.open()


# Predict.


def predict(channel: grpc.Channel, request: Any) -> dict[str, Any]:
    path = "/tensorflow.serving.PredictionService/Predict"
    send = channel.unary_unary(path, PredictRequest.SerializeToString, PredictResponse.FromString)
    return outputs_of(send(request, timeout=30))


def test_predict_gives_whole_texts_and_needs_none_of_the_optional_inputs(
    channel: grpc.Channel, models: V2Fixture
) -> None:
    assert predict(channel, asked("a", "bc", max_tokens=np.array([1, 2], np.int32))) == {
        "text_output": [b"g", b"gr"],
        "token_ids": [[ord("g"), -1], [*b"gr"]],
        "finish_reason": [b"length", b"length"],
        "prompt_tokens": [2, 3],
        "completion_tokens": [1, 2],
    }
    assert predict(channel, asked("hi", outputs=("text_output",))) == {"text_output": [WORDS.encode()]}
    assert count(models, "OK", "Predict") == 2


def test_predict_refuses_what_the_model_refuses(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        predict(channel, asked("hi", top_p=0.0))
    error: Any = caught.value
    assert (error.code(), "top_p is 0.0" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)
