"""The way of spans to a collector, with one that is made of a function."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tfs_lite.core.request_context import RequestContext
from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.ended_requests import EndedRequest
from tfs_lite.metrics.requests import GRPC
from tfs_lite.server.server import Server
from tfs_lite.server.traces.exporter import FULL, REFUSED, TraceExporter
from tfs_lite.server.traces.spans import ChosenRequest, Span, SpanId, new_span, new_trace
from tfs_lite.serving.statistics.trace_config import read_trace_config
from tfs_lite.testing.errors import refusal
from tfs_lite.testing.servers.process import wait_until


def request() -> ChosenRequest:
    ended = EndedRequest(
        *("Predict", "m", GRPC, 1, StatusCode.OK, "", None, "done", RequestContext("abc"), "", 1.0, 1.0, 0.5, 0.1, 0.2),
        (),
    )
    return ChosenRequest(ended, SpanId(new_trace(), new_span()), None, "rate")


class Receiver:
    """What the exporter sends to. ``answer``: whether it takes spans; while ``open`` is cleared it waits."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.answer = True
        self.open = threading.Event()
        self.open.set()
        self.stopped = False

    def send(self, spans: Sequence[Span]) -> str:
        self.open.wait(60)
        if self.answer:
            self.spans += spans
        return "" if self.answer else "it does not want them"

    def stop(self) -> None:
        self.stopped = True
        self.open.set()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def exporter(receiver: Receiver) -> Iterator[TraceExporter]:
    words = ("opentelemetry", "bsp_max_queue_size=4", "opentelemetry", "bsp_schedule_delay=5")
    found = TraceExporter(read_trace_config(words), receiver.send, receiver.stop)
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
    receiver.answer = False
    exporter.offer(request())
    wait_until(lambda: exporter.dropped[REFUSED] == 1, "it is counted", 30)


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
