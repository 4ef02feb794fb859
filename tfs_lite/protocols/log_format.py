"""Lines of the log, as text or as JSON. No text in them, such as a model's name or a client's error, can begin a line.

``logger.info(..., extra={...})`` gives a line any of :data:`FIELDS`; the text format leaves them out. An argument of
the message that is a :class:`ServableId` gives ``model`` and ``version``. ``story`` is the text of a stack: indented
lines of its own, or ``error.stack``.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from tfs_lite.core.servable import ServableId

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
FIELDS = (
    *(
        "event",
        "model",
        "version",
        "request_id",
        "trace_id",
        "span_id",
        "code",
        "reason",
        "stage",
        "method",
        "protocol",
    ),
    *("peer", "rows", "batch_rows", "seconds", "recv_ms", "decode_ms", "queue_ms", "compute_ms", "encode_ms"),
    *("total_ms", "left_out"),
)
"""The fields that a line may have besides its message."""
MAX_LINE = 32 << 10
"""Bytes of a line of JSON."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_STACK_INDENT = "    "
_PACKAGE = __name__.partition(".")[0]


def start_logging(level: int | str, log_format: str, stream: TextIO | None = None, prefix: str = "") -> None:
    """Sends the log of this process to ``stream`` (None: standard error), in one of :data:`FORMATS`. ``prefix``: text
    before each message. What the code of a model does to the logging of the process (``basicConfig``, ``dictConfig``,
    ``disable``) changes the lines of others, and none of this package's."""
    formatter = JsonFormatter(prefix) if log_format == JSON else TextFormatter(prefix)
    own, others = _LineHandler(stream or sys.stderr), _LineHandler(stream or sys.stderr)
    for handler in (own, others):
        handler.setFormatter(formatter)
    others.addFilter(lambda record: not _is_own(record.name))
    logging.basicConfig(level=level, handlers=[others], force=True)
    package = logging.getLogger(_PACKAGE)
    package.handlers = [own]
    package.setLevel(level)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and _is_own(name):
            logger.__class__ = _OwnLogger


def log_roots() -> tuple[logging.Logger, logging.Logger]:
    """The loggers whose level and handlers make the log: that of everybody, and that of this package."""
    return logging.getLogger(), logging.getLogger(_PACKAGE)


def _is_own(name: str) -> bool:
    return name == _PACKAGE or name.startswith(f"{_PACKAGE}.")


class _LineHandler(logging.StreamHandler[TextIO]):
    """A handler that never raises: a line that cannot be written is no fault of the code that logs it."""

    def handleError(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            os.write(2, f"a line of the log could not be written: {sys.exc_info()[1]!r}\n".encode(errors="replace"))


class _OwnLogger(logging.Logger):
    """The logger of this package. Only its level silences it."""

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass

    def isEnabledFor(self, level: int) -> bool:
        return level >= self.getEffectiveLevel()


def current_format() -> str:
    """The format of this process's log."""
    handlers = logging.getLogger().handlers
    return JSON if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers) else TEXT


def escaped(text: str) -> str:
    """The text without control characters, line ends and halves of characters, which are written as escapes."""
    return _CONTROL.sub(_escape, text) if _CONTROL.search(text) else text


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class TextFormatter(logging.Formatter):
    """Formats a line as time, level and message; the lines of a stack are indented."""

    default_time_format = "%Y-%m-%d %H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {escaped(self._prefix + record.getMessage())}"
        stack = _stack_of(self, record)
        return line + "".join(f"\n{_STACK_INDENT}{escaped(part)}" for part in stack.splitlines())


class JsonFormatter(logging.Formatter):
    """One object a line, at most :data:`MAX_LINE` bytes: the stack is cut first, then the message."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _rfc3339(record.created),
            "level": record.levelname,
            "logger": record.name,
            "msg": escaped(self._prefix + record.getMessage()),
            "thread": escaped(record.threadName or ""),
        }
        values = {**_named_by(record), **record.__dict__}
        for name in FIELDS:
            if (value := values.get(name)) is not None:
                line[name] = escaped(value) if isinstance(value, str) else value
        stack = _stack_of(self, record)
        if stack:
            kind, error, _ = record.exc_info or (None, None, None)
            known = {} if kind is None else {"type": kind.__name__, "message": escaped(str(error or ""))}
            line["error"] = {**known, "stack": "\n".join(map(escaped, stack.splitlines()))}
        return _bounded(line)


def _named_by(record: logging.LogRecord) -> dict[str, Any]:
    """The version that the message is about: the first one among its arguments."""
    found = (each for each in record.args or () if isinstance(each, ServableId))
    return next(({"model": each.name, "version": each.version} for each in found), {})


def _stack_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if story := record.__dict__.get("story"):
        parts.append(story)
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _bounded(line: dict[str, Any]) -> str:
    data = orjson.dumps(line, default=str)
    if len(data) <= MAX_LINE:
        return data.decode()
    if "error" in line:
        error = line["error"]
        line["error"] = {**error, "stack": error["stack"][-8000:]}
        if "message" in error:
            line["error"]["message"] = error["message"][:1000]
        data = orjson.dumps(line, default=str)
    room = max(MAX_LINE - (len(data) - len(line["msg"].encode())), 0)
    while len(data) > MAX_LINE:
        line["msg"] = line["msg"].encode()[: room - 16].decode(errors="ignore") + " ..."
        room //= 2
        data = orjson.dumps(line, default=str)
    return data.decode()
