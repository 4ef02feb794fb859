"""The right to use a version."""

from __future__ import annotations

import pytest

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ServableId

ID = ServableId("m", 1)


def test_handle_is_released_once_however_often_it_is_asked() -> None:
    released = []
    handle = ServableHandle(ID, "servable", lambda: released.append(1))
    with handle as found:
        assert (found.id, found.servable) == (ID, "servable")
        assert released == []
    handle.release()
    assert (released, handle.servable) == ([1], None)


def test_handle_is_released_when_the_request_fails() -> None:
    released = []
    with pytest.raises(KeyError), ServableHandle(ID, "servable", lambda: released.append(1)):
        raise KeyError
    assert released == [1]
