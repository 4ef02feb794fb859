"""A system that is short of threads."""

from __future__ import annotations

import threading

import pytest


class RefusedThreads:
    """The next ``next`` threads are refused, as a system without room for them does it."""

    next = 0


@pytest.fixture
def refused_threads(monkeypatch: pytest.MonkeyPatch) -> RefusedThreads:
    refused, start = RefusedThreads(), threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if refused.next:
            refused.next -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refused
