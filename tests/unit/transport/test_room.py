"""Which connection makes room for another one."""

from __future__ import annotations

from tfs_lite.transport.room import SEARCH_INTERVAL, ConnectionRoom


class Held:
    """A connection; ``rank`` None means that it cannot be spared."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.evicted = False

    def evict(self) -> None:
        self.evicted = True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def full(*ranks: int | None) -> tuple[ConnectionRoom[Held], list[Held], Clock]:
    clock = Clock()
    room: ConnectionRoom[Held] = ConnectionRoom(len(ranks), lambda one, now: one.rank, clock)
    held = [Held(rank) for rank in ranks]
    assert all(room.add(one) for one in held)
    return room, held, clock


def test_those_that_can_best_be_spared_make_room_in_their_order() -> None:
    room, held, _ = full(3, 1, 2)
    assert room.add(Held(0))
    assert room.add(Held(0))
    assert [one.evicted for one in held] == [False, True, True]
    assert len(room) == 3


def test_there_is_no_room_where_none_can_be_spared() -> None:
    room, held, _ = full(None, None)
    assert not room.add(Held(0))
    assert not any(one.evicted for one in held)


def test_connection_that_is_needed_again_since_the_search_stays() -> None:
    room, held, _ = full(1, 2, 3)
    assert room.add(Held(None))
    held[1].rank = 9
    assert room.add(Held(None))
    assert [one.evicted for one in held] == [True, False, True]


def test_search_is_repeated_after_a_while_only() -> None:
    room, held, clock = full(None)
    assert not room.add(Held(0))
    held[0].rank = 1
    assert not room.add(Held(0))
    clock.now += SEARCH_INTERVAL
    assert room.add(Held(0))


def test_connection_that_has_ended_leaves_its_place() -> None:
    room, held, _ = full(None, None)
    room.discard(held[0])
    assert room.add(Held(None))
    assert list(room).count(held[1]) == 1
