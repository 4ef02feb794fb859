"""From what configs say to the settings of a batcher."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.config.batching import INT64_MAX, BatchingParameters
from tfs_lite.config.model import ModelSettings
from tfs_lite.schedulers.batching.settings import (
    MAX_SECONDS,
    BatchSettings,
    QueuePolicy,
    SendWhen,
    TimeoutAction,
    filled_up,
    rows_of_runs,
    settings_of_model,
    settings_of_parameters,
)


def of_model(max_batch_size: int = 8, signature_max: int | None = None, **batching: Any) -> BatchSettings:
    model = ModelSettings.model_validate({"max_batch_size": max_batch_size, "dynamic_batching": batching})
    settings = settings_of_model(model, signature_max, 100)
    assert settings is not None
    return settings


def of_parameters(model_max: int = 0, **parameters: Any) -> BatchSettings:
    return settings_of_parameters(BatchingParameters.model_validate(parameters), model_max, 100)


def test_a_config_that_is_silent_about_batching_means_no_settings() -> None:
    assert settings_of_model(ModelSettings(max_batch_size=8), 8, 100) is None


def test_an_empty_block_batches_whatever_is_there_and_expects_more() -> None:
    assert of_model() == BatchSettings(max_batch_size=8, max_request_rows=8, send=SendWhen.EXPECT, max_queued_calls=100)
    assert of_model(default_priority_level=5).default_priority == 0


def test_every_setting_of_the_block_counts() -> None:
    settings = of_model(
        preferred_batch_size=[6, 2],
        max_queue_delay_microseconds=1500,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy={"default_timeout_microseconds": 250_000, "allow_timeout_override": True},
        priority_queue_policy={"3": {"timeout_action": "DELAY", "max_queue_size": 7}},
    )
    assert settings == BatchSettings(
        max_batch_size=8,
        max_request_rows=8,
        preferred=(6, 2),
        max_delay=0.0015,
        send=SendWhen.WAIT,
        max_queued_calls=100,
        priority_levels=3,
        default_priority=2,
        default_policy=QueuePolicy(TimeoutAction.REJECT, 0.25, True),
        policies={3: QueuePolicy(TimeoutAction.DELAY, 0.0, False, 7)},
    )
    assert of_model(preserve_ordering=True).preserve_ordering


@pytest.mark.parametrize(
    ("config", "signature", "largest"), [(8, None, 8), (8, 0, 8), (8, 16, 8), (8, 4, 4), (0, 4, 4), (0, None, 1000)]
)
def test_the_smaller_bound_of_config_and_signature_counts(config: int, signature: int | None, largest: int) -> None:
    settings = of_model(config, signature)
    assert (settings.max_batch_size, settings.max_request_rows) == (largest, largest)
    assert settings.merges
    assert of_model(8, 4, preferred_batch_size=[2, 6, 8]).preferred == (2, 4)


def test_times_stay_in_the_range_of_clocks() -> None:
    assert of_model(max_queue_delay_microseconds=2**64 - 1).max_delay == MAX_SECONDS
    assert of_parameters(batch_timeout_micros=INT64_MAX).max_delay == MAX_SECONDS


def test_every_setting_of_the_file_counts_and_has_a_default() -> None:
    assert of_parameters() == BatchSettings(
        max_batch_size=1000, max_request_rows=1000, send=SendWhen.EXPECT, max_queued_rows=10_000, max_queued_calls=100
    )
    settings = of_parameters(
        max_batch_size=64,
        batch_timeout_micros=2000,
        max_enqueued_batches=5,
        allowed_batch_sizes=(8, 16, 64),
        pad_variable_length_inputs=True,
        enable_large_batch_splitting=True,
        max_execution_batch_size=32,
    )
    assert settings == BatchSettings(
        max_batch_size=32,
        max_request_rows=64,
        max_delay=0.002,
        send=SendWhen.WAIT,
        allowed_sizes=(8, 16, 32),
        pad_variable_length=True,
        split_large=True,
        max_queued_rows=160,
        max_queued_calls=100,
    )


def test_a_model_that_takes_less_lowers_the_sizes_of_the_file() -> None:
    settings = of_parameters(20, max_batch_size=64, allowed_batch_sizes=(8, 16, 64), max_enqueued_batches=2)
    assert (settings.max_batch_size, settings.max_request_rows, settings.max_queued_rows) == (20, 20, 40)
    assert settings.allowed_sizes == (8, 16, 20)
    assert of_parameters(100, max_batch_size=64).max_batch_size == 64


@given(
    largest=st.integers(1, 20),
    execution=st.integers(1, 20),
    model_max=st.integers(0, 20),
    batches=st.integers(1, 3),
    allowed=st.sets(st.integers(1, 20)),
)
def test_settings_of_a_file_are_consistent(
    largest: int, execution: int, model_max: int, batches: int, allowed: set[int]
) -> None:
    sizes = (*sorted(size for size in allowed if size < largest), largest) if allowed else ()
    settings = of_parameters(
        model_max,
        max_batch_size=largest,
        enable_large_batch_splitting=True,
        max_execution_batch_size=min(execution, largest),
        max_enqueued_batches=batches,
        allowed_batch_sizes=sizes,
    )
    assert 1 <= settings.max_batch_size <= settings.max_request_rows <= settings.max_queued_rows
    assert settings.max_batch_size <= (model_max or largest)
    assert list(settings.allowed_sizes) == sorted(set(settings.allowed_sizes))
    assert bool(settings.allowed_sizes) == bool(sizes)
    if sizes:
        assert settings.allowed_sizes[-1] == settings.max_batch_size


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (BatchSettings(), (1,)),
        (of_model(8), (1, 2, 4, 8)),
        (of_model(100), (1, 2, 4, 8, 16, 32, 64, 100)),
        (of_model(8, preferred_batch_size=[3, 6]), (1, 2, 3, 4, 6, 8)),
        (of_parameters(max_batch_size=32, allowed_batch_sizes=[8, 32]), (8, 32)),
        (BatchSettings(max_batch_size=20, allowed_sizes=tuple(range(1, 21))), tuple(range(2, 21, 2))),
        (of_model(1 << 16), tuple(1 << power for power in range(0, 17, 2))),
    ],
)
def test_rows_that_runs_will_have_are_the_allowed_ones_or_preferred_ones_and_powers_of_two(
    settings: BatchSettings, rows: tuple[int, ...]
) -> None:
    assert rows_of_runs(settings) == rows


def test_batches_are_filled_up_to_what_the_model_runs_fast_unless_the_config_says_to_what() -> None:
    assert filled_up(of_model(8), (1, 4, 8)).allowed_sizes == (1, 4, 8)
    assert filled_up(of_model(8), (1, 4, 8, 16)).allowed_sizes == (1, 4, 8)
    for settings, rows in (
        (of_model(8), ()),
        (of_model(8), (1, 4)),
        (BatchSettings(), (1,)),
        (of_parameters(max_batch_size=8, allowed_batch_sizes=[2, 8]), (1, 8)),
    ):
        assert filled_up(settings, rows) == settings
