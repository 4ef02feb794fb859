"""Triton's Oldest: batches of the oldest requests, and never two of one sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping
from typing import Any

import numpy as np

from tests.support.schedulers.sequence_models import (
    SequenceRequest,
    SumByIdModel,
    SumByStateModel,
    SumModel,
    sum_settings,
)
from tfs_lite.core.status import StatusCode

Make = Callable[..., Any]
STATE = ({"input_name": "SUM_IN", "output_name": "SUM_OUT", "data_type": "TYPE_INT32", "dims": [1]},)


class Hooked(Mapping[str, Any]):
    """Inputs; ``hook`` is called when they are copied."""

    def __init__(self, inputs: Mapping[str, Any], hook: Callable[[], object]) -> None:
        self._inputs, self._hook = inputs, hook

    def __getitem__(self, name: str) -> Any:
        return self._inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    def keys(self) -> KeysView[str]:
        self._hook()
        return self._inputs.keys()


def sums(batch: int = 4, candidates: int = 8, **oldest: object) -> Any:
    return sum_settings(batch, oldest={"max_candidate_sequences": candidates, **oldest})


def queue_while_busy(fixture: Any, order: list[int]) -> list[SequenceRequest]:
    """Requests for sequences in this order, all of which come during a run for sequence 99; each asks for 1."""
    first = fixture.ask_held(0, 99, start=True)
    known: set[int] = set()
    request = []
    for id in order:
        request.append(fixture.ask(1, id, start=id not in known))
        known.add(id)
    fixture.open()
    assert first.sum == 0
    return request


def test_batches_are_formed_from_the_oldest_requests_and_never_hold_two_of_a_sequence(make: Make) -> None:
    fixture = make(sums(), SumByIdModel)
    request = queue_while_busy(fixture, [1, 1, 1, 2, 3, 2, 4, 5, 1, 6])
    assert [each.sum for each in request] == [1, 2, 3, 1, 1, 2, 1, 1, 4, 1]
    rows = fixture.model.column("CORRID")[1:]
    assert rows[:2] == [[1, 2, 3, 4], [5, 6, 1, 2]]
    assert all(len(set(batch)) == len(batch) for batch in rows)
    assert fixture.model.column("READY") == [[1] * len(batch) for batch in fixture.model.column("CORRID")]
    assert [report.padding for report in fixture.reports] == [0] * len(rows) + [0]


def test_batch_of_a_preferred_size_leaves_at_once_and_the_rest_after_the_delay(make: Make) -> None:
    """Four sequences of 3, 3, 3 and 2 requests: 4, 4 and 3 rows."""
    settings = sums(preferred_batch_size=[4], max_queue_delay_microseconds=800_000)
    fixture = make(settings, SumByIdModel, real_time=True)
    request = [fixture.ask(1, id, start=turn == 0) for id in (1, 2, 3, 4) for turn in range(2 if id == 4 else 3)]
    assert [each.sum for each in request] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]
    assert [len(run["INPUT"]) for run in fixture.model.runs] == [4, 4, 3]
    assert max(fixture.reports[2].queue_seconds) >= 0.8


def test_next_request_of_a_sequence_is_submitted_after_the_answer_to_the_one_before(make: Make) -> None:
    fixture = make(sums(), SumByIdModel)
    fixture.shut()
    first, second = fixture.ask(1, 1, start=True), fixture.ask(2, 1)
    fixture.model.gate.wait_for()
    assert fixture.servable.pending == 1
    fixture.model.gate.let()
    assert first.sum == 1
    fixture.model.gate.let()
    assert second.sum == 3
    assert fixture.model.column("CORRID") == [[1], [1]]


def test_sequence_from_the_backlog_takes_the_slot_of_one_that_has_ended(make: Make) -> None:
    fixture = make(sums(candidates=1), SumByIdModel)
    fixture.shut()
    request = [fixture.ask(1, 1, start=True), fixture.ask(2, 1, end=True), fixture.ask(5, 2, start=True, end=True)]
    assert fixture.servable.backlogged == 1
    fixture.open()
    assert [each.sum for each in request] == [1, 3, 5]


def test_control_tensors_have_a_row_for_each_request(make: Make) -> None:
    fixture = make(sums(), SumByIdModel)
    queue_while_busy(fixture, [1, 2])[-1].wait()
    assert {name: array.tolist() for name, array in fixture.model.runs[1].items()} == {
        "INPUT": [[1], [1]],
        "START": [[1], [1]],
        "READY": [[1], [1]],
        "END": [[0], [0]],
        "CORRID": [[1], [2]],
    }


def test_without_a_batch_dimension_requests_run_one_at_a_time(make: Make) -> None:
    fixture = make(sums(0, candidates=3), SumByIdModel)
    request = queue_while_busy(fixture, [1, 2, 1])
    assert [each.sum for each in request] == [1, 1, 2]
    assert [run["START"].shape for run in fixture.model.runs] == [(1,)] * 4


def test_order_is_preserved_on_demand(make: Make) -> None:
    fixture = make(sums(preserve_ordering=True), SumByIdModel)
    assert [each.sum for each in queue_while_busy(fixture, [1, 2, 1, 3])] == [1, 1, 2, 1]


# What goes wrong.


def test_failing_batch_is_not_run_again_and_its_sequences_go_on(make: Make) -> None:
    fixture = make(sums(), SumByIdModel)
    assert [each.sum for each in queue_while_busy(fixture, [1, 2, 3])] == [1, 1, 1]
    fixture.model.breaks = {13}
    fixture.ask_held(0, 99, start=True)
    failed = [fixture.ask(1, 1), fixture.ask(13, 2), fixture.ask(1, 3)]
    runs = len(fixture.model.runs)
    fixture.open()
    assert [each.code for each in failed] == [StatusCode.INTERNAL] * 3
    assert len(fixture.model.runs) == runs + 1
    assert [report.ok for report in fixture.reports] == [True, True, True, False]
    assert fixture.ask(1, 2).sum == 2


def test_with_implicit_state_only_the_request_that_fails_alone_fails(make: Make) -> None:
    fixture = make(sum_settings(4, oldest={"max_candidate_sequences": 8}, states=STATE), SumByStateModel)
    fixture.model.breaks = {13}
    fixture.ask_held(0, 99, start=True)
    request = [fixture.ask(1, 1, start=True), fixture.ask(13, 2, start=True), fixture.ask(1, 3, start=True)]
    fixture.open()
    assert (request[0].sum, request[1].code, request[2].sum) == (1, StatusCode.INTERNAL, 1)
    assert fixture.ask(1, 1).sum == 2


def test_outputs_that_lack_a_row_for_each_request_fail_once(make: Make) -> None:
    class Short(SumModel):
        def results(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {"OUTPUT": np.zeros((1, 1), np.int32)}

    fixture = make(sums(), Short)
    request = queue_while_busy(fixture, [1, 2])
    assert [each.code for each in request] == [StatusCode.FAILED_PRECONDITION] * 2
    assert len(fixture.model.runs) == 2


def test_request_cancelled_in_the_batcher_ends_its_sequence(make: Make) -> None:
    fixture = make(sums(batch=1), SumByIdModel)
    running = fixture.ask_held(1, 1, start=True)
    waiting, behind = fixture.ask(1, 2, start=True), fixture.ask(1, 2)
    fixture.servable.cancel(waiting.call)
    assert (waiting.code, behind.code) == (StatusCode.CANCELLED, StatusCode.CANCELLED)
    assert fixture.forgotten == [2]
    fixture.servable.cancel(running.call)
    assert not running.done
    fixture.open()
    assert running.sum == 1
    assert fixture.ask(1, 2).code is StatusCode.INVALID_ARGUMENT


def test_request_that_is_too_late_in_the_batcher_ends_its_sequence(make: Make) -> None:
    fixture = make(sums(batch=1), SumByIdModel)
    fixture.ask_held(1, 1, start=True)
    waiting, behind = fixture.ask(1, 2, start=True, deadline=0.5), fixture.ask(1, 2)
    fixture.clock.advance(0.5)
    assert (waiting.code, behind.code) == (StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED)


def test_request_cancelled_on_its_way_to_the_batcher_is_cancelled_there(make: Make) -> None:
    fixture = make(sums(batch=1), SumByIdModel)
    fixture.ask_held(1, 1, start=True)
    request = SequenceRequest([[1]], 2, True, False)
    request.call.inputs = Hooked(request.call.inputs, lambda: fixture.servable.cancel(request.call))
    fixture.servable.submit(request.call)
    assert request.code is StatusCode.CANCELLED


def test_request_that_the_batcher_refuses_ends_its_sequence(make: Make) -> None:
    """It would be answered too late, by what runs have taken so far."""
    fixture = make(sums(batch=1), SumByIdModel)
    slow = fixture.ask_held(1, 1, start=True)
    fixture.clock.advance(0.75)
    fixture.model.gate.let()
    slow.wait()
    fixture.ask(1, 1)
    fixture.model.gate.wait_for()
    fixture.ask(1, 2, start=True)
    refused, after = fixture.ask(1, 3, start=True, deadline=1.0), fixture.ask(1, 3)
    assert (refused.code, after.code) == (StatusCode.UNAVAILABLE, StatusCode.INVALID_ARGUMENT)
    assert fixture.forgotten == [3]
