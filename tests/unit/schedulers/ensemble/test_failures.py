"""What becomes of a request whose step fails, whose caller has gone, or which comes too late or too many."""

from __future__ import annotations

import threading
import time

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.testing.schedulers.ensembles import (
    CHAIN,
    DIAMOND,
    EnsembleFixture,
    adder,
    ask,
    diamond,
    failing,
    single,
)


def test_failure_of_a_step_keeps_its_code_and_names_the_ensemble(fixture: EnsembleFixture) -> None:
    fixture.serve("a", failing(ServingError(StatusCode.RESOURCE_EXHAUSTED, "no memory", Reason.INVALID_ITEM)))
    e = fixture.ensemble("e", single("a"))
    status = ask(e, {"IN": [0, 0]}).status
    assert status == Status(StatusCode.RESOURCE_EXHAUSTED, "in ensemble 'e', no memory", Reason.INVALID_ITEM)
    ((servable_id, _, result),) = fixture.calls
    assert (servable_id, result) == (
        ServableId("a", 1),
        Status(StatusCode.RESOURCE_EXHAUSTED, "no memory", Reason.INVALID_ITEM),
    )


def test_failure_is_answered_at_once_and_what_runs_is_dropped(fixture: EnsembleFixture) -> None:
    slow, breaks = threading.Event(), threading.Event()
    left = adder(10, gate=slow)
    e = diamond(fixture, left, failing(ServingError(StatusCode.INTERNAL, "broken"), breaks))
    answer = ask(e, {"IN": [0, 0]})
    left.wait_entered()
    breaks.set()
    assert answer.status.message == "in ensemble 'e', broken"
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


def test_no_step_begins_after_a_failure(fixture: EnsembleFixture) -> None:
    fixture.serve("a", failing(ServingError(StatusCode.INTERNAL, "broken")))
    last = adder(1)
    fixture.serve("b", last)
    e = fixture.ensemble("e", CHAIN)
    assert ask(e, {"IN": [0, 0]}).status.code is StatusCode.INTERNAL
    fixture.wait_for_no_handles()
    assert last.seen == []


def test_full_queue_of_a_model_is_the_failure(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    model = adder(1, gate=gate)
    blocked = fixture.serve("a", model, max_queued_calls=1)
    e = fixture.ensemble("e", single("a"))
    running = ask(blocked, {"x": [0, 0]})
    model.wait_entered()
    waiting = ask(blocked, {"x": [0, 0]})
    status = ask(e, {"IN": [0, 0]}).status
    assert status.code is StatusCode.UNAVAILABLE
    assert status.message.startswith("in ensemble 'e', ")
    gate.set()
    assert running.outputs
    assert waiting.outputs


def test_cancelled_call_is_answered_at_once_and_its_steps_leave_the_queue(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    model = adder(1, gate=gate)
    blocked = fixture.serve("a", model)
    e = fixture.ensemble("e", single("a"))
    running = ask(blocked, {"x": [0, 0]})
    model.wait_entered()
    answer = ask(e, {"IN": [0, 0]})
    e.cancel(answer.call)
    assert answer.status.code is StatusCode.CANCELLED
    fixture.wait_for_no_handles()
    assert e.pending == 0
    e.cancel(answer.call)
    gate.set()
    assert running.outputs
    assert len(model.seen) == 1
    assert len(answer.answers) == 1


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


def test_expired_deadline_is_refused_on_arrival(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    e = fixture.ensemble("e", single("a"))
    answer = ask(e, {"IN": [0, 0]}, deadline=time.monotonic() - 1)
    assert answer.status == Status(StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the request reached e")
    assert not answer.call.admitted
    assert fixture.calls == []


def test_deadline_that_passes_in_a_queue_is_the_failure(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    model = adder(1, gate=gate)
    blocked = fixture.serve("a", model)
    e = fixture.ensemble("e", single("a"))
    running = ask(blocked, {"x": [0, 0]})
    model.wait_entered()
    status = ask(e, {"IN": [0, 0]}, deadline=time.monotonic() + 0.05).status
    assert status.code is StatusCode.DEADLINE_EXCEEDED
    assert status.message.startswith("in ensemble 'e', ")
    gate.set()
    assert running.outputs


def test_no_more_requests_than_the_config_allows_are_inside(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    fixture.serve("a", adder(1, gate=gate))
    e = fixture.ensemble("e", single("a", max_inflight_requests=2))
    inside = [ask(e, {"IN": [0, 0]}) for _ in range(2)]
    assert (e.pending, e.pending_rows) == (2, 2)
    refused = ask(e, {"IN": [0, 0]})
    assert refused.status.code is StatusCode.UNAVAILABLE
    assert "2 requests inside" in refused.status.message
    assert not refused.call.admitted
    gate.set()
    assert all(answer.outputs for answer in inside)
    assert ask(e, {"IN": [0, 0]}).outputs


def test_bound_of_the_server_counts_without_one_in_the_config(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    fixture.serve("a", adder(1, gate=gate))
    e = fixture.ensemble("e", single("a"), max_requests=1)
    inside = ask(e, {"IN": [0, 0]})
    assert ask(e, {"IN": [0, 0]}).status.code is StatusCode.UNAVAILABLE
    gate.set()
    assert inside.outputs


def test_closed_ensemble_takes_no_request(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    e = fixture.ensemble("e", single("a"))
    e.close()
    assert ask(e, {"IN": [0, 0]}).status == Status(StatusCode.UNAVAILABLE, "ensemble e is being unloaded")
