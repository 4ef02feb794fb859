"""Placement: a function of what is wanted, of the nodes and of the replicas that are listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.cluster.replicas import placement
from tfs_lite.cluster.replicas.engine import (
    GPU_BYTES_LABEL,
    ClusterNode,
    GpuUse,
    PlacedReplica,
    ReplicaAddress,
    ReplicaName,
    ReplicaSlot,
    Resources,
    Strategy,
    Wish,
)
from tfs_lite.cluster.replicas.placement import (
    Action,
    AdoptReplica,
    AwaitRoom,
    EndReplica,
    KeepReplica,
    MoveReplica,
    PlaceReplica,
    Requirements,
    WantedPlace,
    gpu_fraction,
    plan,
    replica_needs,
    requirements_of,
)
from tfs_lite.config.replicas import ReplicaOptions
from tfs_lite.core.status import ServingError, StatusCode

GIB = 2**30
ONE_CPU = Requirements({"num_cpus": 1.0})


def node(host: str, free: Resources, total: Resources | None = None, **others: object) -> ClusterNode:
    return ClusterNode(host, host, total if total is not None else free, free, **others)  # type: ignore[arg-type]


def cpus(**free: float) -> list[ClusterNode]:
    return [node(host, {"num_cpus": amount}) for host, amount in free.items()]


def slot(index: int = 0, generation: str = "aaaa", model: str = "m") -> ReplicaSlot:
    return ReplicaSlot(model, 1, generation, index)


def places(count: int, requirements: Requirements = ONE_CPU, **others: object) -> list[WantedPlace]:
    return [WantedPlace(index, slot(index), requirements, fresh=True, **others) for index in range(count)]  # type: ignore[arg-type]


def listed(
    id: str, index: int = 0, life: int = 0, on: str | None = "a", up: bool = True, generation: str = "aaaa"
) -> PlacedReplica:
    name = ReplicaName(slot(index, generation), life)
    return PlacedReplica(id, name, on, ReplicaAddress(str(name), on, 1) if up and on else None)


def held(index: int, by: str, requirements: Requirements = ONE_CPU, **others: object) -> WantedPlace:
    found = WantedPlace(index, slot(index), requirements, by, ready=True)
    return replace(found, **others)  # type: ignore[arg-type]


def placed_on(actions: Sequence[Action]) -> list[str | None]:
    return [action.wish.node for action in actions if isinstance(action, PlaceReplica)]


def waits(actions: Sequence[Action]) -> list[str]:
    return [action.waits for action in actions if isinstance(action, PlaceReplica | AwaitRoom | KeepReplica)]


def ends(actions: Sequence[Action]) -> dict[str, str]:
    return {action.id: action.cause for action in actions if isinstance(action, EndReplica)}


# Which node.


def test_spread_takes_the_nodes_with_the_fewest_replicas_of_the_version() -> None:
    assert placed_on(plan(places(5), cpus(a=4, b=2, c=4), [])) == ["a", "c", "b", "a", "c"]


def test_pack_fills_one_node_before_the_next() -> None:
    packed = replace(ONE_CPU, strategy=Strategy.PACK)
    assert placed_on(plan(places(4, packed), cpus(a=4, b=2), [])) == ["b", "b", "a", "a"]


def test_strict_spread_places_all_on_different_nodes_or_none() -> None:
    strict = replace(ONE_CPU, strategy=Strategy.STRICT_SPREAD)
    assert sorted(map(str, placed_on(plan(places(3, strict), cpus(a=1, b=2, c=4), [])))) == ["a", "b", "c"]
    refused = plan(places(3, strict), cpus(a=1, b=2, c=0.5), [])
    assert placed_on(refused) == []
    assert waits(refused) == ["3 nodes with num_cpus 1 each; there is room on 2 (a, b)"] * 3


def test_strict_spread_replaces_one_where_there_is_none_of_the_version() -> None:
    strict = replace(ONE_CPU, strategy=Strategy.STRICT_SPREAD)
    wanted = [held(0, "x", strict), replace(places(2, strict)[1], fresh=False)]
    (wish,) = [action.wish for action in plan(wanted, cpus(a=4), [listed("x")]) if isinstance(action, PlaceReplica)]
    assert (wish.node, wish.avoid) == (None, frozenset("a"))
    assert placed_on(plan(wanted, cpus(a=4, b=1), [listed("x")])) == ["b"]


def test_max_replicas_per_node_counts_those_of_the_version_only() -> None:
    once = replace(ONE_CPU, max_per_node=1)
    other = replace(places(1, once)[0], number=9, slot=slot(model="other"))
    actions = plan([*places(3, once), other], cpus(a=4, b=4), [])
    assert placed_on(actions) == ["a", "b", None, "a"]
    assert waits(actions)[2] == "room; 1 of the version on a, 1 of the version on b"


def test_node_that_has_lost_a_replica_is_taken_if_no_other_has_room() -> None:
    avoiding = [replace(places(1)[0], avoid=frozenset("a"))]
    assert placed_on(plan(avoiding, cpus(a=4, b=1), [])) == ["b"]
    assert placed_on(plan(avoiding, cpus(a=4, b=0.5), [])) == ["a"]


def test_nothing_goes_to_a_node_that_drains_or_is_lost() -> None:
    nodes = [node("a", {"num_cpus": 4}, draining=True), node("b", {"num_cpus": 4}, alive=False)]
    (action,) = plan(places(1), nodes, [])
    assert isinstance(action, PlaceReplica)
    assert (action.wish.node, action.wish.avoid) == (None, frozenset("ab"))
    assert action.waits == "a node; no node is there"


def test_node_without_gpu_is_better_for_what_needs_none() -> None:
    nodes = [node("a", {"num_cpus": 9, "num_gpus": 1}), node("b", {"num_cpus": 2})]
    assert placed_on(plan(places(1), nodes, [])) == ["b"]


@pytest.mark.parametrize(
    ("demand", "hosts"),
    [("east", "a"), ("!east", "bc"), ("in(east, west)", "ab"), ("!in(east,west)", "c"), ("north", "")],
)
def test_labels_are_demanded_in_the_words_of_ray(demand: str, hosts: str) -> None:
    nodes = [node("a", {"num_cpus": 1}, labels={"zone": "east"}), node("b", {"num_cpus": 1}, labels={"zone": "west"})]
    asked = replace(ONE_CPU, labels={"zone": demand})
    actions = plan(places(3, asked), [*nodes, node("c", {"num_cpus": 1})], [])
    assert {host for host in placed_on(actions) if host} == set(hosts)
    if not hosts:
        assert waits(actions)[0] == "a node; no node has zone=north"


# What it waits for.


def test_wish_without_room_stays_pending_and_says_what_is_free() -> None:
    gpu = Requirements({"num_gpus": 1.0})
    nodes = [node("gpu-a", {"num_gpus": 0.5}, {"num_gpus": 1.0}), node("gpu-b", {"num_gpus": 0.0}, {"num_gpus": 1.0})]
    (action,) = plan(places(1, gpu), nodes, [])
    assert isinstance(action, PlaceReplica)
    assert action.wish.node is None
    assert action.waits == "num_gpus 1; free 0.5 on gpu-a, 0 on gpu-b"


def test_several_resources_that_are_short_are_named() -> None:
    asked = Requirements({"num_cpus": 2.0, "memory": 4e9})
    total = {"num_cpus": 4.0, "memory": 8e9}
    nodes = [node("a", {"num_cpus": 1.0, "memory": 8e9}, total), node("b", {"num_cpus": 4.0, "memory": 1e9}, total)]
    assert waits(plan(places(1, asked), nodes, [])) == [
        "num_cpus 2 and memory 4000000000; free num_cpus 1 on a, memory 1000000000 on b"
    ]


def test_wish_that_no_node_could_ever_fulfil_says_so() -> None:
    (words,) = waits(plan(places(1, Requirements({"num_gpus": 1.0})), cpus(a=4, b=4), []))
    assert words == "num_gpus 1; no node has more than 0"


def test_long_lists_of_hosts_are_cut() -> None:
    (words,) = waits(plan(places(1), [node(f"h{n:02}", {"num_cpus": 0.0}, {"num_cpus": 1.0}) for n in range(12)], []))
    assert words.endswith("0 on h07 and 4 more")


def test_one_that_waits_holds_no_other_up() -> None:
    wanted = [replace(places(1, Requirements({"num_cpus": 8.0}))[0]), replace(places(1)[0], number=1, slot=slot(1))]
    assert placed_on(plan(wanted, cpus(a=4), [])) == [None, "a"]


def test_what_was_placed_and_has_not_started_is_not_free() -> None:
    wish = Wish(ReplicaName(slot(), 0), {"num_cpus": 1.0}, "a")
    pending = held(0, "x", wish=wish, ready=False)
    actions = plan([pending, places(2)[1]], cpus(a=1), [listed("x", on=None)])
    assert placed_on(actions) == [None]


def test_pending_wish_is_made_anew_if_there_is_room_only_where_it_must_not_go() -> None:
    wish = Wish(ReplicaName(slot(), 0), {"num_cpus": 1.0}, None, frozenset("a"))
    pending = held(0, "x", wish=wish, ready=False)
    assert ends(plan([pending], cpus(a=1), [listed("x", on=None)])) == {
        "x": "there is room on a node that it was to avoid before"
    }
    assert waits(plan([pending], cpus(a=0, b=1), [listed("x", on=None)])) == [""]


def test_pending_wish_whose_node_is_gone_is_made_anew() -> None:
    pending = held(0, "x", wish=Wish(ReplicaName(slot(), 0), {"num_cpus": 1.0}, "a"), ready=False)
    assert ends(plan([pending], cpus(b=1), [listed("x", on=None)])) == {"x": "its node is lost"}


def test_bounds_are_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MAX_PLACING", 2)
    assert waits(plan(places(3), cpus(a=9), [])) == ["", "", "2 replicas are being placed"]
    monkeypatch.setattr(placement, "MAX_REPLICAS", 1)
    assert waits(plan(places(3), cpus(a=9), [])) == ["", *["the cluster has its 1 replicas"] * 2]


# Replicas that are there.


def test_replicas_of_an_earlier_server_are_adopted() -> None:
    actions = plan(places(2), cpus(a=4, b=4), [listed("x", 0, 3), listed("y", 1, 0, "b", up=False)])
    assert [(action.place.number, action.replica.id) for action in actions if isinstance(action, AdoptReplica)] == [
        (0, "x"),
        (1, "y"),
    ]
    assert placed_on(actions) == []


def test_of_several_the_one_that_listens_is_adopted_then_the_latest() -> None:
    found = [listed("old", life=1), listed("late", life=3), listed("later", life=4, up=False)]
    actions = plan(places(1), cpus(a=4), found)
    assert [action.replica.id for action in actions if isinstance(action, AdoptReplica)] == ["late"]
    assert ends(actions) == dict.fromkeys(["old", "later"], "another replica has its place")


def test_adoption_keeps_the_bound_of_a_node() -> None:
    strict = replace(ONE_CPU, strategy=Strategy.STRICT_SPREAD)
    found = [listed("x", 0, on="a"), listed("z-twin", 0, on="b"), listed("y", 1, on="b")]
    actions = plan(places(2, strict), cpus(a=4, b=4), found)
    assert {action.replica.id for action in actions if isinstance(action, AdoptReplica)} == {"x", "y"}
    assert list(ends(actions)) == ["z-twin"]


def test_lives_that_were_given_up_are_not_adopted() -> None:
    actions = plan([replace(places(1)[0], life=4, oldest=4)], cpus(a=4), [listed("x", life=3)])
    assert ends(actions) == {"x": "another replica has its place"}
    assert [str(action.wish.name) for action in actions if isinstance(action, PlaceReplica)] == ["m/1/aaaa/0#4"]


def test_pending_wish_of_an_earlier_server_is_taken_back_and_its_life_is_not_used_again() -> None:
    actions = plan(places(1), cpus(a=4), [listed("x", life=5, on=None)])
    assert list(ends(actions)) == ["x"]
    assert [str(action.wish.name) for action in actions if isinstance(action, PlaceReplica)] == ["m/1/aaaa/0#6"]


def test_second_process_of_a_name_is_ended() -> None:
    actions = plan([held(0, "x")], cpus(a=4), [listed("x"), listed("twin", on="a")])
    assert ends(actions) == {"twin": "another replica has its place"}


def test_replicas_of_other_files_or_of_a_larger_count_are_ended() -> None:
    found = [listed("x"), listed("more", 5), listed("other", generation="bbbb")]
    assert ends(plan([held(0, "x")], cpus(a=4), found, {("m", 1)})) == {
        "more": "the version wants fewer replicas",
        "other": "the version's files or settings have changed",
    }


def test_replicas_that_the_server_has_not_asked_for_stay_until_adoption_is_over() -> None:
    assert plan([], cpus(a=4), [listed("x")], set()) == []
    assert ends(plan([], cpus(a=4), [listed("x")])) == {"x": "no version wants it"}


def test_replica_that_is_not_listed_or_whose_node_is_lost_has_failed() -> None:
    wanted = [held(0, "x"), held(1, "y"), held(2, "z")]
    nodes = [*cpus(a=4), node("b", {"num_cpus": 4}, alive=False)]
    actions = plan(wanted, nodes, [listed("y", 1, on="b"), listed("z", 2, on="c")])
    assert ends(actions) == {
        "x": "the cluster does not list it any more",
        "y": "node b is lost",
        "z": "its node is lost",
    }
    assert all(action.failed for action in actions if isinstance(action, EndReplica))


# Drains.


def test_ready_replica_of_a_draining_node_moves_once() -> None:
    nodes = [node("a", {"num_cpus": 4}, draining=True, drain_seconds=30.0), *cpus(b=4)]
    (action,) = plan([held(0, "x")], nodes, [listed("x")])
    assert isinstance(action, MoveReplica)
    assert action.cause == "node a drains"
    moving = [held(0, "x", has_successor=True), replace(places(1)[0], number=1, life=1, oldest=1)]
    actions = plan(moving, nodes, [listed("x")])
    assert placed_on(actions) == ["b"]
    assert ends(actions) == {}


def test_replica_leaves_a_draining_node_in_time_also_without_a_successor() -> None:
    nodes = [node("a", {"num_cpus": 4}, draining=True, drain_seconds=1.0)]
    moving = held(0, "x", has_successor=True)
    assert ends(plan([moving], nodes, [listed("x")])) == {"x": "node a drains, and its time is over"}


def test_replica_that_has_not_opened_is_placed_elsewhere_at_once_but_an_adopted_one_is_looked_at_first() -> None:
    nodes = [node("a", {"num_cpus": 4}, draining=True)]
    wish = Wish(ReplicaName(slot(), 0), {"num_cpus": 1.0}, "a")
    assert ends(plan([held(0, "x", ready=False, wish=wish)], nodes, [listed("x")])) == {"x": "node a drains"}
    assert ends(plan([held(0, "x", ready=False)], nodes, [listed("x")])) == {}


def test_replica_that_came_up_where_there_are_enough_is_placed_elsewhere() -> None:
    once = replace(ONE_CPU, max_per_node=1)
    wanted = [held(0, "x", once), held(1, "y", once, ready=False)]
    assert ends(plan(wanted, cpus(a=4, b=4), [listed("x"), listed("y", 1)])) == {"y": "node a has its 1 of the version"}


# GPUs.


def gpu_node(host: str, gpus: float = 1.0, free: float | None = None, size: int = 16 * GIB) -> ClusterNode:
    labels = {GPU_BYTES_LABEL: str(size)} if size else {}
    return node(host, {"num_gpus": gpus if free is None else free}, {"num_gpus": gpus}, labels=labels)


def test_memory_of_a_gpu_counts_even_where_a_fraction_is_left() -> None:
    half = Requirements({"num_gpus": 0.5}, gpu_bytes=6 * GIB)
    greedy = held(0, "x", half, gpu=GpuUse("u", 16 * GIB, 12 * GIB))
    actions = plan([greedy, places(2, half)[1]], [gpu_node("a", free=0.5)], [listed("x")])
    assert placed_on(actions) == [None]
    assert waits(actions)[1] == f"room; no GPU with 0.5 of it and {6 * GIB} bytes left on a"
    modest = replace(greedy, gpu=GpuUse("u", 16 * GIB, 8 * GIB))
    assert placed_on(plan([modest, places(2, half)[1]], [gpu_node("a", free=0.5)], [listed("x")])) == ["a"]


def test_replicas_that_start_count_with_their_estimate_on_the_emptiest_gpu() -> None:
    big = Requirements({"num_gpus": 0.3}, gpu_bytes=9 * GIB)
    assert placed_on(plan(places(3, big), [gpu_node("a", 2.0)], [])) == ["a", "a", None]


def test_fractions_that_are_left_on_different_gpus_do_not_add_up() -> None:
    asked = Requirements({"num_gpus": 0.6})
    wanted = [held(n, f"x{n}", asked, gpu=GpuUse(f"u{n}", 16 * GIB, GIB)) for n in range(2)]
    actions = plan([*wanted, places(3, asked)[2]], [gpu_node("a", 2.0, 0.8)], [listed("x0", 0), listed("x1", 1)])
    assert placed_on(actions) == [None]


def test_model_that_is_larger_than_every_gpu_says_so() -> None:
    (words,) = waits(plan(places(1, Requirements({"num_gpus": 1.0}, gpu_bytes=20 * GIB)), [gpu_node("a")], []))
    assert words == f"{20 * GIB} bytes on a GPU; no node has more than {16 * GIB}"


def test_nodes_that_do_not_say_their_memory_are_taken_by_fraction_alone() -> None:
    asked = Requirements({"num_gpus": 0.5}, gpu_bytes=20 * GIB)
    assert placed_on(plan(places(3, asked), [gpu_node("a", size=0)], [])) == ["a", "a", None]


@pytest.mark.parametrize(
    ("estimate", "fraction"), [(0, 0.05), (GIB, 0.07), (8 * GIB, 0.5), (8 * GIB + 1, 0.51), (99 * GIB, 1.0)]
)
def test_fraction_of_a_gpu_is_rounded_up_to_hundredths(estimate: int, fraction: float) -> None:
    assert gpu_fraction(estimate, 16 * GIB) == fraction


def test_needs_are_what_the_config_says_and_estimates_for_the_rest() -> None:
    nodes = [gpu_node("a", size=32 * GIB), gpu_node("b"), *cpus(c=1)]
    assert replica_needs({}, 1000, 0, False, nodes) == {"num_cpus": 1.0, "memory": 1200 + 512 * 2**20}
    assert replica_needs({"num_cpus": 0.5, "memory": 1e9}, 1000, 4 * GIB, True, nodes) == {
        "num_cpus": 0.5,
        "memory": 1e9,
        "num_gpus": 0.25,
    }
    assert replica_needs({}, 0, 4 * GIB, True, cpus(c=1))["num_gpus"] == 1.0
    assert replica_needs({"num_gpus": 0.3}, 0, 4 * GIB, True, nodes)["num_gpus"] == 0.3


@pytest.mark.parametrize("options", [{"num_gpus": 2.0}, {"num_cpus": 0.0}])
def test_several_gpus_or_no_cpu_for_one_replica_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ServingError) as refused:
        replica_needs(options, 0, 0, False, [])
    assert refused.value.code is StatusCode.INVALID_ARGUMENT


# Whatever the snapshot.

FREE = st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0])
NEEDS = st.fixed_dictionaries({"num_cpus": FREE, "num_gpus": FREE})


@given(
    free=st.lists(st.tuples(FREE, FREE, st.booleans(), st.booleans()), max_size=4),
    asked=st.lists(
        st.tuples(NEEDS, st.sampled_from(Strategy), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=3
    ),
    there=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=6),
)
def test_no_plan_gives_away_more_than_there_is(
    free: list[tuple[float, float, bool, bool]],
    asked: list[tuple[dict[str, float], Strategy, int, int]],
    there: list[tuple[int, int, int, bool]],
) -> None:
    nodes = [
        node(str(n), {"num_cpus": c, "num_gpus": g}, {"num_cpus": 4.0, "num_gpus": 4.0}, alive=alive, draining=draining)
        for n, (c, g, alive, draining) in enumerate(free)
    ]
    wanted = [
        WantedPlace(100 * model + index, ReplicaSlot(str(model), 1, "g", index), Requirements(needs, {}, how, most))
        for model, (needs, how, most, count) in enumerate(asked)
        for index in range(count)
    ]
    replicas = [
        PlacedReplica(f"r{n}", ReplicaName(ReplicaSlot(str(model), 1, "g", index), n), str(where) if up else None)
        for n, (model, index, where, up) in enumerate(there)
    ]
    actions = plan(wanted, nodes, replicas)
    decided = [action.place.number for action in actions if not isinstance(action, EndReplica)]
    assert sorted(decided) == sorted(place.number for place in wanted)
    assert len({action.id for action in actions if isinstance(action, EndReplica)}) == len(replicas) - sum(
        isinstance(action, AdoptReplica) for action in actions
    )
    usable = {each.id: each for each in nodes if each.alive and not each.draining}
    given_away: Counter[tuple[str, str]] = Counter()
    for action in actions:
        if isinstance(action, PlaceReplica) and action.wish.node is not None:
            assert action.wish.node in usable
            for name, amount in action.wish.needs.items():
                given_away[action.wish.node, name] += amount  # type: ignore[assignment]
        elif isinstance(action, PlaceReplica | AwaitRoom):
            assert action.waits
    for (host, name), amount in given_away.items():
        assert amount <= usable[host].free[name] + 1e-6


GPU_NODES = [
    ClusterNode("a", "a", {"num_cpus": 4, "num_gpus": 1}, {}, {GPU_BYTES_LABEL: str(16 * GIB), "zone": "x"}),
    ClusterNode("b", "b", {"num_cpus": 4, "num_gpus": 1}, {}, {GPU_BYTES_LABEL: str(8 * GIB), "zone": "y"}),
    ClusterNode("c", "c", {"num_cpus": 4}, {}, {"zone": "z"}),
]


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (ReplicaOptions(), 0.5),  # of the smallest
        (ReplicaOptions(labels={"zone": "x"}), 0.25),
        (ReplicaOptions(labels={"zone": "z"}), None),
        (ReplicaOptions(kind="KIND_GPU", labels={"zone": "z"}), 1.0),
        (ReplicaOptions(kind="KIND_GPU", needs={"num_gpus": 1.0}), 1.0),
        (ReplicaOptions(kind="KIND_CPU"), None),
        (ReplicaOptions(needs={"num_gpus": 0.0}), 0.0),
        (ReplicaOptions(needs={"num_gpus": 0.1}), 0.1),
        (ReplicaOptions(kind="KIND_MODEL"), 0.5),
    ],
)
def test_gpu_follows_from_the_kind_the_config_and_the_nodes_that_fit(options: ReplicaOptions, gpus: float) -> None:
    found, on_gpu = requirements_of(options, 1000, 4 * GIB, GPU_NODES)
    assert (found.needs.get("num_gpus"), on_gpu) == (gpus, bool(gpus))
    assert found.gpu_bytes == (4 * GIB if on_gpu else 0)


def test_the_rest_of_the_requirements_is_what_the_config_says() -> None:
    options = ReplicaOptions(
        needs={"num_cpus": 2.0, "disk": 0.5}, labels={"zone": "!x"}, strategy="STRICT_SPREAD", max_per_node=1
    )
    found, _ = requirements_of(options, 1000, 0, cpus(c=4))
    assert (found.needs["num_cpus"], found.needs["disk"]) == (2.0, 0.5)
    assert found.needs["memory"] == 1200 + 512 * 2**20
    assert (found.labels, found.strategy, found.max_per_node) == ({"zone": "!x"}, Strategy.STRICT_SPREAD, 1)
