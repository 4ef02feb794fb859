"""What a request needs of any manager: handles, and the list of what there is."""

from __future__ import annotations

from typing import Protocol

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ServableId, ServableRequest


class Manager(Protocol):
    """Gives out handles to loaded versions. Methods may be called from any thread and never wait for a load."""

    def get_servable_handle(self, request: ServableRequest) -> ServableHandle:
        """A handle to the version that answers the request now. NOT_FOUND if none is ready."""

    def list_available_servable_ids(self) -> list[ServableId]:
        """Every version that a handle can be had for now."""

    def get_available_servable_handles(self) -> dict[ServableId, ServableHandle]:
        """A handle to each of them. The caller releases every one."""

    def close(self, drain_timeout: float = 0.0) -> None:
        """Unloads everything, waiting up to ``drain_timeout`` seconds for live handles. Called once, at the end."""
