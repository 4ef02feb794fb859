from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from tfs_lite.core.request_context import RequestContext
from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.ended_requests import CallTimes, EndedRequest
from tfs_lite.metrics.requests import GRPC, REST
from tfs_lite.operations.failed_requests.ring import (
    KEPT,
    KEPT_OF_MODEL,
    MOST_A_SECOND,
    MOST_BYTES,
    SAMPLED,
    FailedRequests,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ENDED = EndedRequest(
    "Predict",
    "m",
    GRPC,
    7,
    StatusCode.INTERNAL,
    "it broke",
    None,
    "run",
    RequestContext("id-1", None, "10.0.0.8"),
    TRACE,
    10.0,
    10.5,
    0.25,
    0.125,
    0.0625,
    (CallTimes(10.6, 0.125, 0.0625, (0.0, 0.0), 2, 2, False, None),),
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(clock: Clock) -> FailedRequests:
    return FailedRequests(clock, lambda name: not name.startswith("unknown"))


def note(ring: FailedRequests, clock: Clock, request_id: str = "x", **fields: Any) -> None:
    """In a second of its own."""
    clock.now += 1
    ring.note(replace(ENDED, context=RequestContext(request_id, None, "10.0.0.8"), **fields))


def test_what_is_known_of_a_request_is_found_by_its_id_and_by_its_trace(ring: FailedRequests, clock: Clock) -> None:
    ring.note(ENDED)
    (found,) = ring.find("id-1")
    assert ring.find(TRACE) == [found]
    assert ring.find("id-2") == []
    assert ring.of_model("m") == [found]
    assert found.as_json == {
        "time": "1970-01-01T00:16:40.000Z",
        "request_id": "id-1",
        "trace_id": TRACE,
        "method": "Predict",
        "protocol": "gRPC",
        "model": "m",
        "version": 7,
        "code": "INTERNAL",
        "stage": "run",
        "message": "it broke",
        "seconds": 0.25,
        "queue_seconds": 0.125,
        "run_seconds": 0.0625,
        "rows": 2,
        "batch_rows": 2,
        "batch": "alone",
        "peer": "10.0.0.8",
    }


@pytest.mark.parametrize(
    ("method", "entrypoint", "protocol"),
    [
        ("Predict", REST, "REST"),
        ("PredictStreamed", GRPC, "gRPC"),
        ("ModelInfer", GRPC, "V2 over gRPC"),
        ("ModelInfer", REST, "V2 over HTTP"),
        ("ChatCompletions", REST, "OpenAI"),
    ],
)
def test_the_protocol_is_told_by_method_and_port(
    ring: FailedRequests, clock: Clock, method: str, entrypoint: str, protocol: str
) -> None:
    note(ring, clock, method=method, entrypoint=entrypoint)
    assert ring.find("x")[0].protocol == protocol


@pytest.mark.parametrize(
    ("stage", "rows", "batch_rows", "halved", "company"),
    [
        ("run", 2, 2, False, "alone"),
        ("run", 2, 2, True, "guilty"),
        ("run", 2, 8, False, "shared"),
        ("run", 2, 0, False, ""),
        ("queue", 2, 0, False, ""),
        ("encode", 2, 8, True, ""),
    ],
)
def test_the_company_of_a_run_is_told(
    ring: FailedRequests, clock: Clock, stage: str, rows: int, batch_rows: int, halved: bool, company: str
) -> None:
    calls = (CallTimes(10.6, 0.1, 0.1, (0.0, 0.0), rows, batch_rows, halved, None),)
    note(ring, clock, stage=stage, calls=calls)
    assert ring.find("x")[0].batch == company


def test_the_last_of_each_model_are_kept_the_newest_first(ring: FailedRequests, clock: Clock) -> None:
    note(ring, clock, "other", model="n")
    for number in range(KEPT_OF_MODEL + 3):
        note(ring, clock, str(number))
    kept = [found.request_id for found in ring.of_model("m")]
    assert kept == [str(number) for number in reversed(range(3, KEPT_OF_MODEL + 3))]
    assert [found.request_id for found in ring.of_model("m", 2)] == kept[:2]
    assert ring.find("2") == []
    assert len(ring.of_model("n")) == 1
    assert ring.reaches_back_to == 1_004.0  # the time of the last that was dropped


def test_a_ring_that_has_dropped_nothing_reaches_back_to_the_start(ring: FailedRequests, clock: Clock) -> None:
    note(ring, clock)
    assert ring.reaches_back_to == 1_000.0


def test_all_models_together_are_bounded_and_the_oldest_go_first(ring: FailedRequests, clock: Clock) -> None:
    for number in range(KEPT + 50):
        note(ring, clock, str(number), model=f"m{number % 40}")
    assert len(ring) == KEPT
    assert ring.find("49") == []
    assert len(ring.find("50")) == 1


def test_requests_for_models_that_are_not_served_share_one_ring(ring: FailedRequests, clock: Clock) -> None:
    for number in range(KEPT_OF_MODEL + 20):
        note(ring, clock, str(number), model=f"unknown-{number}")
    assert len(ring) == KEPT_OF_MODEL
    assert ring.find(str(KEPT_OF_MODEL + 19))[0].model == f"unknown-{KEPT_OF_MODEL + 19}"


def test_texts_of_clients_are_cut_and_cleaned(ring: FailedRequests, clock: Clock) -> None:
    note(ring, clock, message="a\nb\x1b[31m" + "c" * 10_000, model="unknown" + "\ud800" * 10_000)
    (found,) = ring.find("x")
    assert found.message.startswith("a b [31mccc")
    assert len(found.message) == 300
    assert len(found.model) == 200
    found.model.encode()


def test_bytes_are_bounded_whatever_clients_send(clock: Clock) -> None:
    ring = FailedRequests(clock, lambda name: True)
    huge = "\U0001f600" * 400
    for number in range(KEPT + 100):
        note(ring, clock, huge[:128], message=huge, model=f"{number % 100}{huge}")
    held = sum(
        sys.getsizeof(text)
        for number in range(100)
        for found in ring.of_model(f"{number}{huge}"[:197] + "...")
        for text in (found.request_id, found.message, found.model, found.peer)
    )
    assert 0 < held <= MOST_BYTES
    assert len(ring) < KEPT


def test_a_flood_is_sampled_and_the_rest_is_counted(ring: FailedRequests, clock: Clock) -> None:
    for _ in range(MOST_A_SECOND + 3 * SAMPLED):
        ring.note(ENDED)
    assert len(ring) == MOST_A_SECOND + 3
    assert ring.left_out == 3 * (SAMPLED - 1)
    clock.now += 1
    ring.note(ENDED)
    assert len(ring) == MOST_A_SECOND + 4
