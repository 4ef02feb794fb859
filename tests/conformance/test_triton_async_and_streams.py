"""Triton's client without waiting: callbacks, cancelling, deadlines, and streams of requests and answers."""

import queue
import time

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

PATIENCE = 60
CANCELLED, TOO_LATE = "StatusCode.CANCELLED", "StatusCode.DEADLINE_EXCEEDED"


class Answers:
    """A callback that keeps its results and errors."""

    def __init__(self):
        self._queue = queue.Queue()

    def __call__(self, result, error):
        self._queue.put((result, error))

    def next(self):
        """(result, error)"""
        return self._queue.get(timeout=PATIENCE)

    def result(self):
        result, error = self.next()
        assert error is None, error
        return result

    def error(self):
        result, error = self.next()
        assert result is None
        return error

    def empty(self):
        return self._queue.empty()


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def stream(grpc_api, answers):
    """The client within a stream; ``answers`` gets what comes."""
    grpc_api.client.start_stream(answers)
    yield grpc_api.client
    grpc_api.client.stop_stream()


def x(api, rows=1):
    return [api.input("x", np.zeros((rows, 1), np.float32))]


def numbers(api, *values):
    return [api.input("IN", np.array(values, np.int32))]


def final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


def test_callback_gets_the_result(grpc_api, sums_inputs, answers):
    grpc_api.client.async_infer("sums", sums_inputs(grpc_api), answers, model_version="1", request_id="a")
    result = answers.result()
    assert (result.get_response().id, result.as_numpy("sum").tolist()) == ("a", [[2, 3, 4, 5]])


def test_callback_gets_the_error(grpc_api, sums_inputs, answers):
    grpc_api.client.async_infer("none_such", sums_inputs(grpc_api), answers)
    error = answers.error()
    assert error.status() == "StatusCode.NOT_FOUND"
    assert "Request for unknown model: 'none_such' is not found" in error.message()


def test_many_at_once_over_http(http_api, sums_inputs):
    client = http_api.module.InferenceServerClient(http_api.address, concurrency=4)
    try:
        pending = [client.async_infer("sums", sums_inputs(http_api), request_id=str(number)) for number in range(20)]
        assert [found.get_result().get_response()["id"] for found in pending] == [str(number) for number in range(20)]
        with pytest.raises(InferenceServerException, match="is not found"):
            client.async_infer("none_such", sums_inputs(http_api)).get_result()
    finally:
        client.close()


def test_cancelled_request_ends_and_the_model_goes_on(grpc_api, gate, answers):
    first, second = Answers(), answers
    grpc_api.client.async_infer("gate", x(grpc_api), first)
    gate.wait_entered()
    call = grpc_api.client.async_infer("gate", x(grpc_api), second)
    call.cancel()
    assert second.error().status() == CANCELLED
    gate.open()
    assert first.result().as_numpy("y").tolist() == [[0]]
    assert grpc_api.client.infer("gate", x(grpc_api)).as_numpy("y").tolist() == [[0]]


def test_client_timeout_is_the_deadline(grpc_api, gate, answers):
    """The client and the server have different messages for it."""
    grpc_api.refused("DEADLINE_EXCEEDED", "", grpc_api.client.infer, "gate", x(grpc_api), client_timeout=0.2)
    grpc_api.client.async_infer("gate", x(grpc_api), answers, client_timeout=0.2)
    assert answers.error().status() == TOO_LATE
    gate.open()
    assert grpc_api.client.infer("gate", x(grpc_api), client_timeout=PATIENCE).as_numpy("y").tolist() == [[0]]


def test_http_client_that_has_gone_leaves_the_model_to_others(http_api, gate):
    client = http_api.module.InferenceServerClient(http_api.address, network_timeout=0.2)
    started = time.monotonic()
    with pytest.raises((TimeoutError, OSError)):
        client.infer("gate", x(http_api))
    assert time.monotonic() - started < PATIENCE
    client.close()
    gate.open()
    assert http_api.client.infer("gate", x(http_api)).as_numpy("y").tolist() == [[0]]


def test_stream_of_an_ordinary_model_answers_in_order(grpc_api, sums_inputs, stream, answers):
    for number in range(50):
        stream.async_stream_infer("sums", sums_inputs(grpc_api), request_id=str(number))
    found = [answers.result() for _ in range(50)]
    assert [result.get_response().id for result in found] == [str(number) for number in range(50)]
    assert all(final(result) for result in found)


def test_decoupled_model_answers_as_often_as_it_likes(grpc_api, stream, answers):
    stream.async_stream_infer("repeat", numbers(grpc_api, 4, 5, 6), request_id="r", enable_empty_final_response=True)
    found = [answers.result() for _ in range(4)]
    assert [int(result.as_numpy("OUT")[0]) for result in found[:3]] == [4, 5, 6]
    assert [int(result.as_numpy("IDX")[0]) for result in found[:3]] == [0, 1, 2]
    assert [final(result) for result in found] == [False, False, False, True]
    last = found[3].get_response()
    assert (last.id, last.model_name, last.model_version, len(last.outputs)) == ("r", "repeat", "1", 0)


