"""What a model's process may claim of the processors while it loads, and after."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tfs_lite.workers.priorities import in_background

ALL_THREADS = """
import os, threading
from tfs_lite.workers.priorities import in_background

done = threading.Event()
inside, outside = [], []
threading.Thread(target=done.wait, daemon=True).start()

def policies():
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}

with in_background():
    later = threading.Thread(target=lambda: inside.append(os.sched_getscheduler(0)))
    later.start()
    later.join()
    assert inside == [os.SCHED_IDLE] and policies() == {os.SCHED_IDLE}, (inside, policies())
assert policies() == {os.SCHED_OTHER}, policies()
"""


def test_all_threads_are_in_the_background_while_a_model_loads_and_none_after():
    subprocess.run([sys.executable, "-c", ALL_THREADS], check=True, timeout=60)


def test_load_that_takes_long_goes_on_as_any_other_process():
    with in_background():
        pass  # finds out whether the idle class can be left
    raised = threading.Event()
    real = os.sched_setscheduler
    policies = []

    def notice(thread, policy, parameter):
        real(thread, policy, parameter)
        policies.append(policy)
        if policy == os.SCHED_OTHER:
            raised.set()

    os.sched_setscheduler = notice
    try:
        with in_background(seconds=0.01):
            assert raised.wait(60)
            assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        os.sched_setscheduler = real
    assert policies[0] == os.SCHED_IDLE


def test_process_of_a_model_loads_in_the_background_and_runs_in_the_foreground(open_child):
    model = open_child("make_where_it_loads")
    answer = model.run("where", {"x": np.zeros(1)}, ("y",))["y"]
    assert answer.tolist() == [os.SCHED_IDLE, os.SCHED_OTHER]


AS_NOBODY = """
import os
from tfs_lite.workers.priorities import in_background, lower_priority

os.setgid(65534)
os.setuid(65534)
lower_priority()
with in_background():
    assert os.sched_getscheduler(0) == os.SCHED_BATCH
assert os.sched_getscheduler(0) == os.SCHED_OTHER, os.sched_getscheduler(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_user_who_may_not_leave_the_idle_class_does_not_enter_it():
    subprocess.run([sys.executable, "-c", AS_NOBODY], check=True, timeout=60)
