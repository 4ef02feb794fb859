"""What the environment of OpenTelemetry says of traces, and what is said of what does not count."""

from __future__ import annotations

from typing import Any

import pytest

from tfs_lite.operations.traces.environment import GRPC, JSON, PROTOBUF, TraceEnvironment, read_environment
from tfs_lite.serving.statistics.trace_config import read_trace_config

OTLP = "OTEL_EXPORTER_OTLP_"


def read(variables: dict[str, str], *words: str) -> TraceEnvironment:
    return read_environment(read_trace_config(("mode=opentelemetry", *words)), variables)


def with_url(url: str) -> tuple[str, str]:
    return "opentelemetry", f"url={url}"


def test_what_the_standard_has_as_its_defaults_is_taken_without_a_word() -> None:
    named = {
        "ENDPOINT": "http://localhost:4318",
        "PROTOCOL": "http/protobuf",
        "TIMEOUT": "10000",
        "INSECURE": "false",
        "COMPRESSION": "none",
        "HEADERS": "",
        "CERTIFICATE": "",
    }
    others = {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_PROPAGATORS": "tracecontext,baggage",
        "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        "OTEL_BSP_SCHEDULE_DELAY": "5000",
        "OTEL_BSP_EXPORT_TIMEOUT": "30000",
        "OTEL_BSP_MAX_QUEUE_SIZE": "2048",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "512",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "128",
        f"{OTLP}METRICS_PROTOCOL": "grpc",
        f"{OTLP}LOGS_ENDPOINT": "http://logs",
    }
    found = read({**{f"{OTLP}{name}": value for name, value in named.items()}, **others})
    assert found == read({})
    assert (found.complaints, found.exports, found.otlp.timeout) == ((), True, 10.0)


@pytest.mark.parametrize(
    ("variables", "words", "place"),
    [
        ({}, (), (PROTOBUF, "http://localhost:4318/v1/traces", False)),
        ({"ENDPOINT": "https://a:1/b/"}, (), (PROTOBUF, "https://a:1/b/v1/traces", True)),
        ({"ENDPOINT": "http://a", "TRACES_ENDPOINT": "http://c/d"}, (), (PROTOBUF, "http://c/d", False)),
        ({"PROTOCOL": "http/json"}, (), (JSON, "http://localhost:4318/v1/traces", False)),
        ({"PROTOCOL": "grpc"}, (), (GRPC, "localhost:4317", False)),
        ({"TRACES_PROTOCOL": "grpc", "PROTOCOL": "http/json"}, (), (GRPC, "localhost:4317", False)),
        ({"PROTOCOL": "GRPC", "ENDPOINT": "http://a:1/ignored"}, (), (GRPC, "a:1", False)),
        ({"PROTOCOL": "grpc", "ENDPOINT": "https://[::1]:5"}, (), (GRPC, "[::1]:5", True)),
        ({"PROTOCOL": "grpc", "ENDPOINT": "a:1"}, (), (GRPC, "a:1", True)),
        ({"PROTOCOL": "grpc", "ENDPOINT": "a:1", "INSECURE": "true"}, (), (GRPC, "a:1", False)),
        ({"PROTOCOL": "grpc", "TRACES_ENDPOINT": "a", "TRACES_INSECURE": "TRUE"}, (), (GRPC, "a:4317", False)),
        ({"ENDPOINT": "http://a"}, with_url("http://flag/x"), (PROTOBUF, "http://flag/x", False)),
        ({"PROTOCOL": "grpc", "ENDPOINT": "http://a"}, with_url("http://flag:9"), (GRPC, "flag:9", False)),
    ],
)
def test_environment_says_where_and_how_where_the_flag_does_not(
    variables: dict[str, str], words: tuple[str, ...], place: tuple[str, str, bool]
) -> None:
    found = read({OTLP + name: value for name, value in variables.items()}, *words)
    assert (found.otlp.protocol, found.otlp.url, found.otlp.secure) == place
    assert found.complaints == ()


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"ENDPOINT": "https://me:secret@a:1/b"}, "https://a:1/b/v1/traces"),
        ({"TRACES_ENDPOINT": "http://a/b?key=secret"}, "http://a/b"),
        ({"PROTOCOL": "grpc", "ENDPOINT": "http://me:secret@a:1"}, "a:1"),
    ],
)
def test_place_has_nothing_secret(variables: dict[str, str], shown: str) -> None:
    assert read({OTLP + name: value for name, value in variables.items()}).otlp.place == shown


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({f"{OTLP}TIMEOUT": "2500"}, 2.5),
        ({f"{OTLP}TIMEOUT": "2500", f"{OTLP}TRACES_TIMEOUT": "500"}, 0.5),
        ({f"{OTLP}TIMEOUT": "2500", "OTEL_BSP_EXPORT_TIMEOUT": "200"}, 0.2),
    ],
)
def test_times_are_milliseconds(variables: dict[str, str], seconds: float) -> None:
    assert read(variables).otlp.timeout == seconds
    assert read(variables).complaints == ()


def test_headers_and_files_are_those_of_traces_before_the_others() -> None:
    variables = {
        f"{OTLP}HEADERS": "Api-Key=a%20b, other = c",
        f"{OTLP}CERTIFICATE": "all.pem",
        f"{OTLP}TRACES_CERTIFICATE": "ca.pem",
        f"{OTLP}CLIENT_CERTIFICATE": "me.pem",
        f"{OTLP}TRACES_CLIENT_KEY": "key.pem",
    }
    otlp = read(variables).otlp
    assert otlp.headers == {"api-key": "a b", "other": "c"}
    assert (otlp.authority, otlp.certificate, otlp.key) == ("ca.pem", "me.pem", "key.pem")


