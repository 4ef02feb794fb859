"""What is the same for Direct and Oldest: admission, ids, expiry in virtual time, cancelling, closing."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.schedulers.sequence_models import SequenceRequest, SumByIdModel, SumModel, sum_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.model import PredictCall, Servable, Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.schedulers.sequence.servable import SequenceServable
from tfs_lite.testing.lifecycle.clock import VirtualClock

Make = Callable[..., Any]


@pytest.fixture(params=["direct", "oldest"])
def make_kind(request: pytest.FixtureRequest, make: Make) -> Make:
    """Makes servables of either kind, for so many sequences on each instance."""

    def new(sequences: int, instances: int = 1) -> Any:
        if request.param == "oldest":
            oldest = {"max_candidate_sequences": sequences}
            return make(sum_settings(sequences, oldest=oldest), SumByIdModel, instances)
        return make(sum_settings(sequences), SumModel, instances)

    return new


@pytest.fixture
def fixture(make_kind: Make) -> Any:
    """Two sequences at once."""
    return make_kind(2)


def test_is_a_servable_with_what_clients_see(fixture: Any) -> None:
    servable: Servable = fixture.servable
    assert servable.traits == Traits("test", max_batch_size=2, keeps_sequences=True)
    assert list(servable.models) == fixture.models
    assert servable.signatures[DEFAULT_SIGNATURE].input_names == ("INPUT",)


# Admission.


@pytest.mark.parametrize(
    ("number", "id", "text"),
    [
        ([[1], [2]], 0, "must specify batch-size 1 due to requirements of sequence batcher"),
        (np.zeros((0, 1)), 1, "must specify batch-size 1 due to requirements of sequence batcher"),
        ([[1]], 0, "must specify a non-zero or non-empty correlation ID"),
        ([[1]], None, "must specify a non-zero or non-empty correlation ID"),
        ([[1]], 9, "must specify the START flag on the first request of the sequence"),
    ],
    ids=["rows", "no-rows", "zero", "none", "no-start"],
)
def test_refused_requests_were_never_admitted(fixture: Any, number: Any, id: int | None, text: str) -> None:
    request = SequenceRequest(number, id, False, False)
    fixture.servable.submit(request.call)
    assert (request.code, request.call.admitted) == (StatusCode.INVALID_ARGUMENT, False)
    assert text in request.message


@pytest.mark.parametrize(
    ("corrid", "right", "wrong", "sent", "expected"),
    [
        ("TYPE_UINT64", 5, "five", "BYTES", "UINT64"),
        ("TYPE_STRING", "5", 5, "UINT64", "BYTES"),
        ("TYPE_INT32", 5, "5", "BYTES", "INT32"),
    ],
    ids=["text-for-number", "number-for-text", "text-for-int32"],
)
def test_id_of_wrong_type_is_refused(make: Make, corrid: str, right: Any, wrong: Any, sent: str, expected: str) -> None:
    fixture = make(sum_settings(corrid=corrid))
    request = fixture.ask(1, wrong, start=True)
    text = f"sequence batching control 'CORRID' data-type is '{sent}', but model 'sums' expects '{expected}'"
    assert (request.code, request.message) == (StatusCode.INVALID_ARGUMENT, text)
    assert fixture.ask(1, right, start=True).sum == 1


def test_without_a_tensor_for_it_an_id_can_be_a_number_or_a_text_that_is_not_too_long(make: Make) -> None:
    fixture = make(sum_settings(corrid=""))
    assert fixture.ask(1, "5", start=True).sum == 1
    assert fixture.ask(2, 5, start=True).sum == 2
    assert fixture.ask(1, "5").sum == 2
    assert fixture.ask(1, "x" * 128, start=True).sum == 1
    assert fixture.ask(1, "x" * 129, start=True).code is StatusCode.UNIMPLEMENTED


def test_queue_is_bounded(make: Make) -> None:
    fixture = make(max_queued=2)
    fixture.ask_held(1, 1, start=True)
    waiting = [fixture.ask(1, 1), fixture.ask(1, 1)]
    refused = fixture.ask(1, 1)
    assert (refused.code, refused.call.admitted) == (StatusCode.UNAVAILABLE, False)
    fixture.open()
    assert [each.sum for each in waiting] == [2, 3]


def test_start_of_a_sequence_that_goes_on_starts_it_again(fixture: Any) -> None:
    assert [fixture.ask(5, 1, start=True).sum, fixture.ask(1, 1).sum, fixture.ask(7, 1, start=True).sum] == [5, 6, 7]
    assert fixture.servable.live == 1


def test_outputs_can_be_chosen(fixture: Any) -> None:
    request = fixture.ask(3, 1, start=True, outputs=("OUTPUT",))
    assert list(request.answer) == ["OUTPUT"]
    assert request.answer["OUTPUT"].shape == (1, 1)


def test_times_and_reports_tell_how_long_a_call_waited_and_ran(fixture: Any) -> None:
    running = fixture.ask_held(1, 1, start=True)
    waiting = fixture.ask(2, 1)
    fixture.clock.advance(0.25)
    fixture.model.gate.let()
    fixture.model.gate.wait_for()
    assert running.sum == 1
    fixture.open()
    assert waiting.sum == 3
    assert (running.call.queue_seconds, running.call.run_seconds) == (0, 0.25)
    assert (waiting.call.queue_seconds, waiting.call.run_seconds) == (0.25, 0)
    assert [(report.rows, report.run_seconds) for report in fixture.reports] == [(1, 0.25), (1, 0)]


# Expiry.


def test_sequence_that_is_idle_is_forgotten_and_its_slot_given_away(fixture: Any) -> None:
    fixture.start(1, 2)
    fixture.clock.advance(0.5)
    third = fixture.ask(3, 3, start=True)
    fixture.ask(1, 2).wait()
    assert (fixture.forgotten, third.done) == ([], False)
    fixture.clock.advance(0.6)
    assert third.sum == 3
    assert fixture.forgotten == [1]
    late = fixture.ask(1, 1)
    assert "must specify the START flag" in late.message
    assert not fixture.servable.knows(1)
    assert fixture.servable.knows(2)


@pytest.mark.parametrize("how", [{}, {"oldest": {"max_candidate_sequences": 1}}], ids=["direct", "oldest"])
def test_sequence_that_was_overdue_in_the_backlog_loses_its_slot_after_it_ran(make: Make, how: dict[str, Any]) -> None:
    fixture = make(sum_settings(1, **how), SumByIdModel)
    fixture.shut()
    ending = [fixture.ask(id, id, start=True, end=True) for id in (1, 2)]
    fixture.model.gate.wait_for()
    backlogged = fixture.ask(3, 3, start=True)
    fixture.clock.advance(5)
    assert (fixture.clock.pending, fixture.forgotten) == (0, [1, 2])
    fixture.open()
    assert [ending[0].sum, ending[1].sum, backlogged.sum] == [1, 2, 3]
    fixture.wait_until(lambda: (fixture.clock.advance(1.0), fixture.forgotten)[1] == [1, 2, 3])


def test_requests_that_wait_when_their_sequence_expires_still_run(fixture: Any) -> None:
    fixture.shut()
    request = [fixture.ask(1, 1, start=True), fixture.ask(2, 1)]
    fixture.model.gate.wait_for()
    fixture.clock.advance(2)
    assert fixture.forgotten == [1]
    fixture.open()
    assert [each.sum for each in request] == [1, 3]


def test_sequence_in_the_backlog_expires_by_the_timeout_of_a_request(fixture: Any) -> None:
    fixture.start(1, 2)
    backlogged = [fixture.ask(3, 3, start=True, timeout=0.5), fixture.ask(3, 3, timeout=0.9)]
    fixture.clock.advance(0.6)
    for request in backlogged:
        assert request.code is StatusCode.UNAVAILABLE
        assert "timeout of the corresponding sequence has been expired" in request.message
        assert request.answer.reason is Reason.QUEUE_TIMEOUT
    assert fixture.forgotten == [3]


def test_listener_that_raises_does_not_keep_others_waiting(fixture: Any, caplog: pytest.LogCaptureFixture) -> None:
    fixture.start(1, 2)
    fixture.clock.advance(0.5)
    fixture.forgotten = None
    third = fixture.ask(3, 3, start=True)
    fixture.clock.advance(0.6)
    assert third.sum == 3
    assert "could not be forgotten" in caplog.text


def test_deadline_of_a_request_that_waits_ends_its_sequence(fixture: Any) -> None:
    fixture.start(1, 2)
    late, behind = fixture.ask(3, 3, start=True, deadline=0.5), fixture.ask(3, 3)
    fixture.clock.advance(0.5)
    assert (late.code, behind.code) == (StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED)
    assert late.call.queue_seconds == 0.5
    assert fixture.ask(3, 3).code is StatusCode.INVALID_ARGUMENT


def test_request_that_comes_after_its_deadline_is_refused_and_changes_nothing(fixture: Any) -> None:
    fixture.ask(1, 1, start=True).wait()
    late = fixture.ask(1, 1, deadline=0.0)
    assert (late.code, late.call.admitted) == (StatusCode.DEADLINE_EXCEEDED, False)
    assert fixture.ask(1, 1).sum == 2


# Cancelling.


def test_cancelling_a_request_that_waits_cancels_all_that_wait_in_its_sequence(fixture: Any) -> None:
    running = fixture.ask_held(1, 1, start=True)
    waiting = [fixture.ask(1, 1), fixture.ask(1, 1)]
    fixture.servable.cancel(waiting[1].call)
    fixture.servable.cancel(running.call)
    assert [each.code for each in waiting] == [StatusCode.CANCELLED] * 2
    assert (running.done, fixture.forgotten) == (False, [1])
    again = fixture.ask(10, 1, start=True)
    fixture.open()
    assert (running.sum, again.sum) == (1, 10)


def test_cancelling_in_a_slot_makes_room_for_the_backlog_and_in_the_backlog_removes_a_sequence(fixture: Any) -> None:
    first = fixture.ask_held(1, 1, start=True)
    second, third, fourth = (fixture.ask(id, id, start=True) for id in (2, 3, 4))
    assert fixture.servable.backlogged == 2
    for cancelled in (fourth, fourth, second):
        fixture.servable.cancel(cancelled.call)
    assert (second.code, fourth.code) == (StatusCode.CANCELLED, StatusCode.CANCELLED)
    assert fixture.servable.backlogged == 0
    fixture.open()
    assert (first.sum, third.sum) == (1, 3)
    assert fixture.servable.pending == 0


# The end.


def test_stopped_servable_refuses_starts_and_finishes_sequences(fixture: Any) -> None:
    fixture.ask(1, 1, start=True).wait()
    fixture.servable.stop()
    refused = fixture.ask(1, 2, start=True)
    assert (refused.code, refused.call.admitted) == (StatusCode.UNAVAILABLE, False)
    assert "Server is stopping" in refused.message
    assert fixture.ask(1, 1, end=True).sum == 2
    assert fixture.servable.live == 0


def test_closing_answers_what_waits_and_forgets_all_sequences(fixture: Any) -> None:
    running = fixture.ask_held(1, 1, start=True)
    waiting = [fixture.ask(1, 1), fixture.ask(1, 3, start=True), fixture.ask(1, 3)]
    fixture.close()
    assert running.sum == 1
    assert [each.code for each in waiting] == [StatusCode.UNAVAILABLE] * 3
    assert sorted(fixture.forgotten) == [1, 3]
    assert fixture.ask(1, 4, start=True).code is StatusCode.UNAVAILABLE
    assert fixture.clock.pending == 0


def test_nothing_of_a_call_is_held_after_its_answer(fixture: Any) -> None:
    class Held(np.ndarray[Any, Any]):
        pass

    array = np.ones((1, 1), np.int32).view(Held)
    gone = weakref.ref(array)
    request = SequenceRequest([[1]], 1, True, False)
    request.call.inputs = {"INPUT": array}
    fixture.servable.submit(request.call)
    assert request.sum == 1
    del array, request
    fixture.wait_until(lambda: (gc.collect(), gone())[1] is None)  # as soon as the worker has let go of the run


def test_many_threads_ask_for_sequences_that_start_and_end(make: Make) -> None:
    fixture = make(sum_settings(4, oldest={"max_candidate_sequences": 3}), SumByIdModel, 2, real_time=True)
    wrong: list[object] = []

    def client(id: int) -> None:
        for _ in range(10):
            request = [fixture.ask(number, id, start=number == 1, end=number == 5) for number in range(1, 6)]
            sums = [each.answer if isinstance(each.answer, Status) else each.sum for each in request]
            if sums != [1, 3, 6, 10, 15]:
                wrong.append(sums)

    threads = [threading.Thread(target=client, args=(id,)) for id in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (fixture.servable.live, fixture.servable.pending) == (0, 0)


# Failures.


@pytest.mark.parametrize(
    ("error", "code"),
    [(ServingError(StatusCode.ABORTED, "not now"), StatusCode.ABORTED), (ValueError("secret"), StatusCode.INTERNAL)],
    ids=["its own", "an error that models must not raise"],
)
def test_failure_of_a_request_is_that_of_the_model(fixture: Any, error: Exception, code: StatusCode) -> None:
    fixture.model.failures.append(error)
    failed = fixture.ask(1, 1, start=True)
    assert failed.code is code
    assert code is StatusCode.ABORTED or "ValueError" in failed.message
    assert fixture.ask(1, 1, start=True).sum == 1


def test_sequences_of_a_lost_worker_end_others_go_on_and_the_backlog_waits_for_it(make_kind: Make) -> None:
    fixture = make_kind(1, instances=2)
    lost, _ = fixture.models
    assert [fixture.ask(id, id, start=True).sum for id in (1, 2)] == [1, 2]
    lost.gate.shut()
    lost.lose_worker()
    running = fixture.ask(1, 1)
    lost.gate.wait_for()
    waiting, backlogged = fixture.ask(1, 1), fixture.ask(7, 3, start=True)
    lost.gate.open()
    assert (running.code, waiting.code) == (StatusCode.UNAVAILABLE, StatusCode.UNAVAILABLE)
    assert (fixture.ask(1, 2).sum, fixture.ask(1, 1).code) == (3, StatusCode.UNAVAILABLE)
    assert not backlogged.done
    lost.recovery.open()
    assert backlogged.sum == 7
    assert fixture.forgotten == [1]


def test_worker_that_was_started_again_while_idle_ends_its_sequences(make_kind: Make) -> None:
    fixture = make_kind(2, instances=2)
    restarted, _ = fixture.models
    assert [fixture.ask(id, id, start=True).sum for id in (1, 2, 3)] == [1, 2, 3]  # 1 and 3 are on the first
    restarted.start_worker_again()
    lost = [fixture.ask(1, id) for id in (1, 3)]
    assert [each.code for each in lost] == [StatusCode.UNAVAILABLE] * 2
    assert "start it again with sequence_start" in lost[0].message
    assert fixture.ask(1, 2).sum == 3
    assert fixture.ask(5, 1, start=True).sum == 5
    assert fixture.ask(1, 1).sum == 6


def test_without_any_worker_all_that_waits_is_refused(make_kind: Make) -> None:
    fixture = make_kind(1)
    fixture.ask(1, 1, start=True).wait()
    fixture.shut()
    fixture.model.lose_worker()
    running, backlogged = fixture.ask(1, 1), fixture.ask(1, 2, start=True)
    fixture.model.gate.open()
    assert (running.code, backlogged.code) == (StatusCode.UNAVAILABLE, StatusCode.UNAVAILABLE)
    refused = fixture.ask(1, 3, start=True)
    assert (refused.code, refused.call.admitted) == (StatusCode.UNAVAILABLE, False)
    fixture.model.recovery.open()
    fixture.wait_until(lambda: fixture.ask(4, 3, start=True, end=True).code is StatusCode.OK)


# What does not fit.


class StepModel(SumModel):
    has_item_steps = True


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        (sum_settings(), SumModel(sum_settings(corrid="")), "no input for the control_input CORRID"),
        (
            sum_settings(),
            SumModel(sum_settings(corrid="TYPE_INT64")),
            r"control_input CORRID is uint64, but the input of .* is int64",
        ),
        (sum_settings(0), SumModel(sum_settings(4)), "flatten_control_inputs"),
        (sum_settings(), StepModel(sum_settings()), "preprocess"),
    ],
    ids=["no control tensor", "another type", "another rank", "item steps"],
)
def test_model_that_does_not_fit_is_refused(settings: ModelSettings, model: SumModel, message: str) -> None:
    with pytest.raises(ServingError, match=message):
        SequenceServable([model], ServableId("sums", 1), settings, VirtualClock())


def test_call_that_raises_in_on_done_does_not_disturb_others(fixture: Any, caplog: pytest.LogCaptureFixture) -> None:
    def raises(result: object) -> None:
        raise ValueError("a caller that breaks its contract")

    request = SequenceRequest([[1]], 1, True, False)
    call = PredictCall(DEFAULT_SIGNATURE, request.call.inputs, (), None, raises, sequence=request.call.sequence)
    fixture.servable.submit(call)
    assert fixture.ask(1, 1).sum == 2
    assert "on_done must not raise" in caplog.text
