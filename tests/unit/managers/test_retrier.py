"""When a failed load is tried again."""

from __future__ import annotations

import pytest

from tfs_lite.managers.retrier import RetryPolicy, next_delay


@pytest.mark.parametrize(("failures", "delay"), [(1, 60.0), (5, 60.0), (6, None), (7, None)])
def test_default_is_six_attempts_a_minute_apart(failures: int, delay: float | None) -> None:
    assert next_delay(RetryPolicy(), failures, retryable=True, cancelled=False) == delay


@pytest.mark.parametrize("max_retries", [0, -1])
def test_without_retries_the_first_failure_is_the_last(max_retries: int) -> None:
    assert next_delay(RetryPolicy(max_retries), 1, retryable=True, cancelled=False) is None


@pytest.mark.parametrize(("retryable", "cancelled"), [(False, False), (True, True), (False, True)])
def test_refused_or_cancelled_load_is_not_tried_again(retryable: bool, cancelled: bool) -> None:
    assert next_delay(RetryPolicy(), 1, retryable=retryable, cancelled=cancelled) is None


@pytest.mark.parametrize("interval", [0.0, -1.0])
def test_interval_that_is_not_positive_means_at_once(interval: float) -> None:
    assert next_delay(RetryPolicy(1, interval), 1, retryable=True, cancelled=False) == 0.0
