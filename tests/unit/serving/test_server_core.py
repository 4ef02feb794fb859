"""The core without doors: no event loop, no ports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.in_process import QUICK, config_text, entry
from tests.support.servers.logs import log_file, predict_log
from tests.support.servers.process import wait_until
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.loader import Loader
from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ModelRef, ServableId, VersionState
from tfs_lite.core.state import ManagerState, ReplicaReport
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, invalid_argument
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import LifecycleEvent, StateChanged
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.server_core import ServerCore

Publish = Callable[[str, int], Path]
Start = Callable[..., ServerCore]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A core that was given its first config; closed after the test."""
    cores: list[ServerCore] = []

    def make(*models: str, **fields: Any) -> ServerCore:
        core = ServerCore(ServerOptions(**{**QUICK, **fields}))
        cores.append(core)
        core.start()
        core.load_first(parse_model_server_config(config_text(tmp_path, *models), "first"))
        return core

    yield make
    for core in cores:
        core.close(20.0)


def state(core: ServerCore, version: int) -> VersionState | None:
    return {item.version: item.state for item in core.states.report("m").versions}.get(version)


def test_handle_gives_the_version_asked_for_and_holds_it(start: Start, publish: Publish) -> None:
    publish("m", 1)
    core = start(entry("m"))
    assert core.wait_for_first(first_attempt_counts=True).error is None
    with core.handle(ModelRef("m")) as handle:
        assert handle.id.version == 1
        publish("m", 2)
        wait_until(lambda: state(core, 2) is VersionState.AVAILABLE, "version 2 is available", 30)
        wait_until(lambda: state(core, 1) is VersionState.UNLOADING, "version 1 waits for its handle", 30)
        assert handle.servable.traits.platform == "pytorch_export"
    wait_until(lambda: state(core, 1) is VersionState.END, "version 1 is unloaded", 30)


def test_model_without_a_name_is_no_model_and_a_counter_that_is_not_there_is_zero(start: Start) -> None:
    core = start()
    assert "ModelSpec has no name specified" in refusal(core.handle, ModelRef(""))
    assert core.metrics.value("no_such_counter") == 0.0


class Broken(Feature):
    """Fails in whatever is asked of it while the core serves."""

    def on_event(self, event: LifecycleEvent) -> None:
        raise ValueError("a defect")

    def wrap(self, id: ServableId, loader: Loader) -> Loader:
        raise ValueError("a defect")

    def silence(self, id: ServableId) -> Status:
        raise ValueError("a defect")

    def accepted(self, id: ServableId) -> bool:
        raise ValueError("a defect")

    def explains(self, name: str, version: int | None) -> Mapping[str, Sequence[Any]]:
        raise ValueError("a defect")

    def replicas(self) -> Iterator[ReplicaReport]:
        yield ReplicaReport(ServableId("m", 1), "starting", ())
        raise ValueError("a defect")

    def first_load_ended(self) -> None:
        raise ValueError("a defect")

    def stopping(self) -> None:
        raise ValueError("a defect")

    def close(self) -> None:
        raise ValueError("a defect")


class Hearing(Feature):
    """Notes the states that it hears of."""

    def __init__(self) -> None:
        self.states: list[ManagerState] = []

    def on_event(self, event: LifecycleEvent) -> None:
        if isinstance(event, StateChanged):
            self.states.append(event.timed.state.state)


