"""Settings of sequences, as the config says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.schedulers.sequence_models import sum_settings
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen
from tfs_lite.schedulers.sequence.settings import (
    DirectSettings,
    SequenceSettings,
    direct_settings_of,
    oldest_settings_of,
    sequence_settings_of,
)


@pytest.mark.parametrize(
    ("batch", "how", "slots"),
    [
        (4, {}, 4),
        (0, {"direct": {}}, 1),
        (4, {"oldest": {}}, 4),
        (0, {"oldest": {}}, 1),
        (4, {"oldest": {"max_candidate_sequences": 9}}, 9),
    ],
    ids=["direct", "direct-alone", "oldest", "oldest-alone", "candidates"],
)
def test_slots_are_the_rows_of_direct_and_the_candidates_of_oldest(batch: int, how: dict[str, Any], slots: int) -> None:
    settings = sequence_settings_of(sum_settings(batch, **how), 50)
    assert settings == SequenceSettings(slots, 1.0, "oldest" in how, 50, 50)


def test_times_become_seconds() -> None:
    assert sequence_settings_of(sum_settings(max_sequence_idle_microseconds=2_500_000)).max_idle == 2.5
    assert sequence_settings_of(sum_settings(max_sequence_idle_microseconds=2**63)).max_idle == 1e9


def test_direct_runs_at_once_unless_the_config_says_more() -> None:
    assert direct_settings_of(sum_settings()) == DirectSettings()
    direct = {"max_queue_delay_microseconds": 1500, "minimum_slot_utilization": 0.75}
    assert direct_settings_of(sum_settings(direct=direct)) == DirectSettings(0.0015, 0.75)


def test_batcher_of_oldest_is_as_the_config_says() -> None:
    oldest = {
        "max_candidate_sequences": 9,
        "preferred_batch_size": [2, 4],
        "max_queue_delay_microseconds": 500,
        "preserve_ordering": True,
    }
    assert oldest_settings_of(sum_settings(4, oldest=oldest)) == BatchSettings(
        max_batch_size=4,
        max_request_rows=1,
        preferred=(2, 4),
        max_delay=0.0005,
        send=SendWhen.WAIT,
        max_queued_calls=9,
        preserve_ordering=True,
    )


def test_without_a_batch_dimension_oldest_runs_one_request_at_a_time_without_delay() -> None:
    oldest = {"max_candidate_sequences": 3, "max_queue_delay_microseconds": 500}
    assert oldest_settings_of(sum_settings(0, oldest=oldest)) == BatchSettings(max_queued_calls=3)


@pytest.mark.parametrize(
    "wrong",
    [{"slots_per_instance": 0}, {"max_backlog": 0}, {"max_queued": 0}, {"max_idle": 0.0}, {"max_idle": float("nan")}],
    ids=str,
)
def test_settings_without_room_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not a way to keep sequences"):
        SequenceSettings(**wrong)  # type: ignore[arg-type]
