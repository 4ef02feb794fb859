"""``--access_log``: one line in the log for each request that has ended or was denied, or for each that has failed or
was denied.

A line says who asked for what, how it ended and where the time went. It never has contents, headers or tokens.
"""

from __future__ import annotations

import logging
import time
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
access = logging.getLogger("tfs_lite.access")


class AccessLog:
    """The access log, on the event loop."""

    def __init__(self, metrics: RequestMetrics, wanted: str, now: Callable[[], float] = time.monotonic) -> None:
        """``wanted`` is one of the values of ``--access_log``."""
        self._now = now
        self._wanted = wanted
        self._second = 0
        self._written = 0
        self._left_out = 0
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
        if self._wanted == ALL or (self._wanted == ERRORS and self._has_room()):
            write_denial(denied)

    def _on_failure(self, ended: EndedRequest) -> None:
        if access.isEnabledFor(logging.INFO) and self._has_room():
            write_line(ended)

    def _has_room(self) -> bool:
        """Whether this second may have another line of a failure; counts it if not."""
        second = int(self._now())
        if second != self._second:
            left_out, self._second, self._written, self._left_out = self._left_out, second, 0, 0
            if left_out:
                access.info("%d more requests have failed", left_out, extra={"left_out": left_out})
        if self._written >= FAILURES_A_SECOND:
            self._left_out += 1
            return False
        self._written += 1
        return True


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
