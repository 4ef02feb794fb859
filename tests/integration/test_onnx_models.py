"""ONNX models on a server: every way in, and processes. Swaps and memory: ``test_platform_swaps``."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="makes the models")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper, save

from tests.support.platforms.tagged import TAGGED
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess
from tfs_lite.client import Client
from tfs_lite.core.publish import publish

PROCESS = 'instance_group { count: 2 worker: "process" }'


def value(name: str, dims: Any, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, dims)


def write_tagged(version: int, folder: Path) -> Path:
    """The directory of a tagged model."""
    return TAGGED["onnxruntime_onnx"].writer(folder, 0)(version, folder)


def write_greeting(path: Path) -> Path:
    """Texts in, the same texts out."""
    node = helper.make_node("Identity", ["name"], ["greeting"])
    texts = [value(name, ["batch"], TensorProto.STRING) for name in ("name", "greeting")]
    graph = helper.make_graph([node], "greeting", texts[:1], texts[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


def write_turned(path: Path, dims: Any) -> Path:
    """Of [batch, 3] it makes [3, batch], which it declares as ``dims``."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    graph = helper.make_graph([node], "turned", [value("x", ["batch", 3])], [value("y", dims)])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


def test_answers_are_right_whatever_shapes_the_file_declares(tmp_path: Path) -> None:
    """Also where calls would share runs by what the file declares, and an answer has as many rows by chance."""
    base, names = tmp_path / "models", {"fixed": [1, 3], "batched": ["batch", 3], "other": [-1]}
    for name, dims in names.items():
        publish(str(write_turned(tmp_path / "model.onnx", dims)), str(base / name), 1)
    flags = (f"--model_repository={base}", "--version_quiet_period_seconds=0", "--enable_batching")
    with ServerProcess(*flags) as server, Probe(server) as probe, Client(server.target) as client:
        for name in names:
            probe.wait_available(name, 1)

        def ask(name: str, rows: int, number: int) -> bool:
            x = np.full((rows, 3), number, np.float32)
            (y,) = client.predict(name, {"x": x}).outputs.values()
            return np.array_equal(y, x.T)

        asked = [(name, rows, 7 * at) for at in range(20) for name in names for rows in (1, 3, 2)]
        with ThreadPoolExecutor(12) as pool:
            assert all(pool.map(lambda one: ask(*one), asked))
        log = server.log()
    assert log.count("Say so in the config: output") == len(names)


def test_models_answer_over_grpc_rest_and_v2(tmp_path: Path) -> None:
    base = tmp_path / "models"
    publish(str(write_tagged(7, tmp_path)), str(base / "tagged"), 7)
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


def test_instances_in_processes_answer_and_end_with_the_version(tmp_path: Path) -> None:
    base = tmp_path / "tagged"
    draft = write_tagged(3, tmp_path)
    (draft / "config.pbtxt").write_text(PROCESS)
    publish(str(draft), str(base), 3)
    with ServerProcess("--model_name=tagged", f"--model_base_path={base}") as server, Probe(server) as probe:
        probe.wait_available("tagged", 3)
        assert probe.ask("tagged") == 3
        (base / "3").rename(base / ".away")
        probe.wait_states("tagged", {3: "END"})


def test_check_shows_inputs_and_outputs_without_onnxruntime(tmp_path: Path) -> None:
    publish(str(write_tagged(1, tmp_path)), str(tmp_path / "tagged"), 1)
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from tfs_lite.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "check", str(tmp_path / "tagged")]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for words in ("onnxruntime_onnx", "float[-1,3]", "version", "served"):
        assert words in shown.stdout


def write_five(path: Path, dims: Any) -> Path:
    """Five times the largest number of a row, which it declares as ``dims``."""
    nodes = [helper.make_node("ReduceMax", ["x"], ["most"], axes=[1]), helper.make_node("Mul", ["most", "ones"], ["y"])]
    ones = helper.make_tensor("ones", TensorProto.FLOAT, [1, 5], [1.0] * 5)
    graph = helper.make_graph(nodes, "five", [value("x", ["batch", "length"])], [value("y", dims)], [ones])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def write_same(path: Path, dims: Any) -> Path:
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "same", [value("x", ["batch", "length"])], [value("y", dims)])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_outputs_of_padded_inputs_are_cut_only_if_runs_have_shown_that_they_are_as_long(tmp_path: Path) -> None:
    """What the file declares is a hint: here an output of a size of its own has the name of the input's length."""
    base, dims = tmp_path / "models", ["batch", "length"]
    for name, write in {"five": write_five, "same": write_same}.items():
        publish(str(write(tmp_path / "model.onnx", dims)), str(base / name), 1)
    parameters = tmp_path / "batching.txt"
    parameters.write_text(
        "max_batch_size { value: 2 } batch_timeout_micros { value: 300000 } pad_variable_length_inputs: true"
    )
    flags = (f"--model_repository={base}", "--version_quiet_period_seconds=0", "--enable_batching")
    with (
        ServerProcess(*flags, f"--batching_parameters_file={parameters}") as server,
        Probe(server) as probe,
        Client(server.target) as client,
    ):

        def ask(name: str, length: int) -> Any:
            x = np.arange(1, length + 1, dtype=np.float32)[np.newaxis]
            return client.predict(name, {"x": x}).outputs["y"].tolist()

        for name in ("five", "same"):
            probe.wait_available(name, 1)
            alone = [ask(name, length) for length in (3, 5)]
            with ThreadPoolExecutor(2) as pool:
                assert list(pool.map(ask, (name, name), (3, 5))) == alone
