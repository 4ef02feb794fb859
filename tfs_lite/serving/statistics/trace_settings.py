"""Trace and log settings of the V2 protocol: what they are, who may change what, and what they do.

A log setting changes what this process logs. A traced request is one line of JSON in the log ``tfs_lite.trace``, with
Triton's names for its moments, in nanoseconds since 1970. Source: the trace and logging extensions.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfs_lite.core.model import ServableCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument

TraceSettings = Mapping[str, tuple[str, ...]]
"""Every value is a list of strings; settings with one value have a list of one."""
LogSettings = Mapping[str, bool | int | str]

LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")
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
traces = logging.getLogger("tfs_lite.trace")


@dataclass(slots=True)
class _Active:
    """What a model's requests are traced by. ``left`` -1: without end."""

    on: bool
    rate: int
    left: int
    seen: int = 0


class V2Settings:
    """Any thread. ``knows`` tells whether there is a model of that name."""

    def __init__(self, knows: Callable[[str], bool]) -> None:
        self._knows = knows
        self._lock = threading.Lock()  # guards all below
        self._global: dict[str, tuple[str, ...]] = dict(DEFAULTS)
        self._own: dict[str, dict[str, tuple[str, ...]]] = {}
        self._active: dict[str, _Active] = {}
        self._tracing = False
        self._log: dict[str, bool | int | str] = dict(LOG_DEFAULTS)
        self._filter = LevelFilter()
        self._offset = time.time() - time.monotonic()

    # Traces.

    def trace_settings(self, model: str | None) -> TraceSettings:
        self._check_model(model)
        with self._lock:
            return self._settings(model)

    def update_trace_settings(self, model: str | None, changes: Mapping[str, tuple[str, ...]]) -> TraceSettings:
        self._check_model(model)
        checked = {name: _checked(name, values) for name, values in changes.items()}
        with self._lock:
            if model is not None and model not in self._own and len(self._own) >= MAX_MODELS:
                raise ServingError(StatusCode.RESOURCE_EXHAUSTED, f"{MAX_MODELS} models have trace settings")
            table = self._global if model is None else self._own.setdefault(model, {})
            for name, values in checked.items():
                if values:
                    table[name] = values
                elif model is None:
                    table[name] = DEFAULTS[name]
                else:
                    table.pop(name, None)
            self._active.clear()
            tables = (self._global, *self._own.values())
            self._tracing = any(found.get("trace_level", ("OFF",)) != ("OFF",) for found in tables)
            return self._settings(model)

    def on_call(self, servable_id: ServableId, call: ServableCall, result: Mapping[str, Tensor] | Status) -> None:
        """A request has ended: it may be one that is traced."""
        if self._tracing and call.arrived and self._chosen(servable_id.name):
            traces.info("%s", json.dumps(self._trace(servable_id, call, result)))

    def _chosen(self, model: str) -> bool:
        with self._lock:
            active = self._active.get(model)
            if active is None:
                if len(self._active) >= MAX_MODELS:
                    self._active.clear()
                active = self._active[model] = _active_of(self._settings(model))
            if not active.on or not active.left:
                return False
            active.seen += 1
            if active.seen % active.rate:
                return False
            active.left -= active.left > 0
            return True

    def _trace(self, servable_id: ServableId, call: ServableCall, result: Mapping[str, Tensor] | Status) -> object:
        started = call.arrived + call.queue_seconds
        moments = {
            "REQUEST_START": call.arrived,
            "QUEUE_START": call.arrived,
            "COMPUTE_START": started,
            "COMPUTE_INPUT_END": started + call.copy_seconds[0],
            "COMPUTE_OUTPUT_START": started + call.run_seconds - call.copy_seconds[1],
            "COMPUTE_END": started + call.run_seconds,
            "REQUEST_END": time.monotonic(),
        }
        return {
            "model_name": servable_id.name,
            "model_version": servable_id.version,
            "code": result.code.name if isinstance(result, Status) else "OK",
            "timestamps": [{"name": name, "ns": round((at + self._offset) * 1e9)} for name, at in moments.items()],
        }

    def _settings(self, model: str | None) -> dict[str, tuple[str, ...]]:
        """With the lock held."""
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
        for handler in logging.getLogger().handlers:
            if self._filter not in handler.filters:
                handler.addFilter(self._filter)
        return found

    def close(self) -> None:
        """Logs are as they were before."""
        for handler in logging.getLogger().handlers:
            handler.removeFilter(self._filter)
        self._filter.restore()


class LevelFilter(logging.Filter):
    """Lets through what the settings ask for. Verbose means that DEBUG is logged, too."""

    def __init__(self) -> None:
        super().__init__()
        self._silent: frozenset[int] = frozenset()
        self._before: int | None = None

    def set(self, settings: LogSettings) -> None:
        self._silent = frozenset(level for name, level in _FLAGS.items() if not settings[name])
        root = logging.getLogger()
        if self._before is None:
            self._before = root.level
        root.setLevel(logging.DEBUG if settings["log_verbose_level"] else self._before)

    def restore(self) -> None:
        if self._before is not None:
            logging.getLogger().setLevel(self._before)
            self._before = None

    def filter(self, record: logging.LogRecord) -> bool:
        level = record.levelno
        group = next((one for one in (logging.ERROR, logging.WARNING, logging.INFO) if level >= one), logging.DEBUG)
        return group not in self._silent


def _active_of(settings: TraceSettings) -> _Active:
    return _Active(settings["trace_level"] != ("OFF",), int(settings["trace_rate"][0]), int(settings["trace_count"][0]))


def _checked(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    if name not in DEFAULTS:
        raise invalid_argument(f"unknown trace setting '{name:.200}'; known: {', '.join(DEFAULTS)}")
    if name == "trace_file":
        message = "trace file location can not be updated through network protocol"
        raise ServingError(StatusCode.UNIMPLEMENTED, message)
    if name == "trace_mode":
        raise ServingError(StatusCode.UNIMPLEMENTED, "trace mode can not be updated through network protocol")
    if not values:
        return ()
    return _levels(values) if name == "trace_level" else (_number(name, values),)


def _levels(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) > len(LEVELS):
        raise invalid_argument(f"trace_level takes at most {len(LEVELS)} values, got {len(values)}")
    if unknown := [value for value in values if value not in LEVELS]:
        raise invalid_argument(f"trace_level '{unknown[0]:.100}' is unknown; known: {', '.join(LEVELS)}")
    return values


def _number(name: str, values: tuple[str, ...]) -> str:
    if len(values) != 1:
        raise invalid_argument(f"trace setting '{name}' takes one value, got {len(values)}")
    if not _NUMBER.fullmatch(values[0]):
        raise invalid_argument(f"trace setting '{name}' is no whole number: '{values[0]:.100}'")
    number = int(values[0])
    if not _LEAST[name] <= number < 2**63:
        raise invalid_argument(f"trace setting '{name}' is {number}, expected {_LEAST[name]} or more")
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
