"""Worker processes and replicas that are killed under load: no request fails but the one that kills them."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.servers.process import wait_until
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import BatchReport, PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.retries import Retries

INSTANCES, CALLERS, KILLS = 3, 8, 6
ID = ServableId("m", 1)
Answer = Any


class Served:
    """Instances behind one queue. ``replace`` gives the place of a killed one its next process."""

    def __init__(self, instances: list[tuple[Any, Callable[[], None]]]) -> None:
        self.instances = instances
        self.reports: list[BatchReport] = []
        self.servable = BatchingServable(
            [model for model, _ in instances], ID, clock=SystemClock(), on_batch=self.reports.append, retries=Retries()
        )

    def ask(self, signature: str, value: float) -> Answer:
        answers: list[Answer] = []
        done = threading.Event()

        def on_done(answer: Answer) -> None:
            answers.append(answer)
            done.set()

        self.servable.submit(PredictCall(signature, {"x": np.full(3, value)}, ("y",), None, on_done))
        assert done.wait(120)
        return answers[0]

    def kill(self, number: int) -> None:
        """Kills the process of an instance, and waits until the next one answers."""
        model, replace = self.instances[number]
        before, pid = model.restarts, model.pid
        replace()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: model.restarts > before and model.alive, "its next process answers")


@pytest.fixture(params=["process", "replica over TCP", "replica in shared memory"])
def served(request, open_child, open_replica, start):
    def instance() -> tuple[Any, Callable[[], None]]:
        if request.param == "process":
            return open_child(), lambda: None
        opened = open_replica(way="TCP" if "TCP" in request.param else "shared memory")
        return opened.model, lambda: opened.put(start())

    made = Served([instance() for _ in range(INSTANCES)])
    yield made
    made.servable.close()


class Callers:
    """Threads that ask one thing after the other; each has its own numbers."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.answered = [0] * CALLERS
        self.failures: list[Answer] = []
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CALLERS)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def wait_for_two_answers_each(self) -> None:
        """What was under way is over then."""
        before = list(self.answered)
        wait_until(
            lambda: all(now >= was + 2 for now, was in zip(self.answered, before, strict=True)),
            "all are answered twice",
        )

    def _ask(self, number: int) -> None:
        while not self._ends.is_set():
            value = float(number * 1_000_000 + self.answered[number])
            answer = self.served.ask("nap", value)
            if isinstance(answer, Status) or answer["y"].tolist() != [value] * 3:
                self.failures.append(answer)
            self.answered[number] += 1


def test_no_request_fails_when_processes_are_killed_one_after_the_other(served):
    with Callers(served) as callers:
        for kill in range(KILLS):
            callers.wait_for_two_answers_each()
            served.kill(kill % INSTANCES)
        callers.wait_for_two_answers_each()
    assert callers.failures == []
    again = Counter(report.ok for report in served.reports if report.again)
    assert again[True] >= 1
    assert again[False] == 0


def test_request_that_kills_its_process_costs_two_and_only_itself(served):
    with Callers(served) as callers:
        callers.wait_for_two_answers_each()
        for _, replace in served.instances:
            replace()
        answer = served.ask("be_killed", 1.0)
        wait_until(lambda: sum(model.restarts for model, _ in served.instances) == 2, "both are replaced")
        callers.wait_for_two_answers_each()
    assert isinstance(answer, Status)
    assert answer.code is StatusCode.UNAVAILABLE
    assert callers.failures == []
    assert sum(model.restarts for model, _ in served.instances) == 2
    assert [report.lost for report in served.reports if report.lost] == [True, True]
