"""A model in a replica, as the server sees it: the near end.

    batching servable -> ReplicaModel (here) -> connections -> replica, on this host or another

A :class:`ReplicaModel` is one place for a replica, whichever is in it now. Which one is, and which comes next, says the
place (``engine.Place``); this end connects, has the model opened, asks, and reports what became of a replica. One more
connection besides those for requests is for signs of life: a process that has died closes it, a host that has vanished
stops acknowledging, and one that is frozen does not answer its pings.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tfs_lite.cluster.replicas.connection import Credentials, FrameChannel, GreetingRefused, dial, dial_frames
from tfs_lite.cluster.replicas.engine import GpuUse, Place, ReplicaAddress
from tfs_lite.cluster.replicas.tls import Tls
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.model import WorkerBusy, WorkerStatus
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.core.threads import start
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.connection import Lane, RemoteModel, WorkerConnection
from tfs_lite.workers.reconnecting import ReconnectingModel, Words
from tfs_lite.workers.request_channel import RequestChannel
from tfs_lite.workers.supervisor import Backoff
from tfs_lite.workers.wire import (
    BUSY,
    CLOSE,
    DESCRIBE,
    OPEN,
    PING,
    PLACED,
    Description,
    Message,
    read_answer,
    read_description,
)

SAME_REPLICA_SECONDS = 2.0
"""Seconds for which a replica is tried again whose connection was lost."""
SAME_REPLICA_PAUSE = 0.1
RETRY_SECONDS = 1.0
"""The longest time between two attempts to get a replica."""
PING_SECONDS = 5.0
"""The longest time between two pings."""
CLOSED = "its connection was closed"
GARBAGE = "it sent garbage"
MAX_HOST = 255
"""Characters of a host's name that are shown."""
NOT_NEEDED = "it is not needed any more"
logger = logging.getLogger(__name__)


class ReplicaModel(ReconnectingModel):
    """A model in a replica. The constructor waits until one listens and has opened the model. It raises what the
    opening raises, or the place: UNAVAILABLE with ``WAITS_FOR_PLACE`` if no node has room. With ``in_background`` it
    returns at once, and waits for room as long as it takes.

    ``remote.function`` is called in the replica. ``epoch`` gives that of the leader that this server knows. ``lanes``
    is how many requests may be on their way to the replica at once, of which it runs one. A replica that does not
    answer a ping for ``health_check_timeout`` seconds is lost (0: it never is). A constructor that raises leaves the
    place to its owner, ``close`` closes it. While no replica is there, requests get WorkerLost at once.

    ``prepare`` gets a connection to a replica that has not begun to open the model, and returns the arguments for it,
    instead of ``remote.arguments``: it may send files first. It raises as an opening does. ``on_remote`` is told of
    each run: the seconds that it took besides those in the model, and the bytes of inputs and outputs; on the thread
    that runs. ``on_niceness`` is told of each replica that has opened the model: its host's name, and its niceness.
    """

    def __init__(
        self,
        place: Place,
        remote: RemoteModel,
        secret: bytes,
        epoch: Callable[[], int] = lambda: 0,
        lanes: int = 1,
        health_check_timeout: float = 60.0,
        backoff: Backoff | None = None,
        shared_memory: bool = True,
        in_background: bool = False,
        prepare: Callable[[RequestChannel], str] | None = None,
        on_remote: Callable[[float, int], None] = ignore,
        on_niceness: Callable[[str, int], None] = ignore,
        tls: Tls | None = None,
        on_worker: Callable[[str | None], None] = ignore,
    ) -> None:
        """``backoff`` is short by default: it is the place that lets time pass from one lost replica to the next.
        ``shared_memory``: of a replica on this host. ``tls`` is for replicas on others, which demand it."""

        def connector_to(place: Place, waits: bool) -> _PlaceConnector:
            opener = _Opener(
                place,
                remote,
                lambda: Credentials(secret, epoch(), tls),
                health_check_timeout,
                shared_memory,
                prepare,
                on_niceness,
            )
            return _PlaceConnector(place, opener, waits)

        self.place = place
        self._on_remote = on_remote
        self._connector_to = connector_to
        words = Words("ray", "replica", "placed again")
        backoff = backoff or Backoff(first=0.01, most=RETRY_SECONDS)
        connector = connector_to(place, in_background)
        super().__init__(
            remote, connector, words, backoff, lanes, 0.0, in_background=in_background, on_worker=on_worker
        )

    def move(self, place: Place) -> None:
        """Goes on in another place: opens the model there while the replica in this one answers, which is given up once
        no request is inside. Blocks until then, or until the model is closed. One thread at a time."""
        if self.connect_elsewhere(self._connector_to(place, True)):
            self.place, place = place, self.place
        place.close()

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """Runs as every model does. WorkerBusy if other servers have given the replica as many requests as it takes."""
        try:
            return super().run(signature, inputs, outputs)
        except ServingError as error:
            if error.status == BUSY:
                raise WorkerBusy(f"{self._label}: its replica is busy, try again later") from None
            raise

    @property
    def worker(self) -> WorkerStatus:
        connection = self._connection
        node = connection.node if isinstance(connection, _ReplicaConnection) else ""
        return replace(super().worker, node=node)

    def _call_run(
        self, channel: RequestChannel, signature: str, inputs: Mapping[str, Tensor], wanted: tuple[str, ...]
    ) -> Mapping[str, Tensor]:
        began = time.perf_counter()
        results = super()._call_run(channel, signature, inputs, wanted)
        seconds, inside = time.perf_counter() - began, channel.detail
        if not isinstance(inside, float) or not inside >= 0:
            raise ProtocolError("no duration of a run")
        if self._on_remote is not ignore:
            self._on_remote(seconds - inside, _bytes_of(inputs) + _bytes_of(results))
        return results

    def close(self) -> None:
        """Hangs up, and gives the place up, which ends the replica."""
        super().close()
        self.place.close()


