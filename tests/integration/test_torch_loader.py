"""Exported programs that only torch's own loader can open: they are served from a process, and the status says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._higher_order_ops.scan import scan

import tfs_lite
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import ServerProcess, default_command, wait_until
from tfs_lite.client import Client
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError, StatusCode

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
REASON = "loaded by torch's loader in a process: operator torch.ops.higher_order.scan is not"


class RunningSum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(total: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return total + row, total + row

        return scan(step, torch.zeros(2), x)[1]


@torch.library.custom_op("tests_of_tfs_lite::negative", mutates_args=())
def negative(x: torch.Tensor) -> torch.Tensor:
    return -x


@negative.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Negative(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.tests_of_tfs_lite.negative(x)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, archives: TaggedArchives) -> Path:
    """``sums`` needs torch's loader, ``plain`` does not, and ``negative`` an operator that only this process has."""
    root = tmp_path_factory.mktemp("models")
    rows = (torch.from_numpy(ROWS),)
    bounded = {"x": {0: torch.export.Dim("rows", min=3)}}
    tfs_lite.save(RunningSum(), root / "sums", example_inputs=rows, dynamic_batch=False, dynamic_dims=bounded)
    (root / "negative" / "1").mkdir(parents=True)
    torch.export.save(torch.export.export(Negative(), rows), root / "negative" / "1" / "model.pt2")
    archives.write_version(1, root / "plain")
    return root


@pytest.fixture(scope="module", params=["thread", "process"])
def flag(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(flag: str, repository: Path) -> Iterator[ServerProcess]:
    flags = (
        f"--model_repository={repository}",
        f"--worker={flag}",
        f"--trusted_model_base_paths={repository}/negative",
        "--version_quiet_period_seconds=0.1",
        "--max_num_load_retries=0",
    )
    with ServerProcess(*flags) as started:
        wait_until(lambda: "negative version 1" in started.log(), "every model was tried")
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target) as found:
        yield found


def worker_of(server: ServerProcess, model: str) -> dict[str, Any]:
    """The worker of its only instance, as ``tfs-lite status`` shows it."""
    command = [*default_command(), "status", model, "--verbose", "--json", "--server", f"127.0.0.1:{server.http_port}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    (found,) = json.loads(shown.stdout)["models"]
    (worker,) = found["versions"][0]["numbers"]["workers"]
    return dict(worker)


def running_sum(client: Client) -> list[float]:
    (output,) = client.predict("sums", {"x": ROWS}).outputs.values()
    return np.asarray(output).ravel().tolist()


def test_version_answers_from_a_process_and_status_and_log_say_why(server: ServerProcess, client: Client) -> None:
    assert running_sum(client) == ROWS.cumsum(0).ravel().tolist()
    worker = worker_of(server, "sums")
    assert (worker["kind"], worker["up"]) == ("process", True)
    assert worker["reason"].startswith(REASON)
    lines = [line for line in server.log().splitlines() if f"model sums version 1 was {REASON}" in line]
    assert len(lines) == 1
    (version,) = client.status("sums")
    assert (version.state, version.status.code, version.status.message) == (VersionState.AVAILABLE, StatusCode.OK, "")


def test_conditions_on_sizes_are_checked_before_the_process_is_asked(client: Client) -> None:
    with pytest.raises(ServingError, match="input x has size 2 in dimension 0, at least 3 is needed") as caught:
        client.predict("sums", {"x": ROWS[:2]})
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_neighbour_that_is_built_directly_lives_where_the_flag_says(server: ServerProcess, flag: str) -> None:
    worker = worker_of(server, "plain")
    assert (worker["kind"], worker["reason"]) == (flag, "")


def test_process_that_is_killed_comes_back_by_the_same_way(server: ServerProcess, client: Client) -> None:
    os.kill(int(worker_of(server, "sums")["pid"]), signal.SIGKILL)
    wait_until(lambda: worker_of(server, "sums")["restarts"] == 1, "the process is back")
    assert running_sum(client) == ROWS.cumsum(0).ravel().tolist()
    assert worker_of(server, "sums")["reason"].startswith(REASON)


def test_operator_that_no_process_of_the_server_has_is_named_in_the_refusal(client: Client) -> None:
    (version,) = client.status("negative")
    assert version.state is VersionState.END
    assert "tests_of_tfs_lite" in version.status.message
    with pytest.raises(ServingError):
        client.predict("negative", {"x": ROWS})
