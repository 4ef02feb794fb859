"""Metrics of our own gRPC transport: connections, streams, calls and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.status import StatusCode
from tfs_lite.transport.numbers import Numbers

PREFIX = "tfs_lite_grpc_"
UNKNOWN = "unknown"
"""The method label of calls to unknown paths."""
_NAMES = {int(code): code.name for code in StatusCode}

GAUGES = (
    ("connections", "Connections that are open.", "connections"),
    ("streams", "Calls inside, those included whose client has gone and whose handler has not ended.", "streams"),
    ("unread_bytes", "Bytes of requests that no handler has taken yet.", "unread"),
    ("unsent_bytes", "Bytes of answers that wait for their clients to read.", "unsent"),
)
COUNTERS = (
    ("connections", "Connections that clients have opened.", "connections_total"),
    ("refused_streams", "Calls sent away because their connection had its most inside.", "refused"),
    ("resets_received", "Calls that clients broke off.", "resets_received"),
    ("resets_sent", "Calls that the server broke off.", "resets_sent"),
    ("received_bytes", "Bytes from clients, with everything that is not message.", "bytes_received"),
    ("sent_bytes", "Bytes to clients, with everything that is not message.", "bytes_sent"),
    ("received_messages", "Messages from clients.", "messages_received"),
    ("sent_messages", "Messages to clients.", "messages_sent"),
)
"""The end of the metric's name, its help text, and the field of Numbers."""


class TransportCollector(Collector):
    """Reads the numbers once per page, on the page's thread."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        numbers = self._numbers
        for name, text, field in GAUGES:
            yield GaugeMetricFamily(PREFIX + name, text, getattr(numbers, field))
        for name, text, field in COUNTERS:
            yield CounterMetricFamily(PREFIX + name, text, getattr(numbers, field))
        yield self._closed()
        yield self._calls()

    def _closed(self) -> Metric:
        family = CounterMetricFamily(
            f"{PREFIX}connections_closed", "Connections that ended, by what ended them.", labels=["kind"]
        )
        for kind, count in dict(self._numbers.closed).items():  # copied in one step, because the loop goes on counting
            family.add_metric([kind], count)
        return family

    def _calls(self) -> Metric:
        family = CounterMetricFamily(
            f"{PREFIX}calls", "Calls that ended, by method and status code.", labels=["method", "code"]
        )
        for (path, code), count in dict(self._numbers.calls).items():
            family.add_metric([path.removeprefix("/") or UNKNOWN, _NAMES.get(code, str(code))], count)
        return family
