"""What is the same for Direct and Oldest: admission, ids, expiry in virtual time, cancelling, closing."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tfs_lite.config.model import ModelSettings
from tfs_lite.core.model import PredictCall, Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.schedulers.sequence.servable import SequenceServable
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.schedulers.sequence_models import Asked, SumByIdModel, SumModel, sum_settings

Make = Callable[..., Any]
OLDEST: dict[str, Any] = {"max_candidate_sequences": 2}


@pytest.fixture(params=["direct", "oldest"])
def house(request: pytest.FixtureRequest, make: Make) -> Any:
    """Two sequences at once."""
    if request.param == "oldest":
        return make(sum_settings(2, oldest=OLDEST), SumByIdModel)
    return make(sum_settings(2))


def test_is_a_servable_with_what_clients_see(house: Any) -> None:
    servable: Servable = house.servable
    assert (house.servable.keeps_sequences, house.servable.decoupled, house.servable.max_batch_size) == (True, False, 2)
    assert servable.platform == "test"
    assert list(servable.models) == house.models
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
def test_refused_requests_were_never_admitted(house: Any, number: Any, id: int | None, text: str) -> None:
    asked = Asked(number, id, False, False)
    house.servable.submit(asked.call)
    assert (asked.code, asked.call.admitted) == (StatusCode.INVALID_ARGUMENT, False)
    assert text in asked.message


@pytest.mark.parametrize(
    ("corrid", "id", "sent", "expected"),
    [
        ("TYPE_UINT64", "five", "BYTES", "UINT64"),
        ("TYPE_STRING", 5, "UINT64", "BYTES"),
        ("TYPE_INT32", "5", "BYTES", "INT32"),
    ],
    ids=["text-for-number", "number-for-text", "text-for-int32"],
)
def test_id_of_the_wrong_type_is_refused(make: Make, corrid: str, id: int | str, sent: str, expected: str) -> None:
    asked = make(sum_settings(corrid=corrid)).ask(1, id, start=True)
    assert asked.code is StatusCode.INVALID_ARGUMENT
    assert asked.message == (
        f"sequence batching control 'CORRID' data-type is '{sent}', but model 'sums' expects '{expected}'"
    )


def test_without_a_tensor_for_it_an_id_can_be_a_number_or_a_text(make: Make) -> None:
    house = make(sum_settings(corrid=""))
    assert house.ask(1, "5", start=True).sum == 1
    assert house.ask(2, 5, start=True).sum == 2
    assert house.ask(1, "5").sum == 2


def test_id_that_is_too_long_is_refused(make: Make) -> None:
    house = make(sum_settings(corrid="TYPE_STRING"))
    assert house.ask(1, "x" * 128, start=True).sum == 1
    assert house.ask(1, "x" * 129, start=True).code is StatusCode.UNIMPLEMENTED


def test_queue_is_bounded(make: Make) -> None:
    house = make(max_queued=2)
    house.shut()
    house.ask(1, 1, start=True)
    house.model.gate.wait_for()
    waiting = [house.ask(1, 1), house.ask(1, 1)]
    refused = house.ask(1, 1)
    assert (refused.code, refused.call.admitted) == (StatusCode.UNAVAILABLE, False)
    house.open()
    assert [each.sum for each in waiting] == [2, 3]


def test_start_of_a_sequence_that_goes_on_starts_it_again(house: Any) -> None:
    assert [house.ask(5, 1, start=True).sum, house.ask(1, 1).sum, house.ask(7, 1, start=True).sum] == [5, 6, 7]
    assert house.servable.live == 1


def test_outputs_can_be_chosen(house: Any) -> None:
    asked = house.ask(3, 1, start=True, outputs=("OUTPUT",))
    assert list(asked.answer) == ["OUTPUT"]
    assert asked.answer["OUTPUT"].shape == (1, 1)


def test_times_and_reports_tell_how_long_a_call_waited_and_ran(house: Any) -> None:
    house.shut()
    running = house.ask(1, 1, start=True)
    house.model.gate.wait_for()
    waiting = house.ask(2, 1)
    house.clock.advance(0.25)
    house.model.gate.let()
    house.model.gate.wait_for()
    assert running.sum == 1
    house.open()
    assert waiting.sum == 3
    assert (running.call.queue_seconds, running.call.run_seconds) == (0, 0.25)
    assert (waiting.call.queue_seconds, waiting.call.run_seconds) == (0.25, 0)
    assert [(report.rows, report.run_seconds) for report in house.reports] == [(1, 0.25), (1, 0)]


# Expiry.


def test_sequence_that_is_idle_is_forgotten_and_its_place_given_away(house: Any) -> None:
    for id in (1, 2):
        house.ask(id, id, start=True).wait()
    house.clock.advance(0.5)
    third = house.ask(3, 3, start=True)
    house.ask(1, 2).wait()
    assert (house.forgotten, third.done) == ([], False)
    house.clock.advance(0.6)
    assert third.sum == 3
    assert house.forgotten == [1]
    late = house.ask(1, 1)
    assert "must specify the START flag" in late.message
    assert not house.servable.knows(1)
    assert house.servable.knows(2)


@pytest.mark.parametrize("how", [{}, {"oldest": {"max_candidate_sequences": 1}}], ids=["direct", "oldest"])
def test_sequence_that_was_overdue_in_the_backlog_loses_its_place_when_it_has_run(
    make: Make, how: dict[str, Any]
) -> None:
    house = make(sum_settings(1, **how), SumByIdModel)
    house.shut()
    ending = [house.ask(id, id, start=True, end=True) for id in (1, 2)]
    house.model.gate.wait_for()
    backlogged = house.ask(3, 3, start=True)
    house.clock.advance(5)
    assert (house.clock.pending, house.forgotten) == (0, [1, 2])
    house.open()
    assert [ending[0].sum, ending[1].sum, backlogged.sum] == [1, 2, 3]
    house.wait_until(lambda: (house.clock.advance(1.0), house.forgotten)[1] == [1, 2, 3])


def test_requests_that_wait_when_their_sequence_expires_still_run(house: Any) -> None:
    house.shut()
    asked = [house.ask(1, 1, start=True), house.ask(2, 1)]
    house.model.gate.wait_for()
    house.clock.advance(2)
    assert house.forgotten == [1]
    house.open()
    assert [each.sum for each in asked] == [1, 3]


def test_sequence_in_the_backlog_expires_by_the_timeout_of_a_request(house: Any) -> None:
    for id in (1, 2):
        house.ask(id, id, start=True).wait()
    backlogged = [house.ask(3, 3, start=True, timeout=0.5), house.ask(3, 3, timeout=0.9)]
    house.clock.advance(0.6)
    for asked in backlogged:
        assert asked.code is StatusCode.UNAVAILABLE
        assert "timeout of the corresponding sequence has been expired" in asked.message
        assert asked.answer.reason is Reason.QUEUE_TIMEOUT
    assert house.forgotten == [3]


def test_listener_that_raises_keeps_nobody_waiting(house: Any, caplog: pytest.LogCaptureFixture) -> None:
    for id in (1, 2):
        house.ask(id, id, start=True).wait()
    house.clock.advance(0.5)
    house.forgotten = None
    third = house.ask(3, 3, start=True)
    house.clock.advance(0.6)
    assert third.sum == 3
    assert "could not be forgotten" in caplog.text


def test_deadline_of_a_request_that_waits_ends_its_sequence(house: Any) -> None:
    for id in (1, 2):
        house.ask(id, id, start=True).wait()
    late, behind = house.ask(3, 3, start=True, deadline=0.5), house.ask(3, 3)
    house.clock.advance(0.5)
    assert (late.code, behind.code) == (StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED)
    assert late.call.queue_seconds == 0.5
    assert house.ask(3, 3).code is StatusCode.INVALID_ARGUMENT


def test_request_that_comes_after_its_deadline_is_refused_and_changes_nothing(house: Any) -> None:
    house.ask(1, 1, start=True).wait()
    late = house.ask(1, 1, deadline=0.0)
    assert (late.code, late.call.admitted) == (StatusCode.DEADLINE_EXCEEDED, False)
    assert house.ask(1, 1).sum == 2


# Cancelling.


def test_cancelling_a_request_that_waits_cancels_all_that_wait_in_its_sequence(house: Any) -> None:
    house.shut()
    running = house.ask(1, 1, start=True)
    house.model.gate.wait_for()
    waiting = [house.ask(1, 1), house.ask(1, 1)]
    house.servable.cancel(waiting[1].call)
    house.servable.cancel(running.call)
    assert [each.code for each in waiting] == [StatusCode.CANCELLED] * 2
    assert (running.done, house.forgotten) == (False, [1])
    again = house.ask(10, 1, start=True)
    house.open()
    assert (running.sum, again.sum) == (1, 10)


def test_cancelling_in_a_slot_makes_room_for_the_backlog(house: Any) -> None:
    house.shut()
    first = house.ask(1, 1, start=True)
    house.model.gate.wait_for()
    second, third = house.ask(2, 2, start=True), house.ask(3, 3, start=True)
    assert house.servable.backlogged == 1
    house.servable.cancel(second.call)
    assert second.code is StatusCode.CANCELLED
    house.open()
    assert (first.sum, third.sum) == (1, 3)


def test_cancelling_a_sequence_in_the_backlog_removes_it(house: Any) -> None:
    for id in (1, 2):
        house.ask(id, id, start=True).wait()
    asked = house.ask(3, 3, start=True)
    house.servable.cancel(asked.call)
    house.servable.cancel(asked.call)
    assert (asked.code, house.servable.backlogged, house.servable.pending) == (StatusCode.CANCELLED, 0, 0)


# The end.


def test_stopped_servable_refuses_starts_and_finishes_sequences(house: Any) -> None:
    house.ask(1, 1, start=True).wait()
    house.servable.stop()
    refused = house.ask(1, 2, start=True)
    assert (refused.code, refused.call.admitted) == (StatusCode.UNAVAILABLE, False)
    assert "Server is stopping" in refused.message
    assert house.ask(1, 1, end=True).sum == 2
    assert house.servable.live == 0


def test_closing_answers_what_waits_and_forgets_everybody(house: Any) -> None:
    house.shut()
    running = house.ask(1, 1, start=True)
    house.model.gate.wait_for()
    waiting = [house.ask(1, 1), house.ask(1, 3, start=True), house.ask(1, 3)]
    house.close()
    assert running.sum == 1
    assert [each.code for each in waiting] == [StatusCode.UNAVAILABLE] * 3
    assert sorted(house.forgotten) == [1, 3]
    assert house.ask(1, 4, start=True).code is StatusCode.UNAVAILABLE
    assert house.clock.pending == 0


def test_nothing_of_a_call_is_held_after_its_answer(house: Any) -> None:
    class Held(np.ndarray[Any, Any]):
        pass

    array = np.ones((1, 1), np.int32).view(Held)
    gone = weakref.ref(array)
    asked = Asked([[1]], 1, True, False)
    asked.call.inputs = {"INPUT": array}
    house.servable.submit(asked.call)
    assert asked.sum == 1
    del array, asked
    house.wait_until(lambda: (gc.collect(), gone())[1] is None)  # as soon as the lane has let go of the run


def test_many_threads_ask_for_sequences_that_start_and_end(make: Make) -> None:
    house = make(sum_settings(4, oldest={"max_candidate_sequences": 3}), SumByIdModel, 2, real_time=True)
    wrong: list[object] = []

    def client(id: int) -> None:
        for _ in range(10):
            asked = [house.ask(number, id, start=number == 1, end=number == 5) for number in range(1, 6)]
            sums = [each.answer if isinstance(each.answer, Status) else each.sum for each in asked]
            if sums != [1, 3, 6, 10, 15]:
                wrong.append(sums)

    threads = [threading.Thread(target=client, args=(id,)) for id in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (house.servable.live, house.servable.pending) == (0, 0)


# What does not fit.


def other_model(settings: ModelSettings, model_settings: ModelSettings) -> SequenceServable:
    """A servable by ``settings`` for a model that is as ``model_settings`` say."""
    return SequenceServable([SumModel(model_settings)], ServableId("sums", 1), settings, VirtualClock())


def test_model_without_the_control_tensor_is_refused() -> None:
    with pytest.raises(ServingError, match="no input for the control_input CORRID"):
        other_model(sum_settings(), sum_settings(corrid=""))


def test_model_whose_control_tensor_has_another_type_is_refused() -> None:
    with pytest.raises(ServingError, match=r"control_input CORRID is uint64, but the input of .* is int64"):
        other_model(sum_settings(), sum_settings(corrid="TYPE_INT64"))


def test_model_whose_control_tensor_has_another_rank_is_refused() -> None:
    with pytest.raises(ServingError, match="flatten_control_inputs"):
        other_model(sum_settings(0), sum_settings(4))


def test_model_with_item_steps_is_refused() -> None:
    class Steps(SumModel):
        has_item_steps = True

    with pytest.raises(ServingError, match="preprocess"):
        SequenceServable([Steps(sum_settings())], ServableId("sums", 1), sum_settings(), VirtualClock())


def test_call_that_raises_in_on_done_disturbs_nobody(house: Any, caplog: pytest.LogCaptureFixture) -> None:
    def raises(result: object) -> None:
        raise ValueError("a caller that breaks its contract")

    asked = Asked([[1]], 1, True, False)
    call = PredictCall(DEFAULT_SIGNATURE, asked.call.inputs, (), None, raises, sequence=asked.call.sequence)
    house.servable.submit(call)
    assert house.ask(1, 1).sum == 2
    assert "on_done must not raise" in caplog.text
