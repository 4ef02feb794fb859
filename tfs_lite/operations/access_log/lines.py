"""``--access_log``: one line in the log for each request that has ended or was denied, or for each that has failed or
was denied.

A line says who asked for what, how it ended and where the time went. It never has contents, headers or tokens.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.ended_requests import EndedRequest, ended_request
from tfs_lite.metrics.request_records import RecordedRequest
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.server.access.access import Denied

ALL, ERRORS = "all", "errors"
FAILURES_A_SECOND = 20
"""Lines for failed requests, where only these have lines; more are counted."""
MAX_MESSAGE = 300
"""Characters of a failure's text."""
MAX_NAME = 200
"""Characters of a model's name, which a client has chosen."""
MOST_NAMED, NAMED = 100, 3
"""Models that failures of a second are counted by, and those that the line about them names."""
OTHERS = "others"
access = logging.getLogger("tfs_lite.access")


class AccessLog:
    """The access log, on the event loop."""

    def __init__(self, metrics: RequestMetrics, wanted: str, now: Callable[[], float] = time.monotonic) -> None:
        """``wanted`` is one of the values of ``--access_log``."""
        self._now = now
        self._wanted = wanted
        self._second = 0
        self._written = 0
        self._left_out: Counter[str] = Counter()  # by model, or by what was asked of a request that was denied
        if wanted == ALL:
            metrics.on_end(self._on_end)
        elif wanted == ERRORS:
            metrics.on_failure(self._on_failure)

    def _on_end(self, record: RecordedRequest, code: StatusCode, seconds: float, error: BaseException | None) -> None:
        if access.isEnabledFor(logging.INFO):
            write_line(ended_request(record, code, seconds, error))

    def on_denied(self, denied: Denied) -> None:
        """A caller was denied: no model has seen the request."""
        if not access.isEnabledFor(logging.INFO):
            return
        if self._wanted == ALL or (self._wanted == ERRORS and self._has_room("requests that were denied")):
            write_denial(denied)

    def _on_failure(self, ended: EndedRequest) -> None:
        if access.isEnabledFor(logging.INFO) and self._has_room(f"model {ended.model[:MAX_NAME]}"):
            write_line(ended)

    def _has_room(self, what: str) -> bool:
        """Whether this second may have another line of a failure; counts it under ``what`` if not."""
        second = int(self._now())
        if second != self._second:
            left_out, passed = self._left_out, second - self._second
            self._second, self._written, self._left_out = second, 0, Counter()
            if left_out:
                write_left_out(left_out, passed)
        if self._written >= FAILURES_A_SECOND:
            self._left_out[what if what in self._left_out or len(self._left_out) < MOST_NAMED else OTHERS] += 1
            return False
        self._written += 1
        return True


def write_left_out(left_out: Counter[str], passed: int) -> None:
    """The line of failures without one. ``passed``: the seconds since the second in which they were. There may have
    been more: listeners hear of some in each second."""
    total = left_out.total()
    ago = "in the second before" if passed <= 1 else f"in one second, {passed} s ago"
    most = ", ".join(f"{count} of {what}" for what, count in left_out.most_common(NAMED))
    more = f", {rest} of others" if (rest := total - sum(count for _, count in left_out.most_common(NAMED))) else ""
    requests = "request" if total == 1 else "requests"
    access.info("at least %d more %s failed %s: %s%s", total, requests, ago, most, more, extra={"left_out": total})


def write_line(ended: EndedRequest) -> None:
    """The line of one request."""
    version = "" if ended.version is None else f"@{ended.version}"
    context = ended.context
    parts = [f"{ended.method} {ended.model}{version}", ended.entrypoint, context.peer or "-", ended.code.name]
    parts += [f"{name}={value:.3f}ms" for name, value in _milliseconds(ended).items()]
    parts += [f"rows={ended.rows}", f"id={context.request_id}"]
    if ended.shielded_from:
        parts.append(f"shielded_from={ended.shielded_from}")
    if ended.trace_id:
        parts.append(f"trace={ended.trace_id}")
    failed = ended.code is not StatusCode.OK
    message = f" {ended.stage}: {ended.message[:MAX_MESSAGE]}" if failed else ""
    access.info("%s%s", " ".join(parts), message, extra=_fields(ended))


def write_denial(denied: Denied) -> None:
    """The line of a request that was denied. The caller is a name of the access file, else its address."""
    scope, asked = denied.scope.name.lower(), denied.asked[:MAX_MESSAGE]
    parts = [asked or "-", denied.peer or "-", denied.code.name, f"scope={scope}", f"caller={denied.caller or '-'}"]
    parts += [f"id={denied.request_id}"] if denied.request_id else []
    fields = {
        "event": "denied",
        "method": asked,
        "peer": denied.peer,
        "caller": denied.caller,
        "scope": scope,
        "reason": denied.reason.value,
        "code": denied.code.name,
        "request_id": denied.request_id,
    }
    given = {name: value for name, value in fields.items() if value}
    access.info("%s access: %s", " ".join(parts), denied.message[:MAX_MESSAGE], extra=given)


def _milliseconds(ended: EndedRequest) -> dict[str, float]:
    seconds = {
        "recv": ended.started - ended.arrived,
        "queue": ended.queue_seconds,
        "compute": ended.run_seconds,
        "total": ended.started - ended.arrived + ended.seconds,
    }
    return {name: value * 1e3 for name, value in seconds.items()}


def _fields(ended: EndedRequest) -> dict[str, object]:
    """The fields of a line in the format ``json``."""
    context = ended.context
    fields: dict[str, object | None] = {
        "event": "request",
        "method": ended.method,
        "protocol": ended.entrypoint,
        "peer": context.peer or None,
        "model": ended.model,
        "version": ended.version,
        "shielded_from": ended.shielded_from or None,
        "code": ended.code.name,
        "stage": ended.stage,
        "reason": None if ended.reason is None else ended.reason.name,
        "rows": ended.rows,
        "batch_rows": ended.batch_rows or None,
        "request_id": context.request_id,
        "trace_id": ended.trace_id or None,
    }
    times = {f"{name}_ms": round(value, 3) for name, value in _milliseconds(ended).items()}
    return {name: value for name, value in (fields | times).items() if value is not None}
