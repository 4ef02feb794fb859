from __future__ import annotations

import re
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    enable_created_metrics,
    generate_latest,
)

from tfs_lite.metrics.series import (
    Cells,
    CounterSeries,
    HistogramSeries,
    LengthSeries,
    SeriesCollector,
    SeriesLock,
    add_sorted,
)

LIMITS = (0.001, 0.01, 2.5)
MODEL = ("model", "version")


def page(registry: CollectorRegistry) -> str:
    """Without the times at which series were made."""
    text = generate_latest(registry).decode()
    return re.sub(r"^(\w+_created\{.*\}) \S+$", r"\1 T", text, flags=re.MULTILINE)


def ours() -> CollectorRegistry:
    guard, registry = SeriesLock(), CollectorRegistry()
    counter = CounterSeries(guard, "a_requests", "Requests.", ("model", "code"))
    histogram = HistogramSeries(guard, "a_seconds", "Times.", MODEL, LIMITS)
    gauge = LengthSeries(guard, "a_inside", "Inside.", MODEL)
    registry.register(SeriesCollector(guard, (counter, histogram, gauge)))
    with guard.lock:
        counter.cell(('m"\\', "OK"))[0] += 3
        for value in (0.0005, 0.01, 7):
            cell = histogram.cell(("m", "1"))
            cell[bisect_left(LIMITS, value)] += 1
            cell[-1] += value
        gauge.cell(("m", "1")).append(1)
        gauge.cell(("m", "2"))
    return registry


def theirs() -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("a_requests", "Requests.", ("model", "code"), registry=registry)
    histogram = Histogram("a_seconds", "Times.", MODEL, buckets=LIMITS, registry=registry)
    gauge = Gauge("a_inside", "Inside.", MODEL, registry=registry)
    counter.labels('m"\\', "OK").inc(3)
    for value in (0.0005, 0.01, 7):
        histogram.labels("m", "1").observe(value)
    gauge.labels("m", "1").inc()
    gauge.labels("m", "2")
    return registry


def test_the_page_is_the_one_that_prometheus_client_would_write() -> None:
    assert page(ours()) == page(theirs())
    assert "a_requests_created" in page(ours())


def test_times_of_birth_can_be_turned_off_as_ever() -> None:
    disable_created_metrics()
    try:
        assert page(ours()) == page(theirs())
        assert "_created" not in page(ours())
    finally:
        enable_created_metrics()


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="a_seconds"):
        Histogram("a_seconds", "Times.", registry=ours())


@given(st.lists(st.one_of(st.sampled_from(LIMITS), st.floats(0, 5)), max_size=50))
def test_counting_many_is_counting_one_after_the_other(values: list[float]) -> None:
    expected = [0.0] * (len(LIMITS) + 2)
    for value in values:
        expected[bisect_left(LIMITS, value)] += 1
    found = [0.0] * len(expected)
    add_sorted(found, LIMITS, sorted(values), 12.5)
    assert found == [*expected[:-1], 12.5]


def test_a_cell_that_goes_is_told_by_the_guard() -> None:
    guard = SeriesLock()
    cells = Cells(guard, ("model", "code"), most=2)
    kept = cells.cell(("a", "OK"))
    assert cells.cell(("a", "OK")) is kept
    cells.cell(("b", "OK"))
    assert guard.dropped == 0
    cells.cell(("c", "OK"))
    assert guard.dropped == 1
    assert ("a", "OK") not in cells.snapshot()
    assert cells.cell(("a", "OK")) is not kept


def test_dropping_takes_the_cells_with_all_of_the_values() -> None:
    cells = Cells(SeriesLock(), ("model", "version", "code"))
    for labels in (("a", "1", "OK"), ("a", "1", "INTERNAL"), ("a", "2", "OK"), ("b", "1", "OK")):
        cells.cell(labels)
    cells.drop(model="a", version="1")
    assert list(cells.snapshot()) == [("a", "2", "OK"), ("b", "1", "OK")]


def test_a_bucket_has_the_exemplar_that_came_last_and_loses_it_with_its_cell():
    guard = SeriesLock()
    series = HistogramSeries(guard, "seconds", "Times.", ("model",), (1.0, 2.0))
    with guard:
        series.add_exemplar(("m",), 0.5, "none", 1.0)  # without a cell
        series.cell(("m",))
        for number, value in enumerate((0.5, 1.0, 3.0)):
            series.add_exemplar(("m",), value, f"{number:032x}", 100.0 + number)

    def exemplars() -> dict[str, str]:
        with guard:
            cells = series.snapshot()
        samples = series.family(cells, {}).samples
        return {found.labels["le"]: found.exemplar.labels["trace_id"] for found in samples if found.exemplar}

    assert exemplars() == {"1.0": f"{1:032x}", "+Inf": f"{2:032x}"}
    with guard:
        series.drop(model="m")
        series.cell(("m",))
    assert not exemplars()
