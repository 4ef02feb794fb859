from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tfs_lite.core.servable import ServableId, VersionState, VersionStatus
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.metrics import LifecycleMetrics, StateCollector
from tfs_lite.serving.model_states import ModelReport
from tfs_lite.serving.opening.device_resources import ResourceUse
from tfs_lite.serving.reload import GoneModels

M1 = ServableId("m", 1)
BROKEN = Status(StatusCode.DATA_LOSS, "broken")
CANCELLED = Status(StatusCode.CANCELLED, "not wanted")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"tfs_lite_{name}", labels)


def test_a_life_is_one_load_and_one_unload(registry: CollectorRegistry) -> None:
    metrics = LifecycleMetrics(registry)
    for state in ManagerState:
        metrics.on_event(ServableState(M1, state))
    assert value(registry, "model_loads_total", model="m") == 1
    assert value(registry, "model_unloads_total", model="m") == 1
    assert value(registry, "model_load_failures_total", model="m") is None


def test_failure_counts_and_a_cancelled_load_does_not(registry: CollectorRegistry) -> None:
    metrics = LifecycleMetrics(registry)
    metrics.on_event(ServableState(M1, ManagerState.END, BROKEN))
    metrics.on_event(ServableState(M1, ManagerState.END, CANCELLED))
    assert value(registry, "model_load_failures_total", model="m") == 1
    assert value(registry, "model_unloads_total", model="m") is None


def test_only_successful_attempts_have_a_duration(registry: CollectorRegistry) -> None:
    metrics = LifecycleMetrics(registry)
    metrics.on_attempt(LoadAttempt(M1, 1, 5.0, BROKEN))
    metrics.on_attempt(LoadAttempt(M1, 2, 0.5, OK))
    assert value(registry, "model_load_attempts_total", model="m", result="failed") == 1
    assert value(registry, "model_load_seconds_count", model="m") == 1
    assert value(registry, "model_load_seconds_sum", model="m") == 0.5


def test_reloads_are_counted_by_result(registry: CollectorRegistry) -> None:
    metrics = LifecycleMetrics(registry)
    metrics.on_reload(ok=True)
    metrics.on_reload(ok=False)
    assert value(registry, "config_reloads_total", result="ok") == 1
    assert value(registry, "config_reloads_total", result="failed") == 1


def test_model_that_is_gone_leaves_nothing(registry: CollectorRegistry) -> None:
    metrics = LifecycleMetrics(registry)
    metrics.on_event(ServableState(M1, ManagerState.AVAILABLE))
    metrics.on_attempt(LoadAttempt(M1, 1, 0.5, OK))
    metrics.model_gone("m")
    metrics.model_gone("never seen")
    assert 'model="m"' not in generate_latest(registry).decode()


def test_states_memory_and_queues_are_read_when_asked_for(registry: CollectorRegistry) -> None:
    state = VersionState.LOADING
    registry.register(
        StateCollector(
            lambda: [ModelReport("m", (VersionStatus(1, state, OK),))],
            lambda: [ResourceUse("main", 0, 10, 100)],
            lambda: [(M1, 3)],
            lambda servable_id: True,
            lambda name: {1: 7.0},
        )
    )
    assert value(registry, "model_version_state", model="m", version="1", state="LOADING") == 1
    assert value(registry, "version_state_seconds", model="m", version="1", state="LOADING") == 7
    assert value(registry, "model_available", model="m") == 0
    assert value(registry, "memory_used_bytes", device="main", instance="0") == 10
    assert value(registry, "memory_total_bytes", device="main", instance="0") == 100
    assert value(registry, "queue_depth", model="m", version="1") == 3
    state = VersionState.AVAILABLE
    assert value(registry, "model_version_state", model="m", version="1", state="LOADING") is None
    assert value(registry, "model_version_state", model="m", version="1", state="AVAILABLE") == 1
    assert value(registry, "model_available", model="m") == 1


def test_every_model_of_the_config_tells_whether_it_is_available() -> None:
    registry, dead = CollectorRegistry(), ServableId("dead", 1)
    available = (VersionStatus(1, VersionState.AVAILABLE, OK),)
    ended = (VersionStatus(1, VersionState.END, BROKEN),)
    reports = [
        ModelReport("serves", available),
        ModelReport("dead", available),
        ModelReport("broken", ended),
        ModelReport("empty"),
    ]
    registry.register(
        StateCollector(lambda: reports, list, list, lambda servable_id: servable_id != dead, lambda name: {1: 3.0})
    )
    found = {name: value(registry, "model_available", model=name) for name in ("serves", "dead", "broken", "empty")}
    assert found == {"serves": 1, "dead": 0, "broken": 0, "empty": 0}
    assert value(registry, "version_state_seconds", model="serves", version="1", state="AVAILABLE") == 3
    assert value(registry, "version_state_seconds", model="broken", version="1", state="END") is None


def test_counters_of_a_configured_model_and_of_reloads_begin_with_0(registry: CollectorRegistry) -> None:
    metrics = LifecycleMetrics(registry)
    assert value(registry, "config_reloads_total", result="failed") == 0
    metrics.model_added("m")
    for name in ("model_loads", "model_load_failures", "model_unloads"):
        assert value(registry, f"{name}_total", model="m") == 0
    assert value(registry, "model_load_attempts_total", model="m", result="failed") == 0
    metrics.model_gone("m")
    assert 'model="m"' not in generate_latest(registry).decode()


def test_gone_models_are_dropped_the_longest_gone_first() -> None:
    gone = GoneModels(keep=2)
    assert gone.update([], ["a", "b"]) == []
    assert gone.update([], ["c"]) == ["a"]
    assert gone.update(["b"], []) == []
    assert gone.update([], ["d"]) == []
    assert gone.update([], ["e"]) == ["c"]
