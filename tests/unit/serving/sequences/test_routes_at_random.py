"""Sequences and swaps in any order, and on many threads at once."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from tests.support.schedulers.sequence_fixture import DRAIN, M, SequenceFixture
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import ServingError, StatusCode


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_routes_are_those_of_live_sequences_and_versions_leave_in_time(seed):
    """Random traffic over random swaps: after every step the live sequences have their routes, and no others do."""
    rng = random.Random(seed)
    fixture = SequenceFixture(rng.choice(["availability", "resource"]))
    fixture.swap(1)
    began: dict[int, int] = {}  # id -> the version of its live sequence
    for _ in range(300):
        step = rng.random()
        if step < 0.1:
            fixture.swap(*rng.sample(range(1, 5), rng.choice([1, 1, 2])))
        elif step < 0.2:
            fixture.clock.advance(rng.choice([1.0, DRAIN / 2, DRAIN]))
            began = {id: version for id, version in began.items() if not fixture.is_overdue(version)}
            fixture.settle()
        else:
            flags = SequenceFlags(rng.randrange(1, 7), start=rng.random() < 0.4, end=rng.random() < 0.3)
            answer_one(fixture, flags, began)
        assert fixture.live() == Counter(began.values())
    fixture.swap(5)
    fixture.clock.advance(DRAIN)
    fixture.settle()
    assert fixture.ready("m") == [5]
    assert [version for version in range(1, 5) if fixture.state("m", version) is not None] == []
    assert fixture.violations() == []


def answer_one(fixture: SequenceFixture, flags: SequenceFlags, began: dict[int, int]) -> None:
    """``began`` is brought up to date."""
    if flags.id not in began or flags.start:
        try:
            handle = fixture.routes.handle(M, flags)
        except ServingError as refused:
            if refused.code not in (StatusCode.UNAVAILABLE, StatusCode.NOT_FOUND):
                raise
            return
    else:
        handle = fixture.routes.handle(M, flags)
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
    fixture = SequenceFixture()
    fixture.swap(1)
    failures: list[BaseException] = []

    def traffic(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(400):
                flags = SequenceFlags(rng.randrange(1, 4), start=rng.random() < 0.5, end=rng.random() < 0.5)
                with fixture.routes.handle(M, flags) as handle:
                    assert handle.servable.alive
                    handle.servable.submit(flags)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=traffic, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for version in range(2, 12):
        fixture.swap(version)
    for thread in threads:
        thread.join()
    assert failures == []
    for id in (1, 2, 3):
        fixture.ask(id, start=True)
        fixture.ask(id, end=True)
    fixture.swap(20)
    fixture.clock.advance(DRAIN)
    fixture.settle()
    assert fixture.live() == {}
    assert [version for version in range(1, 20) if fixture.state("m", version) is not None] == []
