"""Sequences of requests with Triton's client: ids that are numbers or texts, on their own and in a stream."""

import queue

import numpy as np
import pytest

PATIENCE = 60
MODELS = [("running", 5001), ("chat", "talk-1")]


def ask(api, model, value, sequence_id, start=False, end=False, **how):
    inputs = [api.input("INPUT", np.array([[value]], np.int32))]
    return api.client.infer(model, inputs, sequence_id=sequence_id, sequence_start=start, sequence_end=end, **how)


def total(result):
    return int(result.as_numpy("OUTPUT")[0, 0])


@pytest.mark.parametrize(("model", "name"), MODELS, ids=["number", "text"])
def test_sequence_is_remembered_from_its_start_to_its_end(api, model, name):
    results = [ask(api, model, value, name, start=value == 1, end=value == 4) for value in (1, 2, 3, 4)]
    assert [total(result) for result in results] == [1, 3, 6, 10]
    assert [result.as_numpy("FLAGS").tolist() for result in results] == [[[1, 0]], [[0, 0]], [[0, 0]], [[0, 1]]]


@pytest.mark.parametrize(("model", "name"), MODELS, ids=["number", "text"])
def test_sequence_that_has_ended_needs_a_start(api, model, name):
    assert total(ask(api, model, 7, name, start=True, end=True)) == 7
    words = "must specify the START flag on the first request of the sequence"
    api.refused("INVALID_ARGUMENT", words, ask, api, model, 1, name)
    assert total(ask(api, model, 8, name, start=True, end=True)) == 8


def test_largest_number_is_an_id(http_api):
    """Over gRPC the client cannot send it."""
    name = 2**64 - 1
    assert total(ask(http_api, "running", 1, name, start=True)) == 1
    assert total(ask(http_api, "running", 1, name, end=True)) == 2


def test_requests_without_an_id_are_refused(api):
    words = "must specify a non-zero or non-empty correlation ID"
    api.refused("INVALID_ARGUMENT", words, ask, api, "running", 1, 0)
    api.refused("INVALID_ARGUMENT", words, ask, api, "chat", 1, "")


def test_more_than_one_row_is_refused(api):
    inputs = [api.input("INPUT", np.ones((2, 1), np.int32))]
    words = "must specify batch-size 1 due to requirements of sequence batcher"
    api.refused("INVALID_ARGUMENT", words, api.client.infer, "running", inputs, sequence_id=9, sequence_start=True)


def test_ids_of_the_wrong_kind_are_refused(api):
    words = ("'CORRID'", "'BYTES'", "'running'", "'UINT64'")
    api.refused("INVALID_ARGUMENT", words, ask, api, "running", 1, "text", start=True)
    words = ("'CORRID'", "'BYTES'", "'chat'", "'UINT64'")
    api.refused("INVALID_ARGUMENT", words, ask, api, "chat", 1, 12, start=True)


def test_text_that_is_too_long_is_no_id(api):
    api.refused("UNIMPLEMENTED", "128", ask, api, "chat", 1, "x" * 129, start=True)
    assert total(ask(api, "chat", 1, "x" * 128, start=True, end=True)) == 1


def test_controls_are_no_inputs(api):
    inputs = [api.input("INPUT", np.ones((1, 1), np.int32)), api.input("START", np.ones((1, 1), np.int32))]
    words = "expected 1 inputs but got 2 inputs for model 'running'"
    api.refused("INVALID_ARGUMENT", words, api.client.infer, "running", inputs, sequence_id=10, sequence_start=True)


def test_more_sequences_than_places_wait_for_one(api):
    for name in range(1, 5):
        ask(api, "running", name, name, start=True)
    with api.beside(lambda other: ask(other, "running", 50, 5, start=True, end=True)) as fifth:
        for name in range(1, 5):
            assert total(ask(api, "running", 1, name, end=True)) == name + 1
        assert total(fifth.result(timeout=PATIENCE)) == 50


def test_sequences_mixed_in_one_stream_keep_their_order(grpc_api):
    answers = queue.Queue()
    client = grpc_api.client
    client.start_stream(lambda result, error: answers.put((result, error)))
    names = [*((f"talk-{number}", "chat") for number in range(6)), *((100 + number, "running") for number in range(6))]
    for value in range(1, 6):
        for name, model in names:
            client.async_stream_infer(
                model,
                [grpc_api.input("INPUT", np.array([[value]], np.int32))],
                request_id=f"{name}",
                sequence_id=name,
                sequence_start=value == 1,
                sequence_end=value == 5,
            )
    client.stop_stream()
    found = {}
    while not answers.empty():
        result, error = answers.get()
        assert error is None, error
        found.setdefault(result.get_response().id, []).append(total(result))
    assert found == {f"{name}": [1, 3, 6, 10, 15] for name, _ in names}
