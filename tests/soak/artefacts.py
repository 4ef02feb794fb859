"""The models of ``soak_world.py``: every content has a serial number, which it adds to what it is asked.

Exporting takes a second and is done once; each content differs in a number, and takes some milliseconds.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from tests.support.platforms.tagged import TAGGED, Write

EXPORTED, PYTHON, ONNX = "pytorch_export", "python", "onnxruntime_onnx"
INSTANCES = 2
"""Processes of each Python model."""
MODEL_FILE = {EXPORTED: "model.pt2", PYTHON: "model.safetensors", ONNX: "model.onnx"}
_OWN_PROCESSES = f'\ninstance_group {{ count: {INSTANCES} kind: KIND_CPU worker: "process" }}\n'

_READS = """
import pathlib

from safetensors.torch import load


class Model:
    def __init__(self, context):
        # read, not mapped: a map ends the process when the file is overwritten in place
        self.weights = load(pathlib.Path(context.directory, "model.safetensors").read_bytes())["weights"]

    def predict(self, inputs):
        return {"y": inputs["x"] + self.weights[0], "version": self.weights[0].expand(len(inputs["x"])).clone()}
"""

Files = dict[str, bytes]
"""By path below the version directory."""


def kinds() -> list[str]:
    """Those that can be made here."""
    return [kind for kind in (EXPORTED, PYTHON, ONNX) if not TAGGED[kind].lacks()]


class Artefacts:
    """Makes the files of a version. Any thread."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        scratch.mkdir(parents=True)
        self._lock = threading.Lock()  # the writers are for one thread
        self._writers: dict[str, Write] = {}

    def files(self, kind: str, serial: int) -> Files:
        with self._lock:
            if kind not in self._writers:
                self._writers[kind] = TAGGED[kind].writer(self._scratch / f"{kind}-work", 0)
            directory = self._writers[kind](serial, self._scratch / kind)
            found = {path.name: path.read_bytes() for path in directory.iterdir()}
            shutil.rmtree(directory)
        if kind == PYTHON:
            found["config.pbtxt"] += _OWN_PROCESSES.encode()
            found["model.py"] = _READS.encode()
        return found

    def bad_files(self, kind: str, serial: int, how: str) -> Files:
        """What can never be served: ``how`` says why."""
        files = self.files(kind, serial)
        name = MODEL_FILE[kind]
        if how == "truncated":
            files[name] = files[name][: len(files[name]) * 2 // 3]
        elif how == "zero":
            files[name] = b""
        elif how == "text":
            files[name] = b"<html><body>404: no such artefact</body></html>\n"
        elif how == "garbage":
            files[name] = bytes((byte * 7 + 13) % 256 for byte in files[name])
        elif how == "other":
            files = {"weights.bin": files[name]}
        elif how == "config":
            files["config.pbtxt"] = files.get("config.pbtxt", b"") + b"\nmax_batch_sise: 4\n"
        elif how == "code":
            files = {"model.py": b"raise ValueError('the weights are not there')\n", "config.pbtxt": b""}
        return files


BAD = ("truncated", "zero", "text", "garbage", "other", "config", "code")
"""Ways to be bad."""
