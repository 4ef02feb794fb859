"""A handle: the right to use one loaded version, for the length of one request.

While a handle is live its servable is not unloaded. Take it with ``with``, so that it is released whatever happens.
Releasing never destroys anything on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from tfs_lite.core.servable import ServableId


class ServableHandle:
    """``id`` is always the concrete version, never "latest". Use and release from any thread."""

    __slots__ = ("_release", "id", "servable")

    def __init__(self, servable_id: ServableId, servable: Any, release: Callable[[], None]) -> None:
        self.id = servable_id
        self.servable = servable
        self._release = [release]  # a list, because its pop is atomic: of two threads only one releases

    def release(self) -> None:
        """Gives the right back. Later calls do nothing."""
        try:
            release = self._release.pop()
        except IndexError:
            return
        self.servable = None
        release()

    def __enter__(self) -> ServableHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