def test_empty_final_answer_comes_only_where_it_is_wanted(grpc_api, stream, answers):
    stream.async_stream_infer("repeat", numbers(grpc_api), request_id="none")
    stream.async_stream_infer("repeat", numbers(grpc_api), request_id="flag", enable_empty_final_response=True)
    stream.async_stream_infer("repeat", numbers(grpc_api, 1), request_id="one")
    found = {}
    while set(found) != {"flag", "one"}:
        result = answers.result()
        found[result.get_response().id] = (final(result), len(result.get_response().outputs))
    assert found == {"flag": (True, 0), "one": (False, 2)}
    assert answers.empty()


def test_wanted_outputs_of_a_decoupled_model(grpc_api, stream, answers):
    outputs = [grpc_api.output("IDX")]
    stream.async_stream_infer("repeat", numbers(grpc_api, 8, 9), outputs=outputs)
    found = [answers.result() for _ in range(2)]
    assert [[output.name for output in result.get_response().outputs] for result in found] == [["IDX"]] * 2


def test_failure_is_an_answer_and_the_stream_goes_on(grpc_api, sums_inputs, stream, answers):
    stream.async_stream_infer("none_such", numbers(grpc_api, 1), request_id="bad")
    assert "Request for unknown model: 'none_such' is not found" in answers.error().message()
    stream.async_stream_infer("sums", sums_inputs(grpc_api, 9), request_id="large")
    assert "inference request batch-size must be <= 8 for 'sums'" in answers.error().message()
    stream.async_stream_infer("fails", [grpc_api.input("x", np.ones((1, 2), np.float32))])
    assert answers.error().message()
    stream.async_stream_infer("sums", sums_inputs(grpc_api), request_id="good")
    assert answers.result().get_response().id == "good"


def test_failure_ends_the_stream_where_a_status_is_wanted(grpc_api, answers):
    grpc_api.client.start_stream(answers, headers={"triton_grpc_error": "true"})
    try:
        grpc_api.client.async_stream_infer("none_such", numbers(grpc_api, 1))
        error = answers.error()
        assert error.status() == "StatusCode.NOT_FOUND"
        assert "Request for unknown model: 'none_such' is not found" in error.message()
    finally:
        grpc_api.client.stop_stream()


def test_stopped_stream_has_given_all_its_answers(grpc_api, answers):
    grpc_api.client.start_stream(answers)
    for number in range(20):
        grpc_api.client.async_stream_infer("repeat", numbers(grpc_api, number, number))
    grpc_api.client.stop_stream()
    found = sorted(int(answers.result().as_numpy("OUT")[0]) for _ in range(40))
    assert found == sorted([*range(20), *range(20)])
    assert answers.empty()


def test_cancelled_stream_ends_at_once(grpc_api, gate, answers):
    grpc_api.client.start_stream(answers)
    grpc_api.client.async_stream_infer("gate", x(grpc_api))
    gate.wait_entered()
    grpc_api.client.async_stream_infer("gate", x(grpc_api))
    grpc_api.client.stop_stream(cancel_requests=True)
    assert answers.error().status() == CANCELLED
    assert answers.empty()
    gate.open()
    assert grpc_api.client.infer("gate", x(grpc_api)).as_numpy("y").tolist() == [[0]]


def test_stream_has_a_deadline(grpc_api, gate, answers):
    """The request may fail before the stream ends."""
    grpc_api.client.start_stream(answers, stream_timeout=0.3)
    try:
        grpc_api.client.async_stream_infer("gate", x(grpc_api))
        error = answers.error()
        if error.status() is None:
            assert "deadline" in error.message().lower()
            error = answers.error()
        assert error.status() == TOO_LATE
    finally:
        grpc_api.client.stop_stream()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_stream(grpc_api, answers, algorithm):
    grpc_api.client.start_stream(answers, compression_algorithm=algorithm)
    values = list(range(300))
    grpc_api.client.async_stream_infer("repeat", numbers(grpc_api, *values))
    grpc_api.client.stop_stream()
    assert [int(answers.result().as_numpy("OUT")[0]) for _ in values] == values


def test_one_request_that_waits_does_not_hold_up_other_models(grpc_api, gate, stream, answers):
    """Decoupled answers go out as they are made; ordinary ones keep the order of the stream."""
    stream.async_stream_infer("gate", x(grpc_api), request_id="slow")
    gate.wait_entered()
    stream.async_stream_infer("repeat", numbers(grpc_api, 1), request_id="quick")
    assert answers.result().get_response().id == "quick"
    gate.open()
    assert answers.result().get_response().id == "slow"
