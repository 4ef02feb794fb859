"""A repository on disk of models that sum up sequences, for tests of a real server, and requests for them.

    sums = SumRepository(directory)
    sums.add("rows", 1, batch=2)                # python, a sum for each row: for Direct
    sums.add("ids", 1, batch=4, oldest=True)    # python, a sum for each id: for Oldest
    sums.add_states("states", 1, batch=4)       # exported, the sum is implicit state

A request has one INT64 ``INPUT`` of one element; ``OUTPUT`` is the sum of what its sequence has sent so far and
``VERSION`` says who summed. The python models fail a run in which a sequence is twice, has moved to another row, or was
never started; they also tell what they were given, and can be held up by a file.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.servers.process import wait_until
from tfs_lite.core.publish import commit, publish, staging_directory

WIDTH = 4
"""Elements of the outputs that tell about the rows of a whole batch; no row: -1."""
SOURCE = """
import pathlib
import secrets
import time

import torch

HOLD = pathlib.Path(HOLD_PATH)
WIDTH = 4


class Model:
    def __init__(self, context):
        self.version = context.version
        self.by_id = context.config.parameters["sums"] == "by id"
        self.number = secrets.randbits(31)
        self.runs = 0
        self.sums = {}
        self.owners = {}

    def predict(self, inputs):
        if HOLD.exists():
            self.hold()
        self.runs += 1
        rows = len(inputs["INPUT"])
        names = ("INPUT", "START", "READY", "END", "CORRID")
        columns = [inputs[name].flatten().tolist() for name in names]
        ready = [row for row in zip(*columns) if row[2]]
        if len({row[4] for row in ready}) < len(ready):
            raise RuntimeError("a sequence is twice in a batch")
        totals = [self.add(place, *row) for place, row in enumerate(zip(*columns))]
        wide = {"STARTS": columns[1], "READIES": columns[2], "IDS": columns[4]}
        found = {name: torch.tensor([(values + [-1] * WIDTH)[:WIDTH]] * rows) for name, values in wide.items()}
        told = {"VERSION": self.version, "INSTANCE": self.number, "RUN": self.runs}
        found |= {name: torch.full((rows, 1), value) for name, value in told.items()}
        return found | {"OUTPUT": torch.tensor(totals).reshape(rows, 1)}

    def add(self, place, number, start, ready, end, id):
        if not ready:
            return -1
        key = id if self.by_id else place
        if not start and (key not in self.sums or self.owners[key] != id):
            raise RuntimeError(f"sequence {id} was not started in row {place}")
        self.owners[key] = id
        self.sums[key] = number if start else self.sums[key] + number
        total = self.sums[key]
        if end:
            del self.sums[key], self.owners[key]
        return total

    def hold(self):
        (HOLD.parent / f"held-{self.number}-{self.runs}").touch()
        latest = time.monotonic() + 60
        while HOLD.exists():
            if time.monotonic() > latest:
                raise TimeoutError("it was not let go")
            time.sleep(0.002)
