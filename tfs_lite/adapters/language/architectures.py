"""What checks have found of an architecture, for the versions of it that come later.

A check at the load tries ways to run a network on texts of many lengths: a dozen forwards and more, which are most of
the load of a large network, and which the requests of other models feel. What it finds follows from the network's code,
its config and the version's settings, and not from its weights. So a version of an architecture that this process has
checked before is checked in brief, with its own weights; if that does not confirm what is known, in full.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from tfs_lite.transport.remembered import Remembered

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST = 64
"""Architectures that are known at once; the one that was found first is forgotten first."""
T = TypeVar("T")


class Architectures(Generic[T]):
    """The findings, by :func:`architecture`. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards additions
        self._found = Remembered[str, T](MOST)

    def find(self, key: str) -> T | None:
        return self._found.get(key)

    def add(self, key: str, found: T) -> None:
        with self._lock:
            self._found.add(key, found)


def architecture(module: PreTrainedModel, *settings: object) -> str:
    """What decides how a network may be run: its class, config, dtype and device, and the ``settings`` of the check,
    which are alike if their ``repr`` is."""
    config = json.dumps(module.config.to_dict(), sort_keys=True, default=str)
    return f"{type(module).__qualname__} {module.dtype} {module.device.type} {settings!r} {config}"
