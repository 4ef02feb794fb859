from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tfs_lite.metrics.tensorflow_text import MAX_CELLS, RawCounter, RawHistogram, RawMetric, exponential_buckets


def text(metric: RawMetric) -> str:
    return "".join(f"{line}\n" for line in metric.lines())


def test_a_counter_keeps_its_name_and_gets_no_suffix() -> None:
    counter = RawCounter("/tensorflow/serving/request_count", "Requests.", ("model_name", "status"))
    counter.add(("m", "OK"), 2)
    assert text(counter) == (
        "# HELP :tensorflow:serving:request_count Requests.\n"
        "# TYPE :tensorflow:serving:request_count counter\n"
        ':tensorflow:serving:request_count{model_name="m",status="OK"} 2\n'
    )


def test_a_counter_without_labels_prints_empty_braces() -> None:
    counter = RawCounter("runs", "Runs.")
    counter.add()
    assert text(counter).splitlines()[2] == "runs{} 1"


def test_nothing_is_printed_before_the_first_observation() -> None:
    assert text(RawCounter("a", "")) == text(RawHistogram("b", "", (), (1,))) == ""


def test_a_histogram_counts_up_and_a_limit_belongs_to_its_bucket() -> None:
    histogram = RawHistogram("seconds", "Time.", ("model",), (10, 18, 32.4))
    for value in (5, 10, 18.5, 1000):
        histogram.observe(("m",), value)
    assert text(histogram) == (
        "# HELP seconds Time.\n"
        "# TYPE seconds histogram\n"
        'seconds_bucket{model="m",le="10"} 2\n'
        'seconds_bucket{model="m",le="18"} 2\n'
        'seconds_bucket{model="m",le="32.4"} 3\n'
        'seconds_bucket{model="m",le="+Inf"} 4\n'
        'seconds_sum{model="m"} 1033.5\n'
        'seconds_count{model="m"} 4\n'
    )


def test_limits_are_printed_with_six_digits() -> None:
    histogram = RawHistogram("h", "", (), exponential_buckets(10, 1.8, 33))
    histogram.observe((), 1.0)
    limits = [line.split('le="')[1].split('"')[0] for line in text(histogram).splitlines() if "_bucket" in line]
    assert limits[:3] == ["10", "18", "32.4"]
    assert limits[-2:] == ["1.47476e+09", "+Inf"]


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb", "plain", ""])
def test_label_values_read_back(value: str) -> None:
    counter = RawCounter("c", "Number.", ("label",))
    counter.add((value,))
    (family,) = text_string_to_metric_families(text(counter))
    assert family.documentation == "Number."
    assert family.samples[0].labels == {"label": value}


def test_cells_are_bounded_and_the_oldest_goes_first() -> None:
    counter = RawCounter("c", "", ("n",))
    for number in range(MAX_CELLS + 5):
        counter.add((str(number),))
    assert len(text(counter).splitlines()) == MAX_CELLS + 2
    assert counter.value(("0",)) == 0
    assert counter.value((str(MAX_CELLS + 4),)) == 1


def test_forgetting_drops_only_the_cells_of_that_value() -> None:
    counter = RawCounter("c", "", ("model", "status"))
    for cell in (("a", "OK"), ("a", "INTERNAL"), ("b", "OK")):
        counter.add(cell)
    counter.forget("model", "a")
    assert counter.value(("a", "OK")) == counter.value(("a", "INTERNAL")) == 0
    assert counter.value(("b", "OK")) == 1