def tell(address: ReplicaAddress, credentials: Credentials, what: str) -> None:
    """Tells a replica to end (``wire.CLOSE``) or to end once no server is connected (``wire.DRAIN``). Raises OSError if
    nothing listens there, ConnectionClosed, ProtocolError; FAILED_PRECONDITION if a later epoch has begun."""
    channel = RequestChannel(dial_frames(address, credentials))
    try:
        channel.ask(what)
    except ConnectionClosed:  # it may have ended before it has answered
        if what != CLOSE:
            raise
    finally:
        channel.close()


class _ReplicaConnection(WorkerConnection):
    """A replica with the model open."""

    def __init__(
        self,
        address: ReplicaAddress,
        watch: _Watch,
        runs: list[RequestChannel],
        items: list[RequestChannel],
        description: Description,
        node: str,
    ) -> None:
        """``node`` is the name of its host, for people."""
        super().__init__(runs, items, description)
        self.address = address
        self.node = node
        self._watch = watch

    @property
    def pid(self) -> int | None:
        return self.address.pid

    @property
    def verdict(self) -> str:
        return self._watch.cause

    def is_same_process(self, other: WorkerConnection) -> bool:
        return isinstance(other, _ReplicaConnection) and other.address == self.address

    def on_end(self, call: Callable[[], None]) -> None:
        self._watch.on_end(call)

    def kill_for(self, garbage: ProtocolError) -> None:
        logger.error("replica %s sent %s; it is given up", self.address.name, garbage)
        self._watch.end(GARBAGE)

    def cause(self) -> str:
        self._watch.end(CLOSED)
        return self._watch.cause

    def free(self) -> None:
        super().free()
        self._watch.close()

    def close(self) -> None:
        self._watch.end(NOT_NEEDED)
        self.free()


