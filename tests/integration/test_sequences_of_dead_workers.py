"""A model with memory of its own, in a process that dies while nothing runs: its sequences end, clients are told."""

from __future__ import annotations

import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import orjson

import tfs_lite
from tests.support.servers.process import wait_until

MODEL = """
class Model:
    def __init__(self, context):
        self.sums = {}

    def predict(self, inputs):
        out = inputs["x"] * 0
        for row, ready in enumerate(inputs["READY"]):
            if ready:
                key = int(inputs["CORRID"][row])
                before = 0 if inputs["START"][row] else self.sums.get(key, 0)
                self.sums[key] = before + float(inputs["x"][row])
                out[row] = self.sums[key]
        return {"y": out}
"""
CONFIG = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
instance_group { worker: "process" }
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""


def test_sequences_of_a_process_that_died_while_idle_end_and_can_be_started_again(tmp_path: Path) -> None:
    version = tmp_path / "acc" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (tmp_path / "acc" / "config.pbtxt").write_text(CONFIG)
    with tfs_lite.Server(model_repository=str(tmp_path), trusted_model_base_paths=(str(tmp_path),)) as server:
        server.wait_ready()
        base = f"http://127.0.0.1:{server.rest_api_port}"

        def metrics() -> str:
            with urllib.request.urlopen(f"{base}/metrics") as page:
                return page.read().decode()

        def ask(sequence: int, start: bool = False) -> float | tuple[int, str]:
            parameters = {"sequence_id": sequence, "sequence_start": start}
            inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]
            data = orjson.dumps({"parameters": parameters, "inputs": inputs})
            try:
                with urllib.request.urlopen(f"{base}/v2/models/acc/infer", data) as answer:
                    return orjson.loads(answer.read())["outputs"][0]["data"][0]
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, orjson.loads(error.read())["error"]

        assert [ask(1, start=True), ask(1), ask(2, start=True)] == [1, 2, 1]
        found = re.search(r'tfs_lite_worker_info{.*pid="(\d+)"', metrics())
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        wait_until(
            lambda: re.search(r"tfs_lite_worker_restarts_total{.*} 1\.0", metrics()) is not None, "a new process"
        )
        for sequence in (1, 1, 2):
            code, words = ask(sequence)
            assert code == 503
            assert "start it again with sequence_start" in words
        assert [ask(1, start=True), ask(1), ask(2, start=True)] == [1, 2, 1]
