"""A source that offers what it is told to, and looks at no disk: for servers whose models are loaded by calls only."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.sources.source_config import SourceConfig

Offer = Sequence[ServableData[StoragePath]]


class ExplicitSource:
    """``set_aspired_versions_callback`` -> ``offer`` and ``update_config`` in any order, from any thread -> ``close``.

    Lists go out on the caller's thread, one at a time; the callback must not call back into the source.
    """

    def __init__(self) -> None:
        self._emitting = threading.Lock()  # guards the fields below; held while a list goes out, to keep the order
        self._callback: AspiredVersionsCallback[StoragePath] | None = None
        self._offered: dict[str, Offer] = {}

    def set_aspired_versions_callback(self, callback: AspiredVersionsCallback[StoragePath]) -> None:
        """Sets the callback, and emits at once what was offered before."""
        with self._emitting:
            self._callback = callback
            for name, versions in self._offered.items():
                callback(name, versions)

    def offer(self, name: str, versions: Offer) -> None:
        """Offers exactly these versions of the model from now on."""
        with self._emitting:
            self._offered[name] = versions
            if self._callback is not None:
                self._callback(name, versions)

    def update_config(self, config: SourceConfig) -> None:
        """Models that are not in the config any more get their empty list. The rest of it says nothing here."""
        with self._emitting:
            for name in sorted(self._offered.keys() - config.by_name.keys()):
                del self._offered[name]
                if self._callback is not None:
                    self._callback(name, ())

    def close(self) -> None:
        """Afterwards nothing goes out."""
        with self._emitting:
            self._callback = None
