"""Models for tests of processes. The functions here are called in the child; what a model does, its signature says."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tests.support.servers.thief import attempts, needs, outcomes
from tfs_lite.core.model import Model, WorkerStatus
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument

SIGNATURE = Signature(
    (TensorSpec("x", DataType.INVALID, None),),
    (TensorSpec("y", DataType.INVALID, None), TensorSpec("pid", DataType.INT64, (SymbolicDim("b"),))),
)
PATIENCE = 120.0


def wait_for(path: Path) -> None:
    latest = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > latest:
            raise TimeoutError(path)
        time.sleep(0.005)


class ChildModel(Model):
    """``y`` is ``x``; ``pid`` is where it runs. ``signature`` of a run picks what else happens."""

    platform = "child"
    signatures: Mapping[str, Signature] = MappingProxyType({})
    has_item_steps = False

    def __init__(self, **options: object) -> None:
        self.options = options
        keys = [DEFAULT_SIGNATURE, *(key for key in dir(self) if not key.startswith("_"))]
        self.signatures = dict.fromkeys(keys, SIGNATURE)
        self.kept: list[object] = []

    @property
    def worker(self) -> WorkerStatus:
        return WorkerStatus(reason=str(self.options.get("reason", "")))

    def resident_bytes(self) -> int:
        return 1234

    def run(self, signature, inputs, outputs):
        found = getattr(self, signature or "echo")(inputs) or {}
        results = {"y": inputs["x"], "pid": np.array([os.getpid()]), **found}
        return {name: results[name] for name in outputs or ("y", "pid")}

    def close(self) -> None:
        if "mark" in self.options:
            Path(str(self.options["mark"])).touch()
        if self.options.get("hang_in_close"):
            self.hang({})

    def echo(self, inputs): ...

    def where(self, inputs):
        """The scheduling policy when it was made, and now."""
        return {"y": np.array([self.options["policy"], os.sched_getscheduler(0)])}

    def importers(self, inputs):
        """The process that imported the module in the options."""
        return {"y": np.array([importlib.import_module(str(self.options["module"])).IMPORTED_BY])}

    def refuse(self, inputs):
        raise invalid_argument("x is not to my liking")

    def busy(self, inputs):
        raise ServingError(StatusCode.RESOURCE_EXHAUSTED, "busy")

    def nap(self, inputs):
        time.sleep(0.002)

    def fail(self, inputs):
        raise ValueError("what is this")

    def leave(self, inputs):
        os._exit(3)

    def be_killed(self, inputs):
        os.kill(os.getpid(), signal.SIGKILL)

    def crash(self, inputs):
        os.abort()

    def hang(self, inputs):
        if "entered" in self.options:
            Path(str(self.options["entered"])).touch()
        threading.Event().wait(PATIENCE)

    def gate(self, inputs):
        gate = Path(str(self.options["gate"]))
        (gate / "entered").touch()
        wait_for(gate / "open")

    def huge(self, inputs):
        return {"y": np.zeros(1 << 30, np.uint8)}

    def large(self, inputs):
        return {"y": np.full(int(inputs["x"][0]), 7, np.uint8)}

    def count_threads(self, inputs):
        return {"y": np.array(len(os.listdir("/proc/self/task")))}

    def multiply(self, inputs):
        return {"y": np.linalg.norm(np.ones((400, 400)) @ np.ones((400, 400)))[None]}

    def draw(self, inputs):
        return {"y": np.random.random(4)}

    def have_a_child(self, inputs):
        """A process that would outlive this one."""
        return {"y": np.array([subprocess.Popen(["sleep", "120"]).pid])}

    def steal(self, inputs):
        """What becomes of a thief's attempts, as JSON; of what every model needs; and of the sandbox's own facts."""
        options = self.options
        version, outside, port = str(options["version"]), str(options["outside"]), int(str(options["port"]))
        found = {"attempts": outcomes(attempts(version, outside, port)), "needs": outcomes(needs(version))}
        found["own"] = {"directory": tempfile.gettempdir()}
        return {"y": np.array([json.dumps(found).encode()], object)}

    def take_memory(self, inputs):
        self.kept.append(np.ones(int(inputs["x"][0]), np.uint8))

    def say_garbage(self, inputs):
        """On every socket there is."""
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    os.write(int(name), b"\xff\xfe\xfd\xfc garbage")
            except OSError:
                pass

    def close_sockets(self, inputs):
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    os.close(int(name))
            except OSError:
                pass
        self.hang(inputs)


class ItemModel(ChildModel):
    """Items are doubled before and halved after the run."""

    has_item_steps = True

    def preprocess(self, signature, inputs, deadline):
        if signature == "meet":
            self.meet(inputs)
        if signature == "deadline":
            return {"left": np.array([-1.0 if deadline is None else deadline - time.monotonic()])}
        if signature in ("leave", "refuse", "fail"):
            getattr(self, signature)(inputs)
        self.kept.append(inputs)
        return {"x": inputs["x"] * 2}

    def postprocess(self, signature, outputs, deadline):
        return {"y": outputs["y"] / 2, "kept": np.array([kept["x"].sum() for kept in self.kept])}

    def meet(self, inputs):
        """Returns when another call is here as well."""
        location = Path(str(self.options["gate"]))
        (location / f"{int(inputs['x'][0])}").touch()
        wait_for(location / f"{int(inputs['x'][1])}")


def make_where_it_loads(arguments: str) -> ChildModel:
    return ChildModel(policy=os.sched_getscheduler(0))


def make(arguments: str) -> ChildModel:
    return ChildModel(**json.loads(arguments))


def make_items(arguments: str) -> ItemModel:
    return ItemModel(**json.loads(arguments))


def make_from_file(arguments: str) -> ChildModel:
    """Does what a file says: ``ok``, or how the opening fails."""
    what = Path(arguments).read_text()
    if what == "other":
        model = ChildModel()
        model.signatures = {DEFAULT_SIGNATURE: Signature((), ())}
        return model
    if what != "ok":
        getattr(ChildModel(), what)({})
    return ChildModel()


def make_and_wait(arguments: str) -> ChildModel:
    gate = Path(arguments)
    (gate / "opening").touch()
    wait_for(gate / "open")
    return ChildModel()


def make_items_and_wait(arguments: str) -> ItemModel:
    make_and_wait(arguments)
    return ItemModel()


def refuse(arguments: str) -> ChildModel:
    raise ServingError(StatusCode.DATA_LOSS, f"no model: {arguments}")


def fail(arguments: str) -> ChildModel:
    raise RuntimeError("no model")


def leave(arguments: str) -> ChildModel:
    os._exit(9)


def babble(arguments: str) -> ChildModel:
    ChildModel().say_garbage({})
    return ChildModel()
