"""``--access_log``: lines for requests."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import GRPC, RequestMetrics
from tfs_lite.operations.access_log.lines import ALL, ERRORS, FAILURES_A_SECOND, AccessLog
from tfs_lite.protocols.log_format import JsonFormatter
from tfs_lite.server.access.access import Denied
from tfs_lite.server.access.rules import DenialReason
from tfs_lite.transport.peer import Peer
from tfs_lite.transport.table import CallContext, Scope

DENIED = Denied(
    Scope.MANAGE,
    DenialReason.NO_TOKEN,
    "10.0.0.7",
    "it needs a token",
    StatusCode.UNAUTHENTICATED,
    "10.0.0.7",
    "POST /v2/logging",
    "abc",
)
BROKEN = ServingError(StatusCode.INTERNAL, "the model\nis broken")


class LoggedRequests:
    def __init__(self, wanted: str) -> None:
        self.metrics = RequestMetrics(CollectorRegistry(), lambda name: True)
        self.now = 1000.0
        self.log = AccessLog(self.metrics, wanted, lambda: self.now)

    def end(self, error: Exception | None = None) -> None:
        context = CallContext(None, {"x-request-id": "abc", "authorization": "Bearer secret"}, peer=Peer("10.0.0.7"))
        record = self.metrics.record("Predict", "m", GRPC, context)
        record.version = 3
        record.end(error)


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tfs_lite.access"]


def test_all_requests_have_a_line_that_says_who_asked_and_how_it_ended(caplog: pytest.LogCaptureFixture):
    requests = LoggedRequests(ALL)
    requests.end()
    requests.end(BROKEN)
    fine, broken = lines(caplog)
    assert fine.startswith("Predict m@3 GRPC 10.0.0.7 OK recv=")
    assert fine.endswith("id=abc")
    assert broken.endswith(" check: the model\nis broken")
    assert "secret" not in fine + broken


def test_only_failures_have_lines_where_these_are_wanted(caplog: pytest.LogCaptureFixture):
    requests = LoggedRequests(ERRORS)
    requests.end()
    assert not requests.metrics.listens
    requests.end(BROKEN)
    (found,) = lines(caplog)
    assert " INTERNAL " in found


def test_a_flood_of_failures_is_counted(caplog: pytest.LogCaptureFixture):
    requests = LoggedRequests(ERRORS)
    for _ in range(3 * FAILURES_A_SECOND):
        requests.end(BROKEN)
    assert len(lines(caplog)) == FAILURES_A_SECOND
    requests.now += 1
    requests.end(BROKEN)
    assert lines(caplog)[-2] == "at least 40 more requests failed in the second before: 40 of model m"


def test_one_failure_without_a_line_is_one_request_and_says_when_it_was(caplog: pytest.LogCaptureFixture):
    requests = LoggedRequests(ERRORS)
    for _ in range(FAILURES_A_SECOND + 1):
        requests.end(BROKEN)
    requests.now += 120
    requests.end(BROKEN)
    assert lines(caplog)[-2] == "at least 1 more request failed in one second, 120 s ago: 1 of model m"


def test_nothing_is_written_where_nothing_is_wanted(caplog: pytest.LogCaptureFixture):
    requests = LoggedRequests("off")
    requests.end(BROKEN)
    assert lines(caplog) == []


def test_the_format_json_has_fields(caplog: pytest.LogCaptureFixture):
    LoggedRequests(ALL).end(BROKEN)
    text = JsonFormatter().format(caplog.records[-1])
    for part in ('"request_id":"abc"', '"model":"m"', '"version":3', '"code":"INTERNAL"', '"stage":"check"', '"peer"'):
        assert part in text


@pytest.mark.parametrize(("wanted", "expected"), [(ALL, 30), (ERRORS, FAILURES_A_SECOND), ("off", 0)])
def test_denied_requests_have_lines_as_failed_ones(wanted: str, expected: int, caplog: pytest.LogCaptureFixture):
    requests = LoggedRequests(wanted)
    for _ in range(30):
        requests.log.on_denied(DENIED)
    found = lines(caplog)
    assert len(found) == expected
    line = "POST /v2/logging 10.0.0.7 UNAUTHENTICATED scope=manage caller=10.0.0.7 id=abc access: it needs a token"
    assert set(found) <= {line}
