"""What is promised of replicas, against whatever order of events hypothesis can think of.

Reconciler and placement are the real ones; the cluster, the near ends and the versions are pretended, in virtual time
(:mod:`tests.support.cluster`). A run is its seed; one that fails prints its seed and the shortest story that fails:

    python -m pytest tests/simulation/test_replicas.py --hypothesis-seed=N
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.cluster.replica_simulation import ReplicaSimulation
from tests.support.profiles import CountedMachine, SeededRuns
from tfs_lite.cluster.replicas.engine import GPU_BYTES_LABEL, Strategy
from tfs_lite.cluster.replicas.placement import Requirements
from tfs_lite.cluster.replicas.states import VersionReplicas
from tfs_lite.core.status import Status, StatusCode

T = TypeVar("T")

GIB = 2**30
INDICES = st.integers(0, 20)
SECONDS = st.sampled_from([0.0, 0.005, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0, 70.0, 300.0])
SHORTLY = st.sampled_from([0.0, 0.0, 0.0, 0.02, 0.3, 1.0, 5.0])
CALLS = st.sampled_from(["place", "place", "end", "list", "nodes"])
MOMENTS = st.sampled_from(["before", "after"])
HOSTS = ("a", "b", "c", "gpu-a", "gpu-b")
TOTALS = st.sampled_from([{"num_cpus": 2.0}, {"num_cpus": 3.0}, {"num_cpus": 4.0, "num_gpus": 1.0}])
REQUIREMENTS = st.sampled_from(
    [
        Requirements({"num_cpus": 1.0}),
        Requirements({"num_cpus": 1.0}),
        Requirements({"num_cpus": 0.5}, strategy=Strategy.PACK),
        Requirements({"num_cpus": 1.0}, strategy=Strategy.STRICT_SPREAD),
        Requirements({"num_cpus": 0.1}, max_per_node=1),
        Requirements({"num_cpus": 0.1, "num_gpus": 0.5}, gpu_bytes=8 * GIB),
        Requirements({"num_cpus": 0.1, "num_gpus": 1.0}),
        Requirements({"num_cpus": 64.0}),
        Requirements({"num_cpus": 0.5}, labels={"zone": "east"}),
    ]
)


class Replicas(CountedMachine):
    """One rule per thing that can happen to a cluster and its server."""

    simulation: ReplicaSimulation

    @initialize(totals=st.lists(TOTALS, min_size=1, max_size=3), requirements=REQUIREMENTS, count=st.integers(1, 3))
    def begin(self, totals: list[dict[str, float]], requirements: Requirements, count: int) -> None:
        self.simulation = ReplicaSimulation({})
        self.cluster = self.simulation.cluster
        for number, total in enumerate(totals):
            self._add_node(HOSTS[number], total)
        self.simulation.want(VersionReplicas("m", 1, "aaaa", count, requirements))
        self.simulation.advance(10.0)

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.settle()

    # Versions and requests.

    @rule(
        model=st.sampled_from(["m", "n/o"]),
        version=st.integers(1, 2),
        generation=st.sampled_from(["aaaa", "bbbb"]),
        count=st.integers(1, 4),
        requirements=REQUIREMENTS,
        seconds=SHORTLY,
    )
    def want(
        self, model: str, version: int, generation: str, count: int, requirements: Requirements, seconds: float
    ) -> None:
        if (model, version, generation) not in self.simulation.wanted and len(self.simulation.wanted) < 4:
            self.simulation.want(VersionReplicas(model, version, generation, count, requirements))
        self._go_on(seconds)

    @precondition(lambda self: self.simulation.wanted)
    @rule(index=INDICES, seconds=SHORTLY)
    def drop(self, index: int, seconds: float) -> None:
        self.simulation.drop(_pick(sorted(self.simulation.wanted), index))
        self._go_on(seconds)

    @precondition(lambda self: self.simulation.server.versions)
    @rule(index=INDICES, more=st.booleans(), seconds=SHORTLY)
    def resize(self, index: int, more: bool, seconds: float) -> None:
        version = self.simulation.server.versions[_pick(sorted(self.simulation.server.versions), index)]
        if more and len(version.near_ends) < 6:
            version.grow()
        elif not more:
            version.shrink(index)
        self._go_on(seconds)

    @rule(index=INDICES, seconds=SHORTLY)
    def give_up_a_successor(self, index: int, seconds: float) -> None:
        """The owner of a place that moves could not open the version in the new one."""
        if moving := [near_end for near_end in self.simulation.server.near_ends if near_end.replaces is not None]:
            _pick(moving, index).close()
        self._go_on(seconds)

    @rule(index=INDICES, seconds=SHORTLY)
    def begin_request(self, index: int, seconds: float) -> None:
        if idle := self.simulation.idle():
            _pick(idle, index).begin_request()
        self._go_on(seconds)

    @rule(index=INDICES, seconds=SHORTLY)
    def finish_request(self, index: int, seconds: float) -> None:
        if busy := self.simulation.busy():
            _pick(busy, index).finish_request()
        self._go_on(seconds)

    # Processes.

    @rule(index=INDICES, what=st.sampled_from(["kill", "kill", "hang", "forget", "remember"]), seconds=SHORTLY)
    def break_process(self, index: int, what: str, seconds: float) -> None:
        running = self.simulation.running()
        if running:
            process = _pick(running, index)
            if what == "kill":
                self.cluster.kill_process(process)
            elif what == "hang":
                process.hangs = True
            elif what == "forget":
                self.cluster.forget(process)
            else:
                self.cluster.remember(process)
        self._go_on(seconds)

    @rule(index=INDICES, on=INDICES, seconds=SHORTLY)
    def duplicate_process(self, index: int, on: int, seconds: float) -> None:
        running = self.simulation.running()
        nodes = [node for node in self.cluster.nodes.values() if node.alive and not node.frozen]
        if running and nodes:
            self.cluster.duplicate(_pick(running, index), _pick(nodes, on))
        self._go_on(seconds)

    @rule(host=st.sampled_from(HOSTS), refuses=st.booleans(), seconds=SHORTLY)
    def refuse(self, host: str, refuses: bool, seconds: float) -> None:
        self.cluster.refuses.pop(host, None)
        if refuses:
            self.cluster.refuses[host] = Status(StatusCode.FAILED_PRECONDITION, f"node {host} has other files")
        self._go_on(seconds)

    @rule(start=st.sampled_from([0.1, 0.7, 4.0, 90.0]), opening=st.sampled_from([0.0, 2.0, 20.0]))
    def change_pace(self, start: float, opening: float) -> None:
        self.cluster.start_seconds, self.simulation.server.open_seconds = start, opening
        self._go_on(0.0)

    @rule(dies_after=st.sampled_from([None, 0.0, 1.0]), seconds=SECONDS)
    def crash_again_and_again(self, dies_after: float | None, seconds: float) -> None:
        self.cluster.dies_after = dies_after
        self._go_on(seconds)

    # Nodes.

    @rule(host=st.sampled_from(HOSTS), total=TOTALS, seconds=SHORTLY)
    def add_node(self, host: str, total: dict[str, float], seconds: float) -> None:
        if len([node for node in self.cluster.nodes.values() if node.alive]) < 5:
            self._add_node(host, total)
        self._go_on(seconds)

    @rule(index=INDICES, what=st.sampled_from(["kill", "freeze", "thaw", "drain", "drain"]), seconds=SHORTLY)
    def break_node(self, index: int, what: str, seconds: float) -> None:
        nodes = [node for node in self.cluster.nodes.values() if node.alive]
        if nodes:
            node = _pick(nodes, index)
            if what == "kill":
                self.cluster.kill_node(node)
            elif what == "freeze":
                self.cluster.freeze_node(node)
            elif what == "thaw":
                self.cluster.thaw_node(node)
            else:
                self.cluster.drain_node(node, [None, 3.0, 30.0][index % 3])
        self._go_on(seconds)

    # The engine and the server.

    @rule(back=st.booleans(), seconds=SHORTLY)
    def cut_off(self, back: bool, seconds: float) -> None:
        if back:
            self.cluster.restore()
        else:
            self.cluster.cut_off("head unreachable")
        self._go_on(seconds)

    @rule(lost=st.booleans(), seconds=SHORTLY)
    def lose_events(self, lost: bool, seconds: float) -> None:
        self.cluster.loses_events = lost
        self._go_on(seconds)

    @rule(call=CALLS, moment=MOMENTS, seconds=SHORTLY)
    def fail_in_a_call(self, call: str, moment: str, seconds: float) -> None:
        self.simulation.fail_at(call, moment)
        self._go_on(seconds)

    @rule(call=CALLS, moment=MOMENTS, seconds=SHORTLY)
    def crash_in_a_call(self, call: str, moment: str, seconds: float) -> None:
        self.simulation.crash_at(call, moment)
        self._go_on(seconds)

    @rule(call=CALLS, moment=MOMENTS, index=INDICES, what=st.sampled_from(["kill", "hang", "close", "node"]))
    def break_in_a_call(self, call: str, moment: str, index: int, what: str) -> None:
        """Something happens while the server decides."""

        def act() -> None:
            running, near_ends = self.simulation.running(), self.simulation.server.near_ends
            nodes = list(self.cluster.nodes.values())
            if what == "kill" and running:
                self.cluster.kill_process(_pick(running, index))
            elif what == "hang" and running:
                _pick(running, index).hangs = True
            elif what == "close" and near_ends:
                _pick(near_ends, index).version.shrink(index)
            elif what == "node" and nodes:
                self.cluster.drain_node(_pick(nodes, index), None)

        self.simulation.at_call(call, moment, act)
        self._go_on(0.0)

    @rule(how=st.sampled_from(["crash", "crash", "supersede"]), seconds=SHORTLY)
    def end_server(self, how: str, seconds: float) -> None:
        if how == "crash":
            self.simulation.crash()
        else:
            self.simulation.supersede()
        self._go_on(seconds)

    @rule(seconds=SHORTLY)
    def finish_adoption(self, seconds: float) -> None:
        self.simulation.finish_adoption()
        self._go_on(seconds)

    @rule(seconds=SECONDS)
    def let_time_pass(self, seconds: float) -> None:
        self._go_on(seconds)

    @rule(now=st.sampled_from([False, False, False, True]))
    def settle(self, now: bool) -> None:
        if now:
            self.simulation.settle()
        self._go_on(0.0)

    def _add_node(self, host: str, total: dict[str, float]) -> None:
        labels = {"zone": "east" if host in ("b", "gpu-b") else "west"}
        if "num_gpus" in total:
            labels[GPU_BYTES_LABEL] = str(16 * GIB)
        self.cluster.add_node(host, total, labels)

    def _go_on(self, seconds: float) -> None:
        self.count_step()
        self.simulation.advance(seconds)


def _pick(choices: Sequence[T], index: int) -> T:
    return choices[index % len(choices)]


@pytest.mark.timeout(1200)  # a story that fails is made as short as possible before it is told
def test_what_is_promised_of_replicas_holds_after_every_step(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite.cluster.replicas.reconciler"), "disabled", True)
    runs = SeededRuns(
        Replicas, "tests/simulation/test_replicas.py", runs=10, steps=60, batches=(1, 90), min_steps=(400, 50_000)
    )
    runs.check(request.config.getoption("--hypothesis-seed"))
