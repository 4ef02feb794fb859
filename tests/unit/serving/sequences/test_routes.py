"""Sequences stay with their version across a swap: with a real manager, in virtual time."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.serving.sequences.metrics import SequenceCollector
from tfs_lite.testing.schedulers.sequence_fixture import DRAIN, M, SequenceWorld

STABLE = ModelRef("m", label="stable")


@pytest.fixture
def world() -> SequenceWorld:
    found = SequenceWorld()
    found.swap(1)
    return found


def test_a_sequence_stays_with_its_version_while_others_go_to_the_newer_one(world):
    assert world.ask(start=True) == 1
    world.swap(2)
    assert world.ready("m") == [2]
    assert world.state("m", 1) is HarnessState.QUIESCING
    assert world.ask() == 1
    assert world.ask("other", start=True) == 2
    assert world.ask() == 1
    assert world.live() == {1: 1, 2: 1}


def test_a_version_is_unloaded_as_soon_as_its_last_sequence_ends(world):
    world.ask(7, start=True)
    world.ask(8, start=True)
    world.swap(2)
    assert world.ask(7, end=True) == 1
    world.settle()
    assert world.state("m", 1) is HarnessState.QUIESCING
    assert world.ask(8, end=True) == 1
    world.settle()
    assert world.state("m", 1) is None
    assert world.loader("m", 1).unloads == 1
    assert world.live() == {}


def test_a_sequence_that_was_idle_for_too_long_lets_its_version_go(world):
    world.ask(start=True)
    keeper = world.loader("m", 1).servable
    world.swap(2)
    keeper.expire(7)
    world.settle()
    assert world.state("m", 1) is None


def test_a_request_that_is_under_way_at_the_end_still_holds_the_version(world):
    world.ask(start=True)
    world.swap(2)
    last = world.begin(end=True)
    world.settle()
    assert world.live() == {}
    assert world.state("m", 1) is HarnessState.QUIESCING
    assert last.servable.alive
    last.release()
    world.settle()
    assert world.state("m", 1) is None


def test_start_of_a_live_sequence_begins_it_anew_on_the_newest_version(world):
    world.ask(start=True)
    world.swap(2)
    assert world.ask(start=True) == 2
    assert world.ask() == 2
    assert world.live() == {2: 1}
    world.settle()
    assert world.state("m", 1) is None


def test_start_of_a_live_sequence_on_the_same_version_keeps_one_route(world):
    world.ask(start=True)
    world.ask(start=True)
    assert world.live() == {1: 1}
    world.ask(end=True)
    world.swap(2)
    assert world.state("m", 1) is None


def test_a_whole_sequence_in_one_request_leaves_no_route(world):
    handle = world.begin(start=True, end=True)
    assert handle.id.version == 1
    handle.release()
    assert world.live() == {}


def test_a_start_that_is_refused_leaves_no_route(world):
    handle = world.routes.handle(M, SequenceFlags(7, start=True))
    assert world.live() == {1: 1}
    handle.release()
    assert world.live() == {}
    world.swap(2)
    assert world.state("m", 1) is None


def test_a_start_that_is_refused_leaves_the_live_sequence_its_route(world):
    world.ask(start=True)
    world.routes.handle(M, SequenceFlags(7, start=True)).release()
    assert world.live() == {1: 1}
    world.swap(2)
    assert world.ask() == 1


def test_news_of_an_old_end_does_not_take_the_route_of_a_sequence_that_has_begun_anew(world):
    world.ask(start=True)
    keeper = world.loader("m", 1).servable
    again = world.routes.handle(M, SequenceFlags(7, start=True))
    keeper.expire(7)  # between the lookup of the START and its place in the queue
    assert keeper.submit(SequenceFlags(7, start=True))
    again.release()
    keeper.routes.forgotten(keeper.id, 7)  # news that come late
    assert world.live() == {1: 1}
    world.swap(2)
    assert world.ask() == 1


@pytest.mark.parametrize("answered", [True, False])
def test_a_sequence_that_begins_anew_while_its_end_is_looked_into_keeps_its_route(world, answered):
    world.ask(start=True)
    keeper = world.loader("m", 1).servable
    knows, begun = keeper.knows, []

    def looked_into(id: int) -> bool:
        found = knows(id)
        if not begun:
            begun.append(True)
            begun.append(world.begin(start=True))
            if answered:
                begun[1].release()
        return found

    keeper.knows = looked_into
    keeper.expire(7)
    assert world.live() == {1: 1}
    begun[1].release()
    world.swap(2)
    assert world.ask() == 1


def test_numbers_and_texts_are_different_sequences(world):
    world.ask(7, start=True)
    world.swap(2)
    world.ask("7", start=True)
    assert (world.ask(7), world.ask("7")) == (1, 2)


def test_a_request_with_a_version_goes_to_that_version(world):
    world.swap(1, 2)
    assert world.ask(7, ref=ModelRef("m", 1), start=True) == 1
    assert world.ask(7, ref=ModelRef("m", 2), start=True) == 2
    assert world.ask(7, ref=ModelRef("m", 1)) == 1
    assert world.ask(7, ref=ModelRef("m", 2)) == 2
    assert world.ask(7) == 2
    world.swap(3)
    assert world.ask(7, ref=ModelRef("m", 1)) == 1
    assert world.refusal(8, ref=ModelRef("m", 1)).code is StatusCode.NOT_FOUND


def test_a_label_that_moves_leaves_live_sequences_where_they_are(world):
    world.swap(1, 2)
    world.labels["stable"] = 1
    assert world.ask(7, ref=STABLE, start=True) == 1
    world.labels["stable"] = 2
    assert world.ask(7, ref=STABLE) == 1
    assert world.ask(7) == 1
    assert world.ask(8, ref=STABLE, start=True) == 2


def test_sequences_with_one_id_behind_two_labels_are_two(world):
    world.swap(1, 2)
    world.labels.update(stable=1, canary=2)
    canary = ModelRef("m", label="canary")
    assert world.ask(7, ref=STABLE, start=True) == 1
    assert world.ask(7, ref=canary, start=True) == 2
    assert world.ask(7, ref=STABLE) == 1
    assert world.live() == {1: 1, 2: 1}
    assert world.ask(7, ref=canary, end=True) == 2
    assert world.ask(7, ref=STABLE, end=True) == 1
    assert world.live() == {}


def test_after_the_bound_the_version_goes_and_the_client_hears_why(world):
    world.ask(start=True)
    world.swap(2)
    world.clock.advance(DRAIN - 1)
    assert world.ask() == 1
    world.clock.advance(1)
    world.settle()
    assert world.state("m", 1) is None
    error = world.refusal()
    assert error.code is StatusCode.UNAVAILABLE
    assert str(error) == (
        "sequence 7 of model m was on version 1, which was unloaded 60 s after it was withdrawn; "
        "start it again with sequence_start"
    )
    assert str(world.refusal(ref=ModelRef("m", 1))) == str(error)
    assert world.ask(start=True) == 2
    assert world.ask() == 2


def test_after_the_bound_the_version_waits_for_requests_that_are_under_way(world):
    world.ask(start=True)
    world.swap(2)
    last = world.begin()
    world.clock.advance(DRAIN)
    world.settle()
    assert world.state("m", 1) is HarnessState.QUIESCING
    last.release()
    world.settle()
    assert world.state("m", 1) is None


def test_going_back_to_an_older_version_is_a_withdrawal_too(world):
    world.swap(1, 2)
    world.ask(start=True)
    world.swap(1)
    world.clock.advance(DRAIN)
    assert "on version 2, which was unloaded 60 s after it was withdrawn" in str(world.refusal())


def test_a_sequence_of_a_model_that_is_served_no_more_is_not_found(world):
    world.ask(start=True)
    world.swap()
    assert world.ask() == 1
    world.clock.advance(DRAIN)
    world.settle()
    assert world.state("m", 1) is None
    assert world.refusal().code is StatusCode.NOT_FOUND


def test_an_end_is_told_once_that_its_sequence_is_lost(world):
    world.ask(start=True)
    world.swap(2)
    world.clock.advance(DRAIN)
    assert world.refusal(end=True).code is StatusCode.UNAVAILABLE
    assert world.routes.remembered == 0


def test_a_lost_sequence_that_begins_anew_is_like_any_other(world):
    world.ask(start=True)
    world.swap(2)
    world.clock.advance(DRAIN)
    assert world.ask(start=True) == 2
    assert world.routes.remembered == 0
    world.ask(end=True)
    with world.routes.handle(M, SequenceFlags(7)) as handle:
        assert handle.id.version == 2


def test_a_request_with_another_version_than_the_lost_one_goes_there(world):
    world.ask(start=True)
    world.swap(2)
    world.clock.advance(DRAIN)
    with world.routes.handle(ModelRef("m", 2), SequenceFlags(7)) as handle:
        assert handle.id.version == 2
    assert world.routes.remembered == 1


def test_a_sequence_that_begins_when_the_time_is_over_does_not_hold_the_version(world):
    """The version is announced as leaving a moment before lookups stop finding it."""
    world.routes.version_leaving(ServableId("m", 1))
    assert world.ask(7, start=True) == 1
    assert world.live() == {1: 1}
    world.clock.advance(DRAIN)
    assert world.ask(8, start=True) == 1
    assert world.live() == {}


def test_with_the_resource_policy_live_sequences_hold_the_swap_up_no_longer_than_the_bound():
    world = SequenceWorld("resource")
    world.swap(1)
    world.ask(start=True)
    world.swap(2)
    assert world.ready("m") == []
    assert world.ask() == 1
    assert world.refusal("new", start=True).code is StatusCode.NOT_FOUND
    world.clock.advance(DRAIN)
    world.settle()
    assert world.ready("m") == [2]
    assert world.state("m", 1) is None
    assert world.ask("new", start=True) == 2
    assert world.refusal().code is StatusCode.UNAVAILABLE


def test_a_version_that_comes_back_has_its_full_time_again(world):
    world.ask(start=True)
    world.swap(2)
    world.clock.advance(DRAIN)
    world.settle()
    world.swap(1, 2)
    world.swap(1)
    assert world.ready("m") == [1]
    assert world.ask(start=True) == 1
    world.swap(2)
    world.clock.advance(DRAIN - 1)
    assert world.ask() == 1


def test_without_time_for_sequences_a_version_goes_at_once():
    world = SequenceWorld(drain=0.0)
    world.swap(1)
    world.ask(start=True)
    world.swap(2)
    world.clock.advance(0.0)
    world.settle()
    assert world.state("m", 1) is None


def test_a_server_that_closes_does_not_wait_for_sequences(world):
    world.ask(start=True)
    world.swap(2)
    world.ask(8, start=True)
    last = world.begin()
    world.routes.close()
    last.release()
    world.manager.close(drain_timeout=0.0)
    assert world.loader("m", 1).unloads == 1
    assert world.loader("m", 2).unloads == 1
    assert world.live() == {}


def test_after_close_requests_are_like_others(world):
    world.routes.close()
    assert world.ask(start=True) == 1
    assert world.live() == {}


def test_models_without_state_and_requests_without_an_id_get_no_routes(world):
    world.aspire("plain", 4)
    world.settle()
    with world.routes.handle(ModelRef("plain"), SequenceFlags(7, start=True)) as handle:
        assert handle.id == ServableId("plain", 4)
    for nothing in (0, ""):
        with world.routes.handle(M, SequenceFlags(nothing, start=True)) as handle:
            assert handle.id.version == 1
    assert world.live() == {}


def test_a_start_beyond_the_bound_is_refused_and_holds_nothing():
    world = SequenceWorld(max_routes=1)
    world.swap(1)
    world.ask(7, start=True)
    error = world.refusal(8, start=True)
    assert error.code is StatusCode.RESOURCE_EXHAUSTED
    assert str(error) == "model m: 1 sequences are live on this server, no more can be started"
    world.ask(7, start=True)
    world.ask(7, end=True)
    world.ask(8, start=True)
    world.ask(8, end=True)
    world.swap(2)
    assert world.state("m", 1) is None


def test_lost_sequences_are_remembered_up_to_a_bound_the_oldest_is_forgotten_first():
    world = SequenceWorld(max_remembered=2)
    world.swap(1)
    for id in (1, 2, 3):
        world.ask(id, start=True)
    world.swap(2)
    world.clock.advance(DRAIN)
    assert world.routes.remembered == 2
    assert world.refusal(2).code is world.refusal(3).code is StatusCode.UNAVAILABLE
    with world.routes.handle(M, SequenceFlags(1)) as handle:
        assert handle.id.version == 2


def test_metrics_show_live_and_dropped_sequences(world):
    registry = CollectorRegistry()
    registry.register(SequenceCollector(world.routes))
    world.ask(7, start=True)
    world.ask(8, start=True)
    assert registry.get_sample_value("tfs_lite_sequences", {"model": "m", "version": "1"}) == 2
    world.swap(2)
    world.clock.advance(DRAIN)
    assert registry.get_sample_value("tfs_lite_sequences", {"model": "m", "version": "1"}) is None
    assert registry.get_sample_value("tfs_lite_sequences_dropped_total", {"model": "m"}) == 2
    assert registry.get_sample_value("tfs_lite_sequences_remembered") == 2
    world.routes.model_gone("m")
    assert registry.get_sample_value("tfs_lite_sequences_dropped_total", {"model": "m"}) is None
    assert registry.get_sample_value("tfs_lite_sequences_remembered") == 0
