"""A servable behind the response cache: a real batcher, whose model is run or not."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.schedulers.requests import PATIENCE, Request
from tfs_lite.core.model import Model, PredictCall, SharedRuns, Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Reason, StatusCode, invalid_argument
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings
from tfs_lite.schedulers.cached import CachedServable
from tfs_lite.schedulers.response_cache import CacheCounts, ResponseCache
from tfs_lite.testing.lifecycle.clock import VirtualClock

ID = ServableId("m", 1)
BATCH = SymbolicDim("batch")


class Squares(Model):
    """y = x * x, and again = -y; negative numbers are refused. Stands still while ``shut``."""

    platform = "test"
    signatures: ClassVar = {
        DEFAULT_SIGNATURE: Signature(
            (TensorSpec("x", DataType.FLOAT, (BATCH,)),),
            (TensorSpec("y", DataType.FLOAT, (BATCH,)), TensorSpec("again", DataType.FLOAT, (BATCH,))),
        )
    }

    def __init__(self) -> None:
        self.asked: list[list[float]] = []
        self.open = threading.Event()
        self.open.set()

    def run(self, signature: str, inputs: Mapping[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
        x = inputs["x"]
        assert self.open.wait(PATIENCE)
        self.asked.append(x.tolist())
        if (x < 0).any():
            raise invalid_argument("negative")
        found = {"y": x * x, "again": -x * x}
        return {name: found[name] for name in outputs or found}

    def close(self) -> None:
        pass


def request_of(*x: float, **options: Any) -> Request:
    return Request({"x": np.array(x, np.float32)}, **options)


@pytest.fixture
def cache() -> ResponseCache:
    return ResponseCache(100_000)


@pytest.fixture
def model() -> Squares:
    return Squares()


@pytest.fixture
def make(cache, model):
    made = []

    def servable(settings: BatchSettings = ALONE, **options: Any) -> CachedServable:
        inner = BatchingServable([model], ID, settings, clock=VirtualClock())
        made.append(CachedServable(inner, cache, ID, **options))
        return made[-1]

    yield servable
    model.open.set()
    for one in made:
        one.close()


def submit(servable: CachedServable, *x: float, **options: Any) -> Request:
    request = request_of(*x, **options)
    servable.submit(request.call)
    return request


def ask(servable: CachedServable, *x: float, **options: Any) -> Mapping[str, Any]:
    return submit(servable, *x, **options).outputs


def test_an_equal_request_is_answered_at_once_and_the_model_not_run(make, model, cache):
    servable = make()
    first = ask(servable, 1, 2)
    again = submit(servable, 1, 2)
    assert again.done
    assert again.call.admitted
    assert again.call.run_seconds == 0
    assert again.outputs["y"].tolist() == first["y"].tolist() == [1, 4]
    assert model.asked == [[1, 2]]
    counts = cache.counts()[ID]
    assert (counts.hits, counts.misses, counts.too_large) == (1, 1, 0)
    assert counts.hit_seconds > 0
    assert counts.miss_seconds > 0


def test_other_values_and_other_outputs_run_the_model(make, model):
    servable = make()
    ask(servable, 1, 2)
    assert ask(servable, 1, 3)["y"].tolist() == [1, 9]
    assert set(ask(servable, 1, 2, outputs=("again",))) == {"again"}
    assert set(ask(servable, 1, 2)) == {"y", "again"}
    assert model.asked == [[1, 2], [1, 3], [1, 2]]


def test_answers_from_the_cache_cannot_be_changed(make):
    servable = make()
    ask(servable, 1)["y"][:] = 99
    with pytest.raises(ValueError, match="read-only"):
        ask(servable, 1)["y"][:] = 98
    assert ask(servable, 1)["y"].tolist() == [1]


def test_failures_are_not_kept(make, model):
    servable = make()
    for _ in range(2):
        answer = submit(servable, -1)
        assert answer.code is StatusCode.INVALID_ARGUMENT
    assert len(model.asked) == 2


def test_equal_requests_that_come_at_the_same_time_all_run(make, model):
    servable = make()
    model.open.clear()
    answers = [request_of(3) for _ in range(3)]
    for answer in answers:
        servable.submit(answer.call)
    model.open.set()
    assert [answer.outputs["y"].tolist() for answer in answers] == [[9]] * 3
    assert len(model.asked) == 3


def test_a_call_that_waits_can_be_cancelled_and_is_not_kept(make, model, cache):
    servable = make()
    model.open.clear()
    first, second = request_of(3), request_of(4)
    servable.submit(first.call)
    servable.submit(second.call)
    assert servable.pending in (1, 2)
    servable.cancel(second.call)
    assert second.code is StatusCode.CANCELLED
    model.open.set()
    first.wait()
    assert cache.use.entries == 1


def test_a_refused_call_is_not_admitted(make, model):
    servable = make(BatchSettings(max_queued_calls=1))
    model.open.clear()
    answers = [request_of(number) for number in range(5)]
    for answer in answers:
        servable.submit(answer.call)
    refused = [answer for answer in answers if answer.done]
    assert refused
    for answer in refused:
        assert answer.code is StatusCode.UNAVAILABLE
        assert not answer.call.admitted


def test_an_answer_larger_than_the_cache_is_given_and_not_kept(make, model, cache):
    servable = make()
    numbers = range(50_000)
    for _ in range(2):
        assert ask(servable, *numbers)["y"].size == 50_000
    assert len(model.asked) == 2
    counts = cache.counts()[ID]
    assert (counts.hits, counts.misses, counts.too_large) == (0, 2, 2)


def test_a_call_is_answered_although_its_answer_cannot_be_kept(make, cache, monkeypatch, caplog):
    servable = make()

    def no_memory(*arguments: Any) -> bool:
        raise MemoryError

    monkeypatch.setattr(cache, "insert", no_memory)
    assert ask(servable, 2)["y"].tolist() == [4]
    assert "could not be kept" in caplog.text


def test_hits_are_marked_before_their_callers_are_told(make):
    servable = make()
    marks = []
    for _ in range(2):
        call = request_of(2).call
        told = threading.Event()
        call.on_done = lambda _, call=call, told=told: (marks.append((call.cached, call.admitted)), told.set())
        servable.submit(call)
        assert told.wait(PATIENCE)
    assert marks == [(False, True), (True, True)]


def test_with_preserve_ordering_a_hit_waits_for_the_calls_before_it(make, model):
    servable = make(BatchSettings(preserve_ordering=True), ordered=10)
    ask(servable, 1)
    model.open.clear()
    slow, hit = request_of(2), request_of(1)
    servable.submit(slow.call)
    servable.submit(hit.call)
    assert not hit.done
    model.open.set()
    hit.wait()
    assert slow.done
    assert model.asked == [[1], [2]]


def test_answers_that_wait_for_an_earlier_one_are_bounded(make, model):
    servable = make(BatchSettings(preserve_ordering=True), ordered=2)
    ask(servable, 1)
    model.open.clear()
    answers = [request_of(2), request_of(1), request_of(1)]
    for answer in answers:
        servable.submit(answer.call)
    refused = answers[2].status
    assert (refused.code, refused.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    assert refused.message == "m-1 has 2 answers that wait for an earlier one, the most allowed; try again later"
    model.open.set()
    assert answers[1].outputs["y"].tolist() == [1]


class InParts:
    """Answers every call in two parts, or at once if its caller takes none."""

    traits = Traits("test", max_batch_size=7, labels={"y": ("a",)}, decoupled=True)
    signatures = Squares.signatures
    pending = pending_rows = 0
    models = ()

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, call: PredictCall) -> None:
        self.calls += 1
        outputs = {"y": np.zeros(1)}
        if call.on_part is None:
            call.on_done(outputs)
            return
        for _ in range(2):
            call.on_part(outputs)
        call.on_done({})

    def cancel(self, call: PredictCall) -> None:
        pass

    def close(self) -> None:
        pass


def test_answers_in_parts_are_passed_on_and_not_kept(cache):
    inner = InParts()
    servable = CachedServable(inner, cache, ID)
    for _ in range(2):
        request = submit(servable, 1, takes_parts=True)
        assert (request.answer, len(request.parts)) == ({}, 2)
    assert (inner.calls, cache.use.entries) == (2, 0)
    servable.close()


def test_it_looks_like_the_servable_inside(cache, make, model):
    servable = CachedServable(InParts(), cache, ID)
    assert servable.traits == InParts.traits
    servable.close()
    servable = make()
    traits = Traits("test", shared_runs=SharedRuns.OFF)
    assert (servable.traits, servable.models, servable.signatures) == (traits, (model,), model.signatures)
    assert (servable.pending, servable.pending_rows) == (0, 0)


def test_a_version_that_is_unloaded_takes_its_answers_and_counts_with_it(cache, model):
    for _ in range(2):
        servable = CachedServable(BatchingServable([model], ID, clock=VirtualClock()), cache, ID)
        assert cache.counts()[ID].misses == 0
        ask(servable, 5)
        servable.close()
        assert cache.use.entries == 0
        assert cache.counts() == {}
    assert model.asked == [[5], [5]]


def test_another_load_of_the_version_does_not_give_the_answers_of_the_first(make, model, cache):
    first, second = make(), make()
    for servable in (first, second, first, second):
        ask(servable, 2)
    assert model.asked == [[2], [2]]


def test_replaced_version_leaves_no_answers_and_counts_from_zero(make, model, cache):
    first, second = make(), make()
    ask(first, 1)
    ask(first, 1)
    cache.replaced(ID)
    assert (cache.use.entries, cache.counts()[ID]) == (0, CacheCounts())
    ask(second, 1)
    assert model.asked == [[1], [1]]
