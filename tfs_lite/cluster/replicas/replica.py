"""A process with one instance of one version, asked over sockets by servers anywhere: the far end.

    Replica(name, secret).serve()

The thread that calls ``serve`` opens the model and runs it, one request at a time. One thread accepts connections; each
connection has a thread that reads, answers pings whatever the model does, and runs ``preprocess`` and ``postprocess``.
The only connection that asks for runs is lent to the model's thread, which then waits for its requests itself, as a
worker process does: that saves two changes of threads. With several, the next request is read while one runs.

Nothing about it is Ray's: any process can host one. What is to be opened comes over a connection, and so a refusal is a
status. A connection that does not know the secret, or is not understood, is closed; the others go on. A replica ends
when it is told to, when no server has been connected for a time, and when its parent process has ended: a server
that has forgotten it cannot leave it behind with its GPU.
"""

from __future__ import annotations

import logging
import os
import platform
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from socket import AF_UNIX

from tfs_lite.cluster.replicas.connection import (
    GREETING_SECONDS,
    MEMORY,
    FrameChannel,
    Stream,
    boot_id,
    receive_memory,
    welcome,
)
from tfs_lite.cluster.replicas.engine import ReplicaAddress
from tfs_lite.cluster.replicas.facts import gpu, niceness, version_of
from tfs_lite.cluster.replicas.generation import has_digest
from tfs_lite.cluster.replicas.listener import Listener
from tfs_lite.cluster.replicas.tls import Tls
from tfs_lite.cluster.replicas.transfer import FILE, FILES, FILES_END, FilesReceiver
from tfs_lite.config.replicas import CACHE_BYTES
from tfs_lite.core.clock import Clock, SystemClock, Timer
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.workers.arena import DEFAULT_LIMIT
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.request_handler import Opened, close_model, failure_from, open_model, run_request
from tfs_lite.workers.tensor_channel import TensorChannel
from tfs_lite.workers.tensors import TensorLocation
from tfs_lite.workers.wire import (
    BUSY,
    CLOSE,
    DESCRIBE,
    DRAIN,
    OPEN,
    PING,
    PLACED,
    POSTPROCESS,
    PREPROCESS,
    RUN,
    Message,
    answer_to,
    describe_model,
    failure_of,
)

MAX_ONGOING = 8
"""Requests for runs, with the one that runs; more are refused."""
MAX_STRANGERS = 32
"""Connections in their greeting; then the one that came first is closed."""
CLOSE_SECONDS = 10.0
"""How long the run under way and the model's own closing may take once the end was decided."""
logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Opening:
    """The one opening of a replica. ``model`` or ``failure`` is set when it is ``done``."""

    function: str
    arguments: str
    label: str
    done: threading.Event = field(default_factory=threading.Event)
    model: Opened = None
    failure: ServingError | None = None


@dataclass(slots=True, eq=False)
class _Loan:
    """A connection that the thread of the model reads until ``returned``. ``failure`` is what ended it."""

    session: _Session
    returned: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """A request for the thread of the model. ``done`` is released when there are results or there is a failure."""

    message: Message
    inputs: Mapping[str, Tensor]
    done: threading.Lock
    seconds: float = 0.0
    results: Mapping[str, Tensor] | None = None
    failure: ServingError | None = None


