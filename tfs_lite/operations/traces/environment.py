"""OpenTelemetry's environment variables: where traces go and how, what is said of this server, what bounds a span.

All that the standard has is read. No variable ends the start: one that cannot be used, or that asks for what this
server does not do, is named in a complaint, and the default counts.

Sources: OpenTelemetry's specifications of its SDK's environment variables (1.50) and of the OTLP exporter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from tfs_lite.serving.statistics.trace_config import SAMPLERS, TraceConfig, sampler_of

GRPC, PROTOBUF, JSON = "grpc", "http/protobuf", "http/json"
PROTOCOLS = (GRPC, PROTOBUF, JSON)
COMPRESSIONS = ("none", "gzip", "deflate")
PORTS = {GRPC: 4317, PROTOBUF: 4318, JSON: 4318}
PATH = "/v1/traces"
TIMEOUT = 10_000
"""Milliseconds for all attempts of one export."""
LONGEST_TIMEOUT = 3_600_000
EXPORT_TIMEOUT = 30_000
SHORT_TIMEOUT = 100
"""Milliseconds; less was probably meant as seconds, which OpenTelemetry's own exporter for Python takes it for."""
QUEUE, DELAY, BATCH = 2048, 5000, 512
"""Requests that wait, milliseconds until they are exported, spans that are sent at once."""
UNLIMITED = 1 << 31
COUNT = 128

_OTLP = "OTEL_EXPORTER_OTLP_"
_OF_OTLP = (
    *("ENDPOINT", "INSECURE", "CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE", "HEADERS", "COMPRESSION", "TIMEOUT"),
    *("PROTOCOL", "SPAN_INSECURE"),
)
_OTHER_SIGNALS = ("METRICS_", "LOGS_", "PROFILES_", "METRIC_")
_READ_PROPAGATORS = ("tracecontext", "baggage")
_HEADER_NAME = re.compile("[a-z0-9_.-]+")
_CONFIG_FILES = ("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE")


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """The most attributes, events and links of a span, and characters of an attribute's value."""

    attributes: int = COUNT
    events: int = COUNT
    links: int = COUNT
    value_length: int = UNLIMITED


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """The settings by which spans are sent. ``url`` is whole for HTTP, and ``HOST:PORT`` for gRPC; ``timeout`` in
    seconds, for all attempts of an export. ``authority``, ``certificate`` and ``key`` are files, empty where nothing is
    said."""

    protocol: str = PROTOBUF
    url: str = f"http://localhost:{PORTS[PROTOBUF]}{PATH}"
    secure: bool = False
    timeout: float = TIMEOUT / 1e3
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    compression: str = "none"
    authority: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def place(self) -> str:
        """The URL for the log: what may be secret is left out."""
        scheme, _, rest = self.url.partition("://")
        host, slash, path = (rest or scheme).partition("?")[0].partition("/")
        return f"{f'{scheme}://' if rest else ''}{host.rpartition('@')[2]}{slash}{path}"


@dataclass(frozen=True, slots=True)
class TraceEnvironment:
    """``exports``: whether anything is sent at all. ``queue``, ``delay`` (seconds) and ``batch`` are those of the
    exporter. ``complaints`` are sentences that name the variables that do not count."""

    exports: bool
    otlp: OtlpSettings
    resource: Mapping[str, str]
    limits: SpanLimits
    queue: int
    delay: float
    batch: int
    complaints: Sequence[str]


def read_environment(config: TraceConfig, environment: Mapping[str, str]) -> TraceEnvironment:
    """Reads the settings from the flag and, where it is silent, from the environment."""
    variables = _Variables(environment)
    queue = config.max_queue_size or variables.number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)
    delay = config.schedule_delay or variables.number("OTEL_BSP_SCHEDULE_DELAY", DELAY)
    batch = config.max_export_batch_size or variables.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH)
    exports, otlp = _exports(variables), _read_otlp(config, variables)
    resource, limits = _read_resource(config, variables), _read_limits(variables)
    _check_rest(variables)
    complaints = tuple(variables.complaints) if exports else ()
    return TraceEnvironment(exports, otlp, resource, limits, queue, delay / 1e3, min(batch, queue), complaints)