BAD: list[tuple[str, str, str]] = [
    (f"{OTLP}ENDPOINT", "collector:4318", "is collector:4318, which has no scheme: http:// counts"),
    (f"{OTLP}ENDPOINT", "ftp://a", "is ftp://a, expected http://HOST:PORT: http://localhost:4318 counts"),
    (f"{OTLP}ENDPOINT", "http://a:b", "is http://a:b, expected http://HOST:PORT: http://localhost:4318 counts"),
    (f"{OTLP}TRACES_TIMEOUT", "soon", "is soon, expected a whole number from 1: 10000 counts"),
    (f"{OTLP}TIMEOUT", "-1", "is -1, expected a whole number from 1: 10000 counts"),
    (f"{OTLP}TIMEOUT", "10", "is 10, which are milliseconds: hardly any collector answers that fast"),
    (f"{OTLP}COMPRESSION", "zip", "is zip, expected none, gzip, deflate: none counts"),
    (f"{OTLP}PROTOCOL", "http", "is http, expected grpc, http/protobuf, http/json: http/protobuf counts"),
    (f"{OTLP}HEADERS", "a=b,secret", "has a part (number 2) that is not NAME=VALUE: nothing of it counts"),
    (f"{OTLP}HEADERS", "a b=c", "has a header ('a b') that cannot be sent: it is left out"),
    (f"{OTLP}HEADERS", "a=%0d%0ab", "has a header ('a') that cannot be sent: it is left out"),
    (f"{OTLP}TRACES_ENDPONT", "http://a", "is not known: nothing of it counts"),
    ("OTEL_RESOURCE_ATTRIBUTES", "zone", "has a part (zone) that is not NAME=VALUE: nothing of it counts"),
    ("OTEL_SDK_DISABLED", "1", "is 1, expected true or false: false counts"),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "is 0, expected a whole number from 1: 2048 counts"),
    ("OTEL_TRACES_EXPORTER", "zipkin", "names zipkin, which is not here: spans go out by OTLP only"),
    ("OTEL_PROPAGATORS", "b3", "is b3: callers are known by traceparent and nothing else"),
    ("OTEL_TRACES_SAMPLER", "xray", "is xray, expected always_on, always_off, traceidratio, parentbased_always_on, "),
    ("OTEL_TRACES_SAMPLER", "always_on", "is always_on: of callers that do not record their traces, failures are"),
    ("OTEL_CONFIG_FILE", "/otel.yaml", "is set: such files are not read, --trace_config and the other variables count"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_variable_that_does_not_count_is_named_and_ends_nothing(name: str, value: str, words: str) -> None:
    found = read({name: value})
    assert found.exports
    (complaint,) = found.complaints
    assert complaint.startswith(f"{name} {words}")
    assert "secret" not in complaint


def test_protocol_that_does_not_fit_the_flags_url_is_named() -> None:
    found = read({f"{OTLP}PROTOCOL": "grpc"}, *with_url("http://a:4318/v1/traces"))
    assert (found.otlp.protocol, found.otlp.url) == (PROTOBUF, "http://a:4318/v1/traces")
    assert "the url of --trace_config has a path" in found.complaints[0]


@pytest.mark.parametrize(
    ("variables", "exports"),
    [
        ({"OTEL_SDK_DISABLED": "True"}, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp,none"}, True),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, False),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, True),
    ],
)
def test_environment_may_turn_traces_off(variables: dict[str, str], exports: bool) -> None:
    assert read(variables).exports is exports


@pytest.mark.parametrize(
    ("sampler", "argument", "rate"),
    [
        ("", "", 1000),
        ("always_on", "", 1),
        ("parentbased_always_on", "", 1),
        ("always_off", "", 0),
        ("parentbased_traceidratio", "0.01", 100),
        ("traceidratio", "0.3", 3),
        ("traceidratio", "", 1),
        ("traceidratio", "0", 0),
        ("traceidratio", "2", 1),
        ("traceidratio", "nan", 1),
        ("traceidratio", "much", 1),
        ("jaeger_remote", "", 1000),
    ],
)
def test_sampler_is_the_rate_where_the_flag_has_none(sampler: str, argument: str, rate: int) -> None:
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert read_trace_config(("mode=opentelemetry",), variables).rate == rate
    assert read_trace_config(("mode=opentelemetry", "rate=7"), variables).rate == 7
    assert read_trace_config((), variables).rate == 1000, "the mode triton knows nothing of it"


def test_resource_is_named_by_the_flag_before_the_environment() -> None:
    words = ("opentelemetry", "resource=zone=b")
    assert read({}, *words).resource == {"service.name": "tfs_lite", "zone": "b"}
    variables = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=c,zone=d%2C,more=1"}
    assert read(variables, *words).resource == {"service.name": "c", "zone": "b", "more": "1"}
    assert read({**variables, "OTEL_SERVICE_NAME": "e"}, *words).resource["service.name"] == "e"


def test_limits_of_the_exporter_are_the_flags_before_the_environments() -> None:
    variables = {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    found = read(variables, "opentelemetry", "bsp_schedule_delay=50")
    assert (found.queue, found.delay, found.batch) == (10, 0.05, 10)


def test_limits_of_spans_are_those_of_spans_before_the_others() -> None:
    variables = {
        "OTEL_ATTRIBUTE_COUNT_LIMIT": "3",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "4",
        "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "5",
        "OTEL_SPAN_EVENT_COUNT_LIMIT": "0",
        "OTEL_SPAN_LINK_COUNT_LIMIT": "6",
    }
    limits: Any = read(variables).limits
    assert (limits.attributes, limits.value_length, limits.events, limits.links) == (3, 5, 0, 6)
