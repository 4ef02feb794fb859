"""Instances that join and leave a servable while requests flow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schedulers.batcher_fixture import BatcherFixture, MakeBatcher
from tests.support.schedulers.batcher_models import Verdict
from tests.support.schedulers.interleaving import no_threads_left
from tests.support.schedulers.requests import PATIENCE, Request
from tests.support.servers.process import wait_until
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import Model
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen
from tfs_lite.schedulers.cached import CachedServable
from tfs_lite.schedulers.decoupled import DecoupledServable
from tfs_lite.schedulers.items import ItemRule, ItemServable
from tfs_lite.schedulers.response_cache import ResponseCache

ID = ServableId("m", 1)
ROWS = SymbolicDim("rows")
SIGNATURE = Signature((TensorSpec("x", DataType.DOUBLE, (ROWS,)),), (TensorSpec("y", DataType.DOUBLE, (ROWS,)),))
MERGING = BatchSettings(max_batch_size=4)


class Doubling(Model):
    """y = 2 x. Counts what happens to it; ``go`` holds a run up."""

    platform = "test"
    signatures: ClassVar[Mapping[str, Signature]] = {DEFAULT_SIGNATURE: SIGNATURE}
    item_steps = False

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Semaphore(0)
        self.runs = 0
        self.closed = 0
        self.inside = 0

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        assert not self.closed
        self.inside += 1
        self.runs += 1
        self.entered.release()
        assert self.go.wait(PATIENCE)
        self.inside -= 1
        return {"y": np.asarray(inputs["x"]) * 2}

    def close(self) -> None:
        assert not self.inside
        self.closed += 1


class Stepping(Doubling):
    """y = 2 x + 1, with steps around the run. ``held`` holds ``postprocess`` up."""

    has_item_steps = True

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()
        self.held.set()
        self.finishing = threading.Semaphore(0)

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        assert not self.closed
        return dict(inputs)

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        self.finishing.release()
        assert self.held.wait(PATIENCE)
        assert not self.closed
        return {"y": np.asarray(outputs["y"]) + 1}


class NumberRequest(Request):
    """A number, and its answer."""

    def __init__(self, number: float, parts: bool = False) -> None:
        super().__init__({"x": np.array([number])}, takes_parts=parts)

    @property
    def value(self) -> float:
        outputs = self.outputs
        return float((self.parts[0] if self.parts else outputs)["y"][0])


@pytest.fixture
def clock() -> Iterator[SystemClock]:
    found = SystemClock()
    with no_threads_left():
        yield found
        found.close()


def batching(models: list[Any], clock: SystemClock) -> BatchingServable:
    return BatchingServable(models, ID, MERGING, clock=clock)


def items(models: list[Any], clock: SystemClock) -> ItemServable:
    return ItemServable(BatchingServable(models, ID, MERGING, clock=clock, rule_of=ItemRule.of), models, "m-1")


def cached(models: list[Any], clock: SystemClock) -> CachedServable:
    return CachedServable(batching(models, clock), ResponseCache(1 << 20), ID)


def decoupled(models: list[Any], clock: SystemClock) -> DecoupledServable:
    return DecoupledServable(models, ID, clock=clock)


class Kind(NamedTuple):
    """How a servable is made, its models, and what its answers have more than twice the number."""

    make: Callable[[list[Any], SystemClock], Any]
    model: type[Doubling]
    plus: float = 0


@pytest.fixture(
    params=[Kind(batching, Doubling), Kind(items, Stepping, 1), Kind(cached, Doubling), Kind(decoupled, Doubling)],
    ids=lambda kind: kind.make.__name__,
)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class Flow:
    """Threads that ask one question after the other, and check each answer."""

    def __init__(self, servable: Any, plus: float, threads: int = 4) -> None:
        self._servable = servable
        self._plus = plus
        self._stop = threading.Event()
        self.answered = [0] * threads
        self.faults: list[object] = []
        self._threads = [threading.Thread(target=self._ask, args=(index,)) for index in range(threads)]
        for thread in self._threads:
            thread.start()

    def _ask(self, index: int) -> None:
        while not self._stop.is_set() and not self.faults:
            number = index * 1_000_000 + self.answered[index]
            try:
                request = NumberRequest(number, parts=isinstance(self._servable, DecoupledServable))
                self._servable.submit(request.call)
                assert request.value == 2 * number + self._plus
            except AssertionError as error:
                self.faults.append(error)
            self.answered[index] += 1

    def wait_more(self, number: int = 20) -> None:
        """Until every thread has so many answers more."""
        wanted = [count + number for count in self.answered]
        wait_until(
            lambda: bool(self.faults) or all(a >= b for a, b in zip(self.answered, wanted, strict=True)),
            "requests are answered",
            PATIENCE,
        )
        assert not self.faults, self.faults[0]

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not self.faults, self.faults[0]


def test_requests_are_answered_while_instances_join_and_leave(kind: Kind, clock: SystemClock) -> None:
    first = kind.model()
    servable = kind.make([first], clock)
    flow = Flow(servable, kind.plus)
    flow.wait_more()

    def grow_and_shrink() -> None:
        more = [kind.model(), kind.model()]
        assert servable.resize(more)
        assert list(servable.models) == [first, *more]
        flow.wait_more()
        wait_until(lambda: all(each.runs for each in more), "the new ones take part", PATIENCE)
        assert servable.resize((), more)
        wait_until(lambda: all(each.closed for each in more), "those that leave are closed", PATIENCE)
        assert list(servable.models) == [first]
        flow.wait_more()
        assert [each.closed for each in more] == [1, 1]

    grow_and_shrink()
    grow_and_shrink()
    flow.end()
    assert first.closed == 0
    servable.close()
    assert first.closed == 1


def test_one_instance_takes_the_place_of_all(kind: Kind, clock: SystemClock) -> None:
    old, new = [kind.model(), kind.model()], kind.model()
    servable = kind.make(list(old), clock)
    flow = Flow(servable, kind.plus)
    flow.wait_more()
    assert servable.resize([new], old)
    wait_until(lambda: all(each.closed for each in old), "the old ones are closed", PATIENCE)
    flow.wait_more()
    flow.end()
    servable.close()
    assert [each.closed for each in (*old, new)] == [1, 1, 1]


def test_instance_that_leaves_finishes_what_it_runs(kind: Kind, clock: SystemClock) -> None:
    leaving, staying = kind.model(), kind.model()
    servable = kind.make([leaving], clock)
    leaving.go.clear()
    parts = kind.make is decoupled
    request = NumberRequest(21, parts)
    servable.submit(request.call)
    assert leaving.entered.acquire(timeout=PATIENCE)
    assert servable.resize([staying], [leaving])
    other = NumberRequest(1, parts)
    servable.submit(other.call)
    assert other.value == 2 + kind.plus
    assert (leaving.closed, request.answers) == (0, [])
    leaving.go.set()
    assert request.value == 42 + kind.plus
    wait_until(lambda: leaving.closed == 1, "it is closed", PATIENCE)
    servable.close()
    assert (leaving.closed, staying.closed) == (1, 1)


def test_close_waits_for_an_instance_that_leaves(kind: Kind, clock: SystemClock) -> None:
    leaving, staying = kind.model(), kind.model()
    servable = kind.make([leaving], clock)
    leaving.go.clear()
    request = NumberRequest(21, kind.make is decoupled)
    servable.submit(request.call)
    assert leaving.entered.acquire(timeout=PATIENCE)
    assert servable.resize([staying], [leaving])
    closer = threading.Thread(target=servable.close)
    closer.start()
    wait_until(lambda: not servable.resize([kind.model()]), "it takes no instance any more", PATIENCE)
    assert leaving.closed == 0
    leaving.go.set()
    closer.join(PATIENCE)
    assert (leaving.closed, staying.closed, len(request.answers)) == (1, 1, 1)


def test_last_instance_does_not_leave_and_a_closed_servable_takes_none(kind: Kind, clock: SystemClock) -> None:
    only, late = kind.model(), kind.model()
    servable = kind.make([only], clock)
    assert not servable.resize((), [only])
    assert list(servable.models) == [only]
    servable.close()
    assert not servable.resize([late])
    assert (only.closed, late.closed) == (1, 0)


def test_instances_join_only_if_the_threads_of_all_of_them_can_be_started(
    kind: Kind, clock: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, start, asked = kind.model(), [kind.model() for _ in range(3)], threading.Thread.start, list[str]()
    servable = kind.make([old], clock)

    def start_the_first(thread: threading.Thread) -> None:
        asked.append(thread.name)
        if len(asked) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_the_first)
    with pytest.raises(ServingError) as refused:
        servable.resize(new)
    assert refused.value.code is StatusCode.UNAVAILABLE
    assert list(servable.models) == [old]
    for number in range(4):
        request = NumberRequest(number, kind.make is decoupled)
        servable.submit(request.call)
        assert request.value == 2 * number + kind.plus
    assert servable.resize(new)
    servable.close()
    assert [model.closed for model in (old, *new)] == [1, 1, 1, 1]


def test_instance_whose_steps_are_under_way_is_closed_after_them(clock: SystemClock) -> None:
    leaving, staying = Stepping(), Stepping()
    servable = items([leaving], clock)
    leaving.held.clear()
    request = NumberRequest(3)
    servable.submit(request.call)
    assert leaving.finishing.acquire(timeout=PATIENCE)
    assert servable.resize([staying], [leaving])
    other = NumberRequest(4)
    servable.submit(other.call)
    assert other.value == 9
    assert leaving.closed == 0
    leaving.held.set()
    assert request.value == 7
    wait_until(lambda: leaving.closed == 1, "it is closed", PATIENCE)
    servable.close()


# Step by step, one thread at a time.


def test_batch_that_a_leaving_worker_was_woken_for_is_run_by_another(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(BatchSettings(max_batch_size=4), models=2)
    request = fixture.make_call()
    fixture.checker.submit(request)  # wakes the worker of the first model, which has not gone on yet
    fixture.remove_models(fixture.models[0])
    fixture.scheduler.settle()
    assert [worker.model for worker in fixture.running()] == fixture.models[1:]
    fixture.finish()
    assert len(request.answers) == 1
    assert [model.closed for model in fixture.models] == [1, 0]


def test_worker_that_slept_for_a_late_batch_leaves_the_waiting_to_another(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(BatchSettings(max_batch_size=8, send=SendWhen.WAIT, max_delay=1.0), models=2)
    fixture.ask()
    waiting = next(worker for worker in fixture.scheduler.workers if worker.wakes_at < 1e9 and worker.idle)
    fixture.remove_models(waiting.model)
    fixture.scheduler.settle()
    assert not fixture.running()
    fixture.advance(1.0)
    (worker,) = fixture.running()
    assert worker.model is not waiting.model


def test_model_of_several_workers_is_closed_by_the_last_one_inside(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(BatchSettings(), threads=2)
    fixture.ask(), fixture.ask()
    fixture.add_models(1)
    fixture.remove_models(fixture.models[0])
    fixture.scheduler.settle()
    fixture.finish()
    assert fixture.models[0].closed == 0
    fixture.finish()
    assert [model.closed for model in fixture.models] == [1, 0]


def test_no_call_is_left_waiting_when_the_only_instance_with_a_worker_leaves(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(BatchSettings(), models=2)
    fixture.ask(), fixture.ask()
    waiting = fixture.ask()
    leaving = fixture.running()[1]
    fixture.finish(Verdict.LOST)
    assert not waiting.answers
    fixture.checker.losses += 1
    refused: list[Any] = []
    waiting.call.on_done = refused.append
    fixture.remove_models(leaving.model)
    assert [answer.code for answer in refused] == [StatusCode.UNAVAILABLE]
    assert "has lost its worker process" in refused[0].message
    waiting.answers.append(refused[0])


@given(st.data())
def test_every_call_is_answered_whatever_happens_between_joining_and_leaving(data: st.DataObject) -> None:
    with no_threads_left():
        fixture = BatcherFixture(
            BatchSettings(max_batch_size=4), models=2, threads=data.draw(st.integers(1, 2)), stepwise=True
        )
        scheduler, present = fixture.scheduler, list(fixture.models)
        for number in range(data.draw(st.integers(1, 25))):
            moves = ["ask", "grow", "shrink", "step"] + ["end"] * bool(fixture.running())
            move = data.draw(st.sampled_from(moves))
            if move == "ask":
                scheduler.start(f"caller {number}", partial(fixture.checker.submit, fixture.make_call()))
            elif move == "grow" and len(present) < 4:
                present += fixture.add_models(1)
            elif move == "shrink" and len(present) > 1:
                fixture.remove_models(present.pop(data.draw(st.integers(0, len(present) - 1))))
            elif move == "end":
                fixture.end_run(data.draw(st.sampled_from(fixture.running())))
            elif scheduler.ready:
                scheduler.step(data.draw(st.sampled_from(scheduler.ready)))
        scheduler.settle()
        while fixture.running():
            fixture.finish()
        assert all(len(request.answers) == 1 for request in fixture.checker.requests)
        assert [model.closed for model in fixture.models] == [model not in present for model in fixture.models]
        fixture.close()
