"""Samples requests for the request log. Sampling runs on the event loop, everything else on a thread of its own.

A model is logged if its config has a ``logging_config``. The log can neither slow nor fail a request: an offer costs a
lookup in a dict, and for a logged model a random number and an entry in a bounded queue. Entries that do not fit,
cannot be made or cannot be written are counted and dropped.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tfs_lite.config.logging_config import LoggingSettings
from tfs_lite.core.clock import Clock
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import failed_precondition
from tfs_lite.protocols.messages import Message
from tfs_lite.request_log.thread import LogEntry, LogThread
from tfs_lite.request_log.writer import LogLimits, LogWriter, OnResult

logger = logging.getLogger(__name__)


class RequestLog(Protocol):
    """The log as services see it."""

    def offer(self, servable_id: ServableId, signature: str, size: int, make: Callable[[], Message]) -> None:
        """Offers an answered request. Returns at once and raises nothing.

        For a request that is sampled, ``make`` is called later, on the log's thread, and returns a PredictionLog with
        its ``log_type``; the log adds the metadata. ``size``: bytes of request and answer, which stay in memory until
        then.
        """


class _NoLog:
    def offer(self, servable_id: ServableId, signature: str, size: int, make: Callable[[], Message]) -> None:
        """Logs nothing."""


NO_LOG: Final[RequestLog] = _NoLog()
"""Logs nothing."""


@dataclass(frozen=True, slots=True)
class _Log:
    """The log of all models with equal settings. ``sampling`` is the SamplingConfig for the metadata."""

    rate: float
    sampling: Message
    writer: LogWriter


def _ignore(model: str, code: str) -> None:
    """Counts nothing."""


class RequestLogs:
    """The logs of all models. ``offer`` on the event loop; ``check``, ``configure`` and ``close`` on other threads.

    ``on_result(model, code)`` is called on any thread for each record with the name of a canonical code: OK after the
    write, RESOURCE_EXHAUSTED if the queue was full, UNAVAILABLE if the disk failed or the server ended first, INTERNAL
    if the record could not be made. ``chance`` returns numbers in [0, 1).
    """

    def __init__(
        self,
        clock: Clock,
        on_result: OnResult = _ignore,
        limits: LogLimits | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._on_result = on_result
        self._limits = limits or LogLimits()
        self._chance = chance
        self._thread = LogThread(self._limits, clock, self._count)
        self._lock = threading.Lock()  # guards _logs and _closed, and orders changes of _by_model
        self._logs: Mapping[LoggingSettings, _Log] = {}
        self._closed = False
        self._by_model: Mapping[str, _Log] = {}  # replaced, never changed: offers read it without the lock

    def offer(self, servable_id: ServableId, signature: str, size: int, make: Callable[[], Message]) -> None:
        log = self._by_model.get(servable_id.name)
        if log is None or self._chance() >= log.rate:
            return
        seconds = int(self._clock.time())
        self._thread.put(LogEntry(log.writer, log.sampling, servable_id, signature, seconds, size, make))

    def check(self, models: Mapping[str, LoggingSettings]) -> None:
        """Raises what :meth:`configure` would raise. Logs that are being written are not checked again."""
        with self._lock:
            known = self._logs
        for name, settings in models.items():
            if settings not in known:
                _check_directory(name, settings)

    def configure(self, models: Mapping[str, LoggingSettings]) -> None:
        """Logs exactly these models from now on. Models with equal settings share one log. A log that stays keeps its
        file; one that is removed is finished after its queued entries.

        FAILED_PRECONDITION, with nothing changed, if a directory is missing or not writable.
        """
        self.check(models)
        with self._lock:
            if self._closed:
                return
            old = self._logs
            self._logs = {settings: old.get(settings) or self._open(settings) for settings in models.values()}
            self._by_model = {name: log for name, settings in models.items() if (log := self._logs[settings]).rate > 0}
            if self._by_model:
                self._thread.start()
            for settings in old.keys() - self._logs.keys():
                self._thread.retire(old[settings].writer)

    def close(self) -> None:
        """Writes the queued entries, within ``drain_seconds``, and finishes all files. Later offers are ignored."""
        with self._lock:
            self._closed = True
            self._by_model = {}
        self._thread.close()

    def _open(self, settings: LoggingSettings) -> _Log:
        writer = LogWriter(settings.filename_prefix, self._limits, self._clock, self._count)
        return _Log(settings.sampling_config.rate(), settings.to_proto().sampling_config, writer)

    def _count(self, model: str, code: str) -> None:
        try:
            self._on_result(model, code)
        except Exception:
            logger.exception("a request of model %s, written to its request log, could not be counted", model)


def _check_directory(model: str, settings: LoggingSettings) -> None:
    directory = os.path.dirname(settings.filename_prefix)
    if not os.path.isdir(directory):
        problem = "there is no such directory"
    elif not os.access(directory, os.W_OK | os.X_OK):
        problem = "the server may not write there"
    else:
        return
    field = "logging_config.log_collector_config.filename_prefix"
    raise failed_precondition(f'model {model}: {field} is "{settings.filename_prefix}", but {problem}')
