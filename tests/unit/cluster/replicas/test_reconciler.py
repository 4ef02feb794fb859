"""The reconciler on a pretended cluster, in virtual time; and its waits with real threads."""

from __future__ import annotations

import threading

import pytest

from tests.support.cluster.pretended_cluster import PretendedNode, Process
from tests.support.cluster.pretended_server import AT_ONCE, NearEnd, PretendedVersion
from tests.support.cluster.replica_simulation import ReplicaSimulation, ServerCrash
from tfs_lite.cluster.replicas.engine import TOLD_TO_END, Strategy
from tfs_lite.cluster.replicas.placement import Requirements
from tfs_lite.cluster.replicas.reconciler import ReplicaPlace
from tfs_lite.cluster.replicas.states import ReplicaEvent, ReplicaState, VersionReplicas
from tfs_lite.core.status import ServingError, Status, StatusCode

ONE_CPU = Requirements({"num_cpus": 1.0})
S = ReplicaState


def version(count: int = 1, requirements: Requirements = ONE_CPU, generation: str = "aaaa") -> VersionReplicas:
    return VersionReplicas("m", 1, generation, count, requirements)


class Story:
    """A simulation of one version, and what a test asks of it."""

    def __init__(self, **cpus: float) -> None:
        self.simulation = ReplicaSimulation({host: {"num_cpus": amount} for host, amount in cpus.items()})
        self.cluster = self.simulation.cluster
        self.advance = self.simulation.advance

    def begin(self, wanted: VersionReplicas, seconds: float = 5.0) -> PretendedVersion:
        self.simulation.want(wanted)
        self.advance(seconds)
        return self.version

    @property
    def version(self) -> PretendedVersion:
        return self.simulation.server.versions["m", 1, next(iter(self.simulation.wanted))[2]]

    @property
    def status(self) -> str:
        assert self.version.group is not None
        return str(self.version.group.status())

    def node(self, host: str) -> PretendedNode:
        return next(node for node in self.cluster.nodes.values() if node.host == host)

    def process(self, index: int = 0) -> Process:
        (found,) = [process for process in self.simulation.running() if process.name.slot.index == index]
        return found

    def near_end(self, index: int = 0) -> NearEnd:
        return next(each for each in self.version.near_ends if each.place.slot.index == index)

    def events(self, after: ReplicaState) -> list[ReplicaEvent]:
        return [event for event in self.simulation.checker.events if event.after is after]

    def hosts(self) -> list[str]:
        return sorted(process.node.host for process in self.simulation.running() if process.node)


# Life of a replica.


def test_replicas_are_placed_opened_and_ready() -> None:
    story = Story(a=2, b=2)
    assert story.begin(version(3)).is_available
    assert story.status == "3/3 up"
    assert [event.after for event in story.simulation.checker.events if event.name.slot.index == 0] == [
        S.PLACING,
        S.OPENING,
        S.READY,
    ]
    assert story.hosts() == ["a", "a", "b"]


def test_replica_that_dies_is_placed_again_at_once_and_then_later_and_later() -> None:
    story = Story(a=2)
    story.cluster.start_seconds = story.simulation.server.open_seconds = 0.0
    story.begin(version())
    for _ in range(12):
        story.cluster.kill_process(story.process())
        story.advance(40.0)
    lost, placing = story.events(S.LOST), story.events(S.PLACING)[1:]
    pauses = [round(again.time - before.time, 3) for before, again in zip(lost, placing, strict=True)]
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_replica_that_ran_well_for_a_minute_is_placed_again_at_once() -> None:
    story = Story(a=2)
    story.begin(version())
    for _ in range(3):
        story.cluster.kill_process(story.process())
        story.advance(90.0)
    lost, placing = story.events(S.LOST), story.events(S.PLACING)[1:]
    assert [again.time - before.time for before, again in zip(lost, placing, strict=True)] == [0.0, 0.0, 0.0]


