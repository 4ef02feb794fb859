"""Threads of models: how many there are, and how they sleep and wake."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from math import inf
from typing import ClassVar

import pytest

from tfs_lite.core.model import Model
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.schedulers.batching.worker_threads import WorkerThread, make_lanes

PATIENCE = 30


class Overlapping(Model):
    """A model that bears ``concurrency`` threads, and is worth ``lanes`` of them."""

    platform = "test"
    signatures: ClassVar[Mapping[str, Signature]] = {}
    lanes = 1
    concurrency = 1

    def __init__(self, lanes: int = 1, concurrency: int = 1) -> None:
        self.lanes = lanes
        self.concurrency = concurrency

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        raise AssertionError("nobody runs it here")

    def close(self) -> None:
        """Nothing to close."""


def nothing(lane: WorkerThread) -> None:
    """Serves nobody."""


@pytest.fixture
def lane() -> WorkerThread:
    return WorkerThread(Overlapping(), "m-1", nothing)


@pytest.mark.parametrize("seconds", [0.0, -1.0, -inf, 0.001])
def test_lane_that_nobody_rings_wakes_by_itself(lane: WorkerThread, seconds: float) -> None:
    assert lane.sleep(seconds) is False
    assert lane.sleep(seconds) is False


def test_ring_before_the_sleep_is_heard_once(lane: WorkerThread) -> None:
    lane.ring()
    assert lane.sleep(inf) is True
    assert lane.sleep(0.0) is False


@pytest.mark.parametrize("seconds", [inf, PATIENCE, 1e30])
def test_ring_wakes_a_lane_that_sleeps(lane: WorkerThread, seconds: float) -> None:
    woken = threading.Event()

    def sleep() -> None:
        if lane.sleep(seconds):
            woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    lane.ring()
    thread.join(PATIENCE)
    assert woken.is_set()


def test_thread_of_a_lane_serves_that_lane_and_is_not_started_yet() -> None:
    served: list[WorkerThread] = []
    model = Overlapping()
    (lane,) = make_lanes([model], "m-1", 1, served.append)
    assert (lane.model, lane.idle, lane.thread.name) == (model, False, "tfs-model-m-1")
    assert lane.thread.daemon
    assert not lane.thread.is_alive()
    lane.thread.start()
    lane.thread.join(PATIENCE)
    assert served == [lane]


@pytest.mark.parametrize(
    ("lanes", "concurrency", "threads", "expected"),
    [
        pytest.param(1, 1, 1, 1, id="one"),
        pytest.param(1, 1, 8, 1, id="no more than the model bears"),
        pytest.param(1, 4, 1, 1, id="no more than asked for"),
        pytest.param(1, 4, 3, 3, id="as many as asked for"),
        pytest.param(1, 4, 8, 4, id="as many as it bears"),
        pytest.param(2, 2, 1, 2, id="what the model itself is worth"),
        pytest.param(2, 4, 3, 3, id="more than it is worth"),
    ],
)
def test_model_has_as_many_threads_as_are_worth_having(
    lanes: int, concurrency: int, threads: int, expected: int
) -> None:
    models = [Overlapping(lanes, concurrency) for _ in range(2)]
    made = make_lanes(models, "m-1", threads, nothing)
    assert [lane.model for lane in made] == [model for model in models for _ in range(expected)]
    names = [lane.thread.name for lane in made]
    assert names == ["tfs-model-m-1", *(f"tfs-model-m-1-{number}" for number in range(1, 2 * expected))]
