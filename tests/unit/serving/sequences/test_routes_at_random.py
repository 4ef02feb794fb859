"""Sequences and swaps in any order, and on many threads at once."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.schedulers.sequence_fixture import DRAIN, M, SequenceWorld


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_routes_are_those_of_live_sequences_and_versions_leave_in_time(seed):
    """Random traffic over random swaps: after every step the live sequences have their routes, and no others do."""
    rng = random.Random(seed)
    world = SequenceWorld(rng.choice(["availability", "resource"]))
    world.swap(1)
    began: dict[int, int] = {}  # id -> the version of its live sequence
    for _ in range(300):
        step = rng.random()
        if step < 0.1:
            world.swap(*rng.sample(range(1, 5), rng.choice([1, 1, 2])))
        elif step < 0.2:
            world.clock.advance(rng.choice([1.0, DRAIN / 2, DRAIN]))
            began = {id: version for id, version in began.items() if not world.is_overdue(version)}
            world.settle()
        else:
            flags = SequenceFlags(rng.randrange(1, 7), start=rng.random() < 0.4, end=rng.random() < 0.3)
            answer_one(world, flags, began)
        assert world.live() == Counter(began.values())
    world.swap(5)
    world.clock.advance(DRAIN)
    world.settle()
    assert world.ready("m") == [5]
    assert [version for version in range(1, 5) if world.state("m", version) is not None] == []
    assert world.violations() == []


def answer_one(world: SequenceWorld, flags: SequenceFlags, began: dict[int, int]) -> None:
    """``began`` is brought up to date."""
    if flags.id not in began or flags.start:
        try:
            handle = world.routes.handle(M, flags)
        except ServingError as refused:
            if refused.code not in (StatusCode.UNAVAILABLE, StatusCode.NOT_FOUND):
                raise
            return
    else:
        handle = world.routes.handle(M, flags)
        assert handle.id.version == began[flags.id]
    with handle:
        assert handle.servable.alive
        if flags.start:
            began[flags.id] = handle.id.version
        handle.servable.submit(flags)
        if flags.end and began.get(flags.id) == handle.id.version:
            del began[flags.id]


def test_many_threads_leave_nothing_behind():
    """Threads begin and end sequences of the same ids, while versions change under them."""
    world = SequenceWorld()
    world.swap(1)
    failures: list[BaseException] = []

    def traffic(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(400):
                flags = SequenceFlags(rng.randrange(1, 4), start=rng.random() < 0.5, end=rng.random() < 0.5)
                with world.routes.handle(M, flags) as handle:
                    assert handle.servable.alive
                    handle.servable.submit(flags)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=traffic, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for version in range(2, 12):
        world.swap(version)
    for thread in threads:
        thread.join()
    assert failures == []
    for id in (1, 2, 3):
        world.ask(id, start=True)
        world.ask(id, end=True)
    world.swap(20)
    world.clock.advance(DRAIN)
    world.settle()
    assert world.live() == {}
    assert [version for version in range(1, 20) if world.state("m", version) is not None] == []