def test_status_says_why_a_replica_starts_again() -> None:
    story = Story(a=4)
    story.begin(version(3))
    story.cluster.start_seconds = 4.0
    story.cluster.kill_process(story.process(1), "signal 9")
    story.advance(0.1)
    assert story.status == "2/3 up, 1 starting: it closed its connection"
    story.advance(2.0)  # the engine has found out
    assert story.status == "2/3 up, 1 starting: signal 9"


def test_status_keeps_the_cause_of_a_loss_when_the_engine_only_knows_who_has_ended_what_was_left() -> None:
    story = Story(a=4)
    story.begin(version(3))
    story.cluster.start_seconds = 4.0
    story.cluster.kill_process(story.process(1), TOLD_TO_END)
    story.advance(2.1)
    assert story.status == "2/3 up, 1 starting: it closed its connection"


def test_losing_all_replicas_leaves_the_version_wanted() -> None:
    story = Story(a=2, b=2)
    story.begin(version(2))
    story.cluster.kill_node(story.node("a"))
    story.cluster.kill_node(story.node("b"))
    story.advance(30.0)
    assert story.status == "0/2 up, waits for 2 of 2 replicas: a node; no node is there, for 16 s"
    story.cluster.add_node("c", {"num_cpus": 2})
    story.advance(5.0)
    assert story.status == "2/2 up"


def test_replica_of_a_lost_node_is_placed_elsewhere_before_the_engine_knows() -> None:
    story = Story(a=1, b=1)
    story.begin(version())
    lost = story.process().node
    assert lost is not None
    story.cluster.kill_node(lost)
    story.advance(5.0)
    assert lost.known_alive
    assert story.status == "1/1 up"


def test_replica_that_hangs_is_ended_and_replaced() -> None:
    story = Story(a=1)
    story.begin(version())
    hung = story.process()
    hung.hangs = True
    story.advance(55.0)
    assert story.status == "1/1 up"
    story.advance(25.0)
    assert [event.cause for event in story.events(S.LOST)] == ["not answering for 60 s"]
    assert not hung.running
    assert story.status == "1/1 up"


def test_replica_on_a_frozen_node_is_ended_when_the_node_comes_back() -> None:
    story = Story(a=1, b=1)
    story.begin(version())
    frozen = story.process()
    assert frozen.node is not None
    story.cluster.freeze_node(frozen.node)
    story.advance(100.0)
    assert story.status == "1/1 up"
    assert frozen.running
    story.cluster.thaw_node(frozen.node)
    story.advance(10.0)
    assert not frozen.running


def test_replica_that_does_not_start_is_given_up_and_tried_elsewhere() -> None:
    story = Story(a=1, b=1)
    story.cluster.freeze_node(story.node("a"))
    story.begin(version(), 59.0)
    assert story.status == "0/1 up, 1 starting"
    story.advance(10.0)
    assert [event.cause for event in story.events(S.LOST)] == ["it did not start within 60 s"]
    assert story.hosts() == ["b"]


# Opening.


def test_replica_lost_while_it_opens_goes_to_another_node_and_after_three_more_the_load_fails() -> None:
    story = Story(a=1, b=1, c=1)
    story.simulation.server.open_seconds = 1000.0
    story.begin(version(), 1.0)
    near_end, hosts = story.near_end(), []
    for _ in range(4):
        process = story.process()
        assert process.node is not None
        hosts.append(process.node.host)
        assert not near_end.is_closed
        story.cluster.kill_process(process)
        story.advance(2.0)
    assert hosts[:3] == ["a", "b", "c"]
    assert near_end.is_closed  # the load has failed
    with pytest.raises(ServingError, match="no replica is wanted any more"):
        near_end.place.address(AT_ONCE)


