"""One batch through a model: every call is answered once, and only those at fault with a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from queue import Queue
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import BatchReport, Model, PredictCall, Traits, WorkerBusy, WorkerLost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    DataType,
    ShapeContract,
    Signature,
    SymbolicDim,
    Tensor,
    TensorSpec,
)
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.execution import Execution
from tfs_lite.schedulers.batching.queue import BatchJob
from tfs_lite.schedulers.batching.retries import Loss
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings, SendWhen
from tfs_lite.schedulers.batching.signature_queue import SignatureQueue
from tfs_lite.schedulers.calls import finish
from tfs_lite.testing.lifecycle.clock import VirtualClock

ID = ServableId("m", 7)
BATCH = SymbolicDim("batch")
SIGNATURE = Signature((TensorSpec("x", DataType.INT64, (BATCH,)),), (TensorSpec("y", DataType.INT64, (BATCH,)),))
MANY = BatchSettings(max_batch_size=64)
RUN_SECONDS = 0.5
Answer = Mapping[str, Tensor] | Status


class Doubler(Model):
    """Takes half a second of its clock; runs with a row of ``failing`` raise its error."""

    platform = "test"
    signatures: ClassVar[Mapping[str, Signature]] = {DEFAULT_SIGNATURE: SIGNATURE}

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.runs: list[list[int]] = []
        self.failing: Mapping[int, BaseException] = {}
        self.result: Callable[[np.ndarray], dict[str, np.ndarray]] = lambda x: {"y": 2 * x}

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        assert signature == DEFAULT_SIGNATURE
        x = np.asarray(inputs["x"])
        self.runs.append(x.tolist())
        self.clock.advance(RUN_SECONDS)
        for row in x.tolist():
            if row in self.failing:
                raise self.failing[row]
        return dict(self.result(x))

    def close(self) -> None:
        """Nothing to close."""


class ExecutionFixture:
    """An execution, and in order all that it reports and answers."""

    def __init__(self, settings: BatchSettings = MANY, signature: Signature = SIGNATURE) -> None:
        self.clock = VirtualClock()
        self.model = Doubler(self.clock)
        self.queue = SignatureQueue(DEFAULT_SIGNATURE, signature, settings, "m-7", BatchRule.of)
        self.reports: list[BatchReport] = []
        self.ended: list[tuple[float, int, float]] = []
        self.events: list[str] = []
        self.answers: dict[int, list[Answer]] = {}
        self.calls: list[PredictCall] = []
        self.loss: Loss | None = None
        self.execution = Execution(ID, "m-7", self.clock, self.count, self.end)

    def count(self, report: BatchReport) -> None:
        self.reports.append(report)
        self.events.append("report")

    def end(self, queue: SignatureQueue, now: float, rows: int, seconds: float) -> None:
        assert queue is self.queue
        self.ended.append((now, rows, seconds))
        self.events.append("ended")

    def call(self, number: int, *rows: int) -> PredictCall:
        def on_done(answer: Answer) -> None:
            self.answers.setdefault(number, []).append(answer)
            self.events.append(f"answer {number}")

        made = PredictCall(DEFAULT_SIGNATURE, {"x": np.array(rows, np.int64)}, (), None, on_done)
        made.queue_seconds = number / 8
        return made

    def run(self, *parts: Sequence[int]) -> None:
        """One call for each part, with these rows."""
        self.calls = [self.call(number, *rows) for number, rows in enumerate(parts)]
        jobs = [
            BatchJob(call, len(rows) or 1, None, 0.0, len(rows)) for call, rows in zip(self.calls, parts, strict=True)
        ]
        self.loss = self.execution.run(self.model, self.queue, jobs)

    def lost(self, jobs: Sequence[BatchJob]) -> list[int]:
        """The numbers of their calls."""
        return [self.calls.index(job.call) for job in jobs]

    def of(self, number: int) -> Answer:
        (answer,) = self.answers[number]
        return answer

    def rows_of(self, number: int) -> list[int]:
        answer = self.of(number)
        assert not isinstance(answer, Status)
        rows: list[int] = np.asarray(answer["y"]).tolist()
        return rows


@pytest.fixture
def fixture() -> ExecutionFixture:
    return ExecutionFixture()


def test_every_call_gets_its_own_rows_of_one_run(fixture: ExecutionFixture) -> None:
    fixture.run([1, 2], [3], [4, 5, 6])
    assert fixture.model.runs == [[1, 2, 3, 4, 5, 6]]
    assert [fixture.rows_of(number) for number in range(3)] == [[2, 4], [6], [8, 10, 12]]


def test_run_is_told_before_its_calls_are_answered(fixture: ExecutionFixture) -> None:
    fixture.run([1], [2, 3])
    assert fixture.events == ["report", "ended", "answer 0", "answer 1"]
    assert fixture.reports == [BatchReport(ID, 3, 0, RUN_SECONDS, (0.0, 0.125), True)]
    assert fixture.ended == [(RUN_SECONDS, 3, RUN_SECONDS)]
    assert [call.run_seconds for call in fixture.calls] == [RUN_SECONDS] * 2


def test_padding_is_reported_and_not_answered() -> None:
    fixture = ExecutionFixture(BatchSettings(max_batch_size=8, allowed_sizes=(4, 8)))
    fixture.run([1, 2], [3])
    assert fixture.model.runs == [[1, 2, 3, 3]]
    assert [fixture.rows_of(number) for number in range(2)] == [[2, 4], [6]]
    assert [(report.rows, report.padding) for report in fixture.reports] == [(3, 1)]


def with_conditions(*texts: str) -> Signature:
    """The signature of a model that takes such numbers of rows, ``n0``."""
    return replace(SIGNATURE, conditions=read_conditions([("x", 0)], texts))


def test_calls_that_the_model_takes_alone_and_not_together_run_apart_and_none_has_failed() -> None:
    fixture = ExecutionFixture(signature=with_conditions("n0 != 7"))
    fixture.run([1, 2, 3], [4, 5, 6, 7], [8])
    assert fixture.model.runs == [[1, 2, 3, 4, 5, 6, 7, 8]]
    fixture.run([1, 2, 3], [4, 5, 6, 7])
    assert fixture.model.runs[1:] == [[1, 2, 3], [4, 5, 6, 7]]
    assert all(report.ok for report in fixture.reports)
    assert not any(call.halved for call in fixture.calls)


def test_rows_are_not_filled_up_to_a_number_that_the_model_does_not_take() -> None:
    sizes = BatchSettings(max_batch_size=8, allowed_sizes=(4, 8))
    fixture = ExecutionFixture(sizes, with_conditions("n0 != 4"))
    fixture.run([1], [2])
    fixture.run([1, 2, 3], [4, 5])
    assert fixture.model.runs == [[1, 2], [1, 2, 3, 4, 5, 4, 4, 4]]


def test_call_alone_gets_what_the_model_returned() -> None:
    fixture = ExecutionFixture(ALONE)
    fixture.model.result = lambda x: {"y": x.sum(), "more": x}
    fixture.run([1, 2, 3])
    answer = fixture.of(0)
    assert not isinstance(answer, Status)
    assert set(answer) == {"y", "more"}


def test_failure_of_a_call_alone_is_its_answer(fixture: ExecutionFixture) -> None:
    fixture.model.failing = {1: ServingError(StatusCode.OUT_OF_RANGE, "too far")}
    fixture.run([1])
    assert fixture.of(0) == Status(StatusCode.OUT_OF_RANGE, "too far")
    assert [report.ok for report in fixture.reports] == [False]
    assert len(fixture.ended) == 1
    assert fixture.calls[0].run_seconds == RUN_SECONDS


def test_failing_batch_is_run_in_halves_until_the_failing_call_is_alone(fixture: ExecutionFixture) -> None:
    fixture.model.failing = {3: ServingError(StatusCode.INVALID_ARGUMENT, "three is not a number")}
    fixture.run([1], [2], [3], [4])
    assert fixture.model.runs == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]]
    assert fixture.of(2) == Status(StatusCode.INVALID_ARGUMENT, "three is not a number")
    assert [fixture.rows_of(number) for number in (0, 1, 3)] == [[2], [4], [8]]
    assert [report.ok for report in fixture.reports] == [False, True, False, False, True]
    assert [report.rows for report in fixture.reports] == [4, 2, 2, 1, 1]
    assert fixture.calls[0].run_seconds == RUN_SECONDS


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_exactly_the_failing_calls_fail_and_all_are_answered_once(sizes: list[int], failing: set[int]) -> None:
    fixture = ExecutionFixture()
    rows = iter(range(100))
    parts = [[next(rows) for _ in range(size)] for size in sizes]
    bad = {part[0]: number for number, part in enumerate(parts) if part and number in failing}
    fixture.model.failing = {row: ServingError(StatusCode.INTERNAL, f"{row}") for row in bad}
    fixture.run(*parts)
    for number, part in enumerate(parts):
        if number in bad.values():
            assert fixture.of(number) == Status(StatusCode.INTERNAL, f"{part[0]}")
        else:
            assert fixture.rows_of(number) == [2 * row for row in part]
    assert len(fixture.model.runs) < 2 * len(parts)
    assert len(fixture.reports) == len(fixture.model.runs)


@pytest.mark.parametrize("error", [KeyError("secret"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_model_that_breaks_its_contract_is_logged_and_shows_no_secret(
    fixture: ExecutionFixture, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.model.failing = {1: error}
    fixture.run([1], [2])
    assert fixture.of(0) == Status(StatusCode.INTERNAL, f"m-7 failed: {type(error).__name__}")
    assert fixture.rows_of(1) == [4]
    assert "m-7 broke its contract: it may only raise ServingError" in caplog.text


def test_results_that_cannot_be_told_apart_are_run_one_by_one(fixture: ExecutionFixture) -> None:
    fixture.model.result = lambda x: {"y": x.sum(keepdims=True)}
    fixture.run([1, 2], [3])
    assert fixture.model.runs == [[1, 2, 3], [1, 2], [3]]
    assert [fixture.rows_of(number) for number in range(2)] == [[3], [3]]
    assert [report.ok for report in fixture.reports] == [False, True, True]


def test_calls_of_a_lost_worker_are_given_back_and_nothing_is_run_again(fixture: ExecutionFixture) -> None:
    lost = WorkerLost("the worker of m-7 has died")
    fixture.model.failing = {2: lost}
    fixture.run([1], [2], [3])
    assert fixture.loss is not None
    assert fixture.loss.error is lost
    assert (fixture.lost(fixture.loss.inside), fixture.loss.behind) == ([0, 1, 2], ())
    assert fixture.model.runs == [[1, 2, 3]]
    assert fixture.answers == {}
    assert [(report.ok, report.lost) for report in fixture.reports] == [(False, True)]
    assert fixture.ended == []


@pytest.mark.parametrize("error", [WorkerLost("it has died", unread=True), WorkerBusy("busy")])
def test_batch_that_nobody_has_read_is_no_run(fixture: ExecutionFixture, error: ServingError) -> None:
    fixture.model.failing = {2: error}
    fixture.run([1], [2])
    assert fixture.loss is not None
    assert fixture.lost(fixture.loss.inside) == [0, 1]
    assert (fixture.answers, fixture.reports, fixture.ended) == ({}, [], [])


def test_worker_that_is_lost_among_the_halves_gives_back_those_that_are_left(fixture: ExecutionFixture) -> None:
    lost = WorkerLost("the worker of m-7 has died")
    fixture.model.failing = {1: ServingError(StatusCode.INTERNAL, "one"), 3: lost}
    # [1 2 3 4] fails by 1, [1 2] too, [1] fails, [2] is fine, [3 4] loses the worker
    fixture.run([1], [2], [3], [4])
    assert fixture.model.runs == [[1, 2, 3, 4], [1, 2], [1], [2], [3, 4]]
    assert fixture.of(0) == Status(StatusCode.INTERNAL, "one")
    assert fixture.rows_of(1) == [4]
    assert fixture.loss is not None
    assert (fixture.lost(fixture.loss.inside), list(fixture.loss.behind)) == ([2, 3], [])
    assert set(fixture.answers) == {0, 1}


def test_worker_that_is_lost_in_the_first_half_spares_the_second(fixture: ExecutionFixture) -> None:
    lost = WorkerLost("the worker of m-7 has died")
    failures = iter([ServingError(StatusCode.INTERNAL, "once"), lost])

    def fail(x: np.ndarray) -> dict[str, np.ndarray]:
        raise next(failures)

    fixture.model.result = fail
    fixture.run([1], [2], [3], [4], [5])
    assert fixture.model.runs == [[1, 2, 3, 4, 5], [1, 2]]
    assert fixture.loss is not None
    assert (fixture.lost(fixture.loss.inside), fixture.lost(fixture.loss.behind)) == ([0, 1], [2, 3, 4])
    assert fixture.answers == {}


def test_memory_that_is_missing_fails_like_a_run(fixture: ExecutionFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(signature: str, shapes: object) -> None:
        raise ServingError(StatusCode.RESOURCE_EXHAUSTED, "no memory to stage in")

    monkeypatch.setattr(fixture.model, "stage", full, raising=False)
    fixture.run([1], [2])
    assert [fixture.rows_of(number) for number in range(2)] == [[2], [4]], "a call alone needs none"
    assert [report.ok for report in fixture.reports] == [False, True, True]


def test_counter_that_raises_is_only_logged(fixture: ExecutionFixture, caplog: pytest.LogCaptureFixture) -> None:
    def broken(report: BatchReport) -> None:
        raise RuntimeError("no space left for numbers")

    execution = Execution(ID, "m-7", fixture.clock, broken, fixture.end)
    execution.run(fixture.model, fixture.queue, [BatchJob(fixture.call(0, 1), 1, None, 0.0)])
    assert fixture.rows_of(0) == [2]
    assert "a run of m-7 could not be counted" in caplog.text


def test_caller_that_raises_is_logged_and_others_answered(
    fixture: ExecutionFixture, caplog: pytest.LogCaptureFixture
) -> None:
    def careless(answer: Answer) -> None:
        raise RuntimeError("on_done must not raise")

    first = fixture.call(0, 1)
    first.on_done = careless
    jobs = [BatchJob(call, 1, None, 0.0) for call in (first, fixture.call(1, 2))]
    fixture.execution.run(fixture.model, fixture.queue, jobs)
    assert fixture.rows_of(1) == [4]
    assert "a caller of m-7 broke its contract" in caplog.text
    with caplog.at_level(logging.ERROR):
        finish(first, Status(StatusCode.CANCELLED, "gone"), "m-7")
    assert caplog.text.count("a caller of m-7 broke its contract") == 2


@pytest.mark.parametrize("parts", [([1],), ([1], [2, 3])])
def test_output_that_the_model_leaves_out_fails_the_calls_that_need_it_and_no_run_again(
    parts: Sequence[Sequence[int]],
) -> None:
    fixture = ExecutionFixture()
    fixture.model.result = lambda x: {}
    fixture.run(*parts)
    text = "model m version 7 did not return output y; the log says what it returned"
    assert [fixture.of(number) for number in range(len(parts))] == [Status(StatusCode.INTERNAL, text)] * len(parts)
    assert len(fixture.model.runs) == 1


def test_call_that_may_lack_outputs_gets_those_that_there_are_beside_one_that_may_not() -> None:
    fixture = ExecutionFixture()
    fixture.model.result = lambda x: {"other": x}
    calls = [fixture.call(0, 1), fixture.call(1, 2)]
    calls[0].may_lack = True
    calls[0].outputs = calls[1].outputs = ("y", "other")
    fixture.execution.run(fixture.model, fixture.queue, [BatchJob(call, 1, None, 0.0, 1) for call in calls])
    lenient, strict = fixture.of(0), fixture.of(1)
    assert not isinstance(lenient, Status)
    assert {name: np.asarray(array).tolist() for name, array in lenient.items()} == {"other": [1]}
    assert isinstance(strict, Status)
    assert strict.code is StatusCode.INTERNAL


LOOSE = replace(SIGNATURE, contract=ShapeContract.INPUTS)
"""Nothing holds the outputs against the declared batch."""
UNSURE = pytest.mark.parametrize("contract", [ShapeContract.INPUTS, ShapeContract.NONE])


@UNSURE
def test_calls_share_runs_once_outputs_have_shown_that_they_follow_the_rows(contract: ShapeContract) -> None:
    fixture = ExecutionFixture(signature=replace(SIGNATURE, contract=contract))
    fixture.run([1, 2], [3])
    assert fixture.model.runs == [[1, 2], [3]]
    fixture.run([4], [5])
    fixture.answers.clear()
    fixture.run([6], [7, 8])
    assert fixture.model.runs[2:] == [[4, 5], [6, 7, 8]]
    assert fixture.rows_of(1) == [7 * 2, 8 * 2]


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("first", range(1, 4))
@UNSURE
def test_output_of_a_size_of_its_own_is_whole_for_each_call_whatever_the_rows(
    size: int, first: int, contract: ShapeContract
) -> None:
    """Its size may be the number of rows of a run by chance: of the first one, of one that is shared, of a half."""
    fixture = ExecutionFixture(replace(MANY, allowed_sizes=(4, 8)), replace(SIGNATURE, contract=contract))
    fixture.model.result = lambda x: {"y": np.full(size, x.sum())}
    for parts in ([[1] * first], [[1], [2]], [[3], [4], [5], [6]], [[7, 8], [9]], [[1] * size], [[1, 2, 3]]):
        fixture.answers.clear()
        fixture.run(*parts)
        for number, rows in enumerate(parts):
            assert fixture.rows_of(number) == [sum(rows)] * size
    assert max(map(len, fixture.model.runs[-3:])) <= max(3, size)


def test_outputs_are_judged_each_for_itself() -> None:
    """A call that asks for one output only shows nothing about the others."""
    signature = replace(LOOSE, outputs=(*LOOSE.outputs, TensorSpec("all", DataType.INT64, (BATCH,))))
    fixture = ExecutionFixture(signature=signature)
    fixture.model.result = lambda x: {"y": 2 * x}
    fixture.run([1])
    fixture.answers.clear()
    fixture.model.result = lambda x: {"y": 2 * x, "all": np.full(2, x.sum())}
    fixture.run([2], [3])
    assert [np.asarray(fixture.of(number)["all"]).tolist() for number in range(2)] == [[2, 2], [3, 3]]


def test_outputs_that_the_load_has_shown_to_follow_the_rows_share_the_first_run_and_are_filled_up() -> None:
    shown = replace(SIGNATURE, contract=ShapeContract.ROWS)
    fixture = ExecutionFixture(replace(MANY, allowed_sizes=(4,)), shown)
    fixture.run([1], [2, 3])
    (run,) = fixture.model.runs
    assert (run[:3], len(run)) == ([1, 2, 3], 4)
    assert fixture.rows_of(1) == [4, 6]


@pytest.mark.parametrize("parts", [([1],), ([1], [2])])
def test_what_the_load_has_shown_ends_with_the_first_run_that_shows_something_else(parts: Sequence[list[int]]) -> None:
    shown = replace(SIGNATURE, contract=ShapeContract.ROWS)
    fixture = ExecutionFixture(replace(MANY, allowed_sizes=(4,)), shown)
    fixture.model.result = lambda x: {"y": np.full(7, x.sum())}
    fixture.run(*parts)
    assert [fixture.rows_of(number) for number in range(len(parts))] == [[sum(rows)] * 7 for rows in parts]
    assert fixture.queue.evidence is not None
    assert fixture.queue.evidence.may_share is False


def test_call_that_is_not_as_declared_shows_nothing_about_those_that_are() -> None:
    """Its first size need not be its rows."""
    fixture = ExecutionFixture(signature=replace(SIGNATURE, contract=ShapeContract.NONE))
    fixture.run([1], [2])
    fixture.model.result = lambda x: {"y": np.zeros(9)}
    unfit = BatchJob(fixture.call(0, 1), 1, None, 0.0, 1, alone=True)
    fixture.execution.run(fixture.model, fixture.queue, [unfit])
    fixture.answers.clear()
    fixture.model.result = lambda x: {"y": 2 * x}
    fixture.run([3], [4, 5])
    assert fixture.model.runs[-1] == [3, 4, 5]


@UNSURE
@pytest.mark.parametrize("own", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [3, 4, 5, 6, 8])
def test_parts_of_a_large_call_are_not_joined_if_an_output_has_a_size_of_its_own(
    contract: ShapeContract, own: int, rows: int
) -> None:
    """Its size may be that of a part, or of all parts but one."""
    model, answers = Doubler(VirtualClock()), Queue[Answer]()
    model.signatures = {DEFAULT_SIGNATURE: replace(SIGNATURE, contract=contract)}  # type: ignore[misc]
    model.result = lambda x: {"y": np.full(own, 7)}
    settings = BatchSettings(max_batch_size=2, max_request_rows=8, split_large=True)
    servable = BatchingServable([model], ID, settings, clock=SystemClock())
    servable.submit(PredictCall(DEFAULT_SIGNATURE, {"x": np.arange(rows)}, (), None, answers.put))
    answer = answers.get(timeout=30)
    servable.close()
    assert isinstance(answer, Status), answer
    assert answer.code is StatusCode.FAILED_PRECONDITION


class Repeater(Doubler):
    """Takes and gives every shape."""

    signatures: ClassVar[Mapping[str, Signature]] = {DEFAULT_SIGNATURE: replace(SIGNATURE, contract=ShapeContract.NONE)}

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        x = np.asarray(inputs["x"])
        self.runs.append(x.tolist())
        return {"y": 2 * x}


@pytest.mark.parametrize(
    "value", [np.array(3), np.array([[1, 2], [3, 4]]), np.ones((9, 1), int), np.zeros((0, 2), int)]
)
@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_inputs_unlike_shapes_that_are_no_contract_run_alone_and_as_they_are(
    value: np.ndarray, max_batch_size: int
) -> None:
    """They are neither put together with others, nor padded, nor split, and no request suffers from another."""
    model, answers = Repeater(VirtualClock()), Queue[tuple[int, Answer]]()
    settings = BatchSettings(max_batch_size=4, allowed_sizes=(2, 4), send=SendWhen.WAIT, max_delay=0.01)
    traits = Traits("test", max_batch_size=max_batch_size)
    servable = BatchingServable([model], ID, settings, clock=SystemClock(), traits=traits)
    sent = [np.array([1]), value, np.array([2])]
    for number, x in enumerate(sent):
        on_done = partial(lambda number, answer: answers.put((number, answer)), number)
        servable.submit(PredictCall(DEFAULT_SIGNATURE, {"x": x}, (), None, on_done))
    found = dict(answers.get(timeout=30) for _ in sent)
    servable.close()
    for number, x in enumerate(sent):
        answer = found[number]
        assert not isinstance(answer, Status), answer
        np.testing.assert_array_equal(answer["y"], 2 * x)
    assert value.tolist() in model.runs
