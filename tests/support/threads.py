"""The priorities of threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no niceness of their own")


def niceness() -> int:
    """The niceness of the calling thread."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def slack_ns() -> int:
    """The nanoseconds by which waits of the calling thread may end late."""
    found: int = ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)  # PR_GET_TIMERSLACK
    return found


def of_low_priority(usual: int) -> set[str]:
    """The threads of this process that have less than the usual priority, by their names without numbers, but for those
    that end meanwhile. A name is empty where Python has not started the thread."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = set[str]()
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, thread) > usual:
                found.add(names.get(thread, "").rstrip("-0123456789"))
    return found
