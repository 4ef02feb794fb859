"""The generate extension over HTTP: one answer, or a stream of events, whoever reads it and however slowly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import orjson
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.v2_fixture import BATCH, Repeater
from tests.support.servers.v2_http_fixture import TIMEOUT, V2HttpFixture, error, events, serving_v2
from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, TensorSpec
from tfs_lite.protocols.dtypes import Array
from tfs_lite.server.inference.pending import PART_BYTES, AnswerRoom

STREAM, ONE = "/v2/models/repeat/generate_stream", "/v2/models/repeat/generate"
EVENTS = "text/event-stream; charset=utf-8"


class Shouter(Repeater):
    """Repeats each number a hundred thousand times in one answer, until nobody wants it."""

    made = 0

    def _answer(self, call: PredictCall) -> None:
        for number in cast(Array, call.inputs["IN"]):
            assert call.on_part is not None
            if self.cancelled.is_set():
                break
            self.made += 1
            call.on_part({"OUT": np.full(100_000, number, np.int32)})
        call.on_done({})


class Halves(Repeater):
    """Gives what JSON cannot hold."""

    signatures: Mapping[str, Signature] = {
        DEFAULT_SIGNATURE: Signature(
            (TensorSpec("IN", DataType.INT32, (1,)),), (TensorSpec("OUT", DataType.HALF, (1,)),)
        )
    }

    def _answer(self, call: PredictCall) -> None:
        assert call.on_part is not None
        call.on_part({"OUT": np.zeros(1, np.float16)})
        call.on_done({})


@pytest.fixture(scope="module")
def served() -> Iterator[V2HttpFixture]:
    with serving_v2() as one:
        one.models.add("repeat", Repeater())
        one.models.add("halves", Halves())
        one.models.add_simple()
        one.models.add_echo("text", DataType.STRING, BATCH)
        yield one


def test_every_answer_of_a_decoupled_model_is_an_event(served: V2HttpFixture) -> None:
    answer = served.post(STREAM, {"id": "4", "IN": [5, 6]})
    head = {"id": "4", "model_name": "repeat", "model_version": "1"}
    assert (answer.status_code, events(answer)) == (200, [{**head, "OUT": 5}, {**head, "OUT": 6}])


def test_ordinary_model_answers_both_ways(served: V2HttpFixture) -> None:
    head = {"model_name": "text", "model_version": "1"}
    stream = served.post("/v2/models/text/generate_stream", {"parameters": {"IN": ["a", "ü"]}})
    assert events(stream) == [{**head, "OUT": ["a", "ü"]}]
    one = served.post("/v2/models/text/versions/1/generate", {"IN": "a", "temperature": 0.5})
    assert (one.headers["content-type"], one.json()) == ("application/json", {**head, "OUT": "a"})


def test_generate_takes_the_only_answer_of_a_decoupled_model(served: V2HttpFixture) -> None:
    assert served.post(ONE, {"IN": [7]}).json()["OUT"] == 7


@pytest.mark.parametrize("numbers", [[1, 2], [1, 2, 3, -1]])
def test_generate_wants_exactly_one_answer(served: V2HttpFixture, numbers: list[int]) -> None:
    answer = served.post(ONE, {"IN": numbers})
    assert (answer.status_code, error(answer)) == (500, "generate expects model to produce exactly 1 response")


def test_request_without_answers_is_an_empty_stream_and_no_generate() -> None:
    with serving_v2() as served:
        nobody = served.models.add("repeat", Repeater())
        nobody._answer = lambda call: call.on_done({})
        stream = served.post(STREAM, {"IN": [1]})
        assert (stream.status_code, events(stream)) == (200, [])
        assert "exactly 1 response" in error(served.post(ONE, {"IN": [1]}))


def test_model_that_fails_at_once_gives_an_event_and_its_status(served: V2HttpFixture) -> None:
    answer = served.post(STREAM, {"IN": [-1, 2]})
    assert (answer.status_code, events(answer)) == (500, [{"error": "cannot repeat -1"}])


def test_model_that_fails_later_gives_an_event_behind_the_others(served: V2HttpFixture) -> None:
    answer = served.post(STREAM, {"IN": [3, -1, 2]})
    assert answer.status_code == 200
    assert [event.get("OUT", event.get("error")) for event in events(answer)] == [3, "cannot repeat -1"]


def test_answer_that_json_cannot_hold_is_an_event_too(served: V2HttpFixture) -> None:
    answer = served.post("/v2/models/halves/generate_stream", {"IN": 1})
    (event,) = events(answer)
    assert (answer.status_code, "sending FP16 data via JSON" in event["error"]) == (400, True)


BEFORE = [
    ("unknown model", "nobody", {"IN": [1]}, 404, "Request for unknown model: 'nobody'"),
    ("bad JSON", "repeat", b"{", 400, "failed to parse the request JSON buffer"),
    ("twice", "repeat", b'{"IN":1,"IN":2}', 400, "input 'IN' already exists in request"),
    ("missing input", "simple", {"INPUT0": [1, 2, 3, 4]}, 400, "expected 2 inputs but got 1 inputs"),
    ("no shape", "simple", {"INPUT0": [], "INPUT1": [1, 2, 3, 4]}, 400, "has no shape but model requires batch"),
    ("does not fit", "simple", {"INPUT0": [1, 2, 3]}, 400, "can not convert input 'INPUT0'"),
    ("encoded oddly", "repeat", {"IN": ["1"]}, 400, "attempt to access JSON non-signed-integer"),
]


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("model", "body", "status", "words"), [row[1:] for row in BEFORE], ids=[row[0] for row in BEFORE]
)
def test_failure_before_the_queue_is_an_ordinary_error(
    served: V2HttpFixture, verb: str, model: str, body: Any, status: int, words: str
) -> None:
    answer = served.post(f"/v2/models/{model}/{verb}", body)
    assert (answer.status_code, words in error(answer)) == (status, True)


def test_events_come_while_the_model_works() -> None:
    with serving_v2() as served:
        repeater = served.models.add("repeat", Repeater())
        first_only = repeater.gate

        def answer(call: PredictCall) -> None:
            assert call.on_part is not None
            call.on_part({"OUT": np.array([1], np.int32)})
            first_only.wait(TIMEOUT)
            call.on_done({})

        repeater._answer = answer
        first_only.clear()
        with served.client.stream("POST", STREAM, json={"IN": [1]}) as response:
            lines = response.iter_lines()
            assert orjson.loads(next(lines).removeprefix("data: "))["OUT"] == 1
            first_only.set()
            assert list(lines) == [""]


def test_client_that_goes_ends_the_stream() -> None:
    with serving_v2() as served:
        repeater = served.models.add("repeat", Repeater())
        repeater.gate.clear()
        body = b'{"IN":[1]}'
        with socket.create_connection(("127.0.0.1", served.port), timeout=TIMEOUT) as connection:
            connection.sendall(
                f"POST {STREAM} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            )
            wait_until(lambda: served.models.handles, "the request is inside")
        assert repeater.cancelled.wait(TIMEOUT)
        wait_until(lambda: served.models.count("CANCELLED", "repeat"), "it is counted as cancelled")
        repeater.gate.set()


def test_deadline_ends_a_stream_with_an_event() -> None:
    with serving_v2(timeout_seconds=0.3) as served:
        repeater = served.models.add("repeat", Repeater())
        end = repeater.gate

        def answer(call: PredictCall) -> None:
            assert call.on_part is not None
            call.on_part({"OUT": np.array([1], np.int32)})
            end.wait(TIMEOUT)
            call.on_done({})

        repeater._answer = answer
        end.clear()
        answered = served.post(STREAM, {"IN": [1]})
        one, failure = events(answered)
        assert (one["OUT"], "the deadline passed" in failure["error"]) == (1, True)
        assert served.models.count("DEADLINE_EXCEEDED", "repeat") == 1
        end.set()


def test_answers_that_wait_are_bounded() -> None:
    with serving_v2(room=AnswerRoom(one=20 * PART_BYTES)) as served:
        repeater = served.models.add("repeat", Repeater())
        held, go = threading.Event(), threading.Event()
        answer_all = repeater._answer

        def hold() -> None:
            held.set()
            go.wait(TIMEOUT)

        def answer(call: PredictCall) -> None:
            """All answers are there before the loop can send the first."""
            served.loop.loop.call_soon_threadsafe(hold)
            held.wait(TIMEOUT)
            answer_all(call)
            go.set()

        repeater._answer = answer
        *sent, failure = events(served.post(STREAM, {"IN": list(range(40))}))
        assert len(sent) < 20
        assert "more slowly than the model makes them" in failure["error"]
        assert repeater.cancelled.is_set()
        assert served.models.count("RESOURCE_EXHAUSTED", "repeat") == 1


def test_client_that_does_not_read_holds_up_the_model_and_is_cut() -> None:
    with serving_v2(write_timeout=0.5) as served:
        shouter = served.models.add("repeat", Shouter())
        body = orjson.dumps({"IN": [123_456_789] * 400})
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", served.port))
            connection.sendall(
                f"POST {STREAM} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            )
            wait_until(lambda: served.room.held, "answers wait")
            wait_until(lambda: served.models.count("CANCELLED", "repeat"), "the client is cut")
            wait_until(served.is_empty, "nothing is left", TIMEOUT)
        assert 64 < shouter.made < 120
