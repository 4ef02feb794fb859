"""One handle, shared: further handles to the same version, also after it has been withdrawn.

A withdrawn version gives out no new handles, but whoever holds one keeps it loaded. So an owner that must go on sending
requests to it keeps one handle, and gives every request a share.
"""

from __future__ import annotations

import threading

from tfs_lite.core.handle import ServableHandle


class HandleShare:
    """``take`` any number of times, ``release`` once, by the owner. Any thread. The handle is released when the owner
    and all shares are gone, on the thread of the last of them."""

    __slots__ = ("_handle", "_lock", "_users")

    def __init__(self, handle: ServableHandle) -> None:
        """Takes the handle over."""
        self._handle = handle
        self._lock = threading.Lock()  # guards the number of users
        self._users = 1

    def take(self) -> ServableHandle:
        """A handle of the caller's own. Not after :meth:`release`, unless a share is live: RuntimeError."""
        with self._lock:
            if not self._users:
                raise RuntimeError("a share was taken of a handle that is released")
            self._users += 1
        return ServableHandle(self._handle.id, self._handle.servable, self._leave)

    def release(self) -> None:
        """The owner needs it no more."""
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self._handle.release()
