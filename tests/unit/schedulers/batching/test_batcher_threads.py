"""A batching servable with real threads: names, order, races, and exactly one answer for every call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import numpy as np
import pytest

from tfs_lite.core.model import Model, PredictCall, SharedRuns, Traits, WorkerLost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.servables import OwnClockServable

ID = ServableId("m", 1)
PATIENCE = 30


class GatedModel(Model):
    """Answers in the order of the calls, when its gate is open."""

    platform = "test"
    signatures: ClassVar[Mapping[str, Signature]] = {key: Signature((), ()) for key in (DEFAULT_SIGNATURE, "other")}

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.seen: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.closed = False
        self.error: BaseException | None = None
        self.recovering = threading.Event()

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        self.threads.add(threading.current_thread())
        self.seen.append(int(np.asarray(inputs["x"])))
        if self.error is not None:
            raise self.error
        return dict(inputs)

    def recover(self, give_up: threading.Event) -> bool:
        self.recovering.set()
        assert give_up.wait(PATIENCE)
        return False

    def close(self) -> None:
        self.closed = True

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE)


class Answers:
    """Collects what ``on_done`` got, per call."""

    def __init__(self) -> None:
        self.results: dict[int, list[Mapping[str, Tensor] | Status]] = {}
        self.order: list[int] = []
        self.threads: dict[int, threading.Thread] = {}
        self._changed = threading.Condition()

    def call(self, number: int, deadline: float | None = None, signature: str = DEFAULT_SIGNATURE) -> PredictCall:
        return PredictCall(signature, {"x": np.array(number)}, (), deadline, lambda result: self._add(number, result))

    def _add(self, number: int, result: Mapping[str, Tensor] | Status) -> None:
        with self._changed:
            self.results.setdefault(number, []).append(result)
            self.order.append(number)
            self.threads[number] = threading.current_thread()
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

    def wait_for(self, number: int) -> None:
        """Until so many calls are answered."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.results) >= number, PATIENCE)


@pytest.fixture
def model() -> GatedModel:
    return GatedModel()


@pytest.fixture
def answers() -> Answers:
    return Answers()


