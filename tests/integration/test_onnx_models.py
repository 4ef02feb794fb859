"""ONNX models on a server: every way in, swaps under load, processes, and memory that comes back."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("onnx", reason="makes the models")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper, save

from tfs_lite.client import Client
from tfs_lite.core.publish import publish
from tfs_lite.testing.profiles import scaled
from tfs_lite.testing.servers.models import WIDTH
from tfs_lite.testing.servers.probe import Probe, Traffic
from tfs_lite.testing.servers.process import ServerProcess

CLIENTS = 4
SWAPS = scaled(20)
CYCLES = 20
SLACK = 10 << 20
MEGABYTES = 50
PROCESS = 'instance_group { count: 2 worker: "process" }'


def value(name: str, dims: Any, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, dims)


def write_tagged(path: Path, version: int, megabytes: float = 0) -> Path:
    """A tagged model, as the suites of swaps expect it: ``y = x + version``, and the version of every row."""
    weights = np.zeros(max(1, int(megabytes * 250_000)), np.float32)
    weights[0] = version
    nodes = [
        helper.make_node("Constant", [], ["first"], value_ints=[0]),
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        helper.make_node("Gather", ["weights", "first"], ["tag"]),
        helper.make_node("Add", ["x", "tag"], ["y"]),
        helper.make_node("Sub", ["y", "x"], ["tags"]),
        helper.make_node("ReduceMax", ["tags", "axis"], ["version"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "tagged",
        [value("x", ["batch", WIDTH])],
        [value("y", ["batch", WIDTH]), value("version", ["batch"])],
        [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


def write_greeting(path: Path) -> Path:
    """Texts in, the same texts out."""
    node = helper.make_node("Identity", ["name"], ["greeting"])
    texts = [value(name, ["batch"], TensorProto.STRING) for name in ("name", "greeting")]
    graph = helper.make_graph([node], "greeting", texts[:1], texts[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


def test_models_answer_over_grpc_rest_and_v2(tmp_path: Path) -> None:
    base = tmp_path / "models"
    publish(str(write_tagged(tmp_path / "model.onnx", 7)), str(base / "tagged"), 7)
    publish(str(write_greeting(tmp_path / "model.onnx")), str(base / "greeting"), 1)

    def post(path: str, body: Any) -> Any:
        asked = urllib.request.Request(f"http://127.0.0.1:{server.http_port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    flags = (f"--model_repository={base}", "--version_quiet_period_seconds=0", "--enable_batching")
    with ServerProcess(*flags) as server, Probe(server) as probe, Client(server.target) as client:
        probe.wait_available("tagged", 7)
        probe.wait_available("greeting", 1)
        assert probe.ask("tagged") == 7
        (greeting,) = client.predict("greeting", {"name": np.array(["Zoë"], object)}).outputs.values()
        assert np.asarray(greeting).tolist() == ["Zoë".encode()]
        rest = post("/v1/models/greeting:predict", {"inputs": ["Zoë", "Al"]})
        assert rest == {"outputs": ["Zoë", "Al"]}
        tensor = {"name": "name", "shape": [1], "datatype": "BYTES", "data": ["Zoë"]}
        (output,) = post("/v2/models/greeting/infer", {"inputs": [tensor]})["outputs"]
        assert output["data"] == ["Zoë"]


def test_swaps_under_load_lose_nothing_and_bad_files_disturb_nobody(tmp_path: Path) -> None:
    base, file = tmp_path / "tagged", tmp_path / "model.onnx"
    publish(str(write_tagged(file, 1)), str(base), 1)
    flags = ("--model_name=tagged", f"--model_base_path={base}", "--max_num_load_retries=0", "--enable_batching")
    with ServerProcess(*flags) as server, Probe(server) as probe:
        probe.wait_available("tagged", 1)
        last = 1
        with Traffic(server.target, "tagged", CLIENTS) as traffic:
            for version in range(2, SWAPS + 2):
                whole = write_tagged(file, version).read_bytes()
                if version % 3:
                    last = version
                    publish(str(file), str(base), version)
                    probe.wait_available("tagged", version)
                else:
                    file.write_bytes(whole[: len(whole) // 2])
                    publish(str(file), str(base), version)
                    probe.wait_failed("tagged", version)
        assert probe.ask("tagged") == last
    assert (traffic.failures, traffic.wrong) == ([], [])


def test_instances_in_processes_answer_and_end_with_the_version(tmp_path: Path) -> None:
    drafts, base = tmp_path / "drafts", tmp_path / "tagged"
    drafts.mkdir()
    write_tagged(drafts / "model.onnx", 3)
    (drafts / "config.pbtxt").write_text(PROCESS)
    publish(str(drafts), str(base), 3)
    with ServerProcess("--model_name=tagged", f"--model_base_path={base}") as server, Probe(server) as probe:
        probe.wait_available("tagged", 3)
        assert probe.ask("tagged") == 3
        (base / "3").rename(base / ".away")
        probe.wait_states("tagged", {3: "END"})


def test_check_shows_inputs_and_outputs_without_onnxruntime(tmp_path: Path) -> None:
    publish(str(write_tagged(tmp_path / "model.onnx", 1)), str(tmp_path / "tagged"), 1)
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from tfs_lite.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "check", f"--model_base_path={tmp_path / 'tagged'}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for words in ("onnxruntime_onnx", "float[-1,3]", "version", "served"):
        assert words in shown.stdout


@pytest.mark.load
@pytest.mark.timeout(1200)
def test_memory_after_twenty_loads_is_that_after_the_second(tmp_path: Path) -> None:
    base = tmp_path / "tagged"
    publish(str(write_tagged(tmp_path / "model.onnx", 1, MEGABYTES)), str(base), 1)
    away, there = base / ".away", base / "1"
    flags = ("--model_name=tagged", f"--model_base_path={base}", "--file_system_poll_wait_seconds=60")
    with ServerProcess(*flags) as server, Probe(server) as probe:
        process, sizes = psutil.Process(server.pid), list[int]()
        for _ in range(CYCLES):
            probe.wait_available("tagged", 1)
            assert probe.ask("tagged") == 1
            there.rename(away)
            probe.wait_states("tagged", {1: "END"})
            sizes.append(process.memory_info().rss)
            away.rename(there)
    assert sizes[-1] <= sizes[1] + SLACK, f"MiB after each unload: {[size >> 20 for size in sizes]}"
