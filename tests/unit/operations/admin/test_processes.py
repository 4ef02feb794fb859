"""What is told of the processes of a version: an explanation, the page and the terminal agree on what bounds them,
whatever the kernel can do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.explanations import Explanations
from tests.support.servers.in_process import serving
from tests.support.servers.models import TaggedArchives
from tfs_lite.cli.main import main
from tfs_lite.serving.opening import model_opener
from tfs_lite.serving.opening.sandboxes import Sandboxes
from tfs_lite.workers.landlock import Kernel, probe_kernel
from tfs_lite.workers.sandbox import status_of

REAL = probe_kernel()
FILTERS_ONLY = Kernel(0, REAL.filters)
KERNELS = {"this kernel": REAL, "without Landlock": FILTERS_ONLY, "with nothing": Kernel(0, False)}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_what_the_sandbox_of_a_process_holds_is_told(
    kernel: Kernel,
    tmp_path: Path,
    archives: TaggedArchives,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The process enters what the server believes that the kernel has."""
    monkeypatch.setattr(model_opener, "Sandboxes", partial(Sandboxes, probe=lambda: kernel))
    archives.write_version(1, tmp_path / "m")
    archives.write_version(2, tmp_path / "m")
    options: dict[str, Any] = {"model_repository": str(tmp_path), "worker": "process"}
    status = status_of(kernel)
    sandbox = {"holds": list(status.holds), "lacks": list(status.lacks)} if status.holds else None
    with serving(tmp_path, **options) as served:
        (process,) = Explanations(served, tmp_path).wait("m/versions/2", "SERVING")["processes"]
        assert process == {
            "version": 2,
            "instance": 0,
            "pid": process["pid"],
            "up": True,
            "restarts": 0,
            "drains": False,
            "sandbox": sandbox,
        }
        assert not Explanations(served, tmp_path).ask("m/versions/1")["processes"]
        (worker,) = Explanations(served, tmp_path).get("/v1/overview?model=m")["details"]["workers"]
        assert (worker["pid"], worker["sandbox"]) == (process["pid"], sandbox)
        assert main(["explain", "m@2", f"--server={served.url.removeprefix('http://')}"]) == 0
        said = f"process {process['pid']} of version 2: "
        said += f"the sandbox holds {', '.join(status.holds)}" if sandbox else "in no sandbox"
        if sandbox and status.lacks:
            said += f"; the kernel has none for {', '.join(status.lacks)}"
        assert f"  {said}\n" in capsys.readouterr().out


def test_versions_in_threads_have_no_processes(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    with serving(tmp_path, model_repository=str(tmp_path), worker="thread") as served:
        assert not Explanations(served, tmp_path).wait("m", "SERVING")["processes"]
