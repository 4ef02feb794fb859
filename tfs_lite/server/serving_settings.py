"""With which config each version that is in memory was loaded: what the files say now may be something else."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

from tfs_lite.adapters.contract import OpenedModel, OpenRequest
from tfs_lite.adapters.loader import ServableFactory
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.model import Servable


class ServingSettings:
    """A servable factory around another one that takes notes. Any thread."""

    def __init__(self, make: ServableFactory) -> None:
        self._make = make
        self._lock = threading.Lock()  # guards the notes
        self._settings: weakref.WeakKeyDictionary[Servable, ModelSettings] = weakref.WeakKeyDictionary()

    def __call__(self, models: Sequence[OpenedModel], request: OpenRequest) -> Servable:
        servable = self._make(models, request)
        with self._lock:
            self._settings[servable] = request.settings
        return servable

    def changed(self, servable: Servable, settings: ModelSettings) -> None:
        """It is what these settings ask for now."""
        with self._lock:
            self._settings[servable] = settings

    def of(self, servable: Servable) -> ModelSettings:
        """Defaults for a servable that was not made here."""
        with self._lock:
            return self._settings.get(servable) or ModelSettings()