def test_error_of_a_load_names_the_last_loss() -> None:
    story = Story(a=1)
    story.simulation.finish_adoption()
    (place,) = story.simulation.server.reconciler.want(version()).places
    for _ in range(4):
        story.advance(2.0)
        place.lost(place.address(AT_ONCE), "signal 11")
    with pytest.raises(ServingError, match=r"m/1/aaaa/0#3 was lost while it opened: signal 11") as failed:
        place.address(AT_ONCE)
    assert failed.value.code is StatusCode.UNAVAILABLE
    story.advance(2.0)  # a version that is available goes on
    assert place.address(AT_ONCE).name == "m/1/aaaa/0#4"


def test_refused_replacement_is_tried_on_another_node() -> None:
    story = Story(a=1, b=1)
    story.begin(version())
    other = "b" if story.hosts() == ["a"] else "a"
    story.cluster.refuses[other] = Status(StatusCode.FAILED_PRECONDITION, f"node {other} has other files")
    story.cluster.kill_process(story.process())
    story.advance(10.0)
    assert story.events(S.LOST)[1].cause == f"refused: node {other} has other files"
    assert story.status == "1/1 up"


def test_reports_about_an_earlier_replica_do_nothing() -> None:
    story = Story(a=1)
    story.begin(version())
    place, old = story.near_end().place, story.near_end().address
    assert old is not None
    story.cluster.kill_process(story.process())
    story.advance(5.0)
    place.lost(old, "late")
    place.opened(old)
    place.refused(old, Status(StatusCode.INTERNAL, "late"))
    assert not place.holds(old)
    assert story.status == "1/1 up"
    assert len(story.events(S.LOST)) == 1


# Room.


def test_version_without_room_waits_in_words_and_wakes_when_there_is_room() -> None:
    story = Story(a=1, b=1)
    waiting = story.begin(version(3))
    assert not waiting.is_available
    assert waiting.group is not None
    assert story.status == "2/3 up, waits for 1 of 3 replicas: num_cpus 1; free 0 on a, 0 on b"
    assert waiting.group.status().waits
    story.cluster.add_node("c", {"num_cpus": 1})
    story.advance(5.0)
    assert waiting.is_available
    assert not waiting.group.status().waits


def test_room_that_a_version_leaves_goes_to_the_one_that_waits() -> None:
    story = Story(a=1)
    story.begin(version())
    story.simulation.want(VersionReplicas("other", 7, "cccc", 1, ONE_CPU))
    story.advance(5.0)
    other = story.simulation.server.versions["other", 7, "cccc"]
    assert not other.is_available
    story.simulation.drop(("m", 1, "aaaa"))
    story.advance(5.0)
    assert other.is_available


def test_wish_that_nothing_could_fulfil_says_how_long_it_has_waited_and_leaves_nothing_behind() -> None:
    story = Story(a=1)
    story.begin(version(1, Requirements({"num_cpus": 1.0, "num_gpus": 1.0})), 40.0)
    assert story.status == "0/1 up, waits for 1 of 1 replicas: num_gpus 1; no node has more than 0, for 40 s"
    story.simulation.drop(("m", 1, "aaaa"))
    story.advance(1.0)
    assert story.cluster.list_replicas() == []


def test_strict_spread_holds_no_node_before_all_fit() -> None:
    story = Story(a=4, b=4)
    story.begin(version(3, Requirements({"num_cpus": 1.0}, strategy=Strategy.STRICT_SPREAD)))
    assert story.cluster.list_replicas() == []
    story.cluster.add_node("c", {"num_cpus": 1})
    story.advance(5.0)
    assert story.hosts() == ["a", "b", "c"]


def test_version_grows_and_shrinks() -> None:
    story = Story(a=4)
    story.begin(version())
    story.version.grow()
    story.advance(5.0)
    assert story.status == "2/2 up"
    story.version.shrink()
    story.advance(5.0)
    assert story.status == "1/1 up"
    assert len(story.simulation.running()) == 1


# Drain.


