"""A GPU that fails under a model: the server drains and ends with an error, a process of a model is started again.

The model raises what torch raises then, so that no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.servers.models import write_python_version
from tests.support.servers.probe import ROW, Probe
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.status import ServingError, StatusCode

PATIENCE = 60.0
SOURCE = """
import torch


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        if inputs["x"].sum() < 0:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\\nmore of it")
        return {"y": inputs["x"] + 1}
"""
WORDS = "an illegal memory access was encountered"


def served(root: Path, worker: str) -> ServerProcess:
    directory = write_python_version(root / "m", 1, SOURCE)
    with (directory / "config.pbtxt").open("a") as config:
        config.write(f'\ninstance_group {{ worker: "{worker}" }}\n')
    flags = (f"--model_repository={root}", f"--trusted_model_base_paths={root}")
    return ServerProcess(*flags)


def failure_of(call: Callable[[], object]) -> ServingError:
    try:
        call()
    except ServingError as error:
        return error
    raise AssertionError("the call did not fail")


def test_the_server_drains_and_ends_with_an_error(tmp_path: Path) -> None:
    with served(tmp_path, "thread") as server, Probe(server) as probe:
        assert probe.ask("m") == 1
        failure = failure_of(lambda: probe.client.predict("m", {"x": -ROW}))
        assert failure.code is StatusCode.UNAVAILABLE
        assert WORDS in failure.status.message
        wait_until(lambda: server.exit_code is not None, "the server has ended", PATIENCE)
        assert server.exit_code == 1
        assert f"tfs-lite: stopped, because a GPU failed: {WORDS}" in server.log()


def test_a_process_of_a_model_is_started_again_and_the_server_goes_on(tmp_path: Path) -> None:
    with served(tmp_path, "process") as server, Probe(server) as probe:
        assert probe.ask("m") == 1
        failure = failure_of(lambda: probe.client.predict("m", {"x": -ROW}))
        assert failure.code is StatusCode.UNAVAILABLE

        def answers() -> bool:
            try:
                return bool(np.array_equal(probe.client.predict("m", {"x": ROW}).outputs["y"], ROW + 1))
            except ServingError as error:
                if error.code is not StatusCode.UNAVAILABLE:
                    raise
                return False

        wait_until(answers, "the process was started again", PATIENCE)
        assert f"the GPU of this process failed, it ends: {WORDS}" in server.log()
    assert server.exit_code == 0
