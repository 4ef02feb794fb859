"""Whether what is explained is true: every verdict about a simulated server, against what a lookup does.

After any step of a :class:`~tests.support.lifecycle.simulation.Simulation`, every version has exactly one verdict;
it is SERVING if and only if a request is answered; what does not serve has a cause and something to do.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.lifecycle.simulated_loader import TOTAL
from tests.support.lifecycle.simulation import Simulation
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import ServingError
from tfs_lite.managers.harness import LEAVING
from tfs_lite.managers.survey import ManagerView
from tfs_lite.operations.explain.answers import explain
from tfs_lite.operations.explain.explanation import MAX_CHAIN, MAX_TEXT, Explanation, Verdict
from tfs_lite.operations.explain.snapshot import (
    NO_REPORT,
    Incomplete,
    ManagerOverview,
    ModelSnapshot,
    ServerSnapshot,
    VersionSnapshot,
    known_versions,
)
from tfs_lite.operations.explain.verdicts import verdict_of_model, verdict_of_version
from tfs_lite.sources.version_scan import LatestPolicy

ANSWERING = frozenset({Verdict.SERVING, Verdict.SERVING_OTHER})


class VerdictChecker:
    """Looks at a simulation between its steps. ``seen`` are the verdicts that were given."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.seen: set[Verdict] = set()

    def check(self, names: Iterable[str], versions: Iterable[int], asked: ModelRef) -> None:
        """Raises AssertionError for a verdict of any of these that is not so, and for what is said of ``asked``."""
        view, numbers = self._simulation.survey(), list(versions)
        for name in names:
            model = self._model(name, view)
            for version in numbers:
                self._check_version(model, version)
            verdict = verdict_of_model(model)
            assert (verdict in ANSWERING) == self._answers(ModelRef(name)), f"{name}: {verdict}"
            if name == asked.name:
                self._check_words(explain(model, asked))

    def _check_version(self, model: ModelSnapshot, version: int) -> None:
        verdict, found = verdict_of_version(model, version), model.versions.get(version)
        ref = ModelRef(model.name, version)
        assert (verdict is Verdict.SERVING) == self._answers(ref), f"{ref}: {verdict}, {found}"
        state = found.view.state.state if found is not None and found.view is not None else None
        if verdict is not Verdict.SERVING:
            assert (verdict is Verdict.LEAVING) == (state in LEAVING), f"{ref}: {verdict} in {state}"
        if verdict is Verdict.NOT_CONFIGURED:
            assert not model.configured, f"{ref} is in the config"
        self.seen.add(verdict)

    def _answers(self, ref: ModelRef) -> bool:
        try:
            self._simulation.lookup(ref).release()
        except ServingError:
            return False
        return True

    def _check_words(self, answer: Explanation) -> None:
        assert answer.sentence
        assert len(answer.because) <= MAX_CHAIN
        assert answer.verdict is Verdict.SERVING or answer.because, f"no cause: {answer}"
        for link in answer.because:
            assert link.text, answer
            assert link.fix, answer
            assert len(link.as_json["text"]) <= MAX_TEXT
        assert answer.as_json["verdict"] == answer.verdict.name

    def _model(self, name: str, view: ManagerView) -> ModelSnapshot:
        """As the server's own snapshot is put together."""
        simulation, overview = self._simulation, ManagerOverview.of(view)
        report, found = simulation.source_checker.reports.get(name), simulation.found(name)
        managed, states = overview.by_model.get(name, {}), simulation.monitor.get_version_states(name)
        aspired = {item.version for item in simulation.checker.aspired.get(name, ())}
        waiting = report.waiting if report is not None else {}
        versions = {
            version: VersionSnapshot(
                version,
                managed.get(version),
                states.get(version),
                version in aspired,
                version in found.versions,
                Incomplete(waiting[version]) if version in waiting else None,
            )
            for version in known_versions(managed, states, aspired, waiting, found.versions)
        }
        config = simulation.source_checker.config.by_name
        now = simulation.clock
        server = ServerSnapshot(now.time(), now.monotonic(), view, memory=TOTAL, known=tuple(config), overview=overview)
        policy = config[name].policy if name in config else LatestPolicy()
        looked = report is not None
        return ModelSnapshot(name, server, name in config, versions, policy, report=report or NO_REPORT, looked=looked)