class _Variables:
    """The environment, and what there is to say about it. A variable that is set to nothing counts as not set."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.complaints: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._environment))

    def text(self, name: str) -> str:
        return self._environment.get(name, "").strip()

    def own(self, name: str) -> tuple[str, str]:
        """The name of a variable of OTLP, and its text: the one of traces before the one of every signal."""
        own, common = f"{_OTLP}TRACES_{name}", f"{_OTLP}{name}"
        name = own if self.text(own) else common
        return name, self.text(name)

    def complain(self, name: str, why: str) -> None:
        """``why`` follows the name of the variable; it has no text of headers, which are secret."""
        self.complaints.append(f"{name} {why}")

    def flag(self, name: str) -> bool:
        """The value of a flag. Only "true" is true, says the standard."""
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            self.complain(name, f"is {text:.200}, expected true or false: false counts")
        return text == "true"

    def number(self, name: str, usual: int, least: int = 1, most: int = UNLIMITED) -> int:
        text = self.text(name)
        if not text:
            return usual
        if text.isascii() and text.isdigit() and least <= int(text) <= most:
            return int(text)
        self.complain(name, f"is {text:.200}, expected a whole number from {least}: {usual} counts")
        return usual

    def choice(self, name: str, text: str, choices: Sequence[str], usual: str) -> str:
        if text.lower() in choices:
            return text.lower()
        if text:
            self.complain(name, f"is {text:.200}, expected {', '.join(choices)}: {usual} counts")
        return usual

    def pairs(self, name: str, text: str, secret: bool = False) -> dict[str, str] | None:
        """``NAME=VALUE,NAME=VALUE``, with percent escapes; None for anything else."""
        found = {}
        for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
            key, equals, value = pair.partition("=")
            if not (equals and key.strip()):
                said = f"number {number}" if secret else f"{pair:.200}"
                self.complain(name, f"has a part ({said}) that is not NAME=VALUE: nothing of it counts")
                return None
            found[unquote(key.strip())] = unquote(value.strip())
        return found


def _exports(variables: _Variables) -> bool:
    """Whether traces are to be sent at all."""
    if variables.flag("OTEL_SDK_DISABLED"):
        return False
    name = "OTEL_TRACES_EXPORTER"
    wanted = [part.strip().lower() for part in variables.text(name).split(",") if part.strip()]
    others = [part for part in wanted if part not in ("otlp", "none")]
    if others:
        variables.complain(name, f"names {', '.join(others):.200}, which is not here: spans go out by OTLP only")
    if wanted == ["none"]:
        return False
    return variables.text("OTEL_TRACES_SAMPLER").lower() != "always_off"


def _read_otlp(config: TraceConfig, variables: _Variables) -> OtlpSettings:
    name, text = variables.own("PROTOCOL")
    protocol = variables.choice(name, text, PROTOCOLS, PROTOBUF)
    if protocol == GRPC and config.url and urlsplit(config.url).path.strip("/"):
        variables.complain(name, f"is grpc, and the url of --trace_config has a path, as HTTP's: {PROTOBUF} counts")
        protocol = PROTOBUF
    url, secure = _read_place(config, variables, protocol)
    name, _ = variables.own("TIMEOUT")
    timeout = variables.number(name, TIMEOUT, most=LONGEST_TIMEOUT)
    if timeout < SHORT_TIMEOUT:
        variables.complain(name, f"is {timeout}, which are milliseconds: hardly any collector answers that fast")
    export = variables.number("OTEL_BSP_EXPORT_TIMEOUT", EXPORT_TIMEOUT, most=LONGEST_TIMEOUT)
    name, text = variables.own("COMPRESSION")
    compression = variables.choice(name, text, COMPRESSIONS, COMPRESSIONS[0])
    name, text = variables.own("HEADERS")
    headers = {key.lower(): value for key, value in (variables.pairs(name, text, secret=True) or {}).items()}
    for key in [key for key, value in headers.items() if not _is_header(key, value)]:
        variables.complain(name, f"has a header ({key[:100]!r}) that cannot be sent: it is left out")
        del headers[key]
    return OtlpSettings(
        protocol,
        url,
        secure,
        min(timeout, export) / 1e3,
        MappingProxyType(headers),
        compression,
        *(variables.own(name)[1] for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")),
    )


def _read_place(config: TraceConfig, variables: _Variables, protocol: str) -> tuple[str, bool]:
    """The URL, or host and port for gRPC, and whether TLS is wanted."""
    name, text = variables.own("ENDPOINT")
    usual = f"http://localhost:{PORTS[protocol]}"
    url = config.url or text or usual
    insecure = False
    if "://" not in url:
        insecure_name, _ = variables.own("INSECURE")
        insecure = variables.flag(insecure_name) if protocol == GRPC else True
        if protocol != GRPC:
            variables.complain(name, f"is {url:.200}, which has no scheme: http:// counts")
        url = f"{'http' if insecure else 'https'}://{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme.lower() not in ("http", "https"):
        variables.complain(name, f"is {text:.200}, expected http://HOST:PORT: {usual} counts")
        url, host, port = usual, "localhost", None
    secure = url.lower().startswith("https:")
    if protocol == GRPC:
        return f"{f'[{host}]' if ':' in host else host}:{port or PORTS[GRPC]}", secure
    is_whole = config.url or (text and name.endswith("TRACES_ENDPOINT"))
    return url if is_whole else url.rstrip("/") + PATH, secure


def _is_header(name: str, value: str) -> bool:
    """Whether HTTP and gRPC can send it."""
    return _HEADER_NAME.fullmatch(name) is not None and value.isascii() and value.isprintable()


def _read_resource(config: TraceConfig, variables: _Variables) -> Mapping[str, str]:
    """The attributes of this server: the flag comes before the environment."""
    name = "OTEL_RESOURCE_ATTRIBUTES"
    found = {"service.name": "tfs_lite", **(variables.pairs(name, variables.text(name)) or {})}
    service = variables.text("OTEL_SERVICE_NAME")
    return {**found, **({"service.name": service} if service else {}), **config.resource}


def _read_limits(variables: _Variables) -> SpanLimits:
    def limit(names: Sequence[str], usual: int) -> int:
        """The limit by the first variable that is set."""
        name = next((name for name in names if variables.text(name)), names[0])
        return variables.number(name, usual, least=0)

    attribute = "ATTRIBUTE_{}_LIMIT"
    return SpanLimits(
        limit([f"OTEL_{kind}{attribute.format('COUNT')}" for kind in ("SPAN_", "")], COUNT),
        limit(["OTEL_SPAN_EVENT_COUNT_LIMIT"], COUNT),
        limit(["OTEL_SPAN_LINK_COUNT_LIMIT"], COUNT),
        limit([f"OTEL_{kind}{attribute.format('VALUE_LENGTH')}" for kind in ("SPAN_", "")], UNLIMITED),
    )


def _check_rest(variables: _Variables) -> None:
    """Complains of variables that ask for what is not here."""
    name = "OTEL_TRACES_SAMPLER"
    sampler = variables.text(name)
    if sampler and sampler_of(sampler) is None:
        variables.complain(name, f"is {sampler:.200}, expected {', '.join(SAMPLERS)}: --trace_config counts")
    elif sampler.lower() in ("always_on", "traceidratio"):
        variables.complain(name, f"is {sampler}: of callers that do not record their traces, failures are traced only")
    if sampler_of(sampler) == "traceidratio":
        name, text = "OTEL_TRACES_SAMPLER_ARG", variables.text("OTEL_TRACES_SAMPLER_ARG")
        if text and not _is_ratio(text):
            variables.complain(name, f"is {text:.200}, expected a number from 0 to 1: 1 counts")
    name = "OTEL_PROPAGATORS"
    wanted = [part.strip().lower() for part in variables.text(name).split(",") if part.strip()]
    if wanted and ("tracecontext" not in wanted or not set(wanted) <= set(_READ_PROPAGATORS)):
        variables.complain(name, f"is {variables.text(name):.200}: callers are known by traceparent and nothing else")
    for name in filter(variables.text, _CONFIG_FILES):
        variables.complain(name, "is set: such files are not read, --trace_config and the other variables count")
    known = {f"{_OTLP}{signal}{name}" for signal in ("", "TRACES_") for name in _OF_OTLP}
    for name in variables:
        rest = name.removeprefix(_OTLP)
        if rest != name and name not in known and not rest.startswith(_OTHER_SIGNALS):
            variables.complain(name, "is not known: nothing of it counts")


def _is_ratio(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1 and not math.isnan(float(text))
    except ValueError:
        return False
