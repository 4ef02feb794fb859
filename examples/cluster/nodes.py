"""A Ray cluster on this machine, to look at: a head that runs nothing and three nodes, on loopback only.

    python examples/cluster/nodes.py [--nodes 3] [--cpus 1]

Real clusters are started by ``ray start`` on each machine, or by KubeRay. Here each node is a few processes of this
one's, so that one can be ended: type the number of a node and Return to kill it, ``add`` for a new one, ``quit`` (or
Ctrl-C) to end all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from typing import Any

os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or Ray takes the machine's address in place of loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 otherwise: replicas would get what everything else of this machine leaves
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "0",
}
LOOPBACK = "127.0.0.1"
STORE_BYTES = 100 * 2**20
"""Of each node, for objects of Ray's. Tensors do not go through it."""


class Nodes:
    def __init__(self, cpus: float) -> None:
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        head = {"num_cpus": 0, "num_gpus": 0, "memory": 0, "include_dashboard": False}
        common = {"node_ip_address": LOOPBACK, "object_store_memory": STORE_BYTES}
        self._common = common
        self._cluster = Cluster(initialize_head=True, head_node_args=head | common)
        self.nodes: dict[int, Any] = {}
        self._number = 0

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> int:
        self._number += 1
        self.nodes[self._number] = self._cluster.add_node(num_cpus=self._cpus, num_gpus=0, **self._common)
        return self._number

    def kill(self, number: int) -> None:
        self._cluster.remove_node(self.nodes.pop(number), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--cpus", type=float, default=1.0, help="of each node; they need not be there")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    nodes = Nodes(arguments.cpus)
    try:
        for _ in range(arguments.nodes):
            nodes.add()
        print(f"--cluster={nodes.address}   nodes: {', '.join(map(str, nodes.nodes))}", flush=True)
        for line in sys.stdin:
            words = line.split()
            if words == ["quit"]:
                return
            if words == ["add"]:
                print(f"node {nodes.add()} has joined", flush=True)
            elif len(words) == 1 and words[0].isdecimal() and int(words[0]) in nodes.nodes:
                nodes.kill(int(words[0]))
                print(f"node {words[0]} is dead", flush=True)
            elif words:
                print("the number of a node, add, or quit", flush=True)
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            nodes.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
