"""The last requests that have failed: by model, and findable by their ids.

What is kept says where and why a request has failed, how long it waited and ran, and in which company. It has no
inputs, no outputs and no tokens. Everything is bounded, and what was left out is counted.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfs_lite.core.history import iso_time
from tfs_lite.metrics.ended_requests import EndedRequest
from tfs_lite.metrics.requests import REST, UNKNOWN

KEPT_OF_MODEL, KEPT, MOST_BYTES = 100, 2000, 4 * 2**20
MOST_A_SECOND = 50
"""The number of failures that are kept in each second; of further ones, one of each :data:`SAMPLED`."""
SAMPLED = 16
MAX_MESSAGE = 300
"""Characters of the error's text."""
MAX_NAME = 200
"""Characters of a model's name, which a client has chosen."""
_ENTRY_BYTES = 600
"""The bytes that an entry takes in addition to its texts."""
_V2 = frozenset(("ModelInfer",))
_OPENAI = frozenset(("Completions", "ChatCompletions"))


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """One failed request. ``time`` is its end, in seconds since 1970; the other times are in seconds.

    ``stage``: ``route`` (no version answers it), ``decode``, ``check`` (its inputs), ``queue``, ``run``, ``encode``, or
    ``send``. ``batch``: in which company its run failed: ``alone``; ``guilty``, if a batch with others had failed,
    was tried again in halves, and this one failed by itself; ``shared``, if it failed together with others; empty, if
    that is not known, or it did not fail there. ``batch_rows`` are those of its last run; 0: not known.
    """

    time: float
    request_id: str
    trace_id: str
    method: str
    protocol: str
    model: str
    version: int | None
    code: str
    stage: str
    message: str
    seconds: float
    queue_seconds: float
    run_seconds: float
    rows: int
    batch_rows: int
    batch: str
    peer: str

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "time": iso_time(self.time),
            "request_id": self.request_id,
            "trace_id": self.trace_id,
            "method": self.method,
            "protocol": self.protocol,
            "model": self.model,
            "version": self.version,
            "code": self.code,
            "stage": self.stage,
            "message": self.message,
            "seconds": round(self.seconds, 6),
            "queue_seconds": round(self.queue_seconds, 6),
            "run_seconds": round(self.run_seconds, 6),
            "rows": self.rows,
            "batch_rows": self.batch_rows,
            "batch": self.batch,
            "peer": self.peer,
        }


class FailedRequests:
    """Takes what :meth:`RequestMetrics.on_failure` tells. Any thread may call any method."""

    def __init__(self, clock: Callable[[], float], is_known: Callable[[str], bool]) -> None:
        """``clock`` gives seconds since 1970. ``is_known`` tells whether a model is served; requests for others share
        one ring."""
        self._clock = clock
        self._is_known = is_known
        self._lock = threading.Lock()  # guards what follows
        self._started = clock()
        self._entries: dict[int, FailedRequest] = {}  # by number, the oldest first
        self._of_model: dict[str, deque[int]] = {}
        self._number = 0
        self._bytes = 0
        self._dropped_until = 0.0
        self._second, self._in_second = 0, 0
        self._left_out = 0

    def note(self, ended: EndedRequest) -> None:
        """Keeps the request, or counts it where there are too many. Short."""
        now = self._clock()
        with self._lock:
            if int(now) != self._second:
                self._second, self._in_second = int(now), 0
            self._in_second += 1
            beyond = self._in_second - MOST_A_SECOND
            if beyond > 0 and beyond % SAMPLED:
                self._left_out += 1
                return
            self._number += 1
            entry = _entry(ended, now)
            self._entries[self._number] = entry
            self._bytes += _size(entry)
            ring = self._of_model.setdefault(self._ring(entry), deque())
            ring.append(self._number)
            if len(ring) > KEPT_OF_MODEL:
                self._drop(ring.popleft())
            while len(self._entries) > KEPT or self._bytes > MOST_BYTES:
                self._drop_oldest()

    def of_model(self, name: str, most: int = KEPT_OF_MODEL) -> list[FailedRequest]:
        """The newest first."""
        with self._lock:
            numbers = self._of_model.get(name) or self._of_model.get(UNKNOWN) or deque()
            entries = [self._entries[number] for number in reversed(numbers)]
        return [entry for entry in entries if entry.model == name][:most]

    def latest(self) -> list[FailedRequest]:
        """The latest failures of all models, the newest first."""
        with self._lock:
            entries = list(self._entries.values())
        return entries[::-1]

    def find(self, request_id: str) -> list[FailedRequest]:
        """Those with this request id or trace id, the newest first."""
        with self._lock:
            entries = list(self._entries.values())
        return [entry for entry in reversed(entries) if request_id in (entry.request_id, entry.trace_id)]

    @property
    def reaches_back_to(self) -> float:
        """The moment, in seconds since 1970, since which every failure is here that was not left out."""
        return max(self._dropped_until, self._started)

    @property
    def left_out(self) -> int:
        """Failures that were not kept because there were too many in a second."""
        return self._left_out

    def __len__(self) -> int:
        return len(self._entries)

    def _ring(self, entry: FailedRequest) -> str:
        return entry.model if self._is_known(entry.model) else UNKNOWN

    def _drop_oldest(self) -> None:
        """Drops the oldest entry of all models. A ring begins with its oldest entry."""
        number = next(iter(self._entries))
        for name, ring in self._of_model.items():
            if ring and ring[0] == number:
                ring.popleft()
                if not ring:
                    del self._of_model[name]
                break
        self._drop(number)

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        self._bytes -= _size(entry)
        self._dropped_until = max(self._dropped_until, entry.time)


def _entry(ended: EndedRequest, now: float) -> FailedRequest:
    context = ended.context
    return FailedRequest(
        now,
        context.request_id,
        ended.trace_id,
        ended.method,
        _protocol(ended),
        _clean(ended.model, MAX_NAME),
        ended.version,
        ended.code.name,
        ended.stage,
        _clean(ended.message, MAX_MESSAGE),
        ended.seconds,
        ended.queue_seconds,
        ended.run_seconds,
        ended.rows,
        ended.batch_rows,
        _batch(ended),
        context.peer,
    )


def _protocol(ended: EndedRequest) -> str:
    if ended.method in _OPENAI:
        return "OpenAI"
    over_http = ended.entrypoint == REST
    if ended.method in _V2:
        return "V2 over HTTP" if over_http else "V2 over gRPC"
    return "REST" if over_http else "gRPC"


def _batch(ended: EndedRequest) -> str:
    if ended.stage != "run" or not ended.batch_rows:
        return ""
    if ended.batch_rows > ended.rows:
        return "shared"
    return "guilty" if ended.halved else "alone"


def _clean(text: str, most: int) -> str:
    """One line of at most ``most`` characters, without control characters and halves of pairs."""
    cut = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join([char if char.isprintable() else " " for char in cut])


def _size(entry: FailedRequest) -> int:
    texts = (entry.request_id, entry.trace_id, entry.model, entry.message, entry.peer)
    return _ENTRY_BYTES + sum([sys.getsizeof(text) for text in texts])
