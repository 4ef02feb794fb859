"""One gRPC frontend, seen from the server: its process is started, watched, and started again when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_answerer import Answerer
from tfs_lite.server.frontend_ring import make_memory, map_memory
from tfs_lite.server.frontend_setup import FrontendSetup
from tfs_lite.transport.table import Method

logger = logging.getLogger(__name__)

MODULE = "tfs_lite.server.frontend_process"
START_TIMEOUT = 60.0
"""Seconds from the start of a process until it listens."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a dead frontend is started again; doubled as long as they die young."""
YOUNG = 60.0
START_SECONDS = 60.0
LAST_WORDS = 5.0
"""Seconds that a frontend may take to end beyond its grace."""


def pause_before(early_deaths: int) -> float:
    """Seconds to wait before the next start, after so many early deaths in a row."""
    return min(FIRST_PAUSE * 2.0 ** min(early_deaths, 20), LONGEST_PAUSE)


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    link: Answerer
    listens: bool = False


class FrontendChild:
    """``start`` -> ``stop``, on the event loop of the handlers. ``restarts``: how often it was started again."""

    def __init__(self, index: int, methods: Sequence[Method], setup: FrontendSetup, max_payload: int) -> None:
        self._name = f"gRPC frontend {index}"
        self._methods = methods
        self._setup = setup
        self._max_payload = max_payload
        self._running: _Running | None = None
        self._life: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.restarts = 0

    @property
    def listens(self) -> bool:
        running = self._running
        return running is not None and running.listens

    @property
    def process_id(self) -> int | None:
        running = self._running
        return running.process.pid if running is not None else None

    @property
    def calls_inside(self) -> int:
        running = self._running
        return running.link.calls_inside if running is not None else 0

    async def start(self) -> None:
        """Returns when it listens. Raises what hinders it, with nothing left running; UNAVAILABLE if it is not up in
        ``START_SECONDS``."""
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(first))
        try:
            await asyncio.wait_for(first, START_SECONDS)
        except TimeoutError:
            await self.stop(0.0)
            message = f"{self._name} is not up after {START_SECONDS:g} s"
            raise ServingError(StatusCode.UNAVAILABLE, message) from None

    async def stop(self, grace: float) -> None:
        """Lets it answer what is inside and end. May be called again with a shorter grace while it runs."""
        self._stopping.set()
        if self._life is None:
            return
        running = self._running
        if running is not None and running.listens:
            running.link.send(wire.DRAIN, value=int(grace * 1e6))
            await asyncio.wait({self._life}, timeout=grace + LAST_WORDS)
        if self._running is not None:
            self._running.link.abort()
            self._running.process.kill()
        await asyncio.wait({self._life})

    async def _live(self, first: asyncio.Future[None]) -> None:
        early_deaths = 0
        while not self._stopping.is_set():
            born = time.monotonic()
            error = await self._live_once(first)
            if not first.done():
                first.set_exception(error)
                return
            if self._stopping.is_set():
                return
            early_deaths = early_deaths + 1 if time.monotonic() - born < YOUNG else 0
            pause = pause_before(early_deaths)
            logger.warning("%s; it is started again in %g s", error, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            self.restarts += 1

    async def _live_once(self, first: asyncio.Future[None]) -> ServingError:
        """From start to death; returns why it died."""
        try:
            self._running = running = await self._spawn()
        except OSError as error:
            return ServingError(StatusCode.UNAVAILABLE, f"{self._name} cannot be started: {error.strerror}")
        link = running.link
        try:
            if self._stopping.is_set():  # too early to be told
                link.abort()
            link.send(wire.SETUP, payload=self._setup.encode())
            events: set[asyncio.Future[Any]] = {link.ready, link.gone}
            await asyncio.wait(events, timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if not link.ready.done():
                return self._early_end(running)
            link.ready.result()
            running.listens = True
            if not first.done():
                first.set_result(None)
            await link.gone
            return self._death(running)
        except ServingError as error:
            return error
        finally:
            running.listens = False
            await self._bury(running)

    async def _spawn(self) -> _Running:
        ours, theirs = socket.socketpair()
        descriptor = make_memory()
        try:
            link = Answerer(map_memory(descriptor), self._methods, self._max_payload)
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
            try:
                return _Running(_start_process((theirs.fileno(), descriptor), self._setup.directory), link)
            except BaseException:
                link.abort()
                raise
        finally:
            theirs.close()
            os.close(descriptor)

    async def _bury(self, running: _Running) -> None:
        """Nothing of it is left afterwards, but handlers that take their time to be cancelled."""
        running.link.abort()
        running.process.kill()
        await _end_of(running.process)
        await running.link.gone
        self._running = None

    def _early_end(self, running: _Running) -> ServingError:
        if running.link.gone.done():
            return ServingError(StatusCode.UNAVAILABLE, f"{self._name} ended before it listened{_why(running.link)}")
        return ServingError(StatusCode.UNAVAILABLE, f"{self._name} does not listen after {START_TIMEOUT:g} s")

    def _death(self, running: _Running) -> ServingError:
        return ServingError(StatusCode.UNAVAILABLE, f"{self._name} ended{_why(running.link)}")


async def _end_of(process: subprocess.Popen[bytes]) -> None:
    """Waits for a process that is ending."""
    if process.returncode is not None:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        process.wait()


def _why(link: Answerer) -> str:
    return f": it sent {link.broken}" if link.broken else ""


def _start_process(descriptors: tuple[int, int], directory: str) -> subprocess.Popen[bytes]:
    """It imports what this process imports, from the same places in the same order."""
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    with _signals_blocked():
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": path},
        )


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process inherits this, and so is deaf to them from its first moment."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
