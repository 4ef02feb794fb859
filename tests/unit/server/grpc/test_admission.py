from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.grpc.admission import HEALTH, REFLECTION, AdmissionControl

PATH = "/test.Service/echo"


@contextmanager
def entered(door: AdmissionControl, path: str) -> Iterator[None]:
    counted = door.enter(path)
    try:
        yield
    finally:
        if counted:
            door.leave()


def knock(door: AdmissionControl, path: str = PATH) -> StatusCode:
    try:
        with entered(door, path):
            return StatusCode.OK
    except ServingError as error:
        return error.code


FREE = (f"{HEALTH}Check", f"{HEALTH}Watch", f"{REFLECTION}v1.ServerReflection/ServerReflectionInfo")
"""Methods that are let in whatever happens."""


def test_a_shut_door_lets_in_health_and_reflection_only() -> None:
    door = AdmissionControl()
    assert knock(door) is StatusCode.OK
    door.shut()
    assert knock(door) is StatusCode.UNAVAILABLE
    assert {knock(door, path) for path in FREE} == {StatusCode.OK}


def test_one_call_more_than_there_are_places_is_refused_until_one_leaves() -> None:
    door = AdmissionControl(2)
    with ExitStack() as inside:
        inside.enter_context(entered(door, PATH))
        with entered(door, PATH):
            assert knock(door) is StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(ServingError, match=r"2 calls inside, the most it takes .*--grpc_max_threads"):
                inside.enter_context(entered(door, PATH))
        assert knock(door) is StatusCode.OK


@pytest.mark.parametrize("path", FREE)
def test_health_and_reflection_take_no_place_and_need_none(path: str) -> None:
    door = AdmissionControl(1)
    with entered(door, path), entered(door, PATH), entered(door, path):
        assert knock(door) is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_a_call_that_fails_gives_its_place_back(error: Any) -> None:
    door = AdmissionControl(1)
    with pytest.raises(error), entered(door, PATH):
        raise error
    assert knock(door) is StatusCode.OK


def test_without_a_limit_there_is_always_room() -> None:
    door = AdmissionControl()
    with ExitStack() as inside:
        for _ in range(1000):
            inside.enter_context(entered(door, PATH))
