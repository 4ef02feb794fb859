"""The page of a server with language models, against what its engines have told."""

from __future__ import annotations

import gc

import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.generation import EngineState, StepReport, TextReport, Usage
from tfs_lite.core.servable import ServableId
from tfs_lite.metrics.generation import GenerationMetrics
from tfs_lite.metrics.series import KEPT_VERSIONS

M1 = ServableId("m", 1)


class Engine:
    batches = True

    def __init__(self, running: int) -> None:
        self.running = running

    def state(self) -> EngineState:
        return EngineState(self.running, 2, 30, 20, 1000)


@pytest.fixture
def metrics(registry: CollectorRegistry) -> GenerationMetrics:
    return GenerationMetrics(registry)


def value(registry: CollectorRegistry, name: str, version: int = 1, **labels: str) -> float | None:
    return registry.get_sample_value(f"tfs_lite_generation_{name}", {"model": "m", "version": str(version), **labels})


def text(outcome: str = "stop", first: float | None = 0.2, output: int = 5, version: int = 1) -> TextReport:
    return TextReport(ServableId("m", version), outcome, Usage(7, output, 3), 7, 0.1, first, 1.0, 1.1)


def test_a_step_is_counted_by_its_kind(metrics: GenerationMetrics, registry: CollectorRegistry) -> None:
    metrics.on_step(StepReport(M1, "mixed", rows=10, texts=3, seconds=0.02, gaps=(0.02, 0.03), preempted=1))
    assert value(registry, "step_seconds_sum", kind="mixed") == 0.02
    assert value(registry, "step_rows_sum") == 10
    assert value(registry, "step_texts_sum") == 3
    assert value(registry, "inter_token_seconds_count") == 2
    assert value(registry, "inter_token_seconds_bucket", le="0.025") == 1
    assert value(registry, "preemptions_total") == 1
    assert value(registry, "step_failures_total") == 0
    metrics.on_step(StepReport(M1, "decode", 1, 1, 0.1, ok=False))
    assert value(registry, "step_failures_total") == 1


def test_a_text_is_counted_in_tokens_and_in_seconds(metrics: GenerationMetrics, registry: CollectorRegistry) -> None:
    metrics.on_text(text())
    tokens = {"prompt": 7, "output": 5, "prefix_hit": 3, "prefix_queried": 7}
    assert {name: value(registry, f"{name}_tokens_total") for name in tokens} == tokens
    assert value(registry, "time_to_first_token_seconds_sum") == 0.2
    assert value(registry, "time_per_output_token_seconds_sum") == pytest.approx(0.2)
    assert value(registry, "queue_seconds_sum") == 0.1
    assert value(registry, "text_seconds_count", outcome="stop") == 1


def test_a_text_without_a_token_has_no_time_of_its_first(
    metrics: GenerationMetrics, registry: CollectorRegistry
) -> None:
    metrics.on_text(text("cancelled", first=None, output=0))
    assert value(registry, "time_to_first_token_seconds_count") is None
    assert value(registry, "text_seconds_count", outcome="cancelled") == 1
    metrics.on_text(text(output=1))
    assert value(registry, "time_per_output_token_seconds_count") is None, "one token has no time for each"


def test_states_of_engines_are_there_while_they_are_in_memory(
    metrics: GenerationMetrics, registry: CollectorRegistry
) -> None:
    old, new = Engine(4), Engine(6)
    metrics.watch(M1, old)
    metrics.watch(ServableId("m", 2), new)
    assert [value(registry, "running", version) for version in (1, 2)] == [4, 6]
    assert value(registry, "waiting") == 2
    assert value(registry, "shares_steps") == 1
    assert [value(registry, f"cache_tokens{which}") for which in ("_reserved", "_written", "")] == [30, 20, 1000]
    del old
    gc.collect()
    assert value(registry, "running") is None
    assert value(registry, "running", 2) == 6


def test_state_of_an_unloaded_version_is_dropped_while_it_is_still_referenced(
    metrics: GenerationMetrics, registry: CollectorRegistry
) -> None:
    old, new = Engine(4), Engine(6)
    metrics.watch(M1, old)
    metrics.watch(ServableId("m", 2), new)
    metrics.version_gone(M1)
    assert [value(registry, "running", version) for version in (1, 2)] == [None, 6]
    again = Engine(1)
    metrics.watch(M1, again)
    assert [value(registry, "running", version) for version in (1, 2)] == [1, 6]


def test_series_of_a_version_that_is_loaded_again_stay(metrics: GenerationMetrics, registry: CollectorRegistry) -> None:
    for version in range(1, KEPT_VERSIONS + 3):
        metrics.on_text(text(version=version))
        metrics.version_gone(ServableId("m", version))
        metrics.version_back(M1)
    assert [value(registry, "output_tokens_total", version) for version in (1, 2)] == [5, None]


def test_series_of_old_versions_go(metrics: GenerationMetrics, registry: CollectorRegistry) -> None:
    for version in range(1, KEPT_VERSIONS + 3):
        metrics.on_text(text(version=version))
        metrics.version_gone(ServableId("m", version))
    assert value(registry, "output_tokens_total", 1) is None
    assert value(registry, "output_tokens_total", KEPT_VERSIONS + 2) == 5
    metrics.model_gone("m")
    assert value(registry, "output_tokens_total", KEPT_VERSIONS + 2) is None


def test_a_version_with_two_engines_has_one_sample_of_each_number(registry, metrics):
    old, new = Engine(4), Engine(6)
    metrics.watch(M1, old)
    metrics.watch(M1, new)
    assert value(registry, "running") == 10
    samples = [sample for family in registry.collect() for sample in family.samples]
    keys = [(sample.name, tuple(sample.labels.items())) for sample in samples]
    assert len(set(keys)) == len(keys)
