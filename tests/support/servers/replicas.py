"""Replicas in processes of their own, on this machine, and a place that tests put them into.

    with ReplicaHost(["package.module"]) as host:
        replica = host.start("m/1/00000000/0#1")
        replica.kill()

Each is a fork of one process that has imported everything, as replicas of a cluster are processes of a node. When that
process ends, they do.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tfs_lite.cluster.replicas.engine import GpuUse, Place, ReplicaAddress
from tfs_lite.cluster.replicas.replica import Replica
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode

SECRET = bytes(range(32))
PATIENCE = 120.0


class HostedReplica:
    """A replica's process."""

    def __init__(self, address: ReplicaAddress) -> None:
        self.address = address
        self.pid = address.pid or 0
        self._process = os.pidfd_open(self.pid)

    def fileno(self) -> int:
        """A descriptor that can be read once the process has ended."""
        return self._process

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._process, number)

    def kill(self) -> None:
        """Kills it, also when it is stopped or has ended, and waits for its end."""
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.wait()

    @property
    def ended(self) -> bool:
        return bool(select.select([self._process], [], [], 0)[0])

    def wait(self) -> None:
        """TimeoutError unless it ends by itself."""
        if not select.select([self._process], [], [], PATIENCE)[0]:
            raise TimeoutError(f"replica {self.address.name} goes on")


class ReplicaHost:
    """The process that replicas are forked from. Threads: any."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        options = json.dumps({"preload": list(preload), "path": sys.path})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.servers.replicas", options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._lock = threading.Lock()

    def __enter__(self) -> ReplicaHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, name: str, **settings: Any) -> HostedReplica:
        """A process with a replica that listens. ``settings`` are those of :class:`Replica`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"name": name, **settings}).encode() + b"\n")
            self._process.stdin.flush()
            return HostedReplica(ReplicaAddress.read(json.loads(self._process.stdout.readline())))

    def kill(self) -> None:
        """As if the node's own process had died."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Ends all of them."""
        self._process.communicate()


class PlaceOfReplicas(Place):
    """A place for a :class:`ReplicaModel`: it holds the replicas that the test has put there, one after the other.

    Without any it has no room, or, once it has lost some, fails an opening."""

    def __init__(self, *addresses: ReplicaAddress) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._addresses = list(addresses)
        self.losses: list[tuple[ReplicaAddress, str]] = []
        self.refusals: list[tuple[ReplicaAddress, Status]] = []
        self.ready: list[tuple[ReplicaAddress, GpuUse | None]] = []
        self.is_closed = False

    def put(self, address: ReplicaAddress) -> None:
        with self._changed:
            self._addresses.append(address)
            self._changed.notify_all()

    def take(self) -> None:
        """The replica in it has ended, or so the cluster says."""
        with self._changed:
            del self._addresses[0]

    def address(self, give_up: threading.Event, wait_for_room: bool = True) -> ReplicaAddress:
        with self._changed:
            while not self._addresses:
                if give_up.is_set():
                    raise ServingError(StatusCode.CANCELLED, "the place is given up")
                if not wait_for_room and self.losses:
                    address, cause = self.losses[-1]
                    raise ServingError(StatusCode.UNAVAILABLE, f"{address.name} was lost while it opened: {cause}")
                if not wait_for_room:
                    raise ServingError(StatusCode.UNAVAILABLE, "no node has room", Reason.WAITS_FOR_PLACE)
                self._changed.wait(0.05)
            return self._addresses[0]

    def holds(self, address: ReplicaAddress) -> bool:
        with self._changed:
            return self._addresses[:1] == [address]

    def opened(self, address: ReplicaAddress, gpu: GpuUse | None = None) -> None:
        with self._changed:
            self.ready.append((address, gpu))

    def refused(self, address: ReplicaAddress, status: Status) -> None:
        with self._changed:
            self._addresses.remove(address)
            self.refusals.append((address, status))

    def lost(self, address: ReplicaAddress, cause: str) -> None:
        with self._changed:
            if address in self._addresses:
                self._addresses.remove(address)
                self.losses.append((address, cause))

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._addresses.clear()
            self._changed.notify_all()


def main(arguments: Sequence[str]) -> None:
    """Forks a replica for each line of standard input."""
    options = json.loads(arguments[0])
    sys.path[:] = options["path"]
    for name in options["preload"]:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            settings = json.loads(line)
            replica = Replica(secret=SECRET, **settings)
            sys.stdout.write(json.dumps(replica.address.plain) + "\n")
            sys.stdout.flush()
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            replica.serve()
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
