"""TensorFlow Serving's model lifecycle for PyTorch.

``save`` writes a servable version, ``Server`` serves, ``Client`` calls. Each is imported when it is first used, so
that ``import tfs_lite`` alone costs milliseconds and a client never loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tfs_lite.adapters.saving.save import save
    from tfs_lite.client import Client
    from tfs_lite.server.server import Server

__all__ = ["Client", "Server", "__version__", "save"]

_HOMES = {"save": "tfs_lite.adapters.saving.save", "Client": "tfs_lite.client", "Server": "tfs_lite.server.server"}


def __getattr__(name: str) -> Any:
    """Imports the public names on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tfs_lite' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
