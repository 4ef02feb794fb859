"""What a manager says of versions that wait: for a thread, the next attempt, other models, their last handle."""

from __future__ import annotations

from tfs_lite.core.servable import ServableId
from tfs_lite.managers.survey import LoadStage
from tfs_lite.testing.lifecycle.loader import FakeLoader


def load_of(basic, version: int):
    return basic.manager.survey().versions[ServableId("m", version)].load


def test_queued_loads_have_a_place_in_the_queue(make_basic) -> None:
    basic = make_basic(threads=1)
    for version in (1, 2, 3):
        basic.request(version)
    assert [load_of(basic, version).ahead for version in (1, 2, 3)] == [0, 1, 2]
    basic.loads.start()
    stages = [load_of(basic, version).stage for version in (1, 2, 3)]
    assert stages == [LoadStage.AT_WORK, LoadStage.QUEUED, LoadStage.QUEUED]
    assert [load_of(basic, version).ahead for version in (2, 3)] == [0, 1]


def test_between_two_attempts_it_is_known_when_the_next_one_comes(basic) -> None:
    basic.request(1, FakeLoader(failures=1))
    basic.loads.run_all()
    load = load_of(basic, 1)
    assert load.stage is LoadStage.BETWEEN_ATTEMPTS
    assert load.retry_at == basic.clock.monotonic() + 60
    assert (load.failures, load.failure.ok) == (1, False)
    basic.clock.advance(60)
    assert load_of(basic, 1).stage is LoadStage.QUEUED
    basic.loads.run_all()
    assert load_of(basic, 1) is None


def test_a_withdrawn_version_has_its_handles_counted_and_then_a_place_in_the_queue_of_unloads(basic) -> None:
    basic.request(1)
    basic.loads.run_all()
    handles = [basic.handle() for _ in range(2)]
    assert basic.manager.survey().versions[ServableId("m", 1)].handles == 2
    basic.manager.unload_servable(ServableId("m", 1), lambda status: None)
    view = basic.manager.survey().versions[ServableId("m", 1)]
    assert (view.answers, view.handles, view.unloads_ahead) == (False, 2, None)
    for handle in handles:
        handle.release()
    view = basic.manager.survey().versions[ServableId("m", 1)]
    assert (view.handles, view.unloads_ahead) == (0, 0)
    basic.unloads.run_all()
    assert basic.manager.survey().versions[ServableId("m", 1)].unloads_ahead is None
