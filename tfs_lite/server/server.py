"""A whole server in one object.

    with Server(model_name="digits", model_base_path="/models/digits") as server:
        server.wait_ready()
        client = tfs_lite.Client(f"127.0.0.1:{server.port}")

Threads: one event loop for all protocols, and what the core brings (source, manager, loads, unloads, one per
servable). The ports answer before the first model is loaded.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.server.server_lifecycle import ServerLifecycle
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.server_core import ServerCore


class Server:
    """``start`` -> ``wait_ready`` -> ``stop``, or a ``with`` block. Any thread may call any method.

    Settings are the fields of :class:`ServerOptions`, given as such or one by one. ``failure`` is set when
    ``exit_on_initial_load_failure`` is and a model failed to load at the start; ``wait`` returns then, too.
    """

    def __init__(self, options: ServerOptions | None = None, **fields: Any) -> None:
        if options is not None and fields:
            raise TypeError("pass either options or their fields")
        self.options = options or ServerOptions(**fields)
        self.failure: ServingError | None = None
        self._stopping = threading.Lock()  # held by whoever stops the server
        self._ended = threading.Event()  # stopped, or failed at the start
        self._stopped = threading.Event()
        self._answered = threading.Event()  # ready, or never to become so
        self._running: ServerLifecycle | None = None

    # Its life.

    def start(self) -> Server:
        """Opens the ports and begins to load. Raises ServingError, with nothing left running, when there is nothing to
        serve, the config is wrong, or a port is in use."""
        if self._running is not None:
            raise failed_precondition("the server was started before; make a new one")
        self._running = ServerLifecycle(self.options)
        self._running.begin(self._on_answer)
        return self

    def wait_ready(self, timeout: float | None = None) -> None:
        """Returns once the server is ready. DEADLINE_EXCEEDED after ``timeout`` seconds; the failure, if it failed;
        UNAVAILABLE if it was stopped."""
        running = self._require_running()
        if not self._answered.wait(timeout):
            raise ServingError(StatusCode.DEADLINE_EXCEEDED, f"the server is not ready after {timeout} s")
        if self.failure is not None:
            raise self.failure
        if not running.health.ready:
            raise ServingError(StatusCode.UNAVAILABLE, "the server was stopped")

    def wait(self, timeout: float | None = None) -> bool:
        """Returns True once the server has stopped, or has failed at the start; False after ``timeout`` seconds."""
        return self._ended.wait(timeout)

    def reload(self, config: ModelServerConfig) -> str:
        """Replaces what is served; returns when the new models are available, with what was applied. See
        :meth:`ServerCore.reload`."""
        return self._require_running().core.reload(config)

    def stop(self, drain_timeout: float | None = None) -> None:
        """Not ready; no new requests; those inside are answered, for up to ``drain_timeout`` seconds (default: the
        option); then everything is unloaded and every thread ends. A second call during the first ends the wait at
        once; both return when the server has stopped."""
        running = self._running
        if running is None or self._stopped.is_set():
            return
        if not self._stopping.acquire(blocking=False):
            running.hurry()
            self._stopped.wait()
            return
        try:
            running.stop(self.options.drain_timeout_seconds if drain_timeout is None else drain_timeout)
        finally:
            for event in (self._answered, self._ended, self._stopped):
                event.set()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Where it is.

    @property
    def port(self) -> int | None:
        """Of gRPC; None without."""
        return self._require_running().doors.grpc_port

    @property
    def grpc_port(self) -> int | None:
        return self.port

    @property
    def rest_api_port(self) -> int | None:
        """Of HTTP; None without."""
        return self._require_running().doors.rest_api_port

    @property
    def core(self) -> ServerCore:
        return self._require_running().core

    def _require_running(self) -> ServerLifecycle:
        if self._running is None:
            raise failed_precondition("the server was not started")
        return self._running

    def _on_answer(self, failure: ServingError | None) -> None:
        self.failure = failure
        self._answered.set()
        if failure is not None:
            self._ended.set()
