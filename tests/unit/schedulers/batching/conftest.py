"""Batchers on a scheduler that steps their threads, closed and checked after each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.schedulers.batcher_fixture import BatcherFixture, MakeBatcher
from tests.support.schedulers.interleaving import no_threads_left


@pytest.fixture
def make_batcher() -> Iterator[MakeBatcher]:
    made: list[BatcherFixture] = []

    def make(*arguments: Any, **rest: Any) -> BatcherFixture:
        made.append(BatcherFixture(*arguments, **rest))
        return made[-1]

    with no_threads_left():
        yield make
        for each in made:
            each.close()
