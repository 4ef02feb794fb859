"""Which requests are traced when they have ended, and the lines of the mode triton."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.model import CallTrace, PredictCall, StepTimes
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.request_records import RecordedRequest
from tfs_lite.metrics.requests import GRPC, RequestMetrics
from tfs_lite.operations.traces.spans import ChosenRequest
from tfs_lite.operations.traces.tracer import MAX_FAILURES, MAX_MODELS, MAX_OF_CLIENTS, Tracer
from tfs_lite.serving.statistics.trace_config import read_trace_config
from tfs_lite.serving.statistics.trace_settings import V2Settings
from tfs_lite.transport.table import CallContext

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TracedServer:
    """Requests that end, without a server. ``chosen``: those that were traced."""

    def __init__(self, *words: str, sink: bool = True, file: str = "") -> None:
        self.metrics = RequestMetrics(CollectorRegistry(), lambda name: True)
        mode = ("mode=opentelemetry",) if sink else ()
        self.settings = V2Settings(lambda name: True, read_trace_config((*mode, *words)))
        self.chosen: list[ChosenRequest] = []
        self.tracer = Tracer(self.metrics, self.settings, self if sink else None, file)

    def offer(self, chosen: ChosenRequest) -> None:
        self.chosen.append(chosen)

    def end(
        self,
        seconds: float = 0.001,
        error: Exception | None = None,
        at: float = 100.0,
        model: str = "m",
        **metadata: str,
    ) -> RecordedRequest:
        """A request that was begun at this time ends after so many seconds."""
        record = RecordedRequest(self.metrics, "Predict", model, GRPC, CallContext(None, metadata))
        record.started, record.version = at, 1
        call = PredictCall("s", {"x": np.zeros((2, 3))}, (), None, lambda answer: None, arrived=at)
        call.queue_seconds, call.run_seconds, call.trace = seconds / 4, seconds / 2, CallTrace()
        record.calls, record.answered = [call], error is None
        code = error.code if isinstance(error, ServingError) else StatusCode.OK
        self.metrics.tell(record, code, seconds, error)
        return record

    @property
    def why(self) -> list[str]:
        return [chosen.sampled_by for chosen in self.chosen]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    caplog.set_level(logging.INFO)
    return lambda: [json.loads(record.message) for record in caplog.records if record.name == "tfs_lite.trace"]


def test_a_caller_whose_trace_is_recorded_is_followed_whatever_rate_and_count_say():
    server = TracedServer("level=TIMESTAMPS", "rate=0", "count=0")
    record = server.end(traceparent=PARENT, tracestate="a=1")
    assert server.why == ["context"]
    (chosen,) = server.chosen
    assert chosen.caller is not None
    assert (chosen.caller.span_id, chosen.caller.state) == ("b7ad6b7169203331", "a=1")
    assert record.trace_id == f"{chosen.id.trace:032x}" == PARENT[3:35]


def test_a_client_cannot_order_more_than_its_share():
    server = TracedServer("level=TIMESTAMPS", "rate=0")
    for _ in range(3 * MAX_OF_CLIENTS):
        server.end(traceparent=PARENT)
    assert len(server.chosen) == MAX_OF_CLIENTS
    server.end(traceparent=PARENT, at=102.0)
    assert len(server.chosen) == MAX_OF_CLIENTS + 1


def test_failures_are_traced_whatever_the_rate_but_not_too_many_at_a_time():
    server = TracedServer("level=TIMESTAMPS", "rate=0")
    for _ in range(5 * MAX_FAILURES):
        server.end(error=ServingError(StatusCode.INTERNAL, "broken"), traceparent=PARENT[:-1] + "0")
    assert server.why == ["failure"] * MAX_FAILURES
    assert server.chosen[0].ended.trace_id == PARENT[3:35]


def test_a_request_that_takes_much_longer_than_others_is_traced():
    server = TracedServer("level=TIMESTAMPS", "rate=0")
    for number in range(200):
        server.end(0.001, at=100 + number / 100)
    assert server.chosen == []
    server.end(0.0035, at=102.0)
    assert server.chosen == []
    server.end(0.02, at=102.0)
    server.end(0.02, at=102.0, traceparent=PARENT[:-1] + "0")
    assert server.why == ["slow"]


def test_a_model_that_becomes_slower_for_good_is_not_slow_for_ever():
    server = TracedServer("level=TIMESTAMPS", "rate=0")
    for number in range(1000):
        server.end(0.001, at=100 + number / 100)
    for number in range(10_000):
        server.end(0.02, at=110 + number / 100)
    assert "slow" in server.why
    assert server.tracer._models["m"].median.at(210.0) == pytest.approx(0.02, rel=0.35)


@pytest.mark.parametrize("rate", [1, 3, 8, 100])
def test_the_rate_counts_each_request_that_callers_have_not_left_out(rate: int):
    server = TracedServer("level=TIMESTAMPS", f"rate={rate}")
    followed, expected = 0, 0
    for number in range(1, 3000):
        error = ServingError(StatusCode.INTERNAL, "broken") if number % 101 == 0 else None
        if number % 7 == 0:
            server.end(0.001, error, at=100.0 + number, traceparent=PARENT[:-1] + "0")
        else:
            server.end(0.001 if number % 13 else 0.1, error, at=100.0 + number)
            followed += 1
            expected += followed % rate == 0
    assert server.why.count("rate") == expected


def test_names_from_requests_are_bounded():
    server = TracedServer("level=TIMESTAMPS")
    for number in range(3 * MAX_MODELS):
        server.end(model=str(number))
    assert len(server.tracer._models) <= MAX_MODELS


def test_nothing_is_noted_of_requests_while_the_level_is_off():
    server = TracedServer("rate=1")
    assert not (server.metrics.listens)
    assert not (server.metrics.notes_calls)
    server.settings.update_trace_settings("m", {"trace_level": ("TIMESTAMPS",), "trace_rate": ("1",)})
    assert server.metrics.listens
    assert server.metrics.notes_calls
    server.end()
    assert server.why == ["rate"]
    server.settings.update_trace_settings("m", {"trace_level": ()})
    assert not (server.metrics.listens)
    assert not (server.metrics.notes_calls)


def test_a_model_whose_own_level_is_off_is_not_traced_while_another_one_is():
    server = TracedServer("rate=1")
    server.settings.update_trace_settings("n", {"trace_level": ("TIMESTAMPS",)})
    server.end(error=ServingError(StatusCode.INTERNAL, "broken"))
    server.end(traceparent=PARENT)
    assert server.chosen == []


def test_the_mode_triton_writes_a_line_for_each_chosen_request_with_tritons_moments(lines):
    server = TracedServer("level=TIMESTAMPS", "rate=1", sink=False)
    server.end(0.8, **{"x-request-id": "abc"})
    (line,) = lines()
    moments = {one["name"]: one["ns"] for one in line["timestamps"]}
    order = list(moments)
    assert (order[0], order[-1]) == ("REQUEST_START", "REQUEST_END")
    assert moments["COMPUTE_START"] - moments["QUEUE_START"] == pytest.approx(0.2e9, rel=1e-3)
    assert moments["COMPUTE_END"] - moments["COMPUTE_START"] == pytest.approx(0.4e9, rel=1e-3)
    assert (line["model_name"], line["model_version"], line["code"], line["id"]) == ("m", 1, "OK", 1)
    assert (line["request_id"], "parent_id" in line) == ("abc", False)
    server.end(error=ServingError(StatusCode.INTERNAL, "broken"))
    assert [one["code"] for one in lines()] == ["OK", "INTERNAL"]


def test_steps_of_an_ensemble_have_lines_of_their_own_below_that_of_the_request(lines):
    server = TracedServer("level=TIMESTAMPS", "rate=1", sink=False)

    def add_step(record: RecordedRequest, *rest: Any) -> None:
        trace = record.calls[0].trace
        assert trace is not None
        step = StepTimes(ServableId("n", 3), 100.0, 100.5, 0.1, 0.2, (0.0, 0.0), StatusCode.OK, CallTrace())
        trace.steps += (step,)

    server.metrics.off_end(server.tracer._on_end)
    server.metrics.on_end(add_step)
    server.metrics.on_end(server.tracer._on_end)
    server.end()
    whole, step = lines()
    assert (step["model_name"], step["parent_id"]) == ("n", whole["id"])


def test_a_log_frequency_begins_a_new_file_after_so_many_traces(tmp_path: Path, lines):
    server = TracedServer(
        "level=TIMESTAMPS", "rate=1", "triton", "log_frequency=2", sink=False, file=str(tmp_path / "t")
    )
    numbers = lambda path: [json.loads(line)["id"] for line in path.read_text().splitlines()]  # noqa: E731
    for _ in range(5):
        server.end()
    found = {path.name: numbers(path) for path in tmp_path.iterdir()}
    assert found == {"t.0": [1, 2], "t.1": [3, 4], "t.2": [5]}
    server.settings.update_trace_settings("m", {"log_frequency": ("3",)})
    for _ in range(3):
        server.end()
    assert (numbers(tmp_path / "t.2"), numbers(tmp_path / "t.3")) == ([5, 6, 7], [8])
    server.settings.update_trace_settings("m", {"log_frequency": ("0",)})
    server.end()
    assert numbers(tmp_path / "t") == [9]
    server.tracer.close()


def test_lines_stay_in_their_file_when_the_next_cannot_be_opened(tmp_path: Path, lines):
    server = TracedServer(
        "level=TIMESTAMPS", "rate=1", "triton", "log_frequency=1", sink=False, file=str(tmp_path / "t")
    )
    (tmp_path / "t.1").mkdir()
    for _ in range(2):
        server.end()
    assert len((tmp_path / "t.0").read_text().splitlines()) == 2
    server.end()
    server.tracer.close()
    assert len((tmp_path / "t.2").read_text().splitlines()) == 1


def test_lines_of_the_mode_triton_go_to_the_file_that_was_named(tmp_path: Path, lines):
    server = TracedServer("level=TIMESTAMPS", "rate=1", sink=False, file=str(tmp_path / "t.json"))
    server.end()
    server.tracer.close()
    server.end()
    assert len((tmp_path / "t.json").read_text().splitlines()) == 1
    assert lines() == []
