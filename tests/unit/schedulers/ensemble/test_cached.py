"""An ensemble behind the response cache: its answers are those of the versions that its models have now."""

from __future__ import annotations

import pytest

from tests.support.schedulers.ensembles import EnsembleFixture, adder, ask, diamond
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.cached import CachedServable
from tfs_lite.schedulers.response_cache import ResponseCache


@pytest.fixture
def cache() -> ResponseCache:
    return ResponseCache(1 << 20)


def test_equal_requests_are_answered_without_the_steps(fixture: EnsembleFixture, cache: ResponseCache) -> None:
    cached = CachedServable(diamond(fixture), cache, ServableId("e", 1))
    outputs = [ask(cached, {"IN": [1, 2]}).outputs["LEFT"].tolist() for _ in range(3)]
    assert outputs == [[12, 13]] * 3
    assert sorted(fixture.counted()) == ["first", "left", "right"]


def test_new_version_of_a_model_ends_what_was_kept(fixture: EnsembleFixture, cache: ResponseCache) -> None:
    cached = CachedServable(diamond(fixture), cache, ServableId("e", 1))
    assert ask(cached, {"IN": [1, 2]}).outputs["LEFT"].tolist() == [12, 13]
    fixture.serve("left", adder(1000), version=2)
    assert [ask(cached, {"IN": [1, 2]}).outputs["LEFT"].tolist() for _ in range(2)] == [[1002, 1003]] * 2
    assert sorted(fixture.counted()) == ["first", "first", "left", "left", "right", "right"]
