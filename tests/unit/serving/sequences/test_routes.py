"""Sequences stay with their version across a swap: with a real manager, in virtual time."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tests.support.schedulers.sequence_fixture import DRAIN, M, SequenceFixture
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.serving.sequences.metrics import SequenceCollector

STABLE = ModelRef("m", label="stable")


@pytest.fixture
def fixture() -> SequenceFixture:
    found = SequenceFixture()
    found.swap(1)
    return found


@pytest.fixture
def moved(fixture: SequenceFixture) -> SequenceFixture:
    """Sequence 7 is live on version 1, and version 2 has taken its place."""
    fixture.ask(start=True)
    fixture.swap(2)
    return fixture


def test_a_sequence_stays_with_its_version_while_others_go_to_the_newer_one(fixture):
    assert fixture.ask(start=True) == 1
    fixture.swap(2)
    assert fixture.ready("m") == [2]
    assert fixture.state("m", 1) is HarnessState.QUIESCING
    assert fixture.ask() == 1
    assert fixture.ask("other", start=True) == 2
    assert fixture.ask() == 1
    assert fixture.live() == {1: 1, 2: 1}


def test_a_version_is_unloaded_as_soon_as_its_last_sequence_ends(fixture):
    fixture.ask(7, start=True)
    fixture.ask(8, start=True)
    fixture.swap(2)
    assert fixture.ask(7, end=True) == 1
    fixture.settle()
    assert fixture.state("m", 1) is HarnessState.QUIESCING
    assert fixture.ask(8, end=True) == 1
    fixture.settle()
    assert fixture.state("m", 1) is None
    assert fixture.loader("m", 1).unloads == 1
    assert fixture.live() == {}


def test_a_sequence_that_was_idle_for_too_long_lets_its_version_go(fixture):
    fixture.ask(start=True)
    servable = fixture.loader("m", 1).servable
    fixture.swap(2)
    servable.expire(7)
    fixture.settle()
    assert fixture.state("m", 1) is None


def test_a_request_that_is_under_way_at_the_end_still_holds_the_version(moved):
    last = moved.begin(end=True)
    moved.settle()
    assert moved.live() == {}
    assert moved.state("m", 1) is HarnessState.QUIESCING
    assert last.servable.alive
    last.release()
    moved.settle()
    assert moved.state("m", 1) is None


def test_start_of_a_live_sequence_begins_it_anew_on_the_newest_version(moved):
    assert moved.ask(start=True) == 2
    assert moved.ask() == 2
    assert moved.live() == {2: 1}
    moved.settle()
    assert moved.state("m", 1) is None


def test_start_of_a_live_sequence_on_the_same_version_keeps_one_route(fixture):
    fixture.ask(start=True)
    fixture.ask(start=True)
    assert fixture.live() == {1: 1}
    fixture.ask(end=True)
    fixture.swap(2)
    assert fixture.state("m", 1) is None


def test_a_whole_sequence_in_one_request_leaves_no_route(fixture):
    handle = fixture.begin(start=True, end=True)
    assert handle.id.version == 1
    handle.release()
    assert fixture.live() == {}


def test_a_start_that_is_refused_leaves_no_route(fixture):
    handle = fixture.routes.handle(M, SequenceFlags(7, start=True))
    assert fixture.live() == {1: 1}
    handle.release()
    assert fixture.live() == {}
    fixture.swap(2)
    assert fixture.state("m", 1) is None


def test_a_start_that_is_refused_leaves_the_live_sequence_its_route(fixture):
    fixture.ask(start=True)
    fixture.routes.handle(M, SequenceFlags(7, start=True)).release()
    assert fixture.live() == {1: 1}
    fixture.swap(2)
    assert fixture.ask() == 1


def test_news_of_an_old_end_does_not_take_the_route_of_a_sequence_that_has_begun_anew(fixture):
    fixture.ask(start=True)
    servable = fixture.loader("m", 1).servable
    again = fixture.routes.handle(M, SequenceFlags(7, start=True))
    servable.expire(7)  # between the lookup of the START and its place in the queue
    assert servable.submit(SequenceFlags(7, start=True))
    again.release()
    servable.routes.forgotten(servable.id, 7)  # news that come late
    assert fixture.live() == {1: 1}
    fixture.swap(2)
    assert fixture.ask() == 1


@pytest.mark.parametrize("answered", [True, False])
def test_a_sequence_that_begins_anew_while_its_end_is_looked_into_keeps_its_route(fixture, answered):
    fixture.ask(start=True)
    servable = fixture.loader("m", 1).servable
    knows, begun = servable.knows, []

    def looked_into(id: int) -> bool:
        found = knows(id)
        if not begun:
            begun.append(True)
            begun.append(fixture.begin(start=True))
            if answered:
                begun[1].release()
        return found

    servable.knows = looked_into
    servable.expire(7)
    assert fixture.live() == {1: 1}
    begun[1].release()
    fixture.swap(2)
    assert fixture.ask() == 1


def test_numbers_and_texts_are_different_sequences(fixture):
    fixture.ask(7, start=True)
    fixture.swap(2)
    fixture.ask("7", start=True)
    assert (fixture.ask(7), fixture.ask("7")) == (1, 2)


def test_a_request_with_a_version_goes_to_that_version(fixture):
    fixture.swap(1, 2)
    assert fixture.ask(7, ref=ModelRef("m", 1), start=True) == 1
    assert fixture.ask(7, ref=ModelRef("m", 2), start=True) == 2
    assert fixture.ask(7, ref=ModelRef("m", 1)) == 1
    assert fixture.ask(7, ref=ModelRef("m", 2)) == 2
    assert fixture.ask(7) == 2
    fixture.swap(3)
    assert fixture.ask(7, ref=ModelRef("m", 1)) == 1
    assert fixture.refusal(8, ref=ModelRef("m", 1)).code is StatusCode.NOT_FOUND


def test_a_label_that_moves_leaves_live_sequences_where_they_are(fixture):
    fixture.swap(1, 2)
    fixture.labels["stable"] = 1
    assert fixture.ask(7, ref=STABLE, start=True) == 1
    fixture.labels["stable"] = 2
    assert fixture.ask(7, ref=STABLE) == 1
    assert fixture.ask(7) == 1
    assert fixture.ask(8, ref=STABLE, start=True) == 2


def test_sequences_with_one_id_behind_two_labels_are_two(fixture):
    fixture.swap(1, 2)
    fixture.labels.update(stable=1, canary=2)
    canary = ModelRef("m", label="canary")
    assert fixture.ask(7, ref=STABLE, start=True) == 1
    assert fixture.ask(7, ref=canary, start=True) == 2
    assert fixture.ask(7, ref=STABLE) == 1
    assert fixture.live() == {1: 1, 2: 1}
    assert fixture.ask(7, ref=canary, end=True) == 2
    assert fixture.ask(7, ref=STABLE, end=True) == 1
    assert fixture.live() == {}


def test_after_the_bound_the_version_goes_and_the_client_hears_why(moved):
    moved.clock.advance(DRAIN - 1)
    assert moved.ask() == 1
    moved.clock.advance(1)
    moved.settle()
    assert moved.state("m", 1) is None
    error = moved.refusal()
    assert error.code is StatusCode.UNAVAILABLE
    assert str(error) == (
        "sequence 7 of model m was on version 1, which was unloaded 60 s after it was withdrawn; "
        "start it again with sequence_start"
    )
    assert str(moved.refusal(ref=ModelRef("m", 1))) == str(error)
    assert moved.ask(start=True) == 2
    assert moved.ask() == 2


def test_after_the_bound_the_version_waits_for_requests_that_are_under_way(moved):
    last = moved.begin()
    moved.clock.advance(DRAIN)
    moved.settle()
    assert moved.state("m", 1) is HarnessState.QUIESCING
    last.release()
    moved.settle()
    assert moved.state("m", 1) is None


def test_going_back_to_an_older_version_is_a_withdrawal_too(fixture):
    fixture.swap(1, 2)
    fixture.ask(start=True)
    fixture.swap(1)
    fixture.clock.advance(DRAIN)
    assert "on version 2, which was unloaded 60 s after it was withdrawn" in str(fixture.refusal())


def test_a_sequence_of_a_model_that_is_served_no_more_is_not_found(fixture):
    fixture.ask(start=True)
    fixture.swap()
    assert fixture.ask() == 1
    fixture.clock.advance(DRAIN)
    fixture.settle()
    assert fixture.state("m", 1) is None
    assert fixture.refusal().code is StatusCode.NOT_FOUND


def test_an_end_is_told_once_that_its_sequence_is_lost(moved):
    moved.clock.advance(DRAIN)
    assert moved.refusal(end=True).code is StatusCode.UNAVAILABLE
    assert moved.routes.remembered == 0


def test_a_lost_sequence_that_begins_anew_is_like_any_other(moved):
    moved.clock.advance(DRAIN)
    assert moved.ask(start=True) == 2
    assert moved.routes.remembered == 0
    moved.ask(end=True)
    with moved.routes.handle(M, SequenceFlags(7)) as handle:
        assert handle.id.version == 2


def test_a_request_with_another_version_than_the_lost_one_goes_there(moved):
    moved.clock.advance(DRAIN)
    with moved.routes.handle(ModelRef("m", 2), SequenceFlags(7)) as handle:
        assert handle.id.version == 2
    assert moved.routes.remembered == 1


def test_a_sequence_that_begins_when_the_time_is_over_does_not_hold_the_version(fixture):
    """The version is announced as leaving a moment before lookups stop finding it."""
    fixture.routes.version_leaving(ServableId("m", 1))
    assert fixture.ask(7, start=True) == 1
    assert fixture.live() == {1: 1}
    fixture.clock.advance(DRAIN)
    assert fixture.ask(8, start=True) == 1
    assert fixture.live() == {}


def test_with_the_resource_policy_live_sequences_hold_the_swap_up_no_longer_than_the_bound():
    fixture = SequenceFixture("resource")
    fixture.swap(1)
    fixture.ask(start=True)
    fixture.swap(2)
    assert fixture.ready("m") == []
    assert fixture.ask() == 1
    assert fixture.refusal("new", start=True).code is StatusCode.NOT_FOUND
    fixture.clock.advance(DRAIN)
    fixture.settle()
    assert fixture.ready("m") == [2]
    assert fixture.state("m", 1) is None
    assert fixture.ask("new", start=True) == 2
    assert fixture.refusal().code is StatusCode.UNAVAILABLE


def test_a_version_that_comes_back_has_its_full_time_again(moved):
    moved.clock.advance(DRAIN)
    moved.settle()
    moved.swap(1, 2)
    moved.swap(1)
    assert moved.ready("m") == [1]
    assert moved.ask(start=True) == 1
    moved.swap(2)
    moved.clock.advance(DRAIN - 1)
    assert moved.ask() == 1


def test_without_time_for_sequences_a_version_goes_at_once():
    fixture = SequenceFixture(drain=0.0)
    fixture.swap(1)
    fixture.ask(start=True)
    fixture.swap(2)
    fixture.clock.advance(0.0)
    fixture.settle()
    assert fixture.state("m", 1) is None


def test_a_server_that_closes_does_not_wait_for_sequences(moved):
    moved.ask(8, start=True)
    last = moved.begin()
    moved.routes.close()
    last.release()
    moved.manager.close(drain_timeout=0.0)
    assert moved.loader("m", 1).unloads == 1
    assert moved.loader("m", 2).unloads == 1
    assert moved.live() == {}


def test_after_close_requests_are_like_others(fixture):
    fixture.routes.close()
    assert fixture.ask(start=True) == 1
    assert fixture.live() == {}


def test_models_without_state_and_requests_without_an_id_get_no_routes(fixture):
    fixture.aspire("plain", 4)
    fixture.settle()
    with fixture.routes.handle(ModelRef("plain"), SequenceFlags(7, start=True)) as handle:
        assert handle.id == ServableId("plain", 4)
    for nothing in (0, ""):
        with fixture.routes.handle(M, SequenceFlags(nothing, start=True)) as handle:
            assert handle.id.version == 1
    assert fixture.live() == {}


def test_a_start_beyond_the_bound_is_refused_and_holds_nothing():
    fixture = SequenceFixture(max_routes=1)
    fixture.swap(1)
    fixture.ask(7, start=True)
    error = fixture.refusal(8, start=True)
    assert error.code is StatusCode.RESOURCE_EXHAUSTED
    assert str(error) == "model m: 1 sequences are live on this server, no more can be started"
    fixture.ask(7, start=True)
    fixture.ask(7, end=True)
    fixture.ask(8, start=True)
    fixture.ask(8, end=True)
    fixture.swap(2)
    assert fixture.state("m", 1) is None


def test_lost_sequences_are_remembered_up_to_a_bound_the_oldest_is_forgotten_first():
    fixture = SequenceFixture(max_remembered=2)
    fixture.swap(1)
    for id in (1, 2, 3):
        fixture.ask(id, start=True)
    fixture.swap(2)
    fixture.clock.advance(DRAIN)
    assert fixture.routes.remembered == 2
    assert fixture.refusal(2).code is fixture.refusal(3).code is StatusCode.UNAVAILABLE
    with fixture.routes.handle(M, SequenceFlags(1)) as handle:
        assert handle.id.version == 2


def test_metrics_show_live_and_dropped_sequences(fixture):
    registry = CollectorRegistry()
    registry.register(SequenceCollector(fixture.routes))
    fixture.ask(7, start=True)
    fixture.ask(8, start=True)
    assert registry.get_sample_value("tfs_lite_sequences", {"model": "m", "version": "1"}) == 2
    fixture.swap(2)
    fixture.clock.advance(DRAIN)
    assert registry.get_sample_value("tfs_lite_sequences", {"model": "m", "version": "1"}) is None
    assert registry.get_sample_value("tfs_lite_sequences_dropped_total", {"model": "m"}) == 2
    assert registry.get_sample_value("tfs_lite_sequences_remembered") == 2
    fixture.routes.model_gone("m")
    assert registry.get_sample_value("tfs_lite_sequences_dropped_total", {"model": "m"}) is None
    assert registry.get_sample_value("tfs_lite_sequences_remembered") == 0


@pytest.fixture
def renewed(fixture: SequenceFixture) -> SequenceFixture:
    """Sequence 7 is live on version 1, of which another load has taken the place."""
    fixture.ask(start=True)
    old = fixture.loader("m", 1).servable
    fixture.manager.replace_servable(fixture.data("m", 1, "b"), lambda status: None)
    fixture.settle()
    fixture.routes.version_replaced(ServableId("m", 1), lambda: old)
    return fixture


def test_a_sequence_stays_with_the_load_that_it_began_on_and_others_go_to_the_newer_one(renewed):
    old, new = (renewed.loader("m", 1, number).servable for number in (0, 1))
    with renewed.begin() as request:
        assert request.servable is old
    with renewed.begin("other", start=True) as request:
        assert request.servable is new
    renewed.ask(end=True)
    renewed.settle()
    assert (renewed.loader("m", 1, 0).unloads, renewed.live()) == (1, {1: 1})


def test_start_of_a_live_sequence_begins_it_anew_on_the_newer_load(renewed):
    renewed.ask(start=True)
    renewed.settle()
    assert renewed.loader("m", 1, 0).unloads == 1
    with renewed.begin() as request:
        assert request.servable is renewed.loader("m", 1, 1).servable


def test_the_older_load_waits_for_its_sequences_for_a_bounded_time(renewed):
    renewed.ask("other", start=True)
    renewed.clock.advance(DRAIN)
    renewed.settle()
    assert (renewed.loader("m", 1, 0).unloads, renewed.live()) == (1, {1: 1})
    assert "was on version 1, which was unloaded" in str(renewed.refusal())
    assert renewed.ask("other") == 1
