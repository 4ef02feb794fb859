"""What becomes of a request whose step fails, whose caller has gone, which comes too late, or is one too many."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.schedulers.ensembles import CHAIN, DIAMOND, EnsembleFixture, adder, ask, diamond, failing, single
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode


def test_failure_of_a_step_keeps_its_code_names_the_ensemble_and_begins_no_other(fixture: EnsembleFixture) -> None:
    fixture.serve("a", failing(ServingError(StatusCode.RESOURCE_EXHAUSTED, "no memory", Reason.INVALID_ITEM)))
    last = adder(1)
    fixture.serve("b", last)
    status = ask(fixture.ensemble("e", CHAIN), {"IN": [0, 0]}).status
    assert status == Status(
        StatusCode.RESOURCE_EXHAUSTED, "in ensemble 'e', step 0 (model a): no memory", Reason.INVALID_ITEM
    )
    ((servable_id, _, result),) = fixture.calls
    assert (servable_id, result) == (
        ServableId("a", 1),
        Status(StatusCode.RESOURCE_EXHAUSTED, "no memory", Reason.INVALID_ITEM),
    )
    assert last.seen == []


def test_failure_is_answered_at_once_and_what_runs_is_dropped(fixture: EnsembleFixture) -> None:
    slow, breaks = threading.Event(), threading.Event()
    left = adder(10, gate=slow)
    e = diamond(fixture, left, failing(ServingError(StatusCode.INTERNAL, "broken"), breaks))
    answer = ask(e, {"IN": [0, 0]})
    left.wait_entered()
    breaks.set()
    assert answer.status.message == "in ensemble 'e', step 2 (model right): broken"
    assert e.pending == 1
    slow.set()
    fixture.wait_for_no_handles()
    assert len(answer.answers) == 1
    assert e.pending == 0


def test_failure_takes_back_the_steps_that_wait(fixture: EnsembleFixture) -> None:
    busy, gate = threading.Event(), threading.Event()
    left = adder(10, gate=busy)
    blocked = fixture.serve("left", left)
    fixture.serve("first", adder(1))
    right = failing(ServingError(StatusCode.INTERNAL, "broken"), gate)
    fixture.serve("right", right)
    e = fixture.ensemble("e", DIAMOND)
    other = ask(blocked, {"x": [0, 0]})
    left.wait_entered()
    answer = ask(e, {"IN": [0, 0]})
    right.wait_entered()
    gate.set()
    assert answer.status.code is StatusCode.INTERNAL
    fixture.wait_for_no_handles()
    busy.set()
    assert other.outputs
    assert len(left.seen) == 1
    codes = {servable_id.name: result.code for servable_id, _, result in fixture.calls if isinstance(result, Status)}
    assert codes == {"left": StatusCode.CANCELLED, "right": StatusCode.INTERNAL}


def test_cancelled_call_whose_step_runs_begins_no_other(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    model, last = adder(1, gate=gate), adder(1)
    fixture.serve("a", model)
    fixture.serve("b", last)
    e = fixture.ensemble("e", CHAIN)
    answer = ask(e, {"IN": [0, 0]})
    model.wait_entered()
    e.cancel(answer.call)
    assert answer.status.code is StatusCode.CANCELLED
    gate.set()
    fixture.wait_for_no_handles()
    assert last.seen == []
    assert len(answer.answers) == 1


def test_cancelled_call_is_answered_at_once_and_its_steps_leave_the_queue(fixture: EnsembleFixture) -> None:
    e = fixture.serve_single("e", "a")
    with fixture.blocked("a"):
        answer = ask(e, {"IN": [0, 0]})
        e.cancel(answer.call)
        assert answer.status.code is StatusCode.CANCELLED
        fixture.wait_for_no_handles()
        assert e.pending == 0
        e.cancel(answer.call)
    assert len(answer.answers) == 1


@pytest.mark.parametrize(
    ("waiting", "seconds", "code"),
    [
        pytest.param(1, 1000.0, StatusCode.UNAVAILABLE, id="a full queue"),
        pytest.param(0, 0.05, StatusCode.DEADLINE_EXCEEDED, id="a deadline that passes in the queue"),
    ],
)
def test_failure_in_the_queue_of_a_model_is_the_answer(
    fixture: EnsembleFixture, waiting: int, seconds: float, code: StatusCode
) -> None:
    e = fixture.serve_single("e", "a", max_queued_calls=1)
    with fixture.blocked("a") as servable:
        queued = [ask(servable, {"x": [0, 0]}) for _ in range(waiting)]
        status = ask(e, {"IN": [0, 0]}, deadline=time.monotonic() + seconds).status
        assert status.code is code
        assert (status.reason is Reason.QUEUE_FULL) == (code is StatusCode.UNAVAILABLE)
        assert status.message.startswith("in ensemble 'e', step 0 (model a): ")
    assert all(each.outputs for each in queued)


@pytest.mark.parametrize(
    ("settings", "rest"),
    [
        ({"max_inflight_requests": 2}, {}),
        ({}, {"max_requests": 2}),
        ({"max_inflight_requests": 2}, {"max_requests": 1}),
    ],
    ids=["config", "server", "the config before the server"],
)
def test_number_of_requests_is_bounded(
    fixture: EnsembleFixture, settings: dict[str, int], rest: dict[str, int]
) -> None:
    gate = threading.Event()
    fixture.serve("a", adder(1, gate=gate))
    e = fixture.ensemble("e", single("a", **settings), **rest)
    inside = [ask(e, {"IN": [0, 0]}) for _ in range(2)]
    assert (e.pending, e.pending_rows) == (2, 2)
    refused = ask(e, {"IN": [0, 0]})
    assert (refused.status.code, refused.status.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    assert "2 requests inside" in refused.status.message
    assert not refused.call.admitted
    gate.set()
    assert all(answer.outputs for answer in inside)
    assert ask(e, {"IN": [0, 0]}).outputs


def test_request_that_comes_too_late_or_after_close_is_refused_on_arrival(fixture: EnsembleFixture) -> None:
    e = fixture.serve_single("e", "a")
    late = ask(e, {"IN": [0, 0]}, deadline=time.monotonic() - 1)
    assert late.status == Status(StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the request reached e")
    e.close()
    refused = ask(e, {"IN": [0, 0]})
    assert refused.status == Status(StatusCode.UNAVAILABLE, "ensemble e is being unloaded")
    assert [late.call.admitted, refused.call.admitted] == [False, False]
    assert fixture.calls == []
