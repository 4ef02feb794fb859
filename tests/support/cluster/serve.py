"""``tfs-lite serve`` on a cluster of another process, for tests that kill servers.

python -m tests.support.cluster.serve PATH serve FLAGS...

PATH is where a :class:`~tests.support.cluster.process_cluster.ProcessCluster` listens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.support.cluster.process_cluster import RemoteEngine
from tfs_lite.cli.main import main as run
from tfs_lite.cluster import feature as cluster
from tfs_lite.config.replicas import ClusterOptions


def main(arguments: Sequence[str]) -> int:
    path, *flags = arguments

    def connect(options: ClusterOptions) -> RemoteEngine:
        return RemoteEngine(path)

    cluster.connect = connect
    return run([*flags, "--cluster=auto"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
