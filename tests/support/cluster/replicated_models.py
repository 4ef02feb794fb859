"""Models for replicas that say when they were opened, and what a test sees of their replicas.

They answer ``x`` plus the version's number, as the tagged models of ``testing.servers``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.servers.in_process import ServerFixture
from tests.support.servers.models import PYTHON_CONFIG
from tests.support.servers.process import wait_until
from tfs_lite.cluster.replicas.reports import READY

PATIENCE = 60.0
MODEL = """
import os

class Model:
    def __init__(self, context):
        with open({log!r}, "a") as log:
            log.write(f"{name}/{version} {{os.getpid()}}\\n")
        {opening}

    def predict(self, inputs):
        {running}
        return {{"y": inputs["x"] + {version}}}
"""
GROUP = """
instance_group {{
  count: {count} worker: "ray" {more} ray_actor_options {{ num_cpus: {cpus} memory: 1000000 {needs} }}
}}
"""


class ReplicatedModels:
    """A directory of models for replicas. A version is there all at once."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root = root
        self._scratch = scratch
        self.log = scratch / "opened"

    def publish(
        self,
        version: int,
        name: str = "m",
        count: int = 2,
        cpus: float = 1,
        more: str = "",
        needs: str = "",
        config: str = PYTHON_CONFIG,
        opening: str = "pass",
        running: str = "pass",
    ) -> None:
        """``count`` replicas with ``cpus`` each; ``more`` is for their instance group, ``needs`` for what each asks of
        its node. ``opening`` and ``running`` are what the model does, in Python."""
        text = MODEL.format(log=str(self.log), name=name, version=version, opening=opening, running=running)
        made = self._scratch / f"{name}-{version}"
        made.mkdir()
        (made / "model.py").write_text(text)
        (made / "config.pbtxt").write_text(config + GROUP.format(count=count, cpus=cpus, more=more, needs=needs))
        (self.root / name).mkdir(exist_ok=True)
        made.rename(self.root / name / str(version))

    def reconfigure(self, version: int, name: str = "m", count: int = 2, cpus: float = 1, more: str = "") -> None:
        """Writes another instance group."""
        made = self._scratch / "config.pbtxt"
        made.write_text(PYTHON_CONFIG + GROUP.format(count=count, cpus=cpus, more=more, needs=""))
        made.rename(self.root / name / str(version) / "config.pbtxt")

    def withdraw(self, version: int, name: str = "m") -> None:
        shutil.rmtree(self.root / name / str(version))

    @property
    def opened(self) -> list[str]:
        """``m/1`` for each time that version 1 of m was opened."""
        return [model for model, _ in self._lines]

    @property
    def pids(self) -> set[int]:
        """Of all processes that have opened a version, those that have ended too."""
        return {int(pid) for _, pid in self._lines}

    @property
    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []


def states(served: ServerFixture) -> list[str]:
    """Of all replicas, as the server sees them."""
    return [replica.state for version in served.server.core.view.replicas() for replica in version.replicas]


def wait_ready(served: ServerFixture, count: int) -> None:
    wait_until(lambda: states(served) == [READY] * count, f"{count} replicas are ready", PATIENCE)
