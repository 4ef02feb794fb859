"""Replicas on a pretended cluster, one step at a time, with the checker looking after each step.

The caller chooses what happens: faults of the cluster, requests, versions that come and go, crashes of the server at
any of its calls, time. Nothing has a thread, and nothing is left to chance. A violation is raised as AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.cluster.pretended_cluster import PretendedCluster, Process
from tests.support.cluster.pretended_server import NearEnd, PretendedServer
from tests.support.cluster.replica_checker import ReplicaChecker
from tfs_lite.cluster.replicas.engine import Resources, VersionKey
from tfs_lite.cluster.replicas.states import VersionReplicas
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.lifecycle.clock import VirtualClock

LONGEST_START = 5.0
REST_SECONDS = 800.0
"""Longer than a ping's, a start's and an orphan's time together."""
MAX_ROUNDS = 20_000
MAX_ROUNDS_AT_ONCE = 300


class ServerCrash(BaseException):
    """Raised inside a call of the engine by a simulation that ends the server there."""


class ReplicaSimulation:
    """Steps, in any order. ``server`` is the one that decides now, ``former`` one that was superseded and lives on."""

    def __init__(self, nodes: dict[str, Resources]) -> None:
        self.clock = VirtualClock()
        self.cluster = PretendedCluster(self.clock)
        for host, total in nodes.items():
            self.cluster.add_node(host, total)
        self.checker = ReplicaChecker(self.cluster, self.clock)
        self.wanted: dict[VersionKey, VersionReplicas] = {}
        self.former: PretendedServer | None = None
        self._at_calls: list[tuple[str, str, Callable[[], None]]] = []
        self.server = self._start()

    # Steps.

    def want(self, wanted: VersionReplicas) -> None:
        """A version is loaded, unless the last one of its name is not gone yet."""
        key = (wanted.model, wanted.version, wanted.generation)
        if key not in self.server.versions:
            self.wanted[key] = wanted
            self._want(wanted)
        self.go_on()

    def drop(self, key: VersionKey) -> None:
        del self.wanted[key]
        if key in self.server.versions:
            self.server.drop(key)
        self.go_on()

    def finish_adoption(self) -> None:
        self.checker.on_adoption_finished()
        self.server.reconciler.finish_adoption()
        self.go_on()

    def crash(self) -> None:
        """The server is killed, and started again: it wants what it wanted."""
        self.server.crash()
        self._begin_anew()

    def supersede(self) -> None:
        """Another server takes over, and the first does not know it yet."""
        if self.former is not None:
            self.former.crash()
        self.former = self.server
        self._begin_anew()

    def advance(self, seconds: float) -> None:
        """Lets time pass; what falls due happens at its time."""
        end = self.clock.monotonic() + seconds
        for _ in range(MAX_ROUNDS):
            self._run()
            due = self.clock.next_due
            if due is None or self.clock.monotonic() + due > end:
                self.clock.advance(max(end - self.clock.monotonic(), 0.0))
                self._run()
                self._check()
                return
            self.clock.advance(due)
        raise AssertionError(f"no end of what happens within {seconds} s")

    def go_on(self) -> None:
        """What is to happen at once happens."""
        self.advance(0.0)

    def at_call(self, name: str, when: str, act: Callable[[], None]) -> None:
        """``act`` happens before or after (``when``) the server's next call of the engine with this name. It may raise
        :class:`ServerCrash`, or a ServingError: then the call has no effect, or only its answer is lost."""
        self._at_calls.append((name, when, act))

    def crash_at(self, name: str, when: str) -> None:
        def act() -> None:
            raise ServerCrash

        self.at_call(name, when, act)

    def fail_at(self, name: str, when: str) -> None:
        """The helper dies in the middle of a call."""

        def act() -> None:
            raise ServingError(StatusCode.UNAVAILABLE, "the helper ended")

        self.at_call(name, when, act)

    def settle(self) -> None:
        """Nothing fails any more, adoption ends, and time passes until everything has come to rest."""
        self._at_calls.clear()
        self.finish_adoption()
        self.cluster.refuses.clear()
        self.cluster.dies_after = None
        self.cluster.start_seconds = min(self.cluster.start_seconds, LONGEST_START)
        self.cluster.loses_events = True  # what no event reports is found out as well
        self.cluster.restore()
        for process in self.cluster.processes.values():
            process.listed = True
        for node in self.cluster.nodes.values():
            self.cluster.thaw_node(node)
        for near_end in self.busy():
            near_end.finish_request()
        if self.former is not None:
            self.former.crash()
            self.former = None
        self.advance(REST_SECONDS)
        self.cluster.loses_events = False
        self.checker.check_rest()
        self._check()

    # What there is.

    def idle(self) -> list[NearEnd]:
        return [near_end for near_end in self.server.near_ends if near_end.is_open and not near_end.busy]

    def busy(self) -> list[NearEnd]:
        return [near_end for near_end in self.server.near_ends if near_end.busy]

    def running(self) -> list[Process]:
        return [process for process in self.cluster.processes.values() if process.running]

    def _start(self) -> PretendedServer:
        server = PretendedServer(self.cluster, self.clock, self.checker.on_event)
        server.engine.before = lambda name: self._on_call(server, name, "before")
        server.engine.after = lambda name: self._on_call(server, name, "after")
        self.checker.watch(server)
        return server

    def _begin_anew(self) -> None:
        self.server = self._start()
        for wanted in self.wanted.values():
            self._want(wanted)
        self.go_on()

    def _want(self, wanted: VersionReplicas) -> None:
        self.checker.on_want((wanted.model, wanted.version, wanted.generation), wanted.requirements)
        self.server.want(wanted)

    def _on_call(self, server: PretendedServer, name: str, when: str) -> None:
        if server is not self.server or server.is_dead:
            return
        found = next((entry for entry in self._at_calls if entry[:2] == (name, when)), None)
        if found is not None:
            self._at_calls.remove(found)
            try:
                found[2]()
            except ServerCrash:
                server.crash()
                raise

    def _run(self) -> None:
        """Rounds and what they bring, without any time passing."""
        for _ in range(MAX_ROUNDS_AT_ONCE):
            for server in [self.server] if self.former is None else [self.server, self.former]:
                if server.executor.queued and not server.is_dead:
                    server.executor.run_one()
                    self.clock.advance(0.0)
            if self.server.is_dead:
                self._begin_anew_after_crash()
                continue
            self.clock.advance(0.0)
            if not self.server.executor.queued and not (self.former and self.former.executor.queued):
                return
        raise AssertionError("rounds follow one another without end")

    def _begin_anew_after_crash(self) -> None:
        self.server = self._start()
        for wanted in self.wanted.values():
            self._want(wanted)

    def _check(self) -> None:
        self.checker.check_step()
        assert not self.checker.violations, "\n".join(self.checker.violations)
