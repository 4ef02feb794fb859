"""A moment in which the system has no thread to give: what was asked for then is done later, by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import os, resource, threading, time

    from tfs_lite.core.clock import SystemClock
    from tfs_lite.core.executor import PoolExecutor, Task

    os.setgid(64999)
    os.setuid(64999)  # root has no such limit
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        pass
    else:
        raise SystemExit(77)
    clock, pool, loaded, due = SystemClock(), PoolExecutor("load", 1), threading.Event(), threading.Event()
    clock.call_later(0, due.set)
    pool.submit(Task("load", lambda: True, loaded.set, lambda error: None))
    assert not loaded.wait(0.1)
    assert not due.wait(0.1)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    clock.call_later(3600, lambda: None)
    pool.run_pending()  # as every tick of the manager does
    assert loaded.wait(30)
    assert due.wait(30)
    pool.shutdown()
    clock.close()
    print("both came back")
    """
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user with a limit of its own")
def test_clock_and_pool_come_back_when_the_system_has_threads_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("the system does not enforce RLIMIT_NPROC here")
    assert (done.returncode, done.stdout) == (0, "both came back\n"), done.stderr
    assert done.stderr.count("cannot be started") <= 2
