"""A real cluster of Ray on this machine: a head without resources and nodes, all on loopback, owned by one program.

    with RayNodes() as cluster:                      # a head
        node = cluster.add_node(cpus=1, labels={})   # seconds
        os.environ.update(cluster.environment)       # what drivers need
        cluster.kill_node(node)

The program is the ancestor of every process of the cluster (a subreaper: also of those whose parents have died), and
ends all of them by their ids when its standard input closes, for any reason. Never ``ray stop``: that ends every Ray of
the machine. The clocks of health checks are quick, and patient with a busy machine: a killed node is noticed within 2
seconds, a stopped one within 25.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

MEMORY = 10**9
"""Bytes of main memory that each node offers."""
OBJECT_STORE = 80 * 2**20
"""Bytes; nothing is put there."""
END_SECONDS = 60.0
_PR_SET_CHILD_SUBREAPER = 36


class RayNodes:
    """Threads: any, one at a time."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="tfs-ray-", dir="/tmp")  # short: sockets lie in it
        self.environment = {
            "RAY_TMPDIR": self._directory,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
        }
        settings = {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps 127.0.0.1 from being replaced
            "RAY_health_check_period_ms": "300",
            "RAY_health_check_timeout_ms": "5000",
            "RAY_health_check_failure_threshold": "5",
            "RAY_health_check_initial_delay_ms": "0",
            "RAY_worker_niceness": "0",  # 15 without: replicas would begin after everything else of this machine
            "PYTHONPATH": os.pathsep.join(path for path in (*sys.path, os.getcwd()) if path),
        }
        self._log = open(Path(self._directory, "program.log"), "w+")  # noqa: SIM115  closed by close
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cluster.ray_nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **self.environment, **settings},
            start_new_session=True,
        )
        self._lock = threading.Lock()
        try:
            self.address, self.head, self.gcs_pid = self._ask("head")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def add_node(self, cpus: float, labels: Mapping[str, str]) -> str:
        """The id of a new node that the head knows."""
        return str(self._ask("add", cpus, dict(labels)))

    def kill_node(self, id: str) -> None:
        """Kills the node's own processes; its workers notice, and end."""
        self._ask("kill", id)

    def drain_node(self, id: str, seconds: float) -> None:
        """It gets nothing new, and says that it stays for so long."""
        self._ask("drain", id, seconds)

    def start_client_server(self) -> str:
        """The address for clients from outside of the cluster."""
        return str(self._ask("client"))

    def close(self) -> None:
        """Ends everything."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _ask(self, what: str, *arguments: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            with suppress(OSError):
                self._process.stdin.write(json.dumps([what, *arguments]).encode() + b"\n")
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"the cluster has ended:\n{self._log.read()[-4000:]}")
        return json.loads(answer)


class _Program:
    """Starts processes on its one thread: the kernel ends them with the thread that has started them."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(shutdown_at_exit=False)
        self._client: subprocess.Popen[bytes] | None = None

    def head(self) -> object:
        self._add(num_cpus=0, num_gpus=0, memory=0, include_dashboard=False, include_log_monitor=False, no_monitor=True)
        node = self._cluster.head_node
        gcs = node.all_processes["gcs_server"][0].process.pid
        return [self._cluster.address, node.node_id, gcs]

    def add(self, cpus: float, labels: dict[str, str]) -> object:
        return self._add(num_cpus=cpus, memory=MEMORY, labels=labels, include_log_monitor=False).node_id

    def kill(self, id: str) -> object:
        node = next(node for node in self._cluster.worker_nodes if node.node_id == id)
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        self._cluster.worker_nodes.remove(node)
        return None

    def drain(self, id: str, seconds: float) -> object:
        import time

        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        until = int((time.time() + seconds) * 1000)
        return GcsClient(address=self._cluster.address).drain_node(id, reason, "a test wants it", until)[0]

    def client(self) -> object:
        import socket

        if self._client is None:
            with socket.create_server(("127.0.0.1", 0)) as found:
                self._port = found.getsockname()[1]
            command = [sys.executable, "-m", "ray.util.client.server", "--mode=proxy", "--host=127.0.0.1"]
            command += [f"--address={self._cluster.address}", f"--port={self._port}"]
            # its forks crash now and then where gRPC watches them
            self._client = subprocess.Popen(command, env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"})
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                    break
        return f"ray://127.0.0.1:{self._port}"

    def _add(self, **arguments: object) -> Any:
        return self._cluster.add_node(node_ip_address="127.0.0.1", object_store_memory=OBJECT_STORE, **arguments)


def end_descendants() -> None:
    """Kills every process that this one has started, and theirs, until there are none."""
    import psutil

    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        program = _Program()
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            answers.write(json.dumps(getattr(program, what)(*arguments)) + "\n")
            answers.flush()
    except Exception:
        traceback.print_exc()
    finally:
        end_descendants()
        os._exit(0)


if __name__ == "__main__":
    main()
