"""The one contract behind HTTP, gRPC, the command line and the dashboard: it answers values, they translate.

Everything is read from what the server knows, under short locks, on the caller's thread, which is never that of the
event loop. Nothing here changes what is served.
"""

from __future__ import annotations

from tfs_lite.core.servable import ModelRef
from tfs_lite.server.explain.causes import explain, verdict_of_model
from tfs_lite.server.explain.explanation import Explanation, ModelVerdict
from tfs_lite.server.explain.snapshot import Snapshots
from tfs_lite.server.runtime.health import Health
from tfs_lite.serving.server_core import ServerCore


class AdminControl:
    """Any thread but the event loop's may call any method. Raises ServingError."""

    def __init__(self, core: ServerCore, health: Health) -> None:
        self._snapshots = Snapshots(core, health)

    def explain(self, ref: ModelRef, *, paths: bool = False) -> Explanation:
        """Why the model, its version or its label is in its state, and what to do. A model that is not served has an
        explanation too. ``paths``: whether the reader may see paths of the server."""
        return explain(self._snapshots.of_model(ref.name), ref, paths=paths)

    def verdicts(self) -> list[ModelVerdict]:
        """One line for each model of the config, and for each other that still has a version, worst first."""
        lines = [verdict_of_model(snapshot) for snapshot in self._snapshots.of_all()]
        worst = {verdict: place for place, verdict in enumerate(type(lines[0].verdict))} if lines else {}
        return sorted(lines, key=lambda line: (worst[line.verdict], line.model))