Serve = Callable[..., OwnClockServable]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes servables, in real time; opens their gates and closes them in the end."""
    made: list[OwnClockServable] = []

    def run(*models: GatedModel, threads: int = 1, **settings: object):
        made.append(OwnClockServable(models, ID, BatchSettings(**settings), threads=threads))  # type: ignore[arg-type]
        return made[-1]

    yield run
    for servable in made:
        for model in servable.models:
            assert isinstance(model, GatedModel)
            model.gate.set()
        if not servable.models[0].closed:  # type: ignore[attr-defined]
            servable.close()


def test_calls_run_one_after_the_other_on_one_other_thread(model, answers, serve):
    servable = serve(model)
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


def test_it_shows_what_the_model_shows(model, serve):
    servable = serve(model)
    assert servable.id == ID
    assert servable.traits == Traits("test", shared_runs=SharedRuns.NEVER)
    assert servable.signatures == model.signatures
    assert {signature.model for signature in servable.signatures.values()} == {"m"}
    assert servable.models == (model,)
    servable.close()
    assert model.closed


def test_full_queue_refuses_the_next_call_and_answers_those_it_took(model, answers, serve):
    servable = serve(model, max_queued_calls=2)
    servable.submit(answers.call(0))
    model.wait_entered()
    for number in (1, 2, 3):
        servable.submit(answers.call(number))
    assert answers.code_of(3) is StatusCode.UNAVAILABLE
    assert "2" in answers.of(3).message
    assert "try again later" in answers.of(3).message
    assert (servable.pending, servable.pending_rows) == (2, 2)
    assert answers.results.keys() == {3}
    model.gate.set()
    for number in (0, 1, 2):
        assert answers.of(number) == {"x": np.array(number)}
    assert (servable.pending, servable.pending_rows) == (0, 0)


def test_deadline_that_passes_in_the_queue_is_answered_then_and_not_when_the_model_is_free(model, answers):
    clock = VirtualClock()
    servable = BatchingServable([model], ID, clock=clock)
    servable.submit(answers.call(0, deadline=5.0))
    model.wait_entered()
    for number, deadline in ((1, 10.0), (2, 7.0), (3, None)):
        servable.submit(answers.call(number, deadline))
    clock.advance(6.9)
    assert answers.results == {}
    clock.advance(0.2)
    assert answers.code_of(2) is StatusCode.DEADLINE_EXCEEDED
    assert "m-1" in answers.of(2).message
    assert answers.results.keys() == {2}
    assert servable.pending == 2
    clock.advance(10)
    assert answers.results.keys() == {2, 1}
    model.gate.set()
    assert answers.of(3) == {"x": np.array(3)}
    assert answers.of(0) == {"x": np.array(0)}, "it had begun in time"
    servable.close()
    assert clock.pending == 0
    assert model.seen == [0, 3]


def test_cancelled_call_is_answered_at_once_not_started_and_makes_room_for_another(model, answers, serve):
    servable = serve(model, max_queued_calls=1)
    servable.submit(answers.call(0))
    model.wait_entered()
    call = answers.call(1)
    servable.submit(call)
    servable.cancel(call)
    servable.cancel(call)
    assert answers.code_of(1) is StatusCode.CANCELLED
    assert answers.threads[1] is threading.current_thread()
    assert servable.pending == 0
    servable.submit(answers.call(2))
    model.gate.set()
    assert answers.of(2) == {"x": np.array(2)}
    servable.close()
    assert model.seen == [0, 2]


def test_cancelling_what_runs_or_is_answered_or_was_never_there_changes_nothing(model, answers, serve):
    servable = serve(model)
    running, stranger = answers.call(0), answers.call(1)
    servable.submit(running)
    model.wait_entered()
    servable.cancel(running)
    servable.cancel(stranger)
    assert answers.results == {}
    model.gate.set()
    assert answers.of(0) == {"x": np.array(0)}
    servable.cancel(running)
    servable.close()
    servable.cancel(running)
    assert answers.results == {0: [{"x": np.array(0)}]}


def test_every_call_is_answered_exactly_once_when_submitting_cancelling_and_closing_race(model, answers, serve):
    model.gate.set()
    servable = serve(model, max_queued_calls=5)
    threads, each = 4, 200
    under_way = threading.Semaphore(0)

    def submit_many(first: int) -> None:
        for number in range(first, threads * each, threads):
            call = answers.call(number, time.monotonic() + 0.001 if number % 7 == 0 else None)
            servable.submit(call)
            under_way.release()
            if number % 3 == 0:
                servable.cancel(call)

    submitting = [threading.Thread(target=submit_many, args=(first,)) for first in range(threads)]
    for thread in submitting:
        thread.start()
    for _ in range(threads * each // 2):
        assert under_way.acquire(timeout=PATIENCE)
    servable.close()
    for thread in submitting:
        thread.join(PATIENCE)
    assert sorted(answers.results) == list(range(threads * each))
    assert all(len(results) == 1 for results in answers.results.values())


def test_calls_of_several_signatures_run_in_order_of_arrival(model, answers, serve):
    servable = serve(model)
    servable.submit(answers.call(0))
    model.wait_entered()
    for number in range(1, 9):
        servable.submit(answers.call(number, signature="other" if number % 3 else DEFAULT_SIGNATURE))
    assert servable.pending == 8
    model.gate.set()
    answers.wait_for(9)
    assert model.seen == list(range(9))


def test_equal_models_run_at_once_and_an_idle_one_takes_the_next_call(answers, serve):
    models = [GatedModel(), GatedModel()]
    servable = serve(*models)
    for number in range(3):
        servable.submit(answers.call(number))
    for model in models:
        model.wait_entered()
    assert servable.pending == 1
    models[0].gate.set()
    answers.wait_for(2)
    for number in range(3, 20):
        servable.submit(answers.call(number))
    answers.wait_for(19)
    assert len(models[0].seen) == 19
    assert models[1].seen == []
    models[1].gate.set()
    answers.wait_for(20)
    servable.close()
    assert {thread.name for model in models for thread in model.threads} == {"tfs-model-m-1", "tfs-model-m-1-1"}
    assert all(model.closed for model in models)


def test_answers_keep_the_order_of_the_calls_where_that_is_asked_for(answers, serve):
    models = [GatedModel(), GatedModel()]
    servable = serve(*models, preserve_ordering=True)
    calls = [answers.call(number) for number in range(4)]
    for call in calls:
        servable.submit(call)
    for model in models:
        model.wait_entered()
    servable.cancel(calls[3])
    assert answers.results == {}, "it was cancelled, and hears of it when its turn comes"
    for model in reversed(models):
        model.gate.set()
    answers.wait_for(4)
    assert answers.order == [0, 1, 2, 3]
    assert answers.code_of(3) is StatusCode.CANCELLED


def test_closing_does_not_wait_for_a_worker_that_does_not_come_back(model, answers, serve):
    servable = serve(model)
    model.error = WorkerLost("the worker has died")
    model.gate.set()
    servable.submit(answers.call(0))
    assert model.recovering.wait(PATIENCE)
    servable.close()
    assert model.closed


def test_answers_that_wait_for_an_earlier_one_are_bounded(model, answers, serve):
    servable = serve(model, max_queued_calls=2, preserve_ordering=True)
    servable.submit(answers.call(0))
    model.wait_entered()
    for number in (1, 2, 3, 4):
        call = answers.call(number)
        servable.submit(call)
        servable.cancel(call)
    assert answers.results == {}
    servable.submit(answers.call(5))
    assert answers.of(5).reason is Reason.QUEUE_FULL
    assert "wait for an earlier one" in answers.of(5).message
    model.gate.set()
    assert [answers.code_of(number) for number in (1, 2, 3, 4)] == [StatusCode.CANCELLED] * 4
    servable.submit(answers.call(6))
    assert answers.of(6) == {"x": np.array(6)}
