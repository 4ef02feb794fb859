"""The way of spans to a collector, with one that is made of a function."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tfs_lite.core.request_context import RequestContext
from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.ended_requests import EndedRequest
from tfs_lite.metrics.requests import GRPC
from tfs_lite.operations.traces.exporter import FULL, REFUSED, REJECTED, TraceExporter
from tfs_lite.operations.traces.otlp import ALL, Attempt
from tfs_lite.operations.traces.spans import ChosenRequest, Span, SpanId, new_span, new_trace
from tfs_lite.server.server import Server


def request() -> ChosenRequest:
    ended = EndedRequest(
        *("Predict", "m", GRPC, 1, StatusCode.OK, "", None, "done", RequestContext("abc"), "", 1.0, 1.0, 0.5, 0.1, 0.2),
        (),
    )
    return ChosenRequest(ended, SpanId(new_trace(), new_span()), None, "rate")


class Receiver:
    """What the exporter sends to. ``answer``: what it says of each; while ``open`` is cleared it waits."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.answer = Attempt()
        self.open = threading.Event()
        self.open.set()
        self.stopped = False

    def send(self, spans: Sequence[Span]) -> Attempt:
        self.open.wait(60)
        if not self.answer.rejected:
            self.spans += spans
        return self.answer

    def stop(self) -> None:
        self.stopped = True
        self.open.set()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def exporter(receiver: Receiver) -> Iterator[TraceExporter]:
    found = TraceExporter(4, 0.005, 4, receiver.send, receiver.stop)
    found.start()
    yield found
    receiver.open.set()
    found.close()


def test_requests_arrive(exporter: TraceExporter, receiver: Receiver):
    for number in range(1, 6):
        exporter.offer(request())
        wait_until(lambda number=number: exporter.exported == number, "it has arrived", 30)
    assert [span.name for span in receiver.spans] == ["Predict m"] * 5
    assert exporter.dropped.total() == 0


def test_what_does_not_fit_is_dropped_and_counted(exporter: TraceExporter, receiver: Receiver):
    receiver.open.clear()
    for _ in range(100):
        exporter.offer(request())
    assert exporter.dropped[FULL] >= 100 - 2 * 4
    receiver.open.set()
    wait_until(lambda: exporter.exported + exporter.dropped.total() == 100, "each is accounted for", 30)


def test_what_is_not_taken_is_counted(exporter: TraceExporter, receiver: Receiver):
    receiver.answer = Attempt(ALL, "it does not want them")
    exporter.offer(request())
    wait_until(lambda: exporter.dropped[REFUSED] == 1, "it is counted", 30)


def test_what_is_rejected_of_an_export_counts_as_lost_with_a_line(receiver: Receiver, caplog: pytest.LogCaptureFixture):
    """The collector does not say which: as many traces are lost as spans, and the rest has arrived."""
    told: list[EndedRequest] = []
    exporter = TraceExporter(10, 60.0, 10_000, receiver.send, receiver.stop, told.append)
    receiver.answer = Attempt(2, "over the quota")
    for _ in range(5):
        exporter.offer(request())
    exporter.start()
    exporter.close(30)
    assert (exporter.dropped[REJECTED], exporter.exported) == (2, 3)
    assert told == [], "no exemplar names a trace that may not be there"
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith("the collector of traces rejects 2 of ")
    assert text.endswith(" spans (over the quota); 2 are lost so far")


def test_words_of_a_collector_that_takes_all_are_passed_on(receiver: Receiver, caplog: pytest.LogCaptureFixture):
    exporter = TraceExporter(10, 60.0, 10_000, receiver.send, receiver.stop)
    receiver.answer = Attempt(0, "use another port")
    exporter.offer(request())
    exporter.start()
    exporter.close(30)
    assert (exporter.dropped.total(), exporter.exported) == (0, 1)
    (text,) = [record.getMessage() for record in caplog.records]
    assert text == "the collector of traces takes them and says: use another port; 0 are lost so far"


def test_a_stop_does_not_wait_for_a_collector_that_hangs(exporter: TraceExporter, receiver: Receiver):
    receiver.open.clear()
    exporter.offer(request())
    exporter.close(0.05)
    assert receiver.stopped


def test_a_server_without_the_extra_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None)
    server = Server(model_base_path=str(tmp_path), trace_config=("mode=opentelemetry",))
    message = refusal(server.start, code=StatusCode.FAILED_PRECONDITION)
    assert "needs the extra otel: pip install 'tfs-lite[otel]'" in message