def test_replacement_has_joined_before_a_replica_leaves_its_draining_node() -> None:
    story = Story(a=1, b=1)
    story.begin(version())
    old = story.process()
    assert story.near_end().begin_request()
    assert old.node is not None
    story.cluster.drain_node(old.node, 60.0)
    story.advance(20.0)
    assert old.inside  # its request is not cut
    assert [near_end.is_open for near_end in story.version.near_ends] == [True, True]
    assert story.status == "1/1 up"
    story.simulation.busy()[0].finish_request()
    story.advance(1.0)
    assert not old.running
    assert [event.cause for event in story.events(S.DRAINING)] == [f"node {old.node.host} drains"]
    assert story.events(S.LOST) == []


def test_replica_without_a_place_to_go_stays_until_its_time_is_over() -> None:
    story = Story(a=1)
    story.begin(version())
    story.cluster.drain_node(story.node("a"), 60.0)
    story.advance(57.0)
    assert story.status == "1/1 up, waits for 1 of 1 replicas: a node; no node is there, for 57 s"
    story.advance(1.5)
    assert story.events(S.LOST)[0].cause == "node a drains, and its time is over"
    story.cluster.add_node("b", {"num_cpus": 1})
    story.advance(5.0)
    assert story.status == "1/1 up"
    assert story.hosts() == ["b"]


def test_successor_that_its_owner_gives_up_is_followed_by_another_one_after_a_pause() -> None:
    story = Story(a=1, b=1)
    story.begin(version())
    old = story.process().node
    assert old is not None
    story.simulation.server.open_seconds = 1000.0
    story.cluster.drain_node(old, None)
    story.advance(1.0)
    successor = story.version.near_ends[1]
    assert successor.place.slot == story.near_end().place.slot
    successor.close()
    story.advance(0.05)
    assert len(story.version.near_ends) == 1
    story.simulation.server.open_seconds = 1.0
    story.advance(10.0)
    assert story.status == "1/1 up"
    assert story.hosts() == [story.simulation.running()[0].node.host] != [old.host]  # type: ignore[union-attr]


def test_replica_that_dies_while_it_moves_is_placed_once() -> None:
    story = Story(a=1, b=1)
    story.begin(version())
    old = story.process()
    assert old.node is not None
    story.cluster.drain_node(old.node, None)
    story.advance(1.0)
    story.cluster.kill_process(old)
    story.advance(10.0)
    assert story.status == "1/1 up"
    assert len(story.simulation.running()) == 1


# The engine.


def test_cluster_that_cannot_be_reached_costs_no_replica_and_is_told() -> None:
    story = Story(a=2)
    story.begin(version())
    story.cluster.cut_off("head unreachable")
    story.simulation.want(VersionReplicas("other", 7, "cccc", 1, ONE_CPU))
    story.advance(12.0)
    other = story.simulation.server.versions["other", 7, "cccc"].group
    assert other is not None
    words = "cluster: head unreachable for 12 s, nothing can be placed"
    assert str(other.status()) == f"0/1 up, {words}"
    assert story.simulation.server.reconciler.status().trouble == words
    assert story.status == "1/1 up"
    story.cluster.restore()
    story.advance(5.0)
    assert str(other.status()) == "1/1 up"
    assert story.simulation.server.reconciler.status().trouble == ""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", ["list", "nodes", "place", "end"])
def test_helper_that_ends_in_a_call_costs_nothing(call: str, moment: str) -> None:
    story = Story(a=3)
    story.simulation.fail_at(call, moment)
    story.begin(version(2), 10.0)
    story.cluster.kill_process(story.process())
    story.advance(10.0)
    assert story.status == "2/2 up"
    assert len(story.simulation.running()) == 2


def test_wish_that_the_engine_refuses_is_tried_again_with_a_pause() -> None:
    story = Story(a=1)
    for _ in range(3):

        def refuse() -> None:
            raise ServingError(StatusCode.INVALID_ARGUMENT, "no such resource")

        story.simulation.at_call("place", "before", refuse)
    story.begin(version(), 5.0)
    assert [event.cause for event in story.events(S.LOST)] == ["no such resource"] * 3
    assert story.status == "1/1 up"


