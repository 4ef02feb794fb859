"""Threads of models: how many there are, and how they sleep and wake."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from math import inf
from typing import ClassVar

import pytest

from tests.support.threads import LINUX, slack_ns
from tfs_lite.core.model import Model
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.schedulers.batching.worker_threads import WorkerThread, make_workers

PATIENCE = 30


class Overlapping(Model):
    """A model that allows ``concurrency`` threads, and asks for ``useful_threads`` of them."""

    platform = "test"
    signatures: ClassVar[Mapping[str, Signature]] = {}
    useful_threads = 1
    concurrency = 1

    def __init__(self, useful_threads: int = 1, concurrency: int = 1) -> None:
        self.useful_threads = useful_threads
        self.concurrency = concurrency

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        raise AssertionError("it is not run here")

    def close(self) -> None:
        """Nothing to close."""


def nothing(worker: WorkerThread) -> None:
    """Serves nothing."""


@pytest.fixture
def worker() -> WorkerThread:
    return WorkerThread(Overlapping(), "m-1", nothing)


@pytest.mark.parametrize("seconds", [0.0, -1.0, -inf, 0.001])
def test_worker_that_is_not_woken_wakes_by_itself(worker: WorkerThread, seconds: float) -> None:
    assert worker.sleep(seconds) is False
    assert worker.sleep(seconds) is False


def test_wake_before_the_sleep_counts_once(worker: WorkerThread) -> None:
    worker.wake()
    assert worker.sleep(inf) is True
    assert worker.sleep(0.0) is False


@pytest.mark.parametrize("seconds", [inf, PATIENCE, 1e30])
def test_wake_ends_a_sleep(worker: WorkerThread, seconds: float) -> None:
    woken = threading.Event()

    def sleep() -> None:
        if worker.sleep(seconds):
            woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    worker.wake()
    thread.join(PATIENCE)
    assert woken.is_set()


def test_thread_of_a_worker_serves_that_worker_and_is_not_started_yet() -> None:
    served: list[WorkerThread] = []
    model = Overlapping()
    (worker,) = make_workers([model], "m-1", 1, served.append)
    assert (worker.model, worker.idle, worker.thread.name) == (model, False, "tfs-model-m-1")
    assert worker.thread.daemon
    assert not worker.thread.is_alive()
    worker.thread.start()
    worker.thread.join(PATIENCE)
    assert served == [worker]


@pytest.mark.parametrize(
    ("useful_threads", "concurrency", "threads", "expected"),
    [
        pytest.param(1, 1, 1, 1, id="one"),
        pytest.param(1, 1, 8, 1, id="no more than the model allows"),
        pytest.param(1, 4, 1, 1, id="no more than asked for"),
        pytest.param(1, 4, 3, 3, id="as many as asked for"),
        pytest.param(1, 4, 8, 4, id="as many as it allows"),
        pytest.param(2, 2, 1, 2, id="as many as the model asks for"),
        pytest.param(2, 4, 3, 3, id="more than it asks for"),
    ],
)
def test_model_has_as_many_threads_as_it_asks_for_or_allows(
    useful_threads: int, concurrency: int, threads: int, expected: int
) -> None:
    models = [Overlapping(useful_threads, concurrency) for _ in range(2)]
    made = make_workers(models, "m-1", threads, nothing)
    assert [worker.model for worker in made] == [model for model in models for _ in range(expected)]
    names = [worker.thread.name for worker in made]
    assert names == ["tfs-model-m-1", *(f"tfs-model-m-1-{number}" for number in range(1, 2 * expected))]


@LINUX
def test_thread_of_a_model_waits_for_the_interpreter_lock_no_longer_than_it_says() -> None:
    found = list[int]()
    worker = WorkerThread(Overlapping(), "m-1", lambda worker: found.append(slack_ns()))
    worker.thread.start()
    worker.thread.join(PATIENCE)
    assert found == [1] < [slack_ns()]
