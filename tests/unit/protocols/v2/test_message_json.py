"""Messages that are no inference, as HTTP prints them."""

from __future__ import annotations

from tfs_lite.protocols.descriptors import message_class
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.protocols.v2.message_json import message_json

LARGEST = 2**64 - 1


def test_fields_are_in_the_order_of_the_message_with_defaults_and_large_numbers() -> None:
    batch = message_class("inference.InferBatchStatistics")(
        batch_size=4, compute_infer=v2.StatisticDuration(count=1, ns=LARGEST)
    )
    found = message_json(v2.ModelStatistics(name="m", last_inference=LARGEST, batch_stats=[batch]))
    assert list(found.items()) == [
        ("name", "m"),
        ("version", ""),
        ("last_inference", LARGEST),
        ("inference_count", 0),
        ("execution_count", 0),
        ("batch_stats", [{"batch_size": 4, "compute_infer": {"count": 1, "ns": LARGEST}}]),
        ("memory_usage", []),
        ("response_stats", {}),
    ]


def test_block_with_nothing_but_zeros_is_there_if_it_is_set() -> None:
    found = message_json(v2.InferStatistics(success=v2.StatisticDuration()))
    assert found == {"success": {"count": 0, "ns": 0}}


def test_maps_are_in_the_order_that_is_asked_for() -> None:
    numbers = [str(number) for number in range(12)]
    statistics = v2.ModelStatistics(response_stats={number: {} for number in reversed(numbers)})
    answer = v2.ModelStatisticsResponse(model_stats=[statistics])
    (found,) = message_json(answer, order=int)["model_stats"]
    assert list(found["response_stats"]) == numbers
    (found,) = message_json(answer)["model_stats"]
    assert list(found["response_stats"]) == sorted(numbers)
