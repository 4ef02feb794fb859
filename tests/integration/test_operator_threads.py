"""The flag for threads inside an operator holds in every thread that runs a model, however it came about."""

from __future__ import annotations

import numpy as np
import pytest

import tfs_lite
from tests.support.servers.models import write_python_version
from tests.support.servers.process import ServerProcess, default_command
from tfs_lite.core.threads import usable_cpus

SOURCE = """
import ctypes
import threading

import numpy as np
import torch


def team():
    paths = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
    return ctypes.CDLL(paths.pop()).omp_get_max_threads()


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        found = [team()]
        thread = threading.Thread(target=lambda: found.append(team()))
        thread.start()
        thread.join()
        return {"y": np.array([[*found, torch.get_num_threads()]], np.float32)}
"""
"""Answers with the sizes of the teams that OpenMP gives to the thread that runs it and to a thread of its own, and with
torch's number."""
IN_A_PROCESS = 'instance_group { kind: KIND_CPU  worker: "process" }\n'


@pytest.mark.parametrize(
    ("flags", "size"),
    [(["--tensorflow_intra_op_parallelism=3"], 3), ([], max(usable_cpus() - 1, 1))],
    ids=["given", "default"],
)
def test_each_thread_runs_operators_with_as_many_threads_as_the_flag_says(tmp_path, flags, size):
    write_python_version(tmp_path / "here", 1, SOURCE)
    with (write_python_version(tmp_path / "apart", 1, SOURCE) / "config.pbtxt").open("a") as config:
        config.write(IN_A_PROCESS)
    root = [f"--model_repository={tmp_path}", f"--trusted_model_base_paths={tmp_path}/*"]
    with ServerProcess(*root, *flags, command=default_command(), env={"OMP_NUM_THREADS": ""}) as server:
        server.wait_ready()
        with tfs_lite.Client(server.target) as client:
            for name in ("here", "apart"):
                teams = client.predict(name, {"x": np.zeros((1, 3), np.float32)}).outputs["y"]
                assert teams.tolist() == [[size] * 3], name
