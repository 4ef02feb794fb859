"""Sums of real sequences, through the predictor, while the versions of their model change under them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.support.schedulers.sequence_fixture import DRAIN, M, SequenceFixture
from tests.support.schedulers.sequence_models import SumByIdModel, SumModel, sum_settings
from tfs_lite.core.loader import Loader
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.runs import Run
from tfs_lite.schedulers.sequence.servable import SequenceServable
from tfs_lite.server.inference.predictor import CallOptions, Predictor

IDLE = 1.0
DIRECT = {"max_sequence_idle_microseconds": 1_000_000}
OLDEST = {"oldest": {"max_candidate_sequences": 2}, **DIRECT}


class SumLoader(Loader):
    """Loads the scheduler of sequences around a model that sums by row or by id."""

    def __init__(self, fixture: SumFixture) -> None:
        self._world = fixture
        self._servable: SequenceServable | None = None

    def estimate_resources(self) -> ResourceAllocation:
        return NO_RESOURCES

    def load(self, servable_id: ServableId) -> None:
        fixture = self._world
        settings = sum_settings(2, **fixture.how)
        model = SumByIdModel(settings) if "oldest" in fixture.how else SumModel(settings)
        forgotten = fixture.routes.forgotten
        self._servable = SequenceServable([model], servable_id, settings, fixture.clock, on_forgotten=forgotten)

    def unload(self) -> None:
        assert self._servable is not None
        servable, self._servable = self._servable, None
        servable.close()

    @property
    def servable(self) -> SequenceServable | None:
        return self._servable


class SumFixture(SequenceFixture):
    """``add`` sends a number to a sequence and returns its sum and the version that answered."""

    def __init__(self, how: dict[str, object]) -> None:
        super().__init__()
        self.how = how
        self.metrics = RequestMetrics(CollectorRegistry(), lambda name: name == "m")

    def data(self, name: str, version: int, revision: str = "") -> ServableData[Loader]:
        return ServableData.ok(ServableId(name, version), SumLoader(self), revision)

    def add(self, number: int, id: int = 7, *, start: bool = False, end: bool = False) -> tuple[int, int]:
        return asyncio.run(self._add(number, SequenceFlags(id, start, end)))

    def refused(self, number: int, id: int = 7, **flags: bool) -> StatusCode:
        with pytest.raises(ServingError) as caught:
            self.add(number, id, **flags)
        return caught.value.code

    async def _add(self, number: int, flags: SequenceFlags) -> tuple[int, int]:
        predictor = Predictor(self.lookup, self.metrics, lookup_sequence=self.routes.handle)
        record = self.metrics.record("Predict", "m", "GRPC")
        run = Run(DEFAULT_SIGNATURE, {"INPUT": np.array([[number]], np.int32)})
        with record:
            answer = await predictor.infer(M, lambda signatures: [run], record, None, CallOptions(flags))
        return int(answer.output["OUTPUT"].item()), answer.id.version


@pytest.fixture(params=[DIRECT, OLDEST], ids=["direct", "oldest"])
def fixture(request: pytest.FixtureRequest) -> Iterator[SumFixture]:
    found = SumFixture(request.param)
    found.swap(1)
    yield found
    found.routes.close()
    found.manager.close()


def test_a_sum_goes_on_where_it_began_although_a_newer_version_answers_others(fixture):
    assert fixture.add(1, start=True) == (1, 1)
    assert fixture.add(2) == (3, 1)
    fixture.swap(2)
    assert fixture.add(10, id=8, start=True) == (10, 2)
    assert fixture.add(3) == (6, 1)
    assert fixture.add(10, id=8) == (20, 2)
    assert fixture.add(4, end=True) == (10, 1)
    fixture.settle()
    assert fixture.state("m", 1) is None
    assert fixture.refused(5) is StatusCode.INVALID_ARGUMENT
    assert fixture.add(5, start=True) == (5, 2)


def test_a_sum_that_is_idle_for_too_long_lets_its_version_go(fixture):
    fixture.add(1, start=True)
    fixture.swap(2)
    assert fixture.state("m", 1) is HarnessState.QUIESCING
    fixture.clock.advance(IDLE + 0.1)
    fixture.settle()
    assert fixture.state("m", 1) is None
    assert fixture.refused(2) is StatusCode.INVALID_ARGUMENT


def test_a_busy_sum_goes_on_until_the_bound_and_is_then_told_to_begin_anew(fixture):
    fixture.add(0, start=True)
    fixture.swap(2)
    for number in range(1, round(DRAIN / IDLE) * 2):
        fixture.clock.advance(IDLE / 2)
        assert fixture.add(1) == (number, 1)
    fixture.clock.advance(IDLE / 2)
    fixture.settle()
    assert fixture.state("m", 1) is None
    assert fixture.refused(1) is StatusCode.UNAVAILABLE
    assert fixture.add(1, start=True) == (1, 2)


def test_requests_that_are_refused_leave_no_routes(fixture):
    assert fixture.refused(1) is StatusCode.INVALID_ARGUMENT
    assert fixture.add(1, start=True, end=True) == (1, 1)
    assert fixture.live() == {}
    fixture.swap(2)
    assert fixture.state("m", 1) is None


def test_a_sum_that_begins_anew_goes_to_the_newest_version_and_frees_the_old_one(fixture):
    fixture.add(1, start=True)
    fixture.swap(2)
    assert fixture.add(5, start=True) == (5, 2)
    fixture.settle()
    assert fixture.state("m", 1) is None
    assert fixture.add(5) == (10, 2)


def test_closing_does_not_wait_for_sums_that_have_not_ended(fixture):
    fixture.add(1, start=True)
    fixture.swap(2)
    fixture.add(1, id=8, start=True)
    fixture.routes.close()
    fixture.manager.close(drain_timeout=0.0)
    assert [fixture.history("m", version)[-1] for version in (1, 2)] == ["End", "End"]
