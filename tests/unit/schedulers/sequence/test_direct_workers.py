"""Triton's Direct, run by run: which sequence is in which row, and what the model is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.schedulers.sequence_models import SumByStateModel, SumModel, sum_settings
from tfs_lite.core.signature import ShapeContract, Signature, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.conditions import read_conditions

Make = Callable[..., Any]


def test_sums_of_two_sequences_do_not_mix(make: Make) -> None:
    fixture = make()
    assert fixture.ask(1, 7, start=True).sum == 1
    assert fixture.ask(10, 8, start=True).sum == 10
    assert fixture.ask(2, 7).sum == 3
    assert fixture.ask(20, 8, end=True).sum == 30
    assert fixture.ask(3, 7, end=True).sum == 6
    assert fixture.forgotten == [8, 7]


def test_four_sequences_take_the_lowest_rows_of_both_instances_and_a_fifth_waits_for_one_to_end(make: Make) -> None:
    fixture = make(sum_settings(2), instances=2)
    for id in (1, 2, 3, 4):
        assert fixture.ask(id, id, start=True).sum == id
    first, second = fixture.models
    assert (first.column("CORRID"), second.column("CORRID")) == ([[1], [0, 3]], [[2], [0, 4]])
    fifth = fixture.ask(50, 5, start=True)
    last = fixture.ask(51, 5, end=True)
    assert (fixture.servable.pending, fixture.servable.backlogged) == (2, 1)
    fixture.ask(10, 2, end=True)
    assert (fifth.sum, last.sum) == (50, 101)
    assert second.column("CORRID")[2:] == [[2], [5], [5]]
    assert second.column("START")[2:] == [[0], [1], [0]]
    assert second.column("END")[2:] == [[1], [0], [1]]


def test_model_is_told_start_end_and_who_is_ready_over_time(make: Make) -> None:
    """Two sequences side by side; the second starts later and the first pauses."""
    fixture = make(sum_settings(2))
    fixture.ask(1, 11, start=True).wait()
    fixture.ask_held(2, 11)
    together = [fixture.ask(3, 11), fixture.ask(5, 12, start=True)]
    fixture.open()
    for request in together:
        request.wait()
    fixture.ask(6, 12).wait()
    fixture.ask(4, 11, end=True).wait()
    model = fixture.model
    assert model.column("READY") == [[1], [1], [1, 1], [0, 1], [1]]
    assert model.column("START") == [[1], [0], [0, 1], [0, 0], [0]]
    assert model.column("END") == [[0], [0], [0, 0], [0, 0], [1]]
    assert model.column("CORRID") == [[11], [11], [11, 12], [0, 12], [11]]
    assert model.column("INPUT") == [[1], [2], [3, 5], [0, 6], [4]]


def test_successor_of_an_ended_sequence_comes_in_the_next_run(make: Make) -> None:
    fixture = make(sum_settings(1))
    fixture.shut()
    request = [fixture.ask(1, 1, start=True), fixture.ask(2, 1, end=True), fixture.ask(3, 2, start=True, end=True)]
    fixture.open()
    assert [each.sum for each in request] == [1, 3, 3]
    assert fixture.model.column("CORRID") == [[1], [1], [2]]


PLAN = {1: 3, 2: 2, 3: 2, 4: 3, 5: 1, 6: 1}
"""The number of requests of each sequence; there are slots for four of them."""


def test_backlog_has_the_slots_of_ended_sequences_before_the_next_batch_is_formed(make: Make) -> None:
    fixture = make(sum_settings(4))
    fixture.ask_held(1, 99, start=True, end=True)
    requests = [
        fixture.ask(1, id, start=number == 0, end=number == count - 1)
        for id, count in PLAN.items()
        for number in range(count)
    ]
    fixture.open()
    for request in requests:
        request.wait()
    assert fixture.model.column("CORRID") == [[99], [1, 2, 3, 4], [1, 2, 3, 4], [1, 5, 6, 4]]
    assert [(report.rows, report.padding) for report in fixture.reports] == [(1, 0), (4, 0), (4, 0), (4, 0)]


def test_slot_of_a_sequence_that_was_idle_too_long_is_handed_over_even_if_the_clock_is_late(make: Make) -> None:
    fixture = make(sum_settings(2))
    fixture.start(1)
    fixture.ask_held(1, 2, start=True)
    second = fixture.ask(1, 2, end=True)
    waits = fixture.ask(5, 3, start=True, end=True)
    fixture.clock.slip(1.5)
    fixture.open()
    assert (second.sum, waits.sum) == (2, 5)
    assert fixture.model.column("CORRID") == [[1], [0, 2], [3, 2]]
    assert fixture.forgotten == [2, 3, 1]


def test_deadline_that_passes_during_a_run_counts_before_the_next_even_if_the_clock_is_late(make: Make) -> None:
    fixture = make(sum_settings(1))
    fixture.ask_held(1, 1, start=True)
    late = fixture.ask(1, 1, deadline=fixture.clock.monotonic() + 0.5)
    other = fixture.ask(7, 2, start=True, end=True)
    fixture.clock.slip(0.75)
    fixture.open()
    assert (late.code, other.sum) == (StatusCode.DEADLINE_EXCEEDED, 7)
    assert fixture.model.column("CORRID") == [[1], [2]]


def test_request_whose_shape_differs_from_the_lowest_row_waits_and_its_row_is_a_null_row(make: Make) -> None:
    fixture = make(sum_settings(4, dims=-1))
    numbers = {1: [1, 1], 2: [2, 2], 3: [3], 4: [4, 4, 4]}
    fixture.ask_held(numbers[1], 1, start=True)
    starts = [fixture.ask(numbers[id], id, start=True) for id in (2, 3, 4)]
    request = [fixture.ask(numbers[id], id) for _ in range(2) for id in (1, 2, 3, 4)]
    fixture.open()
    assert [each.sum for each in starts] == [[2, 2], 3, [4, 4, 4]]
    assert request[-2].sum == 9
    assert request[-1].sum == [12, 12, 12]
    inferences = sum(sum(rows) for rows in fixture.model.column("READY"))
    assert (inferences, len(fixture.model.runs)) == (12, 9 + 1)
    assert sum(report.rows for report in fixture.reports) == 12


def test_null_rows_are_zeros_and_count_as_padding(make: Make) -> None:
    fixture = make(lends=True)
    for id in (1, 2, 3):
        fixture.ask(id, id, start=True).wait()
    fixture.ask(9, 3).wait()
    (*_, last) = fixture.model.runs
    assert {name: array.tolist() for name, array in last.items()} == {
        "INPUT": [[0], [0], [9]],
        "START": [[0], [0], [0]],
        "READY": [[0], [0], [1]],
        "END": [[0], [0], [0]],
        "CORRID": [[0], [0], [3]],
    }
    assert [(report.rows, report.padding) for report in fixture.reports] == [(1, 0), (1, 1), (1, 2), (1, 2)]


def test_control_tensors_are_columns_that_clients_do_not_see(make: Make) -> None:
    fixture = make()
    fixture.ask(1, 1, start=True).wait()
    assert fixture.model.runs[0]["START"].shape == (1, 1)
    signature = fixture.servable.signatures["serving_default"]
    assert (signature.input_names, signature.output_names) == (("INPUT",), ("OUTPUT",))


def test_model_without_a_batch_dimension_serves_one_sequence_at_a_time(make: Make) -> None:
    fixture = make(sum_settings(0))
    assert fixture.ask(1, 1, start=True).sum == 1
    other = fixture.ask(5, 2, start=True)
    assert fixture.ask(2, 1, end=True).sum == 3
    assert other.sum == 5
    assert fixture.model.runs[0]["START"].shape == (1,)
    assert fixture.model.column("CORRID") == [[1], [1], [2]]


# Delay and utilization.


DELAY = {"max_queue_delay_microseconds": 3_000_000, "minimum_slot_utilization": 0.5}


def test_batch_below_the_utilization_waits_for_the_delay(make: Make) -> None:
    fixture = make(sum_settings(4, direct=DELAY, max_sequence_idle_microseconds=10_000_000))
    request = fixture.ask(1, 1, start=True)
    fixture.clock.advance(2.9)
    assert not request.done
    fixture.clock.advance(0.2)
    assert request.sum == 1


def test_batch_that_reaches_the_utilization_runs_at_once(make: Make) -> None:
    fixture = make(sum_settings(4, direct=DELAY))
    both = [fixture.ask(id, id, start=True) for id in (1, 2)]
    assert [each.sum for each in both] == [1, 2]
    assert fixture.model.column("CORRID") == [[1, 2]]


# What goes wrong.


def test_failing_batch_fails_its_requests_and_their_sequences_go_on(make: Make) -> None:
    fixture = make()
    fixture.ask(1, 1, start=True).wait()
    fixture.ask(1, 2, start=True).wait()
    fixture.ask_held(1, 1)
    failed = [fixture.ask(100, 1), fixture.ask(100, 2)]
    fixture.model.failures = [ServingError(StatusCode.RESOURCE_EXHAUSTED, "no memory for this run")] * 2
    fixture.open()
    assert [each.code for each in failed] == [StatusCode.RESOURCE_EXHAUSTED] * 2
    fixture.model.failures.clear()
    assert (fixture.ask(1, 1).sum, fixture.ask(1, 2).sum) == (2, 2)
    assert [report.ok for report in fixture.reports] == [True, True, False, False, True, True]


def test_output_with_too_few_rows_fails_the_batch(make: Make) -> None:
    class Short(SumModel):
        def results(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {"OUTPUT": np.zeros((0, 1), np.int32)}

    assert make(kind=Short).ask(1, 1, start=True).code is StatusCode.FAILED_PRECONDITION


# Who may not share a run.


class Twins(SumByStateModel):
    """Whatever the rows, ``OUTPUT`` has two of its own: the least and the largest input."""

    def results(self, inputs: dict[str, Any]) -> dict[str, Any]:
        numbers, total = inputs["INPUT"], inputs["INPUT"] + inputs["SUM_IN"]
        return {"OUTPUT": np.array([[numbers.min()], [numbers.max()]], np.int32), "SUM_OUT": total}


STATES = ({"input_name": "SUM_IN", "output_name": "SUM_OUT", "data_type": "TYPE_INT32", "dims": [1]},)


def declared(kind: type[SumModel], **changes: Any) -> type[SumModel]:
    """The model with other words in its signature."""

    class Declared(kind):  # type: ignore[valid-type, misc]
        @property
        def signatures(self) -> Mapping[str, Signature]:
            return {key: replace(each, **changes) for key, each in super().signatures.items()}

    return Declared


def queued(fixture: Any, *ids: int) -> list[Any]:
    """Requests that wait together; each asks for its id."""
    fixture.ask_held(0, 99, start=True, end=True)
    requests = [fixture.ask(id, id, start=True) for id in ids]
    fixture.open()
    return requests


def test_output_that_is_served_as_it_comes_and_follows_no_rows_is_answered_to_each_alone(make: Make) -> None:
    fixture = make(sum_settings(2, states=STATES), declared(Twins, contract=ShapeContract.INPUTS))
    assert [each.sum for each in queued(fixture, 1, 2)] == [[1, 1], [2, 2]]
    assert fixture.ask(5, 2).sum == [5, 5]
    assert {len(run["INPUT"]) for run in fixture.model.runs} == {1}


def test_requests_whose_rows_the_model_does_not_take_together_run_one_after_the_other_the_oldest_first(
    make: Make,
) -> None:
    conditions = read_conditions([("INPUT", 0)], ["n0 <= 2"])
    fixture = make(sum_settings(4, states=STATES), declared(SumByStateModel, conditions=conditions))
    assert [each.sum for each in queued(fixture, 1, 2, 3)] == [1, 2, 3]
    assert fixture.model.column("INPUT") == [[0], [1], [2], [3]]


@pytest.mark.parametrize(("states", "kind", "slots"), [(STATES, SumByStateModel, 3), ((), SumModel, 1)])
def test_rows_that_depend_on_those_beside_them_take_no_company(
    make: Make, states: Any, kind: type[SumModel], slots: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A state in the model may be one of the row; then an instance has one row."""
    fixture = make(sum_settings(3, states=states), declared(kind, conditions=read_conditions((), (), complete=False)))
    requests = queued(fixture, 1, 2, 3)
    assert fixture.servable.backlogged == 3 - slots
    ends = [fixture.ask(10, id, end=True) for id in (1, 2, 3)]
    assert [each.sum for each in requests + ends] == [1, 2, 3, 11, 12, 13]
    assert {len(run["INPUT"]) for run in fixture.model.runs} == {1}
    assert "although it has a max_batch_size" in caplog.text


def test_first_dimensions_of_several_names_are_the_batch_as_the_config_says(make: Make) -> None:
    def other(spec: TensorSpec) -> TensorSpec:
        return replace(spec, shape=None) if spec.name == "OUTPUT" else spec

    (signature,) = SumModel(sum_settings(4)).signatures.values()
    outputs = tuple(map(other, signature.outputs))
    fixture = make(sum_settings(4), declared(SumModel, outputs=outputs))
    fixture.start(1, 2, 3)
    assert [each.sum for each in queued(fixture, 1, 2, 3)] == [1, 2, 3]
    assert max(len(run["INPUT"]) for run in fixture.model.runs) == 4