class _Opener:
    """Connects to a replica and has the model opened there."""

    def __init__(
        self,
        place: Place,
        remote: RemoteModel,
        credentials: Callable[[], Credentials],
        timeout: float,
        shared: bool,
        prepare: Callable[[RequestChannel], str] | None,
        on_niceness: Callable[[str, int], None],
    ) -> None:
        self._place = place
        self._remote = remote
        self._credentials = credentials
        self._timeout = timeout
        self._shared = shared
        self._prepare = prepare
        self._on_niceness = on_niceness

    def open(
        self,
        address: ReplicaAddress,
        lanes: tuple[Lane, ...],
        check: Callable[[Description], None],
        on_watch: Callable[[_Watch], None],
    ) -> _ReplicaConnection:
        """``on_watch`` gets the watch as soon as there is one; its end ends the wait. Raises what the opening or
        ``check`` raised; OSError, ConnectionClosed, ProtocolError. A failure leaves nothing behind."""
        channels: list[RequestChannel] = []
        watch = _Watch(dial_frames(address, self._credentials()), self._timeout, lambda: self._place.holds(address))
        on_watch(watch)
        try:
            about = self._ask_to_open(address, watch)
            node, gpu, niceness = _node_of(about), _read_gpu(about.get("gpu")), _read_niceness(about.get("niceness"))
            description = read_description(about.get("model"))
            check(description)
            steps = self._remote.item_channels if description.has_item_steps else 0
            channels.extend(self._dial(address, lane) for lane in (*lanes, *[None] * steps))
        except BaseException:
            watch.end(CLOSED)
            watch.close()
            for channel in channels:
                channel.close()
            raise
        self._place.opened(address, gpu)
        self._on_niceness(node, niceness)
        count = len(lanes)
        return _ReplicaConnection(address, watch, channels[:count], channels[count:], description, node)

    def _ask_to_open(self, address: ReplicaAddress, watch: _Watch) -> dict[str, Any]:
        """The replica's report about itself once the model is open."""
        channel = RequestChannel(dial_frames(address, self._credentials()))
        watch.on_end(channel.shut_down)
        try:
            arguments = self._remote.arguments
            opens = self._prepare is not None and _read_about(channel.ask(DESCRIBE)).get("state") == PLACED
            if self._prepare is not None and opens:
                self._remote.require_files()
                arguments = self._prepare(channel)
            about = _read_about(channel.ask(OPEN, [self._remote.function, arguments, self._remote.label]))
            if opens:
                self._remote.require_files()
            return about
        finally:
            channel.close()

    def _dial(self, address: ReplicaAddress, lane: Lane | None) -> RequestChannel:
        """Dials for runs with the memory of a lane, else for steps of requests."""
        limit = self._remote.memory_limit
        what = f"{self._remote.label}: the {'inputs of a run' if lane else 'tensors of a request'}"
        return RequestChannel(dial(address, self._credentials(), lane, limit, what, self._shared))


class _PlaceConnector:
    """Connects to the replica in a place: to the same one again while it is there, else to the next."""

    def __init__(self, place: Place, opener: _Opener, waits: bool) -> None:
        """``waits``: for room, also the first time."""
        self._place = place
        self._opener = opener
        self._given_up = threading.Event()
        self._lock = threading.Lock()  # guards _watch
        self._watch: _Watch | None = None
        self._last: _ReplicaConnection | None = None
        self._waits = waits

    def connect(self, lanes: tuple[Lane, ...], check: Callable[[Description], None]) -> WorkerConnection:
        last, self._last = self._last, None
        connection = None if last is None else self._connect_again(last, lanes, check)
        if connection is None:
            if last is not None and not self._given_up.is_set():
                self._place.lost(last.address, last.verdict)
            connection = self._connect_to_next(lanes, check)
        self._last = connection
        self._waits = True
        return connection

    def give_up(self) -> None:
        self._given_up.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.end(NOT_NEEDED)

    def _connect_again(
        self, last: _ReplicaConnection, lanes: tuple[Lane, ...], check: Callable[[Description], None]
    ) -> _ReplicaConnection | None:
        """Connects to the same replica, if only the connection was lost."""
        latest = time.monotonic() + SAME_REPLICA_SECONDS
        while last.verdict == CLOSED and time.monotonic() < latest and not self._given_up.is_set():
            if not self._place.holds(last.address):
                return None
            try:
                return self._open(last.address, lanes, check)
            except (ConnectionRefusedError, ServingError, ProtocolError):
                return None
            except (OSError, ConnectionClosed):
                self._given_up.wait(SAME_REPLICA_PAUSE)
        return None

    def _connect_to_next(self, lanes: tuple[Lane, ...], check: Callable[[Description], None]) -> _ReplicaConnection:
        """Replicas that are lost while they open the model are counted by the place, which raises in the end."""
        while not self._given_up.is_set():
            address = self._place.address(self._given_up, wait_for_room=self._waits)
            try:
                return self._open(address, lanes, check)
            except ServingError as refusal:
                self._place.refused(address, refusal.status)
                raise
            except ProtocolError as error:
                logger.error("replica %s sent %s; it is given up", address.name, error)
                cause = GARBAGE
            except GreetingRefused:
                cause = "it refused the greeting"
            except ConnectionClosed:
                cause = self._cause()
            except OSError as error:
                cause = f"it cannot be reached: {error.strerror or error}"
            if not self._given_up.is_set():
                self._place.lost(address, cause)
        raise ServingError(StatusCode.CANCELLED, "the model was closed while it was opened")

    def _open(
        self, address: ReplicaAddress, lanes: tuple[Lane, ...], check: Callable[[Description], None]
    ) -> _ReplicaConnection:
        return self._opener.open(address, lanes, check, self._set_watch)

    def _set_watch(self, watch: _Watch) -> None:
        """Remembers it, so that :meth:`give_up` can end the opening."""
        with self._lock:
            self._watch = watch
        if self._given_up.is_set():
            watch.end(NOT_NEEDED)

    def _cause(self) -> str:
        with self._lock:
            return (self._watch.cause if self._watch else "") or CLOSED


