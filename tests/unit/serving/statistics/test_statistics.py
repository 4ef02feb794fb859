"""The book of what versions did: requests, rows, runs and times, in V2's words."""

from __future__ import annotations

import numpy as np
import pytest

from tfs_lite.core.generation import Generation, GenerationCall
from tfs_lite.core.model import BatchReport, PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.schedulers.response_cache import CacheCounts
from tfs_lite.serving.statistics.statistics import MAX_BATCH_SIZES, InferenceStatistics

M1 = ServableId("m", 1)
NOW = 100.0
TIMEOUT = Status(StatusCode.UNAVAILABLE, "Request timeout expired", Reason.QUEUE_TIMEOUT)


@pytest.fixture
def book() -> InferenceStatistics:
    found = InferenceStatistics(lambda: NOW, lambda: 1_000_000.5)
    found.opened(M1)
    return found


def call(rows: int = 1, admitted: bool = True, arrived: float = 99.5) -> PredictCall:
    made = PredictCall("serving_default", {"x": np.zeros((rows, 2))}, (), None, lambda answer: None)
    made.admitted, made.arrived = admitted, arrived
    made.queue_seconds, made.run_seconds, made.copy_seconds = 0.25, 0.125, (0.03125, 0.0625)
    return made


def duration(count: int, ns: int) -> Message:
    return v2.StatisticDuration(count=count, ns=ns)


def of(book: InferenceStatistics):
    (found,) = book.statistics([M1])
    return found


def test_success_counts_request_queue_and_the_whole_time_of_its_batch(book):
    book.on_call(M1, call(), {"y": np.zeros(1)})
    stats = of(book).inference_stats
    assert stats.success == duration(1, 500_000_000)
    assert stats.queue == duration(1, 250_000_000)
    assert stats.compute_input == stats.compute_infer == duration(1, 31_250_000)
    assert stats.compute_output == duration(1, 62_500_000)
    assert stats.fail == duration(0, 0)


def test_run_counts_rows_without_padding_and_its_size_with_it(book):
    book.on_batch(BatchReport(M1, 3, 1, 0.5, (0.0, 0.0), True, (0.125, 0.125)))
    book.on_batch(BatchReport(M1, 2, 0, 0.5, (0.0,), True))
    found = of(book)
    assert (found.inference_count, found.execution_count, found.last_inference) == (5, 2, 1_000_000_500)
    assert [(size.batch_size, size.compute_infer) for size in found.batch_stats] == [
        (2, duration(1, 500_000_000)),
        (4, duration(1, 250_000_000)),
    ]


def test_failed_run_is_an_execution_without_rows(book):
    book.on_batch(BatchReport(M1, 3, 0, 0.5, (0.0,), False))
    assert (of(book).inference_count, of(book).execution_count) == (0, 1)


def test_request_refused_at_the_door_counts_nowhere(book):
    book.on_call(M1, call(admitted=False), Status(StatusCode.UNAVAILABLE, "Exceeds maximum queue size"))
    assert of(book).inference_stats.fail.count == 0
    assert not any(line.endswith(" 1") for line in book.lines())


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (TIMEOUT, "REJECTED"),
        (Status(StatusCode.CANCELLED, "gone"), "CANCELED"),
        (Status(StatusCode.DEADLINE_EXCEEDED, "late"), "CANCELED"),
        (Status(StatusCode.INTERNAL, "broken"), "BACKEND"),
        (Status(StatusCode.UNAVAILABLE, "worker lost"), "OTHER"),
    ],
    ids=lambda value: value.code.name if isinstance(value, Status) else value,
)
def test_failure_is_counted_by_its_reason(book, status, reason):
    book.on_call(M1, call(), status)
    failures = [line for line in book.lines() if line.startswith("nv_inference_request_failure")]
    assert f'nv_inference_request_failure{{model="m",reason="{reason}",version="1"}} 1' in failures
    assert len(failures) == 4
    assert of(book).inference_stats.fail.count == 1


def test_ensemble_counts_its_requests_as_runs_and_all_failures_as_other(book):
    whole = ServableId("whole", 1)
    book.opened(whole, ensemble=True, has_rows=True)
    book.on_call(whole, call(rows=3), {"y": np.zeros(1)})
    book.on_call(whole, call(), TIMEOUT)
    (found,) = book.statistics([whole])
    assert (found.inference_count, found.execution_count) == (3, 1)
    assert 'nv_inference_request_failure{model="whole",reason="OTHER",version="1"} 1' in set(book.lines())


