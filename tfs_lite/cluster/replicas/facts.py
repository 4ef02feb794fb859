"""The facts that a replica reports about its process: versions of what it runs with, its niceness, and its GPU."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Any


def version_of(distribution: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def niceness() -> int:
    """The niceness of this thread, and of those that it starts: from -20 to 19. Ray starts its workers with 15 unless
    it is told otherwise."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def gpu() -> list[object] | None:
    """The uuid of the GPU that the model's torch uses, its bytes, and how many of them torch has reserved; None if it
    uses none."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return [str(found.uuid), int(found.total_memory), int(torch.cuda.memory_reserved())]
