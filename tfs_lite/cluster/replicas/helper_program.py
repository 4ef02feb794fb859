"""Ray's driver, a process of its own; as a program, ``python -m`` this module ``FD``.

What Ray does to its driver (it takes signals, adds threads, and ends it when the head is gone for a minute) so never
happens to a server. FD is a socket of the server: its messages are in ``helper_messages``. When the server's end
closes, for any reason, this process ends; replicas and the registrar stay.

    main thread    receives; ends the process
    calls          one call after the other; one that has waited beyond its time is not made
    watch          looks at replicas and nodes every half second, and tells what has changed
    lease          renews the lead, and tells when the watch has not come through for a while
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from tfs_lite.cluster.replicas.engine import ClusterNode, PlacedReplica, Superseded
from tfs_lite.cluster.replicas.helper_messages import MessageStream, plain_node, plain_replica, read_wish
from tfs_lite.cluster.replicas.registrar import LEASE_SECONDS, RENEW_SECONDS, Leader
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError

if TYPE_CHECKING:
    from tfs_lite.cluster.replicas.ray_engine import RayConnection

LOOK_SECONDS = 0.5
SILENT_SECONDS = 5.0
"""The cluster counts as unreachable when no look has come through for so long."""
PROBE_SECONDS = 2.0
GOODBYE_SECONDS = 2.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HelperCall:
    number: int
    what: str
    until: float
    argument: Any

    @property
    def left(self) -> float:
        return max(self.until - time.monotonic(), 0.0)


class Helper:
    """The work of the program once Ray is there."""

    def __init__(self, stream: MessageStream, ray: RayConnection, settings: dict[str, Any]) -> None:
        self._stream, self._ray, self._settings = stream, ray, settings
        self._calls: SimpleQueue[HelperCall] = SimpleQueue()
        self._leader: Leader | None = None
        self._successor = 0
        self._looked = time.monotonic()
        self._is_silent = False
        self._is_over = False

    def run(self) -> None:
        """Returns when the server has closed its end."""
        self._start("calls", self._make_calls)
        with suppress(ConnectionClosed, ProtocolError):
            self._stream.send("up", self._ray.host)
            while True:
                number, what, seconds, argument = self._stream.receive()
                self._calls.put(HelperCall(number, what, time.monotonic() + seconds, argument))
        self._is_over = True

    # Calls.

    def _make_calls(self) -> None:
        while not self._is_over:
            call = self._calls.get()
            try:
                if not call.left:
                    raise ServingError(StatusCode.UNAVAILABLE, "it has waited too long for the cluster")
                self._stream.send("answer", call.number, self._make(call))
            except Superseded as error:
                self._stream.send("superseded", call.number, error.epoch)
            except ServingError as error:
                self._stream.send("error", call.number, int(error.code), error.status.message)
            except ConnectionClosed:
                return
            except Exception as error:
                logger.exception("a call to the cluster failed")
                self._stream.send("error", call.number, int(StatusCode.INTERNAL), f"{type(error).__name__}: {error}")

    def _make(self, call: HelperCall) -> object:
        if call.what == "lead":
            return self._lead(Leader.read(call.argument), call)
        if call.what == "nodes":
            return [plain_node(node) for node in self._ray.call("nodes", call.left)]
        if call.what == "list":
            return [plain_replica(replica) for replica in self._ray.call("list", call.left)]
        if call.what == "release":
            if self._leader is not None:
                self._ray.release(self._leader, call.left)
            return None
        self._check_lead(call)
        argument = read_wish(call.argument) if call.what == "place" else call.argument
        return self._ray.call(call.what, call.left, argument)

    def _check_lead(self, call: HelperCall) -> None:
        """Raises Superseded; UNAVAILABLE if the registrar does not know. From then on no other server gets the lead for
        the time of a lease, unless this one ends."""
        assert self._leader is not None
        self._take_epoch(epoch := self._ray.renew(self._leader, call.left))
        if self._successor:
            raise Superseded(self._successor)
        if not epoch:
            raise ServingError(StatusCode.UNAVAILABLE, "the registrar was started again: no server leads yet")

    def _take_epoch(self, epoch: int) -> None:
        assert self._leader is not None
        if epoch > self._leader.epoch:
            self._successor = epoch

    # The lead.

    def _lead(self, wanted: Leader, call: HelperCall) -> object:
        """Takes the lead, or takes it up again after an earlier helper."""
        leader = wanted if wanted.epoch else self._claim(wanted, call)
        self._ray.begin(leader.secret, self._settings)
        self._leader = leader
        if wanted.epoch:
            self._take_epoch(self._ray.renew(leader, call.left))
        self._look()
        self._start("watch", self._watch)
        self._start("lease", self._keep_lead)
        return [leader.epoch, leader.secret]

    def _claim(self, wanted: Leader, call: HelperCall) -> Leader:
        """Claims the lead. FAILED_PRECONDITION if another server leads."""
        over = ""
        while True:
            leader, seconds = self._ray.claim(wanted, over, call.left)
            if leader is not None and leader.id == wanted.id:
                return leader
            if leader is None:
                time.sleep(min(seconds, 0.2))
            elif over != leader.id and has_ended(leader, wanted.boot_id):
                over = leader.id
            else:
                name = self._settings["name"]
                raise failed_precondition(
                    f"the server at {leader.host}:{leader.port} leads the cluster name {name!r}; a second one needs "
                    f"another --cluster_name"
                )

    def _keep_lead(self) -> None:
        assert self._leader is not None
        seconds = self._settings["lease_seconds"] * RENEW_SECONDS / LEASE_SECONDS
        while not self._is_over:
            try:
                if not self._successor:
                    self._take_epoch(self._ray.renew(self._leader, seconds))
            except ServingError as error:
                logger.warning("the lead of the cluster was not renewed: %s", error)
            self._check_silence()
            time.sleep(seconds)

    # The watch.

    def _watch(self) -> None:
        before: object = None
        while not self._is_over:
            time.sleep(LOOK_SECONDS)
            try:
                if (now := self._look()) != before:
                    before = now
                    self._stream.send("changed")
            except ConnectionClosed:
                return
            except ServingError as error:
                if self._ray.is_lost and not self._is_over:
                    end_process(str(error))
            except Exception:
                logger.exception("a look at the cluster failed")

    def _look(self) -> tuple[list[PlacedReplica], list[ClusterNode]]:
        seconds = SILENT_SECONDS
        replicas, nodes = self._ray.call("list", seconds), self._ray.call("nodes", seconds)
        for event in self._ray.call("take_ended", seconds):
            self._stream.send("ended", event.id, event.cause)
        self._looked = time.monotonic()
        if self._is_silent:
            self._is_silent = False
            self._stream.send("changed")
        return replicas, [replace(node, drain_seconds=None) for node in nodes]

    def _check_silence(self) -> None:
        silent = time.monotonic() - self._looked
        if silent > SILENT_SECONDS and not self._is_silent:
            self._is_silent = True
            with suppress(ConnectionClosed):
                self._stream.send("unreachable", "the head does not answer")

    def _start(self, name: str, target: Any) -> None:
        threading.Thread(target=target, name=f"tfs-{name}", daemon=True).start()


def has_ended(leader: Leader, boot_id: str) -> bool:
    """Whether the server is known to be gone: its port refuses connections. A loopback address says so only to those on
    its host."""
    is_loopback = leader.host.startswith("127.") or leader.host == "::1"
    if is_loopback and leader.boot_id != boot_id:
        return False
    try:
        socket.create_connection((leader.host, leader.port), PROBE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def end_process(cause: str) -> NoReturn:
    logger.error("the cluster's helper ends: %s", cause)
    os._exit(1)


def main(arguments: Sequence[str]) -> None:
    stream = MessageStream(socket.socket(fileno=int(arguments[0])))
    _, settings = stream.receive()
    sys.path[:] = settings["path"]
    logging.basicConfig(level=settings["log_level"], stream=sys.stderr)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  Ray prints what it likes
    connected: list[RayConnection] = []
    failure: list[ServingError] = []
    connecting = threading.Thread(target=_connect, args=(settings, connected, failure))  # Ray changes its thread
    connecting.start()
    connecting.join()
    if connected:
        Helper(stream, connected[0], settings).run()
        threading.Timer(GOODBYE_SECONDS, os._exit, [0]).start()
        connected[0].close()
    else:
        with suppress(ConnectionClosed):
            stream.send("failed", int(failure[0].code), failure[0].status.message)
    os._exit(0)


def _connect(settings: dict[str, Any], connected: list[RayConnection], failure: list[ServingError]) -> None:
    try:
        from tfs_lite.cluster.replicas.ray_engine import RayConnection

        connected.append(RayConnection(settings["address"], settings["name"], settings["lease_seconds"]))
    except ServingError as error:
        failure.append(error)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "ray":
            failure.append(failed_precondition("`worker: \"ray\"` needs Ray: pip install 'tfs-lite[cluster]'"))
            return
        logger.exception("the cluster's helper failed")
        words = f"the cluster's helper failed: {type(error).__name__}: {error}"
        failure.append(ServingError(StatusCode.INTERNAL, words))


if __name__ == "__main__":
    main(sys.argv[1:])
