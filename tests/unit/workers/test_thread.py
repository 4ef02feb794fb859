from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np
import pytest

from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.workers.thread import ThreadServable, thread_servable_factory

PATIENCE = 30


class GatedModel:
    """Answers in the order of the calls, when its gate is open."""

    platform = "test"

    def __init__(self) -> None:
        self.signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: Signature((), ())}
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.seen: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.closed = False
        self.error: BaseException | None = None

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        self.threads.add(threading.current_thread())
        self.seen.append(int(np.asarray(inputs["x"])))
        if self.error is not None:
            raise self.error
        return dict(inputs)

    def close(self) -> None:
        self.closed = True


class Answers:
    """Collects what ``on_done`` got, per call."""

    def __init__(self) -> None:
        self.results: dict[int, list[Mapping[str, Tensor] | Status]] = {}
        self._changed = threading.Condition()

    def call(self, number: int, deadline: float | None = None) -> PredictCall:
        return PredictCall("", {"x": np.array(number)}, (), deadline, lambda result: self._add(number, result))

    def _add(self, number: int, result: Mapping[str, Tensor] | Status) -> None:
        with self._changed:
            self.results.setdefault(number, []).append(result)
            self._changed.notify_all()

    def of(self, number: int) -> Mapping[str, Tensor] | Status:
        """The one answer of a call, waited for."""
        with self._changed:
            assert self._changed.wait_for(lambda: number in self.results, PATIENCE)
            (result,) = self.results[number]
            return result

    def code_of(self, number: int) -> StatusCode:
        result = self.of(number)
        assert isinstance(result, Status)
        return result.code


@pytest.fixture
def model() -> GatedModel:
    return GatedModel()


@pytest.fixture
def answers() -> Answers:
    return Answers()


def test_calls_run_one_after_the_other_on_one_other_thread(model, answers):
    servable = ThreadServable(model, "m-1")
    model.gate.set()
    for number in range(50):
        servable.submit(answers.call(number))
    assert [int(np.asarray(answers.of(number)["x"])) for number in range(50)] == list(range(50))
    servable.close()
    assert model.seen == list(range(50))
    (thread,) = model.threads
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert thread.name == "tfs-model-m-1"
    assert not thread.is_alive()


def test_it_shows_what_the_model_shows(model):
    servable = thread_servable_factory(3)(model, "m-1")
    assert servable.platform == "test"
    assert servable.signatures is model.signatures
    servable.close()
    assert model.closed


def test_full_queue_refuses_the_next_call_and_answers_those_it_took(model, answers):
    servable = ThreadServable(model, "m-1", max_queue=2)
    servable.submit(answers.call(0))
    assert model.entered.wait(PATIENCE)
    for number in (1, 2, 3):
        servable.submit(answers.call(number))
    assert answers.code_of(3) is StatusCode.UNAVAILABLE
    assert servable.pending == 2
    assert answers.results.keys() == {3}
    model.gate.set()
    for number in (0, 1, 2):
        assert answers.of(number) == {"x": np.array(number)}
    assert servable.pending == 0
    servable.close()


def test_call_past_its_deadline_is_not_started(model, answers):
    servable = ThreadServable(model, "m-1")
    servable.submit(answers.call(0))
    assert model.entered.wait(PATIENCE)
    servable.submit(answers.call(1, deadline=time.monotonic() - 1))
    servable.submit(answers.call(2, deadline=time.monotonic() + 1000))
    model.gate.set()
    assert answers.code_of(1) is StatusCode.DEADLINE_EXCEEDED
    assert answers.of(2) == {"x": np.array(2)}
    servable.close()
    assert model.seen == [0, 2]


def test_cancelled_call_is_answered_but_not_started(model, answers):
    servable = ThreadServable(model, "m-1")
    servable.submit(answers.call(0))
    assert model.entered.wait(PATIENCE)
    call = answers.call(1)
    servable.submit(call)
    call.cancelled = True
    model.gate.set()
    assert answers.code_of(1) is StatusCode.CANCELLED
    servable.close()
    assert model.seen == [0]


def test_closing_answers_what_waits_and_lets_the_running_call_finish(model, answers):
    servable = ThreadServable(model, "m-1")
    servable.submit(answers.call(0))
    assert model.entered.wait(PATIENCE)
    cancelled = answers.call(2)
    for call in (answers.call(1), cancelled):
        servable.submit(call)
    cancelled.cancelled = True
    closing = threading.Thread(target=servable.close)
    closing.start()
    assert answers.code_of(1) is StatusCode.UNAVAILABLE
    assert answers.code_of(2) is StatusCode.CANCELLED
    assert not model.closed
    model.gate.set()
    closing.join(PATIENCE)
    assert answers.of(0) == {"x": np.array(0)}
    assert model.closed
    assert model.seen == [0]


def test_call_after_closing_is_refused(model, answers):
    servable = ThreadServable(model, "m-1")
    servable.close()
    servable.submit(answers.call(0))
    assert answers.code_of(0) is StatusCode.UNAVAILABLE


def test_error_of_the_model_is_the_answer_and_the_next_call_runs(model, answers):
    servable = ThreadServable(model, "m-1")
    model.gate.set()
    model.error = ServingError(StatusCode.OUT_OF_RANGE, "too far")
    servable.submit(answers.call(0))
    assert answers.of(0) == Status(StatusCode.OUT_OF_RANGE, "too far")
    model.error = None
    servable.submit(answers.call(1))
    assert answers.of(1) == {"x": np.array(1)}
    servable.close()


@pytest.mark.parametrize("error", [KeyError("secret"), SystemExit(3), KeyboardInterrupt()])
def test_model_that_breaks_its_contract_does_not_end_the_thread(model, answers, error):
    servable = ThreadServable(model, "m-1")
    model.gate.set()
    model.error = error
    servable.submit(answers.call(0))
    assert answers.of(0) == Status(StatusCode.INTERNAL, f"m-1 failed: {type(error).__name__}")
    model.error = None
    servable.submit(answers.call(1))
    assert answers.of(1) == {"x": np.array(1)}
    servable.close()


def test_caller_that_breaks_its_contract_does_not_end_the_thread(model, answers):
    def careless(result: Mapping[str, Tensor] | Status) -> None:
        raise RuntimeError("on_done must not raise")

    servable = ThreadServable(model, "m-1")
    model.gate.set()
    servable.submit(PredictCall("", {"x": np.array(0)}, (), None, careless))
    servable.submit(answers.call(1))
    assert answers.of(1) == {"x": np.array(1)}
    servable.close()


def test_every_call_is_answered_exactly_once_when_submitting_and_closing_race(model, answers):
    model.gate.set()
    servable = ThreadServable(model, "m-1", max_queue=5)
    numbers = iter(range(10**9))
    submitted: list[int] = []

    def submit_many() -> None:
        for _ in range(200):
            number = next(numbers)
            submitted.append(number)
            servable.submit(answers.call(number))

    threads = [threading.Thread(target=submit_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    servable.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(answers.results) == sorted(submitted)
    assert all(len(results) == 1 for results in answers.results.values())
