"""Models that steal, of each platform that can run code or name files: refused without trust; with it, stopped.

The same thieves succeed where the sandbox is off, so that it is the sandbox that stops them. Thieves in ``model.py``:
``test_sandbox``; in SavedModels: tests/tensorflow. What an encoder brings is never run: tests/contracts.
"""

from __future__ import annotations

import json
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import tfs_lite
from tests.support.platforms.tagged import TAGGED
from tests.support.servers.platforms import add_to_archive, rewrite_archive, write_script
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess
from tests.support.servers.thief import DONE, LIBRARY_ATTEMPTS, REFUSED, build_library
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.workers.landlock import probe_kernel
from tfs_lite.workers.sandbox import status_of

pytestmark = [
    pytest.mark.load,
    pytest.mark.skipif(
        not {"files", "programs", "network"}.issubset(status_of(probe_kernel()).holds),
        reason="the kernel has no whole sandbox",
    ),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler"),
]

SECRET = np.array([3.0, 1.0, 4.0, 1.5], np.float32)
PROCESS = 'instance_group { count: 1 worker: "process" }\n'
ROWS = """
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }
"""
READERS = ("pytorch_export", "pytorch_libtorch")
"""Their operator ``from_file`` reads the file that the model names."""
LIBRARIES = ("pytorch_aoti", "onnxruntime_onnx")
"""They load a library that is in the version."""


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x * 0 + x}


class Reader(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x + torch.from_file(self.path, False, 4)}


def save_same(directory: Path) -> Path:
    """Saved, and without the manifest, which would tell that it was changed."""
    made = tfs_lite.save(Same(), directory.parent, example_inputs={"x": torch.zeros(2, 4)}, version=1)
    (made / MANIFEST_NAME).unlink()
    return made


def write_exported_reader(directory: Path, outside: Path, port: int) -> None:
    """The program's multiplication became the operator that reads a file."""
    made = save_same(directory)

    def steal(name: str, data: bytes) -> bytes:
        if name != "models/model.json":
            return data
        program = json.loads(data)
        node = program["graph_module"]["graph"]["nodes"][0]
        node["target"] = "torch.ops.aten.from_file.default"
        values = {
            "filename": {"as_string": str(outside / "secret")},
            "shared": {"as_bool": False},
            "size": {"as_int": 4},
        }
        node["inputs"] = [{"name": name, "arg": value, "kind": 1} for name, value in values.items()]
        return json.dumps(program).encode()

    rewrite_archive(made / "model.pt2", made / "new", steal).replace(made / "model.pt2")
    (made / "config.pbtxt").write_text(PROCESS)


def write_script_reader(directory: Path, outside: Path, port: int) -> None:
    write_script(directory, Reader(str(outside / "secret")))
    (directory / "config.pbtxt").write_text(PROCESS + ROWS)


def write_compiled_library(directory: Path, outside: Path, port: int) -> None:
    """The code beside the program is the thief's library."""
    made = save_same(directory)
    library = build_library(directory.parent.parent / "code.so", outside, port)
    facts = {"AOTI_PLATFORM": sys.platform, "AOTI_MACHINE": platform.machine(), "AOTI_DEVICE_KEY": "cpu"}
    facts |= {"AOTI_CPU_ISA": "", "cpu_flags": "", "torch": torch.__version__}
    code = "data/aotinductor/model/code.wrapper"
    members = {f"{code}.so": library.read_bytes(), f"{code}_metadata.json": json.dumps(facts).encode()}
    add_to_archive(made / "model.pt2", made / "new", members).replace(made / "model.pt2")


def write_onnx_library(directory: Path, outside: Path, port: int) -> None:
    """The model is harmless, and its config names a library of operators."""
    TAGGED["onnxruntime_onnx"].writer(directory, 0)(1, directory.parent)
    build_library(directory / "operators.so", outside, port)
    library = 'parameters { key: "custom_ops" value { string_value: "operators.so" } }\n'
    (directory / "config.pbtxt").write_text(PROCESS + library)


WRITERS = {
    "pytorch_export": write_exported_reader,
    "pytorch_libtorch": write_script_reader,
    "pytorch_aoti": write_compiled_library,
    "onnxruntime_onnx": write_onnx_library,
}


def lacks(name: str) -> str:
    """What is not installed to write the thief; compiled code is written without the compiler of models."""
    return TAGGED[name].lacks() if name == "onnxruntime_onnx" else ""


class Thieves(NamedTuple):
    """A server with the thieves in ``trusted_<platform>`` and ``stranger_<platform>``."""

    server: ServerProcess
    probe: Probe
    outside: Path
    sandbox: str


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The repository with the thieves, and the directory that they are after; somebody listens there for TCP."""
    root, outside = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("outside")
    (outside / "secret").write_bytes(SECRET.tobytes())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name, write in WRITERS.items():
            if not lacks(name):
                directory = root / f"trusted_{name}" / "1"
                write(directory, outside, listener.getsockname()[1])
                shutil.copytree(directory.parent, root / f"stranger_{name}")
        yield root, outside


@pytest.fixture(scope="module", params=["auto", pytest.param("off", marks=pytest.mark.load)])
def thieves(request: pytest.FixtureRequest, models: tuple[Path, Path]) -> Iterator[Thieves]:
    root, outside = models
    (outside / "loot").unlink(missing_ok=True)
    flags = (
        f"--model_repository={root}",
        f"--trusted_model_base_paths={root}/trusted_*",
        f"--worker_sandbox={request.param}",
        "--max_num_load_retries=0",
    )
    with ServerProcess(*flags) as server, Probe(server) as probe:
        yield Thieves(server, probe, outside, request.param)


@pytest.mark.parametrize("name", WRITERS)
def test_thief_without_trust_is_refused(thieves: Thieves, name: str) -> None:
    if lacks(name):
        pytest.skip(f"needs {lacks(name)}")
    status = thieves.probe.wait_failed(f"stranger_{name}", 1).status
    assert status.code is StatusCode.PERMISSION_DENIED
    assert "--trusted_model_base_paths" in status.message


@pytest.mark.parametrize("name", READERS)
def test_trusted_model_that_reads_a_file_outside_gets_it_without_a_sandbox_only(thieves: Thieves, name: str) -> None:
    model, x = f"trusted_{name}", {"x": np.zeros((1, 4), np.float32)}
    thieves.probe.wait_available(model, 1)
    if thieves.sandbox == "off":
        assert np.ravel(thieves.probe.client.predict(model, x).outputs["y"]).tolist() == SECRET.tolist()
        return
    with pytest.raises(ServingError) as caught:
        thieves.probe.client.predict(model, x)
    assert caught.value.code is StatusCode.INTERNAL


@pytest.mark.parametrize("name", LIBRARIES)
def test_library_that_steals_while_it_is_loaded_gets_nothing_from_within_a_sandbox(thieves: Thieves, name: str) -> None:
    if lacks(name):
        pytest.skip(f"needs {lacks(name)}")
    thieves.probe.wait_failed(f"trusted_{name}", 1)
    outcome = DONE if thieves.sandbox == "off" else REFUSED
    for attempt in LIBRARY_ATTEMPTS:
        assert f"thief: {attempt}: {outcome}" in thieves.server.log()
        other = REFUSED if outcome is DONE else DONE
        assert f"thief: {attempt}: {other}" not in thieves.server.log()
    assert (thieves.outside / "loot").exists() == (outcome is DONE)