def test_request_to_an_ensemble_without_a_batch_dimension_is_one_row(book):
    whole = ServableId("whole", 1)
    book.opened(whole, ensemble=True)
    book.on_call(whole, call(rows=3), {"y": np.zeros(1)})
    (found,) = book.statistics([whole])
    assert found.inference_count == 1


@pytest.mark.parametrize(
    ("inputs", "texts", "rows"),
    [
        ({"text_input": np.array([b"a", b"b"], object), "seed": np.ones(1)}, 0, 2),
        ({"input_ids": np.ones((3, 5), np.int64)}, 0, 3),
        ({"input_ids": np.ones(5, np.int64)}, 0, 1),
        ({}, 4, 4),
    ],
    ids=["texts", "rows of tokens", "tokens", "texts that were read elsewhere"],
)
def test_language_model_counts_its_requests_as_runs_and_their_texts_as_rows(book, inputs, texts, rows):
    book.opened(M1)
    done = call()
    made = GenerationCall("s", inputs, (), None, done.on_done, admitted=True, texts=(Generation("x"),) * texts)
    book.on_call(M1, made, {})
    assert (of(book).inference_count, of(book).execution_count, of(book).last_inference) == (rows, 1, 1_000_000_500)
    book.on_call(M1, made, TIMEOUT)
    assert (of(book).execution_count, of(book).inference_stats.fail.count) == (1, 1)


def test_answer_from_the_cache_is_a_request_and_no_inference():
    counts = {M1: CacheCounts(1, 1, 0.5, 0.25)}
    book = InferenceStatistics(lambda: NOW, cache_counts=lambda: counts)
    book.opened(M1)
    hit = call()
    hit.cached = True
    book.on_call(M1, hit, {"y": np.zeros(1)})
    stats = of(book).inference_stats
    assert (stats.success.count, stats.queue.count, stats.compute_infer.count) == (1, 1, 0)
    assert (stats.cache_hit, stats.cache_miss) == (duration(1, 500_000_000), duration(1, 250_000_000))
    assert 'nv_cache_num_hits_per_model{model="m",version="1"} 1' in set(book.lines())


def test_version_that_is_loaded_again_counts_from_zero(book):
    book.on_call(M1, call(), {})
    book.closed(M1)
    assert not list(book.lines())
    book.on_call(M1, call(), {})
    book.opened(M1)
    assert of(book).inference_stats.success.count == 0


def test_number_of_batch_sizes_is_bounded(book):
    for rows in range(1, MAX_BATCH_SIZES + 10):
        book.on_batch(BatchReport(M1, rows, 0, 0.0, (), True))
    assert len(of(book).batch_stats) == MAX_BATCH_SIZES
    assert of(book).execution_count == MAX_BATCH_SIZES + 9


@pytest.mark.parametrize(
    ("result", "last"),
    [
        ({}, "empty_response"),
        (Status(StatusCode.CANCELLED, "gone"), "cancel"),
        (Status(StatusCode.INTERNAL, "x"), "fail"),
    ],
    ids=["end", "cancel", "failure"],
)
def test_answers_of_decoupled_requests_are_counted_by_their_place(book, result, last):
    made = call()
    made.part_seconds = [0.5, 0.25]
    book.on_call(M1, made, result)
    found = of(book).response_stats
    assert [found[str(place)].success for place in range(2)] == [duration(1, 500_000_000), duration(1, 250_000_000)]
    assert getattr(found["2"], last).count == 1
    assert found["2"].success.count == 0


def test_load_and_what_waits_are_gauges(book):
    book.opened(M1, load_seconds=0.25)
    lines = set(book.lines([(M1, 3)]))
    assert 'nv_model_load_duration_secs{model="m",version="1"} 0.25' in lines
    assert 'nv_inference_pending_request_count{model="m",version="1"} 3' in lines
    assert "# TYPE nv_inference_pending_request_count gauge" in lines


def test_every_series_is_explained_beside_its_type(book):
    book.opened(M1, load_seconds=0.25)
    lines = list(book.lines([(M1, 3)]))
    typed = [index for index, line in enumerate(lines) if line.startswith("# TYPE")]
    assert typed
    for index in typed:
        name = lines[index].split()[2]
        assert lines[index - 1].startswith(f"# HELP {name} ")


def test_names_of_models_are_escaped(book):
    book.opened(ServableId('a"b', 1))
    assert 'nv_inference_count{model="a\\"b",version="1"} 0' in set(book.lines())
