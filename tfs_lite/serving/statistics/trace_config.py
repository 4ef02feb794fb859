"""``--trace_config``: Triton's words for what is traced, and where traces go.

A setting is ``name=value``; one that belongs to a mode follows the mode's name: ``opentelemetry,url=http://...``. Names
may be written with hyphens. Source: Triton's trace extension and its command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import urlsplit

from tfs_lite.core.status import invalid_argument

TRITON, OPENTELEMETRY = "triton", "opentelemetry"
MODES = (TRITON, OPENTELEMETRY)
LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")
_GLOBAL = ("rate", "level", "count", "mode")
_OF_MODE = {
    TRITON: ("file", "log_frequency"),
    OPENTELEMETRY: ("url", "resource", "bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"),
}
_NUMBERS = {
    "rate": 0,
    "count": -1,
    "log_frequency": 0,
    "bsp_max_queue_size": 1,
    "bsp_schedule_delay": 1,
    "bsp_max_export_batch_size": 1,
}
MAX_NUMBER = 2**31 - 1
_PARENT_BASED = "parentbased_"
_SAMPLERS = ("always_on", "always_off", "traceidratio")
SAMPLERS = (*_SAMPLERS, *(_PARENT_BASED + name for name in _SAMPLERS))
"""OpenTelemetry's, of those that need no other service."""


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """``rate``: every so many requests of a model are traced, 0: none but those whose callers say so; ``count`` of
    them, -1: without end. ``file`` is where the lines of the mode triton go, empty: into the log.

    The rest is for the mode opentelemetry. None means what OpenTelemetry's environment variables say, or its default.
    ``url``: of a collector that takes OTLP over HTTP; ``resource``: attributes of this server; ``max_queue_size``:
    requests that wait for the exporter; ``schedule_delay``: milliseconds until what waits is exported;
    ``max_export_batch_size``: spans that are sent at once."""

    mode: str = TRITON
    levels: tuple[str, ...] = ("OFF",)
    rate: int = 1000
    count: int = -1
    file: str = ""
    log_frequency: int = 0
    url: str | None = None
    resource: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    max_queue_size: int | None = None
    schedule_delay: int | None = None
    max_export_batch_size: int | None = None


DEFAULT = TraceConfig()


def read_trace_config(words: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> TraceConfig:
    """``words`` are the values of the flag, split at commas. INVALID_ARGUMENT names what is wrong. In the mode
    opentelemetry a rate that is not given is the one of the sampler in the ``environment``."""
    resource: dict[str, str] = {}
    levels: list[str] = []
    values: dict[str, str] = {}
    for name, value in _settings(words):
        if name == "resource":
            key, equals, text = value.partition("=")
            if not (key and equals):
                raise _wrong(f"resource={value}", "expected resource=NAME=VALUE")
            resource[key] = text
        elif name == "level":
            if value not in LEVELS:
                raise _wrong(f"level={value}", f"expected one of {', '.join(LEVELS)}")
            levels.append(value)
        else:
            values[name] = value
    mode = values.get("mode", TRITON)
    if mode not in MODES:
        raise _wrong(f"mode={mode}", f"expected one of {', '.join(MODES)}")
    numbers = {name: _number(name, values[name]) for name in _NUMBERS if name in values}
    if mode == OPENTELEMETRY and "rate" not in numbers:
        numbers["rate"] = _sampler_rate(environment)
    return TraceConfig(
        mode=mode,
        levels=tuple(dict.fromkeys(levels)) or DEFAULT.levels,
        rate=numbers.get("rate", DEFAULT.rate),
        count=numbers.get("count", DEFAULT.count),
        file=values.get("file", ""),
        log_frequency=numbers.get("log_frequency", 0),
        url=_url(values["url"]) if "url" in values else None,
        resource=MappingProxyType(resource),
        max_queue_size=numbers.get("bsp_max_queue_size"),
        schedule_delay=numbers.get("bsp_schedule_delay"),
        max_export_batch_size=numbers.get("bsp_max_export_batch_size"),
    )


def sampler_of(text: str) -> str | None:
    """The decision of the sampler of that name about requests without a caller; None: there is no such sampler here."""
    name = text.strip().lower()
    return name.removeprefix(_PARENT_BASED) if name in SAMPLERS else None


def _sampler_rate(environment: Mapping[str, str]) -> int:
    sampler = sampler_of(environment.get("OTEL_TRACES_SAMPLER", ""))
    if sampler is None:
        return DEFAULT.rate
    try:
        ratio = float(environment.get("OTEL_TRACES_SAMPLER_ARG", "") or 1)
    except ValueError:
        ratio = 1.0
    if sampler != "traceidratio" or not 0 <= ratio <= 1:
        ratio = 0.0 if sampler == "always_off" else 1.0
    return min(round(1 / ratio), MAX_NUMBER) if ratio else 0


def _settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names, with underscores, and values."""
    mode = ""
    for word in words:
        if word in MODES:
            if mode:
                raise _wrong(mode, "expected a setting behind it, as in opentelemetry,url=http://...")
            mode = word
            continue
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")
        known = _OF_MODE[mode] if mode else _GLOBAL
        if not equals or name not in known:
            raise _wrong(f"{mode},{word}" if mode else word, f"known settings: {', '.join(known)}")
        mode = ""
        yield name, value
    if mode:
        raise _wrong(mode, "expected a setting behind it, as in opentelemetry,url=http://...")


def _number(name: str, text: str) -> int:
    least = _NUMBERS[name]
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= MAX_NUMBER:
        raise _wrong(f"{name}={text}", f"expected a whole number from {least}")
    return number


def _url(text: str) -> str:
    """Triton takes a URL without its scheme, too."""
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong(f"url={text}", "expected http://HOST:PORT/v1/traces")
    return url


def _wrong(word: str, why: str) -> Exception:
    return invalid_argument(f"trace_config: {word:.200}: {why}")
