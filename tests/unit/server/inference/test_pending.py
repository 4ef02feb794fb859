"""A queued request and its parts, on the way to a client that may be slow, or gone."""

from __future__ import annotations

import pytest

from tfs_lite.core.status import ServingError
from tfs_lite.server.inference.pending import AnswerRoom


def test_room_counts_each_and_all() -> None:
    room = AnswerRoom(one=10, together=15)
    first, second = room.client(), room.client()
    first.take(100)
    first.give(100)
    first.take(6)
    with pytest.raises(ServingError, match="more slowly than the model makes them"):
        first.take(6)
    first.take(4)
    second.take(1)
    with pytest.raises(ServingError, match="more slowly"):
        second.take(6)
    assert room.held == 11
    first.close()
    second.close()
    assert room.held == 0
