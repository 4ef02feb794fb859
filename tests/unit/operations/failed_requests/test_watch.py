"""The warning of a model that fails nearly all of its requests, in virtual time."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.operations.failed_requests.ring import FailedRequests
from tfs_lite.operations.failed_requests.watch import PERIOD, SILENCE, FailureWatch
from tfs_lite.testing.lifecycle.clock import VirtualClock


class Watched:
    """A server's counts of requests, and the watch on them. Models called ``guess...`` are not served."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.metrics = RequestMetrics(CollectorRegistry(), self._is_known)
        ring = FailedRequests(self.clock.time, self._is_known)
        watch = FailureWatch(self.clock, self.metrics.totals, self._is_known, ring)
        self.metrics.on_failure(ring.note)
        self.metrics.on_failure(lambda ended: watch.noticed())

    @staticmethod
    def _is_known(name: str) -> bool:
        return not name.startswith("guess")

    def end(self, count: int, model: str = "m", code: StatusCode | None = None, text: str = "input x") -> None:
        for _ in range(count):
            record = self.metrics.record("Predict", model)
            record.version = 14
            record.end(None if code is None else ServingError(code, text))

    def pass_time(self, seconds: float, failing: int, fine: int = 0, model: str = "m") -> None:
        """Some requests a second."""
        for _ in range(round(seconds)):
            self.end(failing, model, StatusCode.INVALID_ARGUMENT)
            self.end(fine, model)
            self.clock.advance(1.0)


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    caplog.set_level(logging.INFO)
    return Watched()


def test_a_model_that_fails_nearly_all_requests_is_warned_of_once_for_a_while(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.end(1000)
    watched.end(1, code=StatusCode.INVALID_ARGUMENT)
    watched.clock.advance(0.0)
    watched.end(1, code=StatusCode.INTERNAL, text="rare")
    watched.pass_time(3 * PERIOD, failing=2)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "model m: 21 of 21 requests failed in the last 10 s (100%), most often of version 14 INVALID_ARGUMENT in "
        "check: input x; tfs-lite explain m says more"
    )
    watched.pass_time(SILENCE, failing=2)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(("failing", "fine"), [(2, 1), (0, 2)])
def test_a_model_that_answers_is_not_warned_of(
    watched: Watched, failing: int, fine: int, caplog: pytest.LogCaptureFixture
) -> None:
    watched.end(4, code=StatusCode.INTERNAL)
    watched.pass_time(3 * PERIOD, failing, fine)
    assert not caplog.records


def test_cancelled_requests_and_names_that_clients_make_up_are_not_warned_of(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        watched.end(5, code=StatusCode.CANCELLED)
        watched.end(5, "guess", StatusCode.NOT_FOUND)
        watched.clock.advance(1.0)
    assert not caplog.records


def test_nothing_is_looked_at_while_no_request_fails(watched: Watched) -> None:
    watched.end(10)
    assert not watched.clock.pending
    watched.end(1, code=StatusCode.INTERNAL)
    assert watched.clock.pending
    watched.clock.advance(2 * PERIOD)
    assert not watched.clock.pending
    watched.end(1, code=StatusCode.INTERNAL)
    assert watched.clock.pending
