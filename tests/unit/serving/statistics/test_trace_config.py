"""``--trace_config``: Triton's words."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.core.status import StatusCode
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.statistics.trace_config import DEFAULT, TraceConfig, read_trace_config


def test_nothing_said_means_tritons_defaults():
    assert read_trace_config(()) == DEFAULT == TraceConfig("triton", ("OFF",), 1000, -1)


def test_a_command_line_of_tritonserver_is_read():
    words = "mode=opentelemetry,rate=100,level=TIMESTAMPS,count=100,opentelemetry,url=localhost:4318/v1/traces"
    more = (
        "opentelemetry,resource=service.name=ranker,opentelemetry,resource=zone=a=b,opentelemetry,bsp-schedule-delay=9"
    )
    config = read_trace_config((*words.split(","), *more.split(",")))
    assert (config.mode, config.rate, config.levels, config.count) == ("opentelemetry", 100, ("TIMESTAMPS",), 100)
    assert config.url == "http://localhost:4318/v1/traces"
    assert dict(config.resource) == {"service.name": "ranker", "zone": "a=b"}
    assert (config.schedule_delay, config.max_queue_size) == (9, None)


def test_settings_of_the_mode_triton_are_read():
    config = read_trace_config(("triton", "file=/tmp/t.json", "triton", "log-frequency=50", "level=TENSORS"))
    assert (config.file, config.log_frequency, config.levels) == ("/tmp/t.json", 50, ("TENSORS",))


@pytest.mark.parametrize(
    "words",
    [
        ("rate",),
        ("rate=x",),
        ("rate=-1",),
        ("count=-2",),
        ("rate=99999999999",),
        ("level=ALL",),
        ("mode=zipkin",),
        ("url=http://a",),
        ("opentelemetry",),
        ("opentelemetry", "triton", "file=x"),
        ("opentelemetry", "file=x"),
        ("opentelemetry", "url=ftp://a"),
        ("opentelemetry", "url=http://"),
        ("opentelemetry", "resource=zone"),
        ("opentelemetry", "bsp_max_queue_size=0"),
        ("triton", "url=http://a"),
    ],
)
def test_a_word_that_is_wrong_is_named(words: tuple[str, ...]):
    message = refusal(ServerOptions, trace_config=words, code=StatusCode.INVALID_ARGUMENT)
    assert message.startswith("trace_config: ")
    assert words[-1].partition("=")[2] in message
