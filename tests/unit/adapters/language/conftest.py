"""Families of language models in two parts: one for each kind of cache, and the others with the marker load."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch

from tests.support.language.tiny_transformers import FAMILIES, REPRESENTATIVES


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are too small to be shared between torch's threads, and other tests may run at the same time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in REPRESENTATIVES else pytest.mark.load) for name in FAMILIES]
)
def family(request: pytest.FixtureRequest) -> str:
    """Each family whose texts can share a forward."""
    name: str = request.param
    return name


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The attempts to reach another machine, each of which fails."""
    calls: list[tuple[object, ...]] = []

    def refuse(*args: object, **kwargs: object) -> None:
        calls.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return calls