def test_second_process_of_a_name_is_ended() -> None:
    story = Story(a=2, b=2)
    story.begin(version())
    process = story.process()
    twin = story.cluster.duplicate(process, story.node("b"))
    story.advance(10.0)
    assert process.running
    assert not twin.running


def test_replica_that_the_engine_forgets_is_replaced_and_told_to_end() -> None:
    story = Story(a=2)
    story.begin(version())
    forgotten = story.process()
    story.cluster.forget(forgotten)
    story.advance(10.0)
    assert story.status == "1/1 up"
    assert not forgotten.running


# The next server.


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 25))
def test_replicas_are_adopted_after_a_crash_at_any_call(number: int, moment: str) -> None:
    """Two versions are placed and one replica dies; the server crashes at its n-th call of the engine."""
    story = Story(a=3, b=3)
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise ServerCrash
        watch()

    def watch() -> None:
        for call in ("list", "nodes", "place", "end"):
            story.simulation.at_call(call, moment, count)

    watch()
    story.begin(version(2), 3.0)
    story.cluster.kill_process(story.process())
    while calls < number:
        story.advance(0.5)
    opened = {process.id for process in story.simulation.running() if process.opened}
    story.advance(10.0)
    story.simulation.finish_adoption()
    story.advance(10.0)
    assert story.status == "2/2 up"
    assert opened <= {process.id for process in story.simulation.running()}
    assert len(story.simulation.running()) == 2


def test_next_server_adopts_what_is_open_without_opening_it_again() -> None:
    story = Story(a=2, b=2)
    story.begin(version(3))
    before = {process.id for process in story.simulation.running()}
    story.simulation.crash()
    assert story.version.is_available  # at once
    assert {process.id for process in story.simulation.running()} == before
    assert all(process.opens == 1 for process in story.simulation.running())
    assert [event.cause for event in story.events(S.OPENING)[3:]] == ["adopted: an earlier server has placed it"] * 3


def test_next_server_with_other_files_places_anew_and_ends_the_old_ones() -> None:
    story = Story(a=4)
    story.begin(version(2))
    before = {process.id for process in story.simulation.running()}
    story.simulation.wanted = {("m", 1, "bbbb"): version(2, generation="bbbb")}
    story.simulation.crash()
    story.advance(5.0)
    after = {process.id for process in story.simulation.running()}
    assert len(after) == 2
    assert not before & after


def test_replicas_of_versions_that_are_not_wanted_yet_stay_until_adoption_is_over() -> None:
    story = Story(a=4)
    story.begin(version(2))
    story.simulation.wanted = {}
    story.simulation.crash()
    story.advance(20.0)
    assert len(story.simulation.running()) == 2
    story.simulation.finish_adoption()
    story.advance(1.0)
    assert story.simulation.running() == []


def test_adopted_replica_on_a_draining_node_serves_until_its_successor_is_ready() -> None:
    story = Story(a=1, b=1)
    story.begin(version())
    old = story.process()
    assert old.node is not None
    story.simulation.server.crash()
    story.cluster.drain_node(old.node, 60.0)
    story.simulation.crash()
    assert story.version.is_available
    story.advance(10.0)
    assert not old.running
    assert story.status == "1/1 up"
    assert story.events(S.LOST) == []


def test_replicas_without_a_server_end_by_themselves() -> None:
    story = Story(a=4)
    story.begin(version(2))
    story.simulation.server.crash()
    story.simulation.clock.advance(599.0)
    assert len(story.simulation.running()) == 2
    story.simulation.clock.advance(2.0)
    assert story.simulation.running() == []


def test_server_that_was_only_asleep_ends_nothing() -> None:
    story = Story(a=4)
    story.begin(version(2))
    former = story.simulation.server
    story.simulation.supersede()
    story.advance(1.0)
    former.drop(("m", 1, "aaaa"))
    story.advance(10.0)
    assert len(story.simulation.running()) == 2
    assert story.status == "2/2 up"
    assert "another server decides" in former.reconciler.status().trouble


