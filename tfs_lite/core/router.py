"""The source router: it hands each model's lists to the target that a table names for the model.

In the server the targets are the adapters, one for each platform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from tfs_lite.core.servable import ServableData
from tfs_lite.core.source import Target, TargetBase

T = TypeVar("T")
K = TypeVar("K")


class SourceRouter(TargetBase[T], Generic[K, T]):
    """``targets`` has the targets by their keys; ``otherwise`` takes the models that the table does not mention."""

    def __init__(self, targets: Mapping[K, Target[T]], otherwise: Target[T]) -> None:
        super().__init__()
        self._targets = {key: target.aspired_versions_callback() for key, target in targets.items()}
        self._otherwise = otherwise.aspired_versions_callback()
        self._routes: Mapping[str, K] = {}  # replaced as a whole, so readers need no lock

    def update_routes(self, routes: Mapping[str, K]) -> None:
        """``routes`` maps names of models to keys of targets. Later lists follow this table; each key must be known."""
        self._routes = dict(routes)

    def set_aspired_versions(self, name: str, versions: Sequence[ServableData[T]]) -> None:
        routes = self._routes
        target = self._targets[routes[name]] if name in routes else self._otherwise
        target(name, versions)
