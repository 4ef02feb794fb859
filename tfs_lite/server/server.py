"""A whole server in one object.

    with Server(model_name="digits", model_base_path="/models/digits") as server:
        server.wait_ready()
        client = tfs_lite.Client(f"127.0.0.1:{server.port}")

Threads: one event loop for all protocols, and those of the core (source, manager, loads, unloads, one per servable).
The ports answer before the first model is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.server.server_lifecycle import ServerLifecycle
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.server_core import MakeFeature, ServerCore


class Server:
    """One server in this process: ``start``, ``wait_ready``, ``stop``, or a ``with`` block, which starts and stops it.

        with tfs_lite.Server(model_name="ranker", model_base_path="/models/ranker", port=8500) as server:
            server.wait_ready()
            server.wait()

    Settings are a :class:`ServerOptions`, or its fields as keyword arguments. Any thread may call any method.
    ``failure`` is None, or the error that ended the server: a model failed to load at the start with
    ``exit_on_initial_load_failure``, or a GPU failed, which this process then cannot use any more.
    """

    def __init__(
        self, options: ServerOptions | None = None, *, features: Sequence[MakeFeature] | None = None, **fields: Any
    ) -> None:
        """``features``: the features of the server, see :mod:`tfs_lite.server.features`; None: all of them."""
        if options is not None and fields:
            raise TypeError("pass either options or their fields")
        self.options = options or ServerOptions(**fields)
        self._features = features
        self.failure: ServingError | None = None
        self._stopping = threading.Lock()  # held by the thread that stops the server
        self._ended = threading.Event()  # stopped, or failed at the start
        self._stopped = threading.Event()
        self._decided = threading.Event()  # ready, failed or stopped
        self._lifecycle: ServerLifecycle | None = None

    def start(self) -> Server:
        """Opens the ports and begins to load. Raises ServingError if there is nothing to serve, the config is wrong, or
        a port is in use; nothing is left running then. A server starts once."""
        if self._lifecycle is not None:
            raise failed_precondition("the server was started before; make a new one")
        self._lifecycle = ServerLifecycle(self.options, self._features)
        self._lifecycle.begin(self._on_decided)
        return self

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until the server is ready: each model known at the start is available or has failed. Raises
        DEADLINE_EXCEEDED after ``timeout`` seconds, ``failure`` if the start failed, UNAVAILABLE if the server was
        stopped."""
        lifecycle = self._require_started()
        if not self._decided.wait(timeout):
            raise ServingError(StatusCode.DEADLINE_EXCEEDED, f"the server is not ready after {timeout} s")
        if self.failure is not None:
            raise self.failure
        if not lifecycle.health.ready:
            raise ServingError(StatusCode.UNAVAILABLE, "the server was stopped")

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the server has stopped or failed, and returns True; False after ``timeout`` seconds."""
        return self._ended.wait(timeout)

    def reload(self, config: ModelServerConfig) -> str:
        """Replaces the whole config, waits until the new models are available, and returns a text that says what was
        applied. Raises ServingError if the config is refused, which changes nothing, or if a new model does not become
        available within ``reload_timeout_seconds``; that model stays configured and goes on loading."""
        return self._require_started().core.reloader.reload(config)

    def read_again(self) -> str:
        """Reads the config file or the repository again, looks at all model directories, and does not wait for the next
        poll. Returns a text that says what was read. Raises ServingError: FAILED_PRECONDITION if the server follows no
        changes, else the error of the config, which then changes nothing."""
        return self._require_started().read_again()

    def stop(self, drain_timeout: float | None = None) -> None:
        """Refuses new requests, answers those in progress for at most ``drain_timeout`` seconds (by default the option
        ``drain_timeout_seconds``), then unloads every model and ends every thread. A second call during the first ends
        the wait at once; both return when the server has stopped."""
        lifecycle = self._lifecycle
        if lifecycle is None or self._stopped.is_set():
            return
        if not self._stopping.acquire(blocking=False):
            lifecycle.hurry()
            self._stopped.wait()
            return
        try:
            lifecycle.stop(self.options.drain_timeout_seconds if drain_timeout is None else drain_timeout)
        finally:
            for event in (self._decided, self._ended, self._stopped):
                event.set()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int | None:
        """The port of gRPC; None without gRPC over TCP."""
        return self._require_started().endpoints.grpc_port

    @property
    def grpc_port(self) -> int | None:
        """The same as ``port``."""
        return self.port

    @property
    def rest_api_port(self) -> int | None:
        """The port of HTTP; None without HTTP."""
        return self._require_started().endpoints.rest_api_port

    @property
    def core(self) -> ServerCore:
        """The lifecycle without its front ends."""
        return self._require_started().core

    def _require_started(self) -> ServerLifecycle:
        if self._lifecycle is None:
            raise failed_precondition("the server was not started")
        return self._lifecycle

    def _on_decided(self, failure: ServingError | None) -> None:
        """Keeps the first failure: a GPU may fail under a request that comes between the readiness and its report."""
        self.failure = self.failure or failure
        self._decided.set()
        if failure is not None:
            self._ended.set()
