from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.schedulers.interleaving import no_threads_left
from tests.support.schedulers.requests import PATIENCE
from tests.support.schedulers.sequence_models import SequenceRequest, SumModel, sum_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import BatchReport
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.sequence.servable import SequenceServable
from tfs_lite.testing.lifecycle.clock import VirtualClock


class SequenceServableFixture:
    """A servable of sums, in virtual time unless told otherwise."""

    def __init__(
        self,
        settings: ModelSettings | None = None,
        kind: type[SumModel] = SumModel,
        instances: int = 1,
        *,
        real_time: bool = False,
        lends: bool = False,
        **rest: Any,
    ) -> None:
        settings = settings or sum_settings()
        self.batched = settings.max_batch_size > 0
        self.models = [kind(settings, lends) for _ in range(instances)]
        self.clock: Any = SystemClock() if real_time else VirtualClock()
        self.reports: list[BatchReport] = []
        self.forgotten: list[int | str] = []
        self.servable = SequenceServable(
            self.models,
            ServableId("sums", 1),
            settings,
            self.clock,
            self.reports.append,
            lambda _, id: self.forgotten.append(id),
            **rest,
        )
        self._closed = False

    @property
    def model(self) -> SumModel:
        (model,) = self.models
        return model

    def ask(
        self, number: object, id: int | str | None = 1, start: bool = False, end: bool = False, **more: Any
    ) -> SequenceRequest:
        """``number``: of one row."""
        one = number if isinstance(number, list) else [number]
        request = SequenceRequest([one] if self.batched else one, id, start, end, **more)
        self.servable.submit(request.call)
        return request

    def ask_held(self, *arguments: Any, **more: Any) -> SequenceRequest:
        """A request whose run has begun and stands still, as all runs do from now on."""
        self.shut()
        request = self.ask(*arguments, **more)
        self.model.gate.wait_for()
        return request

    def start(self, *ids: int) -> None:
        """A sequence for each, which has been answered once; each asks for its id."""
        for id in ids:
            self.ask(id, id, start=True).wait()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Asks again and again; other threads go on meanwhile."""
        latest = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < latest
            os.sched_yield()

    def shut(self) -> None:
        """Runs wait from now on."""
        for model in self.models:
            model.gate.shut()

    def open(self) -> None:
        for model in self.models:
            model.gate.open()
            model.recovery.open()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.open()
        self.servable.close()
        if isinstance(self.clock, SystemClock):
            self.clock.close()
        assert [model.closed for model in self.models] == [1] * len(self.models)
        assert self.servable.pending == 0


@pytest.fixture
def make() -> Iterator[Callable[..., SequenceServableFixture]]:
    made: list[SequenceServableFixture] = []

    def new(*arguments: Any, **rest: Any) -> SequenceServableFixture:
        made.append(SequenceServableFixture(*arguments, **rest))
        return made[-1]

    with no_threads_left():
        yield new
        for each in made:
            each.close()
