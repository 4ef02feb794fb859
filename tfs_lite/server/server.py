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
    """``start`` -> ``wait_ready`` -> ``stop``, or a ``with`` block. Any thread may call any method.

    Settings are a :class:`ServerOptions` or its fields as keyword arguments. ``failure`` is set when a model failed to
    load at the start and ``exit_on_initial_load_failure`` is set, or when a GPU has failed, which this process can then
    not use any more; ``wait`` returns then, too.
    """

    def __init__(
        self, options: ServerOptions | None = None, *, features: Sequence[MakeFeature] | None = None, **fields: Any
    ) -> None:
        """``features``: what the server has beside serving, see :mod:`tfs_lite.server.features`; None: everything."""
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
        """Opens the ports and begins to load. Raises ServingError, with nothing left running, when there is nothing to
        serve, the config is wrong, or a port is in use."""
        if self._lifecycle is not None:
            raise failed_precondition("the server was started before; make a new one")
        self._lifecycle = ServerLifecycle(self.options, self._features)
        self._lifecycle.begin(self._on_decided)
        return self

    def wait_ready(self, timeout: float | None = None) -> None:
        """Returns once the server is ready. Raises DEADLINE_EXCEEDED after ``timeout`` seconds, ``failure`` if the
        start failed, UNAVAILABLE if the server was stopped."""
        lifecycle = self._require_started()
        if not self._decided.wait(timeout):
            raise ServingError(StatusCode.DEADLINE_EXCEEDED, f"the server is not ready after {timeout} s")
        if self.failure is not None:
            raise self.failure
        if not lifecycle.health.ready:
            raise ServingError(StatusCode.UNAVAILABLE, "the server was stopped")

    def wait(self, timeout: float | None = None) -> bool:
        """Returns True once the server has stopped, or has failed at the start; False after ``timeout`` seconds."""
        return self._ended.wait(timeout)

    def reload(self, config: ModelServerConfig) -> str:
        """Replaces the config. Returns what was applied once the new models are available; see
        :meth:`ServerCore.reload`."""
        return self._require_started().core.reload(config)

    def read_again(self) -> str:
        """Reads what says which models there are, and looks at their directories, without waiting for the next poll:
        what was read. FAILED_PRECONDITION where nothing is followed; else the error of the config, which changes
        nothing."""
        return self._require_started().read_again()

    def stop(self, drain_timeout: float | None = None) -> None:
        """Refuses new requests, answers those in flight for up to ``drain_timeout`` seconds (default: the option), then
        unloads every model and ends every thread. A second call during the first ends the wait at once; both return
        when the server has stopped."""
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
        return self.port

    @property
    def rest_api_port(self) -> int | None:
        """The port of HTTP; None without HTTP."""
        return self._require_started().endpoints.rest_api_port

    @property
    def core(self) -> ServerCore:
        return self._require_started().core

    def _require_started(self) -> ServerLifecycle:
        if self._lifecycle is None:
            raise failed_precondition("the server was not started")
        return self._lifecycle

    def _on_decided(self, failure: ServingError | None) -> None:
        self.failure = failure
        self._decided.set()
        if failure is not None:
            self._ended.set()
