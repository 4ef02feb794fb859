from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.cli.views.batches import PREDICTIONS, Quantile, quantile, read_numbers, verbose_table
from tfs_lite.cli.views.models import ModelRow, Version
from tfs_lite.metrics import requests as request_metrics

BUCKETS = ((0.001, 10.0), (0.002, 30.0), (0.004, 90.0), (inf, 100.0))


def test_a_quantile_lies_between_its_limits_in_proportion_and_beyond_them_is_a_bound() -> None:
    assert quantile(BUCKETS, 0.5) == Quantile(pytest.approx(0.002 + 0.002 * 20 / 60))
    assert quantile(BUCKETS, 0.3) == Quantile(0.002)
    assert quantile(BUCKETS, 0.05) == Quantile(0.001, "<")
    assert quantile(BUCKETS, 0.99) == Quantile(0.004, ">")
    assert quantile((), 0.5) is None
    assert quantile(((0.001, 0.0), (inf, 0.0)), 0.5) is None
    assert quantile(((0.001, 0.0), (0.002, 0.0), (0.004, 8.0), (inf, 8.0)), 0.5) == Quantile(0.003)


@given(st.lists(st.integers(0, 50), min_size=5, max_size=5), st.floats(0.01, 1))
def test_the_values_below_a_quantile_are_as_many_as_were_asked_for(counts: list[int], share: float) -> None:
    limits = (1.0, 2.0, 4.0, 8.0, inf)
    values = [limit if limit < inf else 99.0 for limit, count in zip(limits, counts, strict=True) for _ in range(count)]
    running = [float(sum(counts[: position + 1])) for position in range(5)]
    found = quantile(tuple(zip(limits, running, strict=True)), share)
    if not values:
        assert found is None
        return
    assert found is not None
    exact = sorted(values)[max(-(-share * len(values) // 1), 1).__int__() - 1]
    if found.bound == ">":
        assert exact == 99.0
    else:
        lower = max((limit for limit in (0.0, *limits) if limit < exact), default=0.0)
        assert lower <= found.seconds <= exact


@pytest.mark.parametrize(
    ("quantile", "text"),
    [
        (Quantile(0.00005, "<"), "<50 µs"),
        (Quantile(0.000123), "123 µs"),
        (Quantile(0.0009996), "1 ms"),
        (Quantile(0.01234), "12.3 ms"),
        (Quantile(0.9999), "1 s"),
        (Quantile(30.0, ">"), ">30 s"),
    ],
    ids=str,
)
def test_times_are_short(quantile: Quantile, text: str) -> None:
    assert str(quantile) == text


def test_the_methods_shown_are_those_that_the_server_times() -> None:
    assert request_metrics.PREDICTIONS == PREDICTIONS


@pytest.mark.parametrize(
    "page",
    [
        "<html></html>",
        "a{",
        'tfs_lite_queue_depth{model="m",version="1"}',
        'tfs_lite_queue_depth{model="m",version="1"} nan',
        'tfs_lite_queue_depth{model="m",version="1"} inf',
        'tfs_lite_batch_size_bucket{model="m",version="1",le="x"} 1',
    ],
    ids=["html", "cut", "no value", "nan", "infinite", "no limit"],
)
def test_a_page_that_is_none_is_refused(page: str) -> None:
    with pytest.raises(ValueError):
        read_numbers(page)


def test_other_metrics_and_versions_that_are_no_numbers_are_passed_over() -> None:
    page = (
        'python_info{model="m",version="1"} 1\n'
        'tfs_lite_requests_total{model="m",version="",method="Predict",code="OK"} 1\n'
        'tfs_lite_model_loads_total{model="m"} 1\n'
    )
    assert read_numbers(page) == {}


def test_workers_are_in_the_order_of_their_instances_and_may_be_down() -> None:
    page = "".join(
        f'tfs_lite_worker_up{{model="m",version="1",instance="{number}"}} {int(number != 2)}\n' for number in (10, 2, 0)
    )
    workers = read_numbers(page)["m", 1].workers
    assert [(worker.instance, worker.up) for worker in workers] == [("0", True), ("2", False), ("10", True)]


def test_worker_whose_model_was_opened_in_another_way_says_why() -> None:
    page = 'tfs_lite_worker_info{model="m",version="1",instance="0",kind="process",pid="7",reason="no [operator]"} 1\n'
    (worker,) = read_numbers(page)["m", 1].workers
    assert (worker.kind, worker.pid, worker.reason) == ("process", "7", "no [operator]")
    shown = verbose_table([ModelRow("m", (Version(1, "AVAILABLE"),))], read_numbers(page), {})
    (cell,) = shown.columns[-2].cells  # the last but one is that of the workers
    assert str(cell) == "pid 7: no [operator]"


def test_runs_of_a_language_model_are_the_steps_of_its_engine() -> None:
    version = 'model="m",version="1"'
    page = "\n".join(
        [
            "# TYPE tfs_lite_generation_step_rows histogram",
            f'tfs_lite_generation_step_rows_bucket{{{version},le="+Inf"}} 4',
            f"tfs_lite_generation_step_rows_sum{{{version}}} 10",
            f"tfs_lite_generation_step_rows_count{{{version}}} 4",
            "# TYPE tfs_lite_generation_inter_token_seconds histogram",
            f'tfs_lite_generation_inter_token_seconds_bucket{{{version},le="0.02"}} 0',
            f'tfs_lite_generation_inter_token_seconds_bucket{{{version},le="0.04"}} 10',
            f'tfs_lite_generation_inter_token_seconds_bucket{{{version},le="+Inf"}} 10',
            f"tfs_lite_generation_inter_token_seconds_sum{{{version}}} 0.3",
            f"tfs_lite_generation_inter_token_seconds_count{{{version}}} 10",
            "",
        ]
    )
    numbers = read_numbers(page)["m", 1]
    assert numbers.rows_per_run == 2.5
    assert numbers.run_p50 == Quantile(pytest.approx(0.03))
