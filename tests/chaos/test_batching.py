"""Callers, cancellations, deadlines, failures and the end of a model, all at once, with real threads and real time.

The batcher's simulation chooses its interleavings one by one; here the machine chooses them. Whatever it chooses, every
call is answered exactly once, with its own rows or with a status that somebody asked for.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.profiles import is_soak
from tfs_lite.core.model import Model, PredictCall, WorkerLost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.schedulers.batching.settings import BatchSettings, QueuePolicy, SendWhen, TimeoutAction
from tfs_lite.testing.lifecycle.servables import OwnClockServable

CALLERS, CALLS = 8, 150
PATIENCE = 60.0
MOMENTS = range(10) if is_soak() else (1, 6)
POISON, LOSS = -1.0, -2.0
ROWS, WIDTH = SymbolicDim("rows"), SymbolicDim("width")
SIGNATURE = Signature(
    (TensorSpec("x", DataType.FLOAT, (ROWS, WIDTH)),), (TensorSpec("y", DataType.FLOAT, (ROWS, WIDTH)),)
)
GREEDY = BatchSettings(max_batch_size=8, max_queued_calls=64)
KINDS = {
    "greedy": GREEDY,
    "waiting": replace(GREEDY, send=SendWhen.WAIT, max_delay=0.002, preferred=(4, 8)),
    "expecting": replace(GREEDY, send=SendWhen.EXPECT),
    "alone": BatchSettings(max_queued_calls=64),
    "in_order": replace(GREEDY, preserve_ordering=True, allowed_sizes=(4, 8)),
    "in_pieces": replace(GREEDY, split_large=True, max_request_rows=20, max_queued_rows=64),
    "in_levels": replace(
        GREEDY,
        priority_levels=3,
        default_priority=2,
        policies={
            1: QueuePolicy(TimeoutAction.REJECT, 0.005, True, 16),
            3: QueuePolicy(TimeoutAction.DELAY, 0.001, True, 16),
        },
    ),
}


class Doubling(Model):
    """y = 2 x, in torch. Rows of POISON make a run fail, rows of LOSS cost the worker."""

    platform = "torch"
    signatures = {"a": SIGNATURE, "b": SIGNATURE}  # noqa: RUF012

    def __init__(self) -> None:
        self.closed = 0
        self.inside = 0

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        self.inside += 1
        assert self.inside == 1, "two threads in one model"
        assert not self.closed
        try:
            x = torch.from_numpy(np.array(inputs["x"]))
            if bool((x == LOSS).any()):
                raise WorkerLost("the worker died")
            if bool((x == POISON).any()):
                raise ServingError(StatusCode.INTERNAL, "poison")
            return {"y": (x * 2).numpy()}
        finally:
            self.inside -= 1

    def close(self) -> None:
        self.closed += 1


class RecordedCall:
    """One call and what it was recorded."""

    def __init__(self, x: np.ndarray, **rest: Any) -> None:
        self.x = x
        self.answers: list[Any] = []
        self.done = threading.Event()
        self.cancelled = False
        self.call = PredictCall(inputs={"x": x}, outputs=(), on_done=self._on_done, **rest)

    def _on_done(self, answer: Any) -> None:
        self.answers.append(answer)
        self.done.set()

    def fault(self) -> str:
        """Why the answer is not right; empty: it is."""
        (answer,) = self.answers
        bad = bool(np.isin(self.x, (POISON, LOSS)).any())
        if not isinstance(answer, Status):
            return "" if not bad and np.array_equal(answer["y"], self.x * 2) else f"{answer} for {self.x}"
        fair = {
            StatusCode.CANCELLED: self.cancelled,
            StatusCode.DEADLINE_EXCEEDED: self.call.deadline is not None and self.call.deadline <= time.monotonic(),
            StatusCode.INTERNAL: bad,
            StatusCode.UNAVAILABLE: True,
        }
        return "" if fair.get(answer.code) else f"{answer} for {self.x}"


class CallerLoad:
    """Threads that call one servable. Numbers are used once, so that no answer fits another call."""

    def __init__(self, servable: OwnClockServable, largest: int) -> None:
        self.recorded: list[RecordedCall] = []
        self._servable = servable
        self._largest = largest
        self._numbers = count(1)

    def call(self, seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(CALLS):
            rows, width = choose.randint(1, self._largest), choose.choice([1, 1, 2])
            x = np.full((rows, width), float(next(self._numbers)), np.float32)
            fate = choose.random()
            if fate < 0.04:
                x[0, 0] = POISON if fate < 0.03 else LOSS
            deadline = time.monotonic() + choose.uniform(0.0, 0.01) if choose.random() < 0.1 else None
            recorded = RecordedCall(
                x,
                signature=choose.choice("aab"),
                deadline=deadline,
                priority=choose.randint(0, 3),
                timeout=choose.choice([0.0, 0.001]),
            )
            self.recorded.append(recorded)
            self._servable.submit(recorded.call)
            if choose.random() < 0.1:
                recorded.cancelled = True
                self._servable.cancel(recorded.call)
            elif choose.random() < 0.5:
                recorded.done.wait(PATIENCE)

    def check(self) -> None:
        for recorded in self.recorded:
            assert recorded.done.wait(PATIENCE), "a call was never answered"
        assert [recorded for recorded in self.recorded if len(recorded.answers) != 1] == []
        assert [fault for recorded in self.recorded if (fault := recorded.fault())] == []


@pytest.fixture
def hectic() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual)


def make(settings: BatchSettings, models: int) -> OwnClockServable:
    return OwnClockServable([Doubling() for _ in range(models)], ServableId("m", 1), settings)


@pytest.mark.usefixtures("hectic")
@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_a_crowd_is_answered_once_and_rightly(kind: str, models: int) -> None:
    settings = KINDS[kind]
    servable = make(settings, models)
    load = CallerLoad(servable, settings.max_request_rows or settings.max_batch_size or 4)
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(load.call, range(CALLERS)))
    load.check()
    assert servable.pending == 0
    ran = sum(not isinstance(recorded.answers[0], Status) for recorded in load.recorded)
    assert ran >= CALLS // 10, "hardly any call was run, even for a busy machine"
    servable.close()
    assert [model.closed for model in servable.models] == [1] * models


@pytest.mark.usefixtures("hectic")
@pytest.mark.parametrize("kind", KINDS)
def test_model_may_go_at_any_moment(kind: str) -> None:
    settings = KINDS[kind]
    for moment in MOMENTS:
        servable = make(settings, 2)
        load = CallerLoad(servable, settings.max_request_rows or settings.max_batch_size or 4)
        with ThreadPoolExecutor(CALLERS) as pool:
            calling = [pool.submit(load.call, seed) for seed in range(moment * CALLERS, (moment + 1) * CALLERS)]
            while len(load.recorded) < moment * CALLS // 2:
                load.recorded[-1].done.wait(0.001) if load.recorded else None
            servable.close()
            for each in calling:
                each.result(PATIENCE)
        load.check()
        assert servable.pending == 0
        assert [model.closed for model in servable.models] == [1, 1]