class _Watch:
    """A connection for signs of life, and the thread that waits for them. ``cause`` says why the replica was lost, or
    is empty. Threads: any."""

    def __init__(self, channel: FrameChannel, timeout: float, is_held: Callable[[], bool]) -> None:
        """``timeout``: seconds for the answer to a ping; 0: no pings. A replica that is not ``is_held`` by its place
        any more is told to close."""
        self.cause = ""
        self._channel = channel
        self._timeout = timeout
        self._is_held = is_held
        self._lock = threading.Lock()  # guards cause and _calls
        self._calls: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="tfs-watch", daemon=True)
        start(self._thread)

    def on_end(self, call: Callable[[], None]) -> None:
        """Calls ``call`` once it has ended; at once if it has. The call must be short and must not raise."""
        with self._lock:
            if not self.cause:
                self._calls.append(call)
                return
        call()

    def end(self, cause: str) -> None:
        """The replica is lost, or not needed. The first cause counts."""
        with self._lock:
            if self.cause:
                return
            self.cause = cause
            calls, self._calls = self._calls, []
        self._channel.shut_down()
        for call in calls:
            call()

    def close(self) -> None:
        """Frees the connection, after the end."""
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._channel.close()

    def _run(self) -> None:
        try:
            self.end(self._wait_for_end())
        except ConnectionClosed:
            self.end(CLOSED)
        except ProtocolError as error:
            logger.error("a replica sent %s instead of a sign of life; it is given up", error)
            self.end(GARBAGE)

    def _wait_for_end(self) -> str:
        number = 0
        interval = min(PING_SECONDS, self._timeout or PING_SECONDS)
        while not self._channel.wait(interval):
            number += 1
            if not self._is_held():
                self._channel.send(Message(number, CLOSE), {})
                return "another replica has its place"
            if not self._timeout:
                continue
            self._channel.send(Message(number, PING), {})
            if not self._channel.wait(self._timeout):
                return f"not answering for {self._timeout:g} s"
            read_answer(self._channel.receive()[0], number)
        self._channel.receive()
        raise ProtocolError("a message that was not asked for")


def _node_of(about: Mapping[str, Any]) -> str:
    """The name of the host in what a replica says about itself; empty if it does not say."""
    facts = about.get("facts")
    host = facts.get("host", "") if isinstance(facts, dict) else ""
    return host[:MAX_HOST] if isinstance(host, str) else ""


def _bytes_of(tensors: Mapping[str, Tensor]) -> int:
    arrays = map(np.asarray, tensors.values())
    return sum(sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in arrays)


def _read_about(raw: object) -> dict[str, Any]:
    """Reads what a replica says about itself. ProtocolError if it is something else."""
    if not isinstance(raw, dict):
        raise ProtocolError("no description of a replica")
    return raw


def _read_niceness(raw: object) -> int:
    """Reads the niceness. ProtocolError if it is none."""
    if type(raw) is not int:
        raise ProtocolError("no niceness")
    return raw


def _read_gpu(raw: object) -> GpuUse | None:
    """Reads what a replica says of its GPU, if it has one. ProtocolError if it is something else."""
    if raw is None:
        return None
    if not isinstance(raw, list) or len(raw) != 3 or not isinstance(raw[0], str):
        raise ProtocolError("no GPU")
    if not all(type(size) is int and size >= 0 for size in raw[1:]):
        raise ProtocolError("no GPU")
    return GpuUse(*raw)
