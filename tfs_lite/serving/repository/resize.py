"""Versions of which only the number of instances changes with a load call: they are not loaded anew.

plan: versions to resize -> more or fewer instances, in place -> plan: they are kept, or swapped where that fails
                                                              -> undo, if the call fails later
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError
from tfs_lite.serving.repository.plan import FoundVersion, LoadPlan, load_failure
from tfs_lite.serving.server_core import ServerCore

logger = logging.getLogger(__name__)


class Resizes:
    """The changes of instance counts in one load call of one model, on its thread."""

    def __init__(self, core: ServerCore, name: str) -> None:
        self._core = core
        self._name = name
        self._before: list[tuple[ServableId, ModelSettings]] = []

    def carry_out(self, plan: LoadPlan, found: Iterable[FoundVersion]) -> LoadPlan:
        """The plan for the rest. The configs of the call have to be in force. INVALID_ARGUMENT if an instance cannot be
        opened."""
        versions = [item for item in found if item.version in plan.resized]
        done = frozenset(item.version for item in versions if self._change(item))
        return replace(plan, kept=plan.kept | done, swapped=plan.swapped | (plan.resized - done), resized=frozenset())

    def undo(self) -> None:
        """Takes the changes back, as far as possible."""
        while self._before:
            servable_id, settings = self._before.pop()
            try:
                self._core.renewal.resize(servable_id, settings)
            except ServingError as error:
                logger.warning("%s keeps its new instances: %s", servable_id, str(error))

    def _change(self, found: FoundVersion) -> bool:
        servable_id = ServableId(self._name, found.version)
        try:
            before = self._core.renewal.resize(servable_id, self._core.model_configs(found.path, self._name))
        except ServingError as error:
            raise load_failure(self._name, {found.version: error.status}) from None
        if before is None:
            return False
        self._before.append((servable_id, before))
        return True