def test_a_feature_that_fails_costs_the_others_and_the_versions_nothing(
    tmp_path: Path, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    publish("m", 1)
    hearing = Hearing()
    core = ServerCore(ServerOptions(**QUICK), [lambda core: Broken(), lambda core: hearing])
    try:
        core.start()
        core.load_first(parse_model_server_config(config_text(tmp_path, entry("m")), "first"))
        wait_until(lambda: state(core, 1) is VersionState.AVAILABLE, "the version serves", 30)
        core.end_first_load()
        core.handle(ModelRef("m")).release()
        assert core.view.can_be_asked(ServableId("m", 1))
        assert list(core.view.replicas()) == []
        assert core.features.explains("m", None) == {}
        failures = core.registry.get_sample_value
        count = failures("tfs_lite_feature_failures_total", {"feature": "Broken", "what": "StateChanged"})
    finally:
        core.close(20.0)
    assert hearing.states[:3] == [ManagerState.START, ManagerState.LOADING, ManagerState.AVAILABLE]
    for what in (
        "StateChanged",
        "SourceReported",
        "wrap",
        "accepted",
        "silence",
        "explains",
        "replicas",
        "first_load_ended",
    ):
        assert caplog.text.count(f"the feature Broken failed on {what}") == 1, what
    assert count is not None
    assert count >= 3
    assert caplog.text.count("tfs-Broken failed") == 2  # in stopping and close


class AsksAtOnce(Feature):
    """Sends a request to each version as soon as it answers, before any other feature hears that it is available."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self.answers: list[Mapping[str, Any] | Status] = []

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case StateChanged(timed) if timed.state.state is ManagerState.AVAILABLE:
                answered = threading.Event()

                def done(answer: Mapping[str, Any] | Status) -> None:
                    self.answers.append(answer)
                    answered.set()

                call = PredictCall("serving_default", {"x": np.zeros((1, 3), np.float32)}, (), None, done)
                with self._core.handle(ModelRef("m", timed.state.id.version)) as handle:
                    handle.servable.submit(call)
                    assert answered.wait(30)


def test_statistics_count_a_request_that_comes_before_the_state_of_its_version_is_told(
    tmp_path: Path, publish: Publish
) -> None:
    publish("m", 1)
    core = ServerCore(ServerOptions(**QUICK), [AsksAtOnce])
    try:
        core.start()
        core.load_first(parse_model_server_config(config_text(tmp_path, entry("m")), "first"))
        assert core.wait_for_first(first_attempt_counts=True).error is None
        asks = core.find(AsksAtOnce)
        assert asks is not None
        wait_until(lambda: asks.answers, "it has been asked", 30)
        (found,) = core.statistics.statistics.statistics([ServableId("m", 1)])
        assert [isinstance(answer, Status) for answer in asks.answers] == [False]
        assert (found.inference_count, found.execution_count) == (1, 1)
    finally:
        core.close(20.0)


class Accepting(Feature):
    """Takes version 2 of every model as it is."""

    def accepted(self, id: ServableId) -> bool:
        return id.version == 2


def test_a_version_that_a_feature_accepts_is_not_held_back(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    publish("m", 2)
    (tmp_path / "m" / "replay.tfrecord").write_bytes(log_file(predict_log({"no such input": np.zeros((1, 3))})))
    core = ServerCore(ServerOptions(**QUICK), [lambda core: Accepting()])
    try:
        core.start()
        models = config_text(tmp_path, entry("m", "model_version_policy { all {} }"))
        core.load_first(parse_model_server_config(models, "first"))
        wait_until(lambda: state(core, 2) is VersionState.AVAILABLE, "the accepted version serves", 30)
        wait_until(lambda: state(core, 1) is VersionState.END, "the other one does not", 30)
        assert core.states.version_states("m")[1].state.health.reason is Reason.HELD_BACK
    finally:
        core.close(20.0)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a defect"), "FAILED_PRECONDITION: the feature Late cannot start: ValueError: a defect"),
        (invalid_argument("--late=5 is too much"), "INVALID_ARGUMENT: --late=5 is too much"),
    ],
)
def test_a_feature_that_cannot_start_keeps_the_core_from_starting(error: Exception, text: str) -> None:
    class Late(Feature):
        def start(self) -> None:
            raise error

    core = ServerCore(ServerOptions(**QUICK), [lambda core: Late()])
    try:
        with pytest.raises(ServingError) as found:
            core.start()
        assert f"{found.value.code.name}: {found.value}" == text
    finally:
        core.close(0.0)


def test_a_feature_that_cannot_be_made_is_named_and_the_others_are_closed() -> None:
    closed = []

    class First(Feature):
        def close(self) -> None:
            closed.append("first")

    def second(core: ServerCore) -> Feature:
        raise KeyError("a defect")

    with pytest.raises(ServingError, match=r"the feature .*second cannot be made: KeyError: 'a defect'"):
        ServerCore(ServerOptions(**QUICK), [lambda core: First(), second])
    assert closed == ["first"]


def test_features_that_hang_cost_the_close_one_bound_and_the_others_are_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tfs_lite.serving.feature.JOIN_SECONDS", 0.2)
    release, ended, threads = threading.Event(), [], set()

    class Hanging(Feature):
        def stopping(self) -> None:
            release.wait()

    class Quick(Feature):
        def stopping(self) -> None:
            threads.add(threading.get_ident())

        def close(self) -> None:
            ended.append(self)

    quick = [Quick() for _ in range(10)]
    core = ServerCore(ServerOptions(**QUICK), [lambda core, each=each: each for each in (Hanging(), *quick, Hanging())])
    core.close(0.0)
    assert ended == quick
    assert len(threads) < len(quick)
    assert caplog.text.count("these have not ended in time and are left behind: tfs-Hanging") == 2
    release.set()


def test_a_listener_to_changes_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    changes, heard = ChangeNotifier(), list[str]()
    changes.listen(lambda: heard.remove("nothing"))
    changes.listen(lambda: heard.append("told"))
    changes.notify("m")
    assert heard == ["told"]
    assert "a listener to changes failed" in caplog.text


def test_labels_are_not_known_before_the_first_config() -> None:
    core = ServerCore(ServerOptions())
    try:
        refusal(core.handle, ModelRef("m", label="stable"), code=StatusCode.UNAVAILABLE)
    finally:
        core.close(0.0)


def test_version_that_does_not_fit_ends_with_the_reason(start: Start, publish: Publish) -> None:
    publish("m", 1)
    core = start(entry("m"), total_model_memory_limit_bytes=1000)
    error = core.wait_for_first(first_attempt_counts=True).error
    assert error is not None
    assert "RESOURCE_EXHAUSTED" in str(error)
    assert state(core, 1) is VersionState.END


def test_server_that_never_looks_at_the_disk_has_nothing_to_wait_for(start: Start, publish: Publish) -> None:
    publish("m", 1)
    core = start(entry("m"), file_system_poll_wait_seconds=-1)
    assert core.wait_for_first(first_attempt_counts=True).outcomes == {}
    core.reloader.reload(
        parse_model_server_config('model_config_list { config { name: "n" base_path: "/n" } }', "next")
    )
    assert [report.name for report in core.states.reports()] == ["n"]


def test_one_look_takes_what_is_there_and_no_more(start: Start, publish: Publish) -> None:
    publish("m", 1)
    core = start(entry("m"), file_system_poll_wait_seconds=0)
    assert core.wait_for_first(first_attempt_counts=True).error is None
    publish("m", 2)
    assert state(core, 2) is None


def test_waits_end_when_the_core_is_told_to_stop(start: Start) -> None:
    core = start(entry("m"))
    core.waiter.close()
    core.waiter.wait_for_all()
    empty = parse_model_server_config("model_config_list {}", "next")
    assert "shutting down" in refusal(core.reloader.reload, empty, code=StatusCode.UNAVAILABLE)


def test_model_availability_is_told_for_served_models_only(start: Start, publish: Publish) -> None:
    publish("m", 1)
    core = start(entry("m"), entry("n"))
    core.wait_for_first(first_attempt_counts=True)
    assert [core.view.is_model_available(name) for name in ("m", "n", "missing")] == [True, False, None]
