"""What a replica says about the process that it is: versions of what it runs with, and its GPUs."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any


def version_of(distribution: str) -> str:
    """Empty if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def gpus() -> list[list[object]]:
    """Uuid and bytes of each GPU that the model's torch has found."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [[str(gpu.uuid), int(gpu.total_memory)] for gpu in found]
