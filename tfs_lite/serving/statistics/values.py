"""What statistics and settings calls show and change, as values: counts and durations, trace settings, log settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TraceSettings = Mapping[str, tuple[str, ...]]
"""Every value is a list of strings; settings with one value have a list of one."""


LogSettings = Mapping[str, bool | int | str]


@dataclass(frozen=True, slots=True)
class StatisticDuration:
    """How often, and nanoseconds in all."""

    count: int = 0
    ns: int = 0


_NONE = StatisticDuration()


@dataclass(frozen=True, slots=True)
class InferStatistics:
    success: StatisticDuration = _NONE
    fail: StatisticDuration = _NONE
    queue: StatisticDuration = _NONE
    compute_input: StatisticDuration = _NONE
    compute_infer: StatisticDuration = _NONE
    compute_output: StatisticDuration = _NONE
    cache_hit: StatisticDuration = _NONE
    cache_miss: StatisticDuration = _NONE


@dataclass(frozen=True, slots=True)
class InferResponseStatistics:
    """Of the n-th response of requests that have several."""

    compute_infer: StatisticDuration = _NONE
    compute_output: StatisticDuration = _NONE
    success: StatisticDuration = _NONE
    fail: StatisticDuration = _NONE
    empty_response: StatisticDuration = _NONE
    cancel: StatisticDuration = _NONE


@dataclass(frozen=True, slots=True)
class InferBatchStatistics:
    """Of the executions of one batch size."""

    batch_size: int
    compute_input: StatisticDuration = _NONE
    compute_infer: StatisticDuration = _NONE
    compute_output: StatisticDuration = _NONE


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """``type``: CPU, CPU_PINNED or GPU; ``id``: of the device."""

    type: str
    id: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """``last_inference``: milliseconds since 1970, 0 if there was none."""

    name: str
    version: str
    last_inference: int = 0
    inference_count: int = 0
    execution_count: int = 0
    inference_stats: InferStatistics = InferStatistics()
    batch_stats: tuple[InferBatchStatistics, ...] = ()
    memory_usage: tuple[MemoryUsage, ...] = ()
    response_stats: Mapping[str, InferResponseStatistics] = field(default_factory=dict)