def test_reconciler_that_is_closed_leaves_replicas_to_be_adopted() -> None:
    story = Story(a=4)
    story.begin(version(2))
    story.simulation.server.reconciler.close()
    story.advance(60.0)
    assert len(story.simulation.running()) == 2


# The rest.


def test_version_is_wanted_once() -> None:
    story = Story(a=4)
    story.begin(version(2))
    with pytest.raises(ServingError, match="the replicas of m version 1 are wanted already"):
        story.simulation.server.reconciler.want(version(1))


def test_names_are_not_used_again_after_a_set_was_closed() -> None:
    story = Story(a=4)
    story.simulation.finish_adoption()
    reconciler = story.simulation.server.reconciler
    group = reconciler.want(version())
    story.advance(3.0)
    group.close()
    group.close()
    again = reconciler.want(version())
    story.advance(3.0)
    assert [place.address(AT_ONCE).name for place in again.places] == ["m/1/aaaa/0#1"]


def test_name_is_not_used_again_when_it_is_not_known_what_became_of_it() -> None:
    story = Story(a=4)
    story.simulation.fail_at("place", "after")
    story.cluster.start_seconds = 0.1
    story.simulation.want(version())
    story.cluster.kill_process(next(iter(story.cluster.processes.values())))
    story.advance(10.0)
    names = [str(process.name) for process in story.cluster.processes.values()]
    assert len(names) == len(set(names)) == 2


def test_set_that_is_closed_does_not_grow() -> None:
    group = Story(a=4).simulation.server.reconciler.want(version())
    group.close()
    with pytest.raises(ServingError, match="the replicas of m are not wanted any more"):
        group.grow(1)


def test_memory_of_gpus_is_shown_by_node_and_device() -> None:
    story = Story()
    story.cluster.add_node("g", {"num_cpus": 4, "num_gpus": 1}, {"tfs-lite/gpu-bytes": "1000"})
    story.begin(version(2, Requirements({"num_cpus": 1.0, "num_gpus": 0.25}, gpu_bytes=250)))
    ((key, use),) = story.simulation.server.reconciler.status().gpus.items()
    assert key == (story.node("g").id, use.uuid)
    assert (use.total, use.reserved) == (1000, 500)


def address_in_a_thread(place: ReplicaPlace, give_up: threading.Event) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def ask() -> None:
        try:
            results.append(place.address(give_up, wait_for_room=True))
        except ServingError as error:
            results.append(error.status)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, results


def test_near_end_waits_for_its_replica() -> None:
    story = Story()
    (place,) = story.simulation.server.reconciler.want(version()).places
    thread, results = address_in_a_thread(place, threading.Event())
    story.advance(5.0)
    assert thread.is_alive()  # there is no room yet
    story.cluster.add_node("a", {"num_cpus": 1})
    story.advance(5.0)
    thread.join(30)
    assert results == [place.address(AT_ONCE)]


def test_near_end_that_gives_up_does_not_wait_any_longer() -> None:
    story, give_up = Story(), threading.Event()
    (place,) = story.simulation.server.reconciler.want(version()).places
    thread, results = address_in_a_thread(place, give_up)
    give_up.set()
    thread.join(30)
    assert results == [Status(StatusCode.CANCELLED, "m/1/aaaa/0#0: the wait for a replica was given up")]


def test_near_end_of_a_closed_place_does_not_wait_any_longer() -> None:
    story = Story()
    (place,) = story.simulation.server.reconciler.want(version()).places
    thread, results = address_in_a_thread(place, threading.Event())
    place.close()
    thread.join(30)
    assert results == [Status(StatusCode.CANCELLED, "m/1/aaaa/0#0: no replica is wanted any more")]


def test_listener_that_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(a=1)

    def fail() -> None:
        raise ValueError("broken")

    group = story.simulation.server.reconciler.want(version(), on_change=fail)
    story.advance(5.0)
    assert [place.address(AT_ONCE).host for place in group.places] == ["a"]
    assert "a listener of replicas failed" in caplog.text
