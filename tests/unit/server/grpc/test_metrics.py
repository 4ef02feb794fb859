"""The transport's numbers as they are on the page."""

from __future__ import annotations

import threading
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tfs_lite.server.grpc.metrics import COUNTERS, GAUGES, TransportCollector
from tfs_lite.transport.numbers import Numbers


def page(numbers: Numbers) -> str:
    registry = CollectorRegistry()
    registry.register(TransportCollector(numbers))
    return generate_latest(registry).decode()


def samples(numbers: Numbers) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name without its beginning, labels by name) -> value."""

    def labels(sample: Any) -> tuple[str, ...]:
        return tuple(value for _, value in sorted(sample.labels.items()))

    return {
        (sample.name.removeprefix("tfs_lite_grpc_"), labels(sample)): sample.value
        for family in text_string_to_metric_families(page(numbers))
        for sample in family.samples
    }


def test_every_number_is_on_the_page_under_its_own_name() -> None:
    numbers = Numbers(3, 5, streams=7, refused=11, resets_received=13, resets_sent=17)
    numbers.bytes_received, numbers.bytes_sent, numbers.messages_received, numbers.messages_sent = 19, 23, 29, 31
    numbers.unread, numbers.unsent = 37, 41
    assert samples(numbers) == {
        ("connections", ()): 3,
        ("connections_total", ()): 5,
        ("streams", ()): 7,
        ("refused_streams_total", ()): 11,
        ("resets_received_total", ()): 13,
        ("resets_sent_total", ()): 17,
        ("received_bytes_total", ()): 19,
        ("sent_bytes_total", ()): 23,
        ("received_messages_total", ()): 29,
        ("sent_messages_total", ()): 31,
        ("unread_bytes", ()): 37,
        ("unsent_bytes", ()): 41,
    }


def test_every_field_of_the_numbers_is_shown() -> None:
    shown = {field for _, _, field in (*GAUGES, *COUNTERS)} | {"closed", "calls"}
    assert shown == set(Numbers.__dataclass_fields__)


def test_calls_have_method_and_name_of_their_code_and_ended_connections_their_kind() -> None:
    numbers = Numbers()
    numbers.calls.update({("/a.Service/M", 0): 4, ("/a.Service/M", 8): 1, ("", 12): 2, ("/a.Service/M", 99): 3})
    numbers.closed.update({"client": 2, "rapid_reset": 1})
    expected = {
        ("calls_total", ("OK", "a.Service/M")): 4,
        ("calls_total", ("RESOURCE_EXHAUSTED", "a.Service/M")): 1,
        ("calls_total", ("UNIMPLEMENTED", "unknown")): 2,
        ("calls_total", ("99", "a.Service/M")): 3,
        ("connections_closed_total", ("client",)): 2,
        ("connections_closed_total", ("rapid_reset",)): 1,
    }
    assert expected.items() <= samples(numbers).items()


def test_every_name_is_explained() -> None:
    lines = page(Numbers()).splitlines()
    explained = {line.split()[2]: line.split(maxsplit=3)[3] for line in lines if line.startswith("# HELP")}
    assert len(explained) == len(GAUGES) + len(COUNTERS) + 2
    assert all(text.endswith(".") for text in explained.values())


def test_a_page_can_be_made_while_calls_are_counted() -> None:
    numbers, over = Numbers(), threading.Event()

    def count() -> None:
        number = 0
        while not over.is_set():
            number += 1
            numbers.calls[(f"/a.Service/{number % 500}", number % 17)] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(8):
            page(numbers)
    finally:
        over.set()
        thread.join()
