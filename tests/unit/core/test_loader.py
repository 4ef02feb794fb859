"""The loader around a function."""

from __future__ import annotations

import pytest

from tfs_lite.core.loader import SimpleLoader
from tfs_lite.core.resources import NO_RESOURCES, main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode

ID = ServableId("m", 1)


def test_creator_is_told_the_id_and_unload_destroys_what_it_made() -> None:
    made, destroyed = [], []
    loader = SimpleLoader(lambda servable_id: made.append(servable_id) or "servable", destroy=destroyed.append)
    loader.load(ID)
    loader.unload()
    assert (made, destroyed) == ([ID], ["servable"])


def test_estimate_is_asked_once_and_remembered() -> None:
    asked = []
    loader = SimpleLoader(lambda _: "s", lambda: asked.append(1) or main_ram(7))
    assert [loader.estimate_resources() for _ in range(3)] == [main_ram(7)] * 3
    assert asked == [1]


def test_estimate_that_failed_is_asked_again() -> None:
    answers = [ServingError(StatusCode.UNAVAILABLE, "disk"), main_ram(7)]

    def estimate():
        answer = answers.pop(0)
        if isinstance(answer, ServingError):
            raise answer
        return answer

    loader = SimpleLoader(lambda _: "s", estimate)
    with pytest.raises(ServingError):
        loader.estimate_resources()
    assert loader.estimate_resources() == main_ram(7)


def test_without_an_estimator_nothing_is_needed() -> None:
    assert SimpleLoader(lambda _: "s").estimate_resources() == NO_RESOURCES


def test_measurement_after_the_load_replaces_the_estimate() -> None:
    loader = SimpleLoader(lambda _: "1234", lambda: main_ram(7), lambda servable: main_ram(len(servable)))
    loader.load(ID)
    assert loader.estimate_resources() == main_ram(4)


def test_creator_that_makes_nothing_has_failed() -> None:
    with pytest.raises(ServingError) as raised:
        SimpleLoader(lambda _: None).load(ID)
    assert raised.value.code is StatusCode.INTERNAL


def test_servable_is_destroyed_if_measuring_it_fails() -> None:
    destroyed = []

    def measure(servable: object):
        raise ServingError(StatusCode.UNAVAILABLE, "cannot tell")

    loader = SimpleLoader(lambda _: "s", lambda: main_ram(7), measure, destroyed.append)
    with pytest.raises(ServingError):
        loader.load(ID)
    assert (destroyed, loader.servable, loader.estimate_resources()) == (["s"], None, main_ram(7))
