"""Which connection makes room for another one."""

from __future__ import annotations

import pytest

from tfs_lite.transport.room import KEPT_BACK, LAST_DESCRIPTORS, SEARCH_INTERVAL, ConnectionRoom, ConnectionShare


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


def test_search_is_repeated_where_nothing_that_it_found_can_be_spared_any_more() -> None:
    """A connection that came after the search makes room, and the new one is not refused."""
    room, held, clock = full(1, 2)
    late = Held(3)
    assert room.add(late)
    held[1].rank = 9
    clock.now += SEARCH_INTERVAL
    assert room.add(Held(None))
    assert late.evicted
    assert not held[1].evicted


def test_connection_that_has_ended_leaves_its_place() -> None:
    room, held, _ = full(None, None)
    room.discard(held[0])
    assert room.add(Held(None))
    assert list(room).count(held[1]) == 1


@pytest.mark.parametrize(("files", "most"), [(100, 50), (256, 128), (1024, 768), (4096, 3072), (20_000, 15_000)])
def test_descriptors_are_kept_back_for_what_is_no_connection(files: int, most: int) -> None:
    share = ConnectionShare(files)
    assert share.most == most
    assert files - most >= min(KEPT_BACK, files // 2)
    assert share.may_have(files - LAST_DESCRIPTORS - 1)
    assert not share.may_have(files - LAST_DESCRIPTORS)


def shared(files: int) -> tuple[ConnectionShare, list[ConnectionRoom[Held]]]:
    share, clock = ConnectionShare(files), Clock()
    return share, [ConnectionRoom(1000, lambda one, now: one.rank, clock, share) for _ in range(2)]


def test_the_server_with_most_connections_makes_room_for_both() -> None:
    _, (first, second) = shared(12)
    held = [Held(rank) for rank in range(5)]
    assert all(first.add(one) for one in held)
    assert second.add(Held(0))
    assert (len(first), len(second)) == (5, 1)
    assert second.add(Held(0))
    assert second.add(Held(0))
    assert [one.evicted for one in held] == [True, True, False, False, False]
    assert (len(first), len(second)) == (3, 3)


def test_the_other_server_makes_room_where_the_first_cannot_spare_one() -> None:
    _, (first, second) = shared(8)
    assert all(first.add(Held(None)) for _ in range(3))
    idle = Held(1)
    assert second.add(idle)
    assert second.add(Held(None))
    assert idle.evicted
    assert not second.add(Held(None))


def test_handshakes_count_and_a_high_descriptor_costs_a_connection() -> None:
    share, (first, second) = shared(100)
    handshakes = [0]
    share.join(lambda: handshakes[0])
    held = Held(1)
    assert first.add(held)
    handshakes[0] = 49
    assert second.add(Held(None))
    assert held.evicted
    assert not share.may_have(99)
    spared = Held(2)
    handshakes[0] = 0
    assert second.add(spared)