"""
CONFIG = """
platform: "{platform}"
max_batch_size: {batch}
input [ {{ name: "INPUT" data_type: TYPE_INT64 dims: [ 1 ] }} ]
output [ {outputs} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {idle}
  {strategy}
  control_input [ {controls} ]
  {states}
}}
{parameters}
"""
OUTPUTS = {"OUTPUT": 1, "VERSION": 1, "INSTANCE": 1, "RUN": 1, "STARTS": WIDTH, "READIES": WIDTH, "IDS": WIDTH}
STATES = 'state [ { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT64 dims: [ 1 ] } ]'


class Accumulator(torch.nn.Module):
    """Adds to the state that it is given; a row that is not ready writes a nonsense."""

    version: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("version", torch.zeros(1, 1, dtype=torch.int64))

    def forward(
        self, INPUT: torch.Tensor, START: torch.Tensor, READY: torch.Tensor, SUM_IN: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        total = torch.where(READY == 1, INPUT + SUM_IN, -7)
        version = self.version.expand(INPUT.shape[0], 1).clone()
        return {"OUTPUT": total, "VERSION": version, "SUM_OUT": total.clone()}


class SumRepository:
    """Writes models and versions below ``path``, whole ones. One thread. ``hold`` stops every run of a python model
    until ``let_go``."""

    def __init__(self, path: Path) -> None:
        self.path = path / "repository"
        self.path.mkdir()
        self._gate = path / "gate"
        self._gate.mkdir()
        self._scratch = path / "scratch"
        self._program: Any = None

    def add(
        self,
        name: str,
        version: int,
        *,
        batch: int,
        oldest: str | None = None,
        instances: int = 1,
        idle: float = 60.0,
        direct: str = "",
    ) -> None:
        """A python model. ``oldest``, ``direct``: fields of the strategy; a sum for each id with ``oldest``, else for
        each row. The config is that of the first version."""
        strategy = f"direct {{ {direct} }}" if oldest is None else f"oldest {{ {oldest} }}"
        controls = ["START", "READY", "END", "CORRID"]
        by = 'parameters [ { key: "sums" value: { string_value: "by %s" } } ]' % ("row" if oldest is None else "id")
        self._configure(name, "python", batch, OUTPUTS, instances, idle, strategy, controls, "", by)
        source = self._scratch / name / str(version)
        source.mkdir(parents=True)
        (source / "model.py").write_text(SOURCE.replace("HOLD_PATH", repr(str(self._gate / "hold"))))
        publish(str(source), str(self.path / name), version)

    def add_states(self, name: str, version: int, *, batch: int, instances: int = 1, idle: float = 60.0) -> None:
        """An exported model with implicit state, for Direct."""
        outputs, controls = {"OUTPUT": 1, "VERSION": 1}, ["START", "READY"]
        self._configure(name, "pytorch_export", batch, outputs, instances, idle, "direct { }", controls, STATES, "")
        if self._program is None:
            self._program = _exported(batch)
        self._program.state_dict["version"] = torch.full((1, 1), version)
        base = str(self.path / name)
        with staging_directory(base, version) as staging:
            torch.export.save(self._program, Path(staging) / "model.pt2")
            commit(staging, base, version)

    def _configure(
        self,
        name: str,
        platform: str,
        batch: int,
        outputs: dict[str, int],
        instances: int,
        idle: float,
        strategy: str,
        controls: list[str],
        states: str,
        parameters: str,
    ) -> None:
        directory = self.path / name
        directory.mkdir(exist_ok=True)
        if (directory / "config.pbtxt").exists():
            return
        text = CONFIG.format(
            platform=platform,
            batch=batch,
            outputs=", ".join(_output(*each) for each in outputs.items()),
            instances=instances,
            idle=round(idle * 1e6),
            strategy=strategy,
            controls=", ".join(map(_control, controls)),
            states=states,
            parameters=parameters,
        )
        (directory / "config.pbtxt").write_text(text)

    def hold(self) -> None:
        for mark in self._gate.iterdir():
            mark.unlink()
        (self._gate / "hold").touch()

    def wait_held(self, runs: int = 1) -> None:
        """Until so many runs stand still."""
        wait_until(lambda: len(list(self._gate.glob("held-*"))) >= runs, f"{runs} runs are held up")

    def let_go(self) -> None:
        (self._gate / "hold").unlink()


def _output(name: str, size: int) -> str:
    return f'{{ name: "{name}" data_type: TYPE_INT64 dims: [ {size} ] }}'


def _control(kind: str) -> str:
    what = "data_type: TYPE_INT64" if kind == "CORRID" else "int32_false_true: [ 0, 1 ]"
    return f'{{ name: "{kind}" control [ {{ kind: CONTROL_SEQUENCE_{kind} {what} }} ] }}'


def _exported(batch: int) -> Any:
    rows = torch.export.Dim("rows", max=batch)
    types = {"INPUT": torch.int64, "START": torch.int32, "READY": torch.int32, "SUM_IN": torch.int64}
    inputs = {name: torch.zeros((2, 1), dtype=dtype) for name, dtype in types.items()}
    return torch.export.export(Accumulator().eval(), (), inputs, dynamic_shapes={name: {0: rows} for name in types})


# Requests.


def request_fields(
    model: str,
    number: int,
    sequence: int | str,
    *,
    start: bool = False,
    end: bool = False,
    timeout: float = 0,
    **fields: Any,
) -> dict[str, Any]:
    """The fields of a ModelInferRequest. ``timeout`` in seconds; 0: none."""
    parameters: dict[str, Any] = {
        "sequence_id": {"int64_param" if isinstance(sequence, int) else "string_param": sequence}
    }
    parameters |= {f"sequence_{key}": {"bool_param": True} for key, said in (("start", start), ("end", end)) if said}
    if timeout:
        parameters["timeout"] = {"int64_param": round(timeout * 1e6)}
    return {
        "model_name": model,
        "parameters": parameters,
        "inputs": [{"name": "INPUT", "datatype": "INT64", "shape": [1, 1]}],
        "raw_input_contents": [struct.pack("<q", number)],
        **fields,
    }


@dataclass(frozen=True, slots=True)
class SumResponse:
    """What an answer says. ``model_version`` is what the server says, ``version`` what the model says."""

    outputs: dict[str, tuple[int, ...]]
    model_version: int
    id: str = ""
    at: float = 0.0
    """Seconds of ``time.monotonic``: when it was read."""

    @property
    def sum(self) -> int:
        return self.outputs["OUTPUT"][0]

    @property
    def version(self) -> int:
        return self.outputs["VERSION"][0]

    def row(self, name: str) -> list[int]:
        """One element for each row of the batch."""
        return [value for value in self.outputs[name] if value != -1]

    @property
    def run(self) -> tuple[int, int]:
        """Which of all runs it was."""
        return self.outputs["INSTANCE"][0], self.outputs["RUN"][0]


def read_response(response: Any) -> SumResponse:
    """Of a ModelInferResponse."""
    outputs = {
        output.name: struct.unpack(f"<{len(raw) // 8}q", raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return SumResponse(outputs, int(response.model_version), response.id, time.monotonic())
