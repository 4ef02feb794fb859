"""TensorFlow Serving's model lifecycle for PyTorch.

``save`` writes a servable version, ``Server`` serves with ``ServerOptions``, ``Client`` calls; all of them raise
``ServingError``. Each is imported when it is first used, so that ``import tfs_lite`` alone costs milliseconds and a
client never loads torch. The distribution ``tfs-lite-client`` has ``Client`` and ``ServingError`` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tfs_lite.adapters.saving.save import save
    from tfs_lite.client import Client
    from tfs_lite.core.status import ServingError
    from tfs_lite.server.server import Server
    from tfs_lite.serving.options import ServerOptions

__all__ = ["Client", "Server", "ServerOptions", "ServingError", "__version__", "save"]

_HOMES = {
    "save": "tfs_lite.adapters.saving.save",
    "Client": "tfs_lite.client",
    "Server": "tfs_lite.server.server",
    "ServerOptions": "tfs_lite.serving.options",
    "ServingError": "tfs_lite.core.status",
}


def __getattr__(name: str) -> Any:
    """Imports the public names on first use. ImportError for one that the distribution of the client does not have."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tfs_lite' has no attribute {name!r}")
    from importlib import import_module

    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("tfs_lite."):
            raise
        raise ImportError(f"tfs_lite.{name} is not in tfs-lite-client: install tfs-lite in its place") from None
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
