"""The V2 service over gRPC, from a client's messages to a client's messages."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.v2_client import V2Client
from tests.support.servers.v2_fixture import Repeater, V2Fixture
from tfs_lite.protocols.descriptors import POOL
from tfs_lite.server.v2.grpc_service import V2GrpcService

pytestmark = pytest.mark.wire


def numbers(name: str, *values: int) -> dict[str, Any]:
    return {"name": name, "datatype": "INT32", "shape": (1, 4), "contents": {"int_contents": values or (1, 2, 3, 4)}}


def simple(first: int = 1, **fields: Any) -> dict[str, Any]:
    inputs = [numbers("INPUT0", first, 2, 3, 4), numbers("INPUT1")]
    return {"model_name": "simple", "inputs": inputs, **fields}


def repeat(*values: int, **fields: Any) -> dict[str, Any]:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [len(values)], "contents": {"int_contents": values}}
    return {"model_name": "repeat", "inputs": [tensor], **fields}


def first_sum(response: Any) -> int:
    return int(np.frombuffer(response.raw_output_contents[0], np.int32)[0])


def final(response: Any) -> bool:
    found: bool = response.infer_response.parameters["triton_final_response"].bool_param
    return found


EMPTY_FINAL = {"triton_enable_empty_final_response": {"bool_param": True}}


# One request.


def test_every_method_of_the_protocol_is_in_the_table(models: V2Fixture) -> None:
    declared = POOL.FindServiceByName("inference.GRPCInferenceService").methods_by_name
    assert {method.name for method in V2GrpcService(models.infer, None, models.fast).methods()} == set(declared)


def test_a_request_is_answered_with_its_id_and_version(client: V2Client, models: V2Fixture) -> None:
    models.add_simple(version=3)
    response = client.call("ModelInfer", **simple(id="x"))
    assert (response.model_name, response.model_version, response.id) == ("simple", "3", "x")
    assert [output.name for output in response.outputs] == ["OUTPUT0", "OUTPUT1"]
    assert np.frombuffer(response.raw_output_contents[0], np.int32).tolist() == [2, 4, 6, 8]
    assert models.count("OK", version="3") == 1


def test_what_is_wrong_with_a_request_is_its_status(client: V2Client, models: V2Fixture) -> None:
    models.add_simple()
    models.add("repeat", Repeater())
    assert client.refusal("ModelInfer", **simple(model_name="nope")) == (
        grpc.StatusCode.NOT_FOUND,
        "Request for unknown model: 'nope' is not found",
    )
    assert client.refusal("ModelInfer", **simple(13)) == (grpc.StatusCode.INTERNAL, "thirteen brings bad luck")
    assert client.refusal("ModelInfer", **simple(model_version="x"))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert client.refusal("ModelInfer", **repeat(1))[0] is grpc.StatusCode.UNIMPLEMENTED
    assert models.count("INVALID_ARGUMENT", version="") == 1


def test_a_late_answer_is_not_waited_for(client: V2Client, models: V2Fixture) -> None:
    servable = models.add_simple()
    servable.model.gate.clear()
    assert client.refusal("ModelInfer", 0.2, **simple())[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: models.count("DEADLINE_EXCEEDED") + models.count("CANCELLED"), "it is counted")
    servable.model.gate.set()


# Streams.


def test_answers_of_a_stream_come_in_the_order_of_the_requests(client: V2Client, models: V2Fixture) -> None:
    slow, _ = models.add_simple("slow"), models.add_simple()
    slow.model.gate.clear()
    stream = client.stream()
    stream.send(**simple(id="1", model_name="slow"))
    for number in range(2, 6):
        stream.send(**simple(id=str(number)))
    wait_until(lambda: models.count("OK") == 4, "count")
    slow.model.gate.set()
    stream.end()
    answers = stream.rest()
    assert [answer.infer_response.id for answer in answers] == ["1", "2", "3", "4", "5"]
    assert all(final(answer) for answer in answers)
    assert stream.calls.code() is grpc.StatusCode.OK


def test_requests_of_a_stream_are_queued_in_its_order(client: V2Client, models: V2Fixture) -> None:
    servable = models.add_simple()
    stream = client.stream()
    for number in range(100, 300):
        stream.send(**simple(number))
    stream.end()
    assert [first_sum(answer.infer_response) for answer in stream.rest()] == list(range(101, 301))
    assert [int(inputs["INPUT0"][0, 0]) for inputs in servable.model.runs] == list(range(100, 300))


def test_a_failure_is_an_answer_and_the_stream_goes_on(client: V2Client, models: V2Fixture) -> None:
    models.add_simple()
    stream = client.stream()
    stream.send(**simple(13, id="unlucky"))
    stream.send(**simple(id="unknown", model_name="nope"))
    stream.send(**simple(id="good"))
    stream.end()
    unlucky, unknown, good = stream.rest()
    assert (unlucky.error_message, unlucky.infer_response.id) == ("thirteen brings bad luck", "unlucky")
    assert "unknown model: 'nope'" in unknown.error_message
    assert not good.error_message
    assert good.infer_response.id == "good"
    assert all(final(answer) for answer in (unlucky, unknown, good))
    assert (models.count("INTERNAL"), models.count("OK")) == (1, 1)


def test_who_asks_for_it_gets_the_first_failure_as_a_status(client: V2Client, models: V2Fixture) -> None:
    models.add_simple()
    stream = client.stream(triton_grpc_error="true")
    stream.send(**simple(id="good"))
    stream.send(**simple(13))
    assert stream.next().infer_response.id == "good"
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "thirteen brings bad luck"
    stream.end()


def test_parts_go_out_as_they_are_made(client: V2Client, models: V2Fixture) -> None:
    servable = models.add_simple()
    servable.model.gate.clear()
    models.add("repeat", Repeater())
    stream = client.stream()
    stream.send(**simple(id="slow"))
    stream.send(**repeat(5, 6, id="parts", parameters=EMPTY_FINAL))
    answers = [stream.next() for _ in range(3)]
    assert [first_sum(answer.infer_response) for answer in answers[:2]] == [5, 6]
    assert [final(answer) for answer in answers] == [False, False, True]
    last = answers[2].infer_response
    assert (last.id, last.model_name, last.model_version, len(last.outputs)) == ("parts", "repeat", "1", 0)
    servable.model.gate.set()
    stream.end()
    assert [answer.infer_response.id for answer in stream.rest()] == ["slow"]


def test_an_end_without_content_is_only_said_to_those_who_ask(client: V2Client, models: V2Fixture) -> None:
    models.add("repeat", Repeater())
    stream = client.stream()
    stream.send(**repeat())
    stream.send(**repeat(7))
    stream.send(**repeat(-1, id="bad"))
    stream.end()
    answers = stream.rest()
    assert sorted(answer.error_message for answer in answers) == ["", "cannot repeat -1"]
    assert [first_sum(answer.infer_response) for answer in answers if not answer.error_message] == [7]


def test_the_end_of_a_stream_cancels_its_requests(client: V2Client, models: V2Fixture) -> None:
    servable, repeater = models.add_simple(), models.add("repeat", Repeater())
    servable.model.gate.clear()
    repeater.gate.clear()
    stream = client.stream()
    for _ in range(3):
        stream.send(**simple())
    stream.send(**repeat(1))
    wait_until(lambda: models.handles == 4 and servable.pending == 2, "one run has begun")
    stream.calls.cancel()
    stream.end()
    assert repeater.cancelled.wait(20)
    wait_until(lambda: servable.pending == 0, "pending")
    servable.model.gate.set()
    wait_until(lambda: models.handles == 1, "handles")
    assert models.count("CANCELLED") == 3
    assert len(servable.model.runs) == 1


def test_a_stream_without_requests_ends_well(client: V2Client) -> None:
    stream = client.stream()
    stream.end()
    assert stream.rest() == []
    assert stream.calls.code() is grpc.StatusCode.OK
