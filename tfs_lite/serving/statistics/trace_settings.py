"""Trace and log settings of the V2 protocol: what they are, and who may change what.

A log setting changes what this process logs. The settings of traces begin as ``--trace_config`` has them, and tell
which requests are traced (``traces_of``). Source: the trace and logging extensions.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.log_format import log_roots
from tfs_lite.serving.statistics import trace_config
from tfs_lite.serving.statistics.trace_config import LEVELS, TraceConfig

TraceSettings = Mapping[str, tuple[str, ...]]
"""Every value is a list of strings; settings with one value have a list of one."""
LogSettings = Mapping[str, bool | int | str]

DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "trace_level": ("OFF",),
    "trace_rate": ("1000",),
    "trace_count": ("-1",),
    "log_frequency": ("0",),
    "trace_file": ("",),
    "trace_mode": ("triton",),
}
LOG_DEFAULTS: Mapping[str, bool | int | str] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
LOG_FORMATS = ("default", "ISO8601")
MAX_MODELS = 10_000
_NUMBER = re.compile("-?[0-9]{1,20}")
_LEAST = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}
_FLAGS = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}


NEVER = 1 << 62
"""A number of requests that never end."""


@dataclass(slots=True)
class ModelTraces:
    """The trace settings of a model's requests, until they change. ``on``: whether they may be; ``left``: how many
    more, -1 without end; ``log_frequency``: after how many a new file is begun, 0 never. For one thread at a time."""

    on: bool
    rate: int
    left: int
    log_frequency: int
    seen: int = 0

    @property
    def ahead(self) -> int:
        """The number of requests that have to end until one is chosen."""
        return self.rate - self.seen % self.rate if self.on and self.left and self.rate else NEVER

    def passed(self, requests: int) -> bool:
        """Counts so many requests as ended, at most ``ahead``; returns whether the last of them is chosen, by rate and
        count."""
        if not (requests and self.on and self.left and self.rate):
            return False
        self.seen += requests
        if self.seen % self.rate:
            return False
        self.left -= self.left > 0
        return True


class V2Settings:
    """Any thread. ``knows`` tells whether there is a model of that name."""

    def __init__(self, knows: Callable[[str], bool], config: TraceConfig = trace_config.DEFAULT) -> None:
        self._knows = knows
        self._first = _settings_of(config)
        self._least = _LEAST | ({"trace_rate": 0} if config.mode == trace_config.OPENTELEMETRY else {})
        self._on_change: Callable[[bool], None] = ignore
        self._lock = threading.Lock()  # guards all below
        self._global: dict[str, tuple[str, ...]] = dict(self._first)
        self._own: dict[str, dict[str, tuple[str, ...]]] = {}
        self._active: dict[str, ModelTraces] = {}
        self._tracing = self._global["trace_level"] != ("OFF",)
        self._log: dict[str, bool | int | str] = dict(LOG_DEFAULTS)
        self._filter = LevelFilter()

    # Traces.

    def trace_settings(self, model: str | None) -> TraceSettings:
        self._check_model(model)
        with self._lock:
            return self._settings(model)

    def update_trace_settings(self, model: str | None, changes: Mapping[str, tuple[str, ...]]) -> TraceSettings:
        self._check_model(model)
        checked = {name: _checked(name, values, self._least) for name, values in changes.items()}
        with self._lock:
            if model is not None and model not in self._own and len(self._own) >= MAX_MODELS:
                raise ServingError(StatusCode.RESOURCE_EXHAUSTED, f"{MAX_MODELS} models have trace settings")
            table = self._global if model is None else self._own.setdefault(model, {})
            for name, values in checked.items():
                if values:
                    table[name] = values
                elif model is None:
                    table[name] = self._first[name]
                else:
                    table.pop(name, None)
            self._active.clear()
            tables = (self._global, *self._own.values())
            self._tracing = any(found.get("trace_level", ("OFF",)) != ("OFF",) for found in tables)
            self._on_change(self._tracing)
            return self._settings(model)

    def listen(self, on_change: Callable[[bool], None]) -> None:
        """``on_change`` is told, now and after each change, whether any model is traced; it must not call back."""
        with self._lock:
            self._on_change = on_change
            on_change(self._tracing)

    def traces_of(self, model: str) -> ModelTraces:
        """Counts from the last change on."""
        with self._lock:
            found = self._active.get(model)
            if found is None:
                if len(self._active) >= MAX_MODELS:
                    self._active.clear()
                found = self._active[model] = _traces_of(self._settings(model))
            return found

    def _settings(self, model: str | None) -> dict[str, tuple[str, ...]]:
        """Looks the settings up; called with the lock held."""
        return {**self._global, **(self._own.get(model, {}) if model is not None else {})}

    def _check_model(self, model: str | None) -> None:
        if model is not None and not self._knows(model):
            raise invalid_argument(f"Request for unknown model : {model:.200}")

    # Logs.

    def log_settings(self) -> LogSettings:
        with self._lock:
            return dict(self._log)

    def update_log_settings(self, changes: LogSettings) -> LogSettings:
        for name, value in changes.items():
            _check_log(name, value)
        with self._lock:
            self._log.update(changes)
            found = dict(self._log)
        self._filter.set(found)
        for handler in _handlers():
            if self._filter not in handler.filters:
                handler.addFilter(self._filter)
        return found

    def close(self) -> None:
        """Logs are as they were before."""
        for handler in _handlers():
            handler.removeFilter(self._filter)
        self._filter.restore()


def _handlers() -> list[logging.Handler]:
    return [handler for logger in log_roots() for handler in logger.handlers]


class LevelFilter(logging.Filter):
    """Lets through what the settings ask for. Verbose means that DEBUG is logged, too."""

    def __init__(self) -> None:
        super().__init__()
        self._silent: frozenset[int] = frozenset()
        self._before: tuple[int, ...] = ()

    def set(self, settings: LogSettings) -> None:
        self._silent = frozenset(level for name, level in _FLAGS.items() if not settings[name])
        self._before = self._before or tuple(logger.level for logger in log_roots())
        for logger, level in zip(log_roots(), self._before, strict=True):
            logger.setLevel(logging.DEBUG if settings["log_verbose_level"] else level)

    def restore(self) -> None:
        for logger, level in zip(log_roots(), self._before, strict=False):
            logger.setLevel(level)
        self._before = ()

    def filter(self, record: logging.LogRecord) -> bool:
        level = record.levelno
        group = next((one for one in (logging.ERROR, logging.WARNING, logging.INFO) if level >= one), logging.DEBUG)
        return group not in self._silent


def _settings_of(config: TraceConfig) -> dict[str, tuple[str, ...]]:
    found = {
        "trace_level": config.levels,
        "trace_rate": (str(config.rate),),
        "trace_count": (str(config.count),),
        "log_frequency": (str(config.log_frequency),),
        "trace_file": (config.file,),
        "trace_mode": (config.mode,),
    }
    return {name: found[name] for name in DEFAULTS}


def _traces_of(settings: TraceSettings) -> ModelTraces:
    rate, left, frequency = (int(settings[name][0]) for name in ("trace_rate", "trace_count", "log_frequency"))
    return ModelTraces(settings["trace_level"] != ("OFF",), rate, left, frequency)


def _checked(name: str, values: tuple[str, ...], least: Mapping[str, int]) -> tuple[str, ...]:
    if name not in DEFAULTS:
        raise invalid_argument(f"unknown trace setting '{name:.200}'; known: {', '.join(DEFAULTS)}")
    if name == "trace_file":
        message = "trace file location can not be updated through network protocol"
        raise ServingError(StatusCode.UNIMPLEMENTED, message)
    if name == "trace_mode":
        raise ServingError(StatusCode.UNIMPLEMENTED, "trace mode can not be updated through network protocol")
    if not values:
        return ()
    return _levels(values) if name == "trace_level" else (_number(name, values, least[name]),)


def _levels(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) > len(LEVELS):
        raise invalid_argument(f"trace_level takes at most {len(LEVELS)} values, got {len(values)}")
    if unknown := [value for value in values if value not in LEVELS]:
        raise invalid_argument(f"trace_level '{unknown[0]:.100}' is unknown; known: {', '.join(LEVELS)}")
    return values


def _number(name: str, values: tuple[str, ...], least: int) -> str:
    if len(values) != 1:
        raise invalid_argument(f"trace setting '{name}' takes one value, got {len(values)}")
    if not _NUMBER.fullmatch(values[0]):
        raise invalid_argument(f"trace setting '{name}' is no whole number: '{values[0]:.100}'")
    number = int(values[0])
    if not least <= number < 2**63:
        raise invalid_argument(f"trace setting '{name}' is {number}, expected {least} or more")
    return str(number)


def _check_log(name: str, value: object) -> None:
    if name not in LOG_DEFAULTS:
        raise invalid_argument(f"unknown log setting '{name:.200}'; known: {', '.join(LOG_DEFAULTS)}")
    if name == "log_file":
        raise ServingError(StatusCode.UNIMPLEMENTED, "log file location can not be updated through network protocol")
    expected = type(LOG_DEFAULTS[name])
    if type(value) is not expected:
        raise invalid_argument(f"log setting '{name}' must be {expected.__name__}, got {value!r:.100}")
    if name == "log_verbose_level" and isinstance(value, int) and not 0 <= value < 2**31:
        raise invalid_argument(f"log setting '{name}' is {value}, expected 0 or more")
    if name == "log_format" and value not in LOG_FORMATS:
        raise invalid_argument(f"log_format '{value!s:.100}' is unknown; known: {', '.join(LOG_FORMATS)}")
