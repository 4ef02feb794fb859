"""Writes the models of the tests with Triton's client; run in the server's environment, which has torch.

    python make_triton_models.py DIR

``DIR/served`` holds what a server serves from its start, ``DIR/loadable`` what is loaded by calls. The model ``gate``
waits for files in ``DIR/gate``, so that tests decide when it goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import tfs_lite
from tfs_lite.core.publish import commit, staging_directory


class Sums(nn.Module):
    """The sum and the difference of two vectors; the version is added to both."""

    def __init__(self, version: float) -> None:
        super().__init__()
        self.register_buffer("version", torch.tensor(version))

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"sum": a + b + self.version, "difference": a - b + self.version}


SUMS = """
max_batch_size: 8
dynamic_batching {}
version_policy { all {} }
input [ { name: "a" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "b" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [
  { name: "sum" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" },
  { name: "difference" data_type: TYPE_FP32 dims: [ 4 ] }
]
"""

DATATYPES = (
    *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("FP16", "BF16", "FP32", "FP64", "STRING"),
)

SAME = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {f"{name}_out": value for name, value in inputs.items()}
"""

REPEAT = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        for index, value in enumerate(inputs["IN"]):
            yield {"OUT": value.reshape(1), "IDX": value.new_tensor([index])}
"""

REPEAT_CONFIG = """
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""

GATE = """
import pathlib
import time


class Model:
    def __init__(self, context):
        self.gate = pathlib.Path(context.config.parameters["gate"])

    def predict(self, inputs):
        (self.gate / "entered").touch()
        latest = time.monotonic() + 60
        while not (self.gate / "open").exists():
            if time.monotonic() > latest:
                raise TimeoutError("the gate was not opened")
            time.sleep(0.005)
        return {"y": inputs["x"]}
"""

GATE_CONFIG = """
max_batch_size: 1
dynamic_batching {
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 60000000 allow_timeout_override: true }
}
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
parameters { key: "gate" value { string_value: "%s" } }
"""

RUNNING = """
import torch


class Model:
    def __init__(self, context):
        self.totals = {}

    def predict(self, inputs):
        totals = []
        for row in range(len(inputs["INPUT"])):
            if not inputs["READY"][row]:
                totals.append(0)
                continue
            key = self.key(inputs["CORRID"][row])
            before = 0 if inputs["START"][row] else self.totals[key]
            self.totals[key] = before + int(inputs["INPUT"][row])
            totals.append(self.totals[key])
        flags = torch.cat([inputs["START"], inputs["END"]], dim=1).to(torch.int32)
        return {"OUTPUT": torch.tensor(totals, dtype=torch.int32).reshape(-1, 1), "FLAGS": flags}

    def key(self, value):
        return value.item()
"""

RUNNING_CONFIG = """
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "FLAGS" data_type: TYPE_INT32 dims: [ 2 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  %s
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ] }
  ]
}
"""

FAILS = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        raise RuntimeError("this model never works")
"""

X_TO_Y = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""

PLAIN_CONFIG = """
max_batch_size: 4
input { name: "x" data_type: TYPE_INT16 dims: [ -1 ] }
output { name: "y" data_type: TYPE_INT16 dims: [ -1 ] }
"""

PLUS = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {{"y": inputs["x"] + {amount}}}
"""

ECHO = """
import numpy as np


class Model:
    def __init__(self, context):
        self.decoupled = context.config.model_transaction_policy.decoupled

    def predict(self, inputs):
        words = inputs["text_input"].ravel()[0].split()
        if not self.decoupled:
            return {"text_output": np.array([b" ".join(reversed(words))], dtype=object)}
        return ({"text_output": np.array([word], dtype=object)} for word in words)
"""

ECHO_CONFIG = """
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
"""

CHAIN_CONFIG = """
platform: "ensemble"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step [
    { model_name: "sums" model_version: 1
      input_map { key: "a" value: "IN" } input_map { key: "b" value: "IN" }
      output_map { key: "sum" value: "middle" } },
    { model_name: "sums" model_version: 1
      input_map { key: "a" value: "middle" } input_map { key: "b" value: "IN" }
      output_map { key: "sum" value: "OUT" } }
  ]
}
"""


def main(root: Path) -> None:
    (root / "gate").mkdir(parents=True)
    served = root / "served"
    write_sums(served / "sums")
    write_python(served / "types", SAME, same_config(DATATYPES))
    write_python(served / "typed", SAME, same_config([name for name in DATATYPES if name not in ("FP16", "BF16")]))
    write_python(served / "plain", PLUS.format(amount=0), PLAIN_CONFIG)
    write_python(served / "repeat", REPEAT, REPEAT_CONFIG)
    write_python(served / "gate", GATE, GATE_CONFIG % (root / "gate"))
    write_python(served / "running", RUNNING, RUNNING_CONFIG % ("direct {}", "TYPE_UINT64"))
    oldest = "oldest { max_candidate_sequences: 4 }"
    write_python(served / "chat", RUNNING, RUNNING_CONFIG % (oldest, "TYPE_STRING"))
    write_python(served / "fails", FAILS, X_TO_Y)
    write_python(served / "echo", ECHO, ECHO_CONFIG)
    write_python(served / "words", ECHO, "model_transaction_policy { decoupled: true }" + ECHO_CONFIG)
    (served / "chain" / "1").mkdir(parents=True)
    (served / "chain" / "config.pbtxt").write_text(CHAIN_CONFIG)
    loadable = root / "loadable"
    write_python(loadable / "first", PLUS.format(amount=1), X_TO_Y)
    write_python(loadable / "second", PLUS.format(amount=2), X_TO_Y)
    write_python(loadable / "broken", "raise RuntimeError('this file is broken')", X_TO_Y)


def same_config(datatypes: Sequence[str]) -> str:
    """An input and an output of each datatype, of any two sizes."""
    return "".join(
        f'{kind} {{ name: "{name}{end}" data_type: TYPE_{name} dims: [ -1, -1 ] }}\n'
        for name in datatypes
        for kind, end in (("input", ""), ("output", "_out"))
    )


def write_sums(base: Path) -> None:
    """Versions 1 and 3."""
    base.mkdir(parents=True)
    (base / "config.pbtxt").write_text(SUMS)
    (base / "labels.txt").write_text("north\neast\nsouth\n")
    example = (torch.zeros(2, 4), torch.zeros(2, 4))
    for version in (1, 3):
        tfs_lite.save(Sums(float(version)), base, example_inputs=example, version=version)


def write_python(base: Path, source: str, config: str) -> None:
    base.mkdir(parents=True)
    (base / "config.pbtxt").write_text(config)
    with staging_directory(str(base), 1) as staging:
        (Path(staging) / "model.py").write_text(source)
        commit(staging, str(base), 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
