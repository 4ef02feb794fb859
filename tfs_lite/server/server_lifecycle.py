"""The parts of a started server (core, endpoints, event loop, config watchers) and the order of start and stop."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence

from tfs_lite.adapters.collection import freeze_gc
from tfs_lite.adapters.cuda.failed_gpu import GPU_WATCH
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.history import Cause, Origin, acting, current_origin
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.core.threads import JOIN_SECONDS, join, within
from tfs_lite.server.endpoints import Endpoints, EndpointSettings
from tfs_lite.server.features import all_features
from tfs_lite.server.runtime.event_loop import LoopThread
from tfs_lite.server.runtime.health import Health
from tfs_lite.serving.config_sources import (
    ConfigFileWatcher,
    ModelLocator,
    RepositoryWatcher,
    read_first_config,
    working_directory,
)
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.repository.control import RepositoryControl
from tfs_lite.serving.server_core import MakeFeature, ServerCore
from tfs_lite.serving.source_chain import NO_MODELS

logger = logging.getLogger(__name__)


class ServerLifecycle:
    """Construction opens the ports, or raises and leaves nothing open; then ``begin``; then ``stop``, once. ``hurry``
    may be called while ``stop`` runs."""

    def __init__(self, options: ServerOptions, features: Sequence[MakeFeature] | None = None) -> None:
        freeze_gc()
        settings = EndpointSettings.read(options)
        self.core = ServerCore(options, all_features() if features is None else features)
        self.health = Health(self.core.view.is_model_available, self.core.view.answering)
        self.repository = RepositoryControl(self.core, ModelLocator(options)) if options.is_explicit else None
        self.endpoints = Endpoints(self.core, self.health, settings, self.read_again, self.repository)
        self._loop = LoopThread("tfs-server")
        self._first_load: threading.Thread | None = None
        self._hurried = threading.Event()
        self._watchers: list[RepositoryWatcher | ConfigFileWatcher] = []
        self._end_gpu_watch: Callable[[], None] = ignore
        failure = self._open()
        if failure is not None:
            self._end(0.0)
            raise failure
        if options.follows_changes and options.model_config_file:
            core = self.core
            self._watchers.append(
                ConfigFileWatcher(
                    options.model_config_file,
                    working_directory(options),
                    options.model_config_file_poll_wait_seconds,
                    self._config,
                    core.reloader.follow,
                    core.clock,
                    core.reloader.refused,
                    core.refusals.config_looked_at,
                    options.disk_timeout_seconds,
                )
            )
        ports = self.endpoints.grpc_port, self.endpoints.rest_api_port
        host = f"[{options.host}]" if ":" in options.host else options.host
        logger.info("listening on %s: gRPC port %s, HTTP port %s", host, *ports)

    def _open(self) -> ServingError | None:
        """Returns the error without its traceback, which would keep a half-started server and its threads alive."""
        try:
            self._config = self._first_config()
            self.core.reloader.check(self._config)
            self._loop.run(self.endpoints.open())
        except ServingError as error:
            return ServingError(error.code, str(error))
        return None

    def _first_config(self) -> ModelServerConfig:
        """The config of the start. In the mode ``explicit`` nothing is served before it is loaded by name, but the
        repository is checked."""
        if self.repository is not None:
            self.repository.check()
            return NO_MODELS
        core, options = self.core, self.core.options
        if not options.model_repository:
            return core.disk_calls.call("the config of what is to be served", lambda: read_first_config(options))
        watcher = RepositoryWatcher(
            options,
            core.clock,
            core.reloader.check,
            core.reloader.follow,
            core.refusals.repository_refuses,
            core.refusals.config_looked_at,
            core.states.policies_not_read,
        )
        self._watchers.append(watcher)
        return watcher.first_look()

    def read_again(self) -> str:
        """Reads what says which models there are, and looks at their directories, without waiting for the next poll:
        what was read. FAILED_PRECONDITION where nothing is followed; else the error of the config, which changes
        nothing. Any thread but the event loop's."""
        core = self.core
        core.reloader.require_following()
        core.sources.wake()
        with acting(current_origin() or Origin(Cause.OPERATOR)):
            for watcher in self._watchers:  # one, or none
                watcher.look()
                return f"{watcher.what} and the directories of its models"
        return "the directory of the model"

    def begin(self, on_decided: Callable[[ServingError | None], None]) -> None:
        """Loads the first config on a thread of its own. ``on_decided`` gets None when the server is ready or was
        stopped before, and the failure when the options make one fatal; later a failure again if a GPU fails."""

        def gpu_failed(failure: str) -> None:
            logger.error("a GPU failed, which this process cannot use any more: %s", failure)
            on_decided(ServingError(StatusCode.UNAVAILABLE, f"a GPU failed: {failure}", Reason.GPU_FAILED))

        self._end_gpu_watch = GPU_WATCH.watch(gpu_failed)

        def load() -> None:
            try:
                failure = self._load_first()
            except ServingError as error:
                failure = error
            if failure is not None:
                logger.error("%s", str(failure))
            on_decided(failure)

        self._first_load = threading.Thread(target=load, name="tfs-first-load", daemon=True)
        self._first_load.start()

    def stop(self, drain_timeout: float) -> None:
        """Goes on accepting for ``shutdown_delay_seconds`` and then returns when every request is answered or
        ``drain_timeout`` seconds are over, and every thread has ended, or has had some seconds to. What has not is
        left behind, and ``left_behind`` names it."""
        self.health.set_draining()
        self.core.waiter.close()
        delay = self.core.options.shutdown_delay_seconds
        if delay:
            logger.info("stopping: not ready, still accepting for %g s", delay)
            self._loop.run(self.endpoints.leave())
            self._hurried.wait(delay)
        ends = time.monotonic() + drain_timeout
        logger.info("stopping: requests in progress have up to %g s to end", drain_timeout)
        self._loop.run(self.endpoints.drain(drain_timeout))
        if self._first_load is not None:
            join(self._first_load)
        self._end(max(ends - time.monotonic(), 0.0))
        logger.info("stopped")

    def hurry(self) -> None:
        """Cancels the requests that ``stop`` is waiting for, and ends its delay."""
        self._hurried.set()
        self._loop.spawn(self.endpoints.drain(0.0))

    def _load_first(self) -> ServingError | None:
        core, options = self.core, self.core.options
        core.start()
        core.load_first(self._config)
        if options.follows_changes:
            for watcher in self._watchers:
                watcher.start()
        if self.repository is not None:
            return self._load_explicitly(self.repository)
        result = core.wait_for_first(first_attempt_counts=not options.exit_on_initial_load_failure)
        core.end_first_load()
        if options.ready_requires_all_models and not options.exit_on_initial_load_failure:
            core.waiter.wait_for_all()
        if core.waiter.closed:
            return None
        if options.exit_on_initial_load_failure and result.error is not None:
            return result.error
        self._set_ready()
        return None

    def _load_explicitly(self, repository: RepositoryControl) -> ServingError | None:
        core, options = self.core, self.core.options
        failures = repository.load_first(options.load_model)
        core.end_first_load()
        if failures and options.exit_on_initial_load_failure and not core.waiter.closed:
            return next(iter(failures.values()))
        if options.ready_requires_all_models:
            core.waiter.wait_for_available(failures)
        if not core.waiter.closed:
            self._set_ready()
        return None

    def _set_ready(self) -> None:
        self.health.set_ready()
        self.core.changes.notify()
        found = self.core.view.answering()
        told = f"; not: {found.names}" if found.silent else ""
        logger.log(logging.WARNING if found.silent else logging.INFO, "ready: %s%s", found, told)
        if found.count:
            self.core.opener.end_unneeded()

    def _close_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.close()

    def _end(self, drain_timeout: float) -> None:
        self._end_gpu_watch()
        self._close_watchers()
        self.endpoints.close_reloads()
        self.core.close(drain_timeout)
        if self.repository is not None:
            within(JOIN_SECONDS, "tfs-repository-calls", self.repository.close)
        self._loop.run(self.endpoints.close())
        within(2 * JOIN_SECONDS, "tfs-endpoints", self.endpoints.close_workers)
        self._loop.close()
        gc.collect()  # errors of past calls may refer to the server object of gRPC's library, whose thread ends with it
