"""A system that is short of threads."""

from __future__ import annotations

import threading

import pytest


class RefusedThreads:
    """The next ``next`` threads are refused, as a system without room for them does it. ``on_start`` is told of each
    before."""

    next = 0

    def on_start(self, thread: threading.Thread) -> None: ...


@pytest.fixture
def refused_threads(monkeypatch: pytest.MonkeyPatch) -> RefusedThreads:
    refused, start = RefusedThreads(), threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        refused.on_start(thread)
        if refused.next:
            refused.next -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refused