class Replica:
    """Listens from the constructor on; ``serve`` returns when it has ended. Threads: any, ``serve`` once.

    ``name`` is that of this one life, ``secret`` the cluster's. It listens on ``bind``, on the first free port of
    ``ports`` or on any, and on an abstract UNIX socket. ``orphan_seconds`` is how long it lives without a connection.
    ``facts`` are added to what it says about itself. ``exit`` ends the process when the model does not end in time.
    """

    def __init__(
        self,
        name: str,
        secret: bytes,
        bind: str = "127.0.0.1",
        ports: range | None = None,
        orphan_seconds: float = 600.0,
        facts: Mapping[str, str] | None = None,
        limit: int = DEFAULT_LIMIT,
        clock: Clock | None = None,
        exit: Callable[[int], object] = os._exit,
        cache_dir: str = "",
        cache_bytes: int = CACHE_BYTES,
        tls: Mapping[str, str] | None = None,
    ) -> None:
        """``limit``: bytes of the tensors of one message. ``cache_dir`` and ``cache_bytes`` are those of
        :class:`~tfs_lite.storage.files_cache.FilesCache`. ``tls``: keys as texts (``TlsKeys.plain``), for
        connections from other hosts. Raises OSError if it cannot listen."""
        self._name = name
        self._secret = secret
        self._orphan_seconds = orphan_seconds
        self._facts = dict(facts or {})
        self._cache = FilesCache(cache_dir, cache_bytes, has_digest)
        self._directories: dict[str, str] = {}  # by digest
        self._limit = limit
        self.tls = None if tls is None else Tls.read(tls)
        self._clock = clock or SystemClock()
        self._exit = exit
        self._jobs: SimpleQueue[_Opening | _Run | _Loan | None] = SimpleQueue()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()  # guards what follows
        self._opening: _Opening | None = None
        self._ongoing = 0
        self._askers: set[_Session] = set()
        self._lent = False
        self._epoch = 0
        self._sessions: set[_Session] = set()
        self._strangers: deque[_Session] = deque()
        self._orphaned: Timer | None = None
        self._draining = False
        self._cause = ""
        self._watchdog: Timer | None = None
        self._listener = Listener(bind, ports)
        tcp = self._listener.tcp.getsockname()
        self.address = ReplicaAddress(name, tcp[0], tcp[1], boot_id(), self._listener.unix_name, os.getpid())

    @property
    def cause(self) -> str:
        """Why it ends; empty while it does not."""
        with self._lock:
            return self._cause

    def serve(self) -> None:
        """Opens and runs the model on this thread until the end, then closes it."""
        acceptor = threading.Thread(target=self._accept, name="tfs-accept", daemon=True)
        acceptor.start()
        with self._lock:
            self._expect_company()
        while (job := self._jobs.get()) is not None:
            if isinstance(job, _Opening):
                self._open(job)
            elif isinstance(job, _Loan):
                self._serve_directly(job)
            else:
                self._run(job)
        self._clean_up()
        acceptor.join()

    def end(self, cause: str) -> None:
        """Ends it after the run under way. May be repeated; the first cause counts."""
        with self._lock:
            if self._cause:
                return
            self._cause = cause
            if self._orphaned is not None:
                self._orphaned.cancel()
        logger.info("replica %s ends: %s", self._name, cause)
        self._listener.close()
        self._watchdog = self._clock.call_later(CLOSE_SECONDS, self._give_up)
        with self._lock:
            self._put(None)

    def about(self) -> dict[str, object]:
        """The facts known of the replica, as plain data. ``model`` is None until the model is open."""
        with self._lock:
            opening, state = self._opening, "draining" if self._draining else "ready"
        model = opening.model if opening else None
        return {
            **self.address.plain,
            "state": state if model is not None else "opening" if opening else PLACED,
            "python": platform.python_version(),
            "versions": {name: version_of(name) for name in ("torch", "numpy", "tfs-lite")},
            "gpu": gpu(),
            "niceness": niceness(),
            "facts": self._facts,
            "model": None if model is None else describe_model(model, model.resident_bytes()),
        }

    # What sessions do, each on its thread.

    def admit(self, session: _Session, epoch: int) -> None:
        """The session has shown that it knows the secret. ConnectionClosed if that took too long."""
        with self._lock:
            if session not in self._strangers:
                raise ConnectionClosed
            self._strangers.remove(session)
            self._epoch = max(self._epoch, epoch)
            self._sessions.add(session)
            if self._orphaned is not None:
                self._orphaned.cancel()
                self._orphaned = None

    def leave(self, session: _Session) -> None:
        """The session's connection has ended."""
        with self._lock:
            if session in self._strangers:
                self._strangers.remove(session)
            if session not in self._sessions:
                return
            self._sessions.remove(session)
            self._askers.discard(session)
            alone = not self._sessions and not self._cause
            drained = alone and self._draining
            if alone and not drained:
                self._expect_company()
        if drained:
            self.end("it was drained")

    def check_epoch(self, epoch: int) -> None:
        """Raises FAILED_PRECONDITION if a later leader has been heard of."""
        with self._lock:
            latest = self._epoch
        if epoch < latest:
            raise failed_precondition(f"replica {self._name}: epoch {epoch} is over, {latest} has begun")

    def open(self, function: str, arguments: str, label: str) -> None:
        """Has the model opened, or waits until it is, whichever session has asked first: which model it is
        says the replica's name. Raises what the opening raised."""
        with self._lock:
            opening = self._opening
            if opening is None and not self._cause:
                opening = self._opening = _Opening(function, arguments, label)
                self._put(opening)
        if opening is None:
            raise ConnectionClosed
        opening.done.wait()
        if opening.failure is not None:
            raise opening.failure

    def run(self, session: _Session, message: Message, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Has the model run, and waits for the results. FAILED_PRECONDITION without a model, RESOURCE_EXHAUSTED if too
        many requests wait."""
        self.model()
        with self._lock:
            if self._ongoing >= MAX_ONGOING:
                raise ServingError(BUSY.code, BUSY.message)
            if self._cause:
                raise ConnectionClosed(unread=True)
            self._ongoing += 1
            self._askers.add(session)
            run = _Run(message, inputs, session.done)
            self._put(run)
        session.done.acquire()
        with self._lock:
            self._ongoing -= 1
        if run.failure is not None:
            raise run.failure
        assert run.results is not None
        session.run_seconds = run.seconds
        return run.results

    def run_here(self, session: _Session, message: Message, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Runs the model, on the model's thread. Raises what it raises."""
        model, label = self.model()
        with self._lock:
            self._ongoing += 1
        began = time.perf_counter()
        try:
            results = run_request(model, message, inputs)
            session.run_seconds = time.perf_counter() - began
            return results
        except ServingError as error:
            raise _not_busy(error, label) from None
        finally:
            with self._lock:
                self._ongoing -= 1

    def lend(self, session: _Session) -> None:
        """Lends the session's connection to the thread of the model if no other has asked for a run; returns when it
        has been given back. Raises what ended it."""
        with self._lock:
            if self._askers != {session} or self._cause:
                return
            loan = _Loan(session)
            self._put(loan)
            self._lent = True
        loan.returned.wait()
        if loan.failure is not None:
            raise loan.failure

    def model(self) -> tuple[Opened, str]:
        """The model, and how messages call it. FAILED_PRECONDITION if none is open."""
        with self._lock:
            opening = self._opening
        if opening is None or opening.model is None:
            raise failed_precondition(f"replica {self._name} has no model")
        return opening.model, opening.label

    def label(self) -> str:
        with self._lock:
            return self._opening.label if self._opening else f"replica {self._name}"

    @property
    def ongoing(self) -> int:
        with self._lock:
            return self._ongoing

    def receive_files(self) -> FilesReceiver:
        """The receiver of a version's files over one connection."""
        return FilesReceiver(self._cache, self._directories, self._facts.get("host", ""))

    def drain(self) -> None:
        """Lets it end when the last connection has gone."""
        with self._lock:
            self._draining = True

    # The thread of the model.

    def _open(self, opening: _Opening) -> None:
        try:
            opening.model = open_model(opening.function, opening.arguments, opening.label)
        except ServingError as error:
            logger.warning("%s: %s", opening.label, error, extra={"story": error.detail})
            opening.failure = error
        opening.done.set()

    def _run(self, run: _Run) -> None:
        model, label = self.model()
        began = time.perf_counter()
        try:
            run.results = run_request(model, run.message, run.inputs)
            run.seconds = time.perf_counter() - began
        except BaseException as error:
            run.failure = _not_busy(failure_from(error, label), label)
        run.done.release()

    def _serve_directly(self, loan: _Loan) -> None:
        """Answers the connection's requests until there is another job."""
        poll = select.poll()
        poll.register(loan.session.fileno(), select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        try:
            while all(ready != self._wakeup for ready, _ in poll.poll()):
                loan.session.answer_next(self.run_here)
        except BaseException as error:
            loan.failure = error
        with self._lock:
            self._lent = False
            with suppress(BlockingIOError):
                os.eventfd_read(self._wakeup)
        loan.returned.set()

    def _put(self, job: _Opening | _Run | _Loan | None) -> None:
        """A job for the thread of the model. Holds the lock."""
        self._jobs.put(job)
        if self._lent:
            os.eventfd_write(self._wakeup, 1)

    def _clean_up(self) -> None:
        """Requests that still wait find the connection closed."""
        with self._lock:
            opening = self._opening
            sessions = [*self._sessions, *self._strangers]
        for session in sessions:
            session.end()
        if opening is not None and opening.model is not None:
            close_model(opening.model, opening.label)
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is None:
                continue
            job.failure = ServingError(StatusCode.UNAVAILABLE, f"replica {self._name} has ended")
            if isinstance(job, _Run):
                job.done.release()
            elif isinstance(job, _Opening):
                job.done.set()
            else:
                job.returned.set()
        if self._watchdog is not None:
            self._watchdog.cancel()
        os.close(self._wakeup)

    # The thread that accepts.

    def _accept(self) -> None:
        for sock in self._listener.accept():
            session = _Session(self, sock)
            with self._lock:
                if len(self._strangers) >= MAX_STRANGERS:
                    self._strangers.popleft().end()
                self._strangers.append(session)
            threading.Thread(target=session.serve, args=(self._secret, self._limit), daemon=True).start()
        self.end("its parent process has ended")

    def _give_up(self) -> None:
        logger.error("replica %s does not end within %g s: its process does", self._name, CLOSE_SECONDS)
        self._exit(1)

    def _expect_company(self) -> None:
        """Sets the time at which it ends if no server comes. Holds the lock."""
        if not self._cause:
            self._orphaned = self._clock.call_later(self._orphan_seconds, self._check_company)

    def _check_company(self) -> None:
        with self._lock:
            alone = not self._sessions and self._orphaned is not None
        if alone:
            self.end(f"no server has been connected for {self._orphan_seconds:g} s")


_RunRequest = Callable[["_Session", Message, Mapping[str, Tensor]], Mapping[str, Tensor]]


class _Session:
    """One connection of a replica, and the thread that reads it."""

    def __init__(self, replica: Replica, sock: socket.socket) -> None:
        self._replica = replica
        self._sock: Stream = sock
        self._closing = threading.Lock()  # guards the descriptor against end
        self.done = threading.Lock()  # held; released when a run of this session is done
        self.done.acquire()
        self.run_seconds = 0.0  # of the last run: the time in the model
        self._epoch = 0
        self._files = replica.receive_files()

    def serve(self, secret: bytes, limit: int) -> None:
        """The thread: until the connection ends, or says what cannot be understood."""
        try:
            self._shake_hands()
            self._epoch, carrier = welcome(self._sock, secret, self._replica.address.name)
            self._replica.admit(self, self._epoch)
            what = f"{self._replica.label()}: the outputs of a run"
            shared = carrier == MEMORY
            self._channel: TensorChannel = (
                receive_memory(self._sock, limit, what)
                if shared and isinstance(self._sock, socket.socket)
                else FrameChannel(self._sock, limit, what)
            )
            try:
                while True:
                    if self.answer_next(self._replica.run) == RUN:
                        self._replica.lend(self)
            finally:
                with self._closing:
                    self._channel.close()
        except ConnectionClosed:
            pass
        except ProtocolError as error:
            logger.warning("replica %s: a connection is closed, it sent %s", self._replica.address.name, error)
        except Exception:
            logger.exception("replica %s: a connection failed", self._replica.address.name)
        finally:
            with self._closing:
                self._sock.close()
            self._files.close()
            self._replica.leave(self)

    def _shake_hands(self) -> None:
        """Shakes hands. ConnectionClosed for a stranger from another host, if there is TLS."""
        if self._replica.tls is None or not isinstance(self._sock, socket.socket) or self._sock.family == AF_UNIX:
            return
        try:
            with self._closing:
                stream = self._sock = self._replica.tls.wrap(self._sock, near=False)
            stream.handshake(GREETING_SECONDS)
        except OSError:
            raise ConnectionClosed from None

    def end(self) -> None:
        """Ends the connection. Any thread."""
        with self._closing, suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        return self._sock.fileno()

    def answer_next(self, run: _RunRequest) -> str:
        """Receives a request and answers it; gives what it asked for. Raises ConnectionClosed, ProtocolError."""
        message, locations = self._channel.receive()
        self._answer(message, locations, run)
        return message.what

    def _answer(self, message: Message, locations: list[TensorLocation], run: _RunRequest) -> None:
        detail: object = None
        tensors: Mapping[str, Tensor] = {}
        try:
            if message.what == RUN:
                inputs = self._channel.read(locations, copy=False)
                tensors = run(self, message, inputs)
                detail = self.run_seconds
            elif message.what in (PREPROCESS, POSTPROCESS):
                tensors = self._run_step(message, locations)
            else:
                detail = self._obey(message)
            self._channel.send(answer_to(message.number, detail, self._replica.ongoing), tensors)
        except (ConnectionClosed, ProtocolError):
            raise
        except BaseException as error:
            failure = failure_from(error, self._replica.label())
            self._channel.send(failure_of(message.number, failure, self._replica.ongoing), {})

    def _run_step(self, message: Message, locations: list[TensorLocation]) -> Mapping[str, Tensor]:
        if message.extra is not None and not isinstance(message.extra, float | int):
            raise ProtocolError("no time limit")
        model, _ = self._replica.model()
        return run_request(model, message, self._channel.read(locations, copy=True))

    def _obey(self, message: Message) -> object:
        """Obeys a message that concerns the replica and not a request. Gives the answer's detail."""
        if message.what == PING:
            return None
        if message.what == DESCRIBE:
            return self._replica.about()
        if message.what not in (OPEN, DRAIN, CLOSE, FILES, FILE, FILES_END):
            raise ProtocolError("a request that there is not")
        self._replica.check_epoch(self._epoch)
        if message.what in (FILES, FILE, FILES_END):
            return self._files.answer(message.what, message.extra)
        if message.what == OPEN:
            self._replica.open(*_texts(message.extra, 3))
            return self._replica.about()
        if message.what == DRAIN:
            self._replica.drain()
        else:
            self._replica.end("it was told to")
        return None


def _not_busy(failure: ServingError, label: str) -> ServingError:
    """A model's failure, which must not look as if the model had not run."""
    return ServingError(BUSY.code, f"{label}: {BUSY.message}") if failure.status == BUSY else failure


def _texts(raw: object, count: int) -> list[str]:
    if not isinstance(raw, list) or len(raw) != count or not all(isinstance(text, str) for text in raw):
        raise ProtocolError("no texts")
    return raw
