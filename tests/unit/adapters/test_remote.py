"""Opening a version elsewhere: what is told as JSON, and what the other process makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tests.support.servers.platforms import SETTINGS, WIDTH, WRITERS, write_python
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.remote import OPEN_VERSION, PRELOAD, describe, open_version, request_of
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Document, build
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.workers.process import open_in_process
from tfs_lite.workers.supervisor import Supervisor

X = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)

RICH = {
    "name": "m",
    "platform": "python",
    "max_batch_size": 8,
    "input": [
        {"name": "x", "data_type": "TYPE_BF16", "dims": [-1, 3]},
        {"name": "text", "data_type": "TYPE_STRING", "dims": []},
    ],
    "output": [{"name": "y", "data_type": "TYPE_UINT64", "dims": [1]}],
    "parameters": {"threshold": {"string_value": "0.5"}, "fast": True},
    "signatures": {
        "classify": {"method_name": "classify", "outputs": {"scores": "y"}, "label_filename": "labels.txt"},
        "plain": {"inputs": {"a": "x", "b": "text"}, "defaults": {"b": '"none"'}},
    },
    "dynamic_batching": {
        "preferred_batch_size": [4, 8],
        "max_queue_delay_microseconds": 100,
        "priority_levels": 2,
        "default_priority_level": 1,
        "priority_queue_policy": {2: {"timeout_action": "DELAY", "max_queue_size": 5}},
    },
    "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
    "warmup": [{"body": {"inputs": {"x": [[1, 2, 3]], "text": ["a"]}}, "count": 2}],
}


@pytest.fixture(autouse=True)
def same_threads():
    """Opening a version sets how many threads torch uses, which the other tests are to find unchanged."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def request_for(directory: Path, settings: ModelSettings | None = None, trusted: bool = True) -> OpenRequest:
    files = read_version(str(directory))
    return OpenRequest(ServableId("m", 7), files, "cpu", trusted, settings or ModelSettings())


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda:3"])
def test_request_is_told_completely(tmp_path, trusted, device):
    write_python(tmp_path, "pass")
    settings = build(ModelSettings, Document(RICH))
    request = OpenRequest(ServableId("m", 2**62), read_version(str(tmp_path)), device, trusted, settings)
    request = replace(request, batch_rows=(1, 8))
    told = describe(request, "python", 3)
    assert json.loads(told)["torch_threads"] == 3
    assert request_of(told) == (replace(request, threads=3), "python")


@pytest.mark.parametrize("settings", [ModelSettings(), SETTINGS])
def test_settings_made_in_code_are_told_as_well(tmp_path, settings):
    request = request_for(tmp_path, settings)
    assert request_of(describe(request, "python"))[0].settings == settings


def test_files_are_looked_at_when_the_version_is_opened(tmp_path):
    told = describe(request_for(tmp_path), "python")
    write_python(tmp_path, "pass")
    assert request_of(told)[0].files.names == {"model.py"}
    (tmp_path / "model.py").unlink()
    tmp_path.rmdir()
    refusal(request_of, told, code=StatusCode.NOT_FOUND)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_version_of_every_platform_is_opened(tmp_path, kind):
    WRITERS[kind](tmp_path, 1.0)
    platform = kind.partition(" ")[0]
    model = open_version(describe(request_for(tmp_path, SETTINGS), platform, 1))
    assert model.platform == platform
    assert torch.get_num_threads() == 1
    np.testing.assert_array_equal(model.run("", {"x": X}, ("y",))["y"], 2 * X + 1)
    model.close()


BROKEN = {
    "raises": ("raise RuntimeError('no driver')", StatusCode.FAILED_PRECONDITION, "no driver"),
    "no class": ("x = 1", StatusCode.INVALID_ARGUMENT, "model.py defines no class Model"),
    "no memory": (
        "class Model:\n    def __init__(self, context):\n        raise MemoryError\n    def predict(self, inputs): ...",
        StatusCode.RESOURCE_EXHAUSTED,
        "MemoryError",
    ),
    "exits": ("import sys\nsys.exit(3)", StatusCode.INVALID_ARGUMENT, "SystemExit"),
}


@pytest.mark.parametrize(("source", "code", "message"), BROKEN.values(), ids=BROKEN)
def test_version_that_cannot_be_opened_says_why(tmp_path, source, code, message):
    write_python(tmp_path, source)
    told = refusal(open_version, describe(request_for(tmp_path, SETTINGS), "python"), code=code)
    assert message in told
    assert "version 7" not in told
    assert str(tmp_path) not in told


@pytest.mark.parametrize(
    ("platform", "code"), [("no_such", StatusCode.INVALID_ARGUMENT), ("ensemble", StatusCode.UNIMPLEMENTED)]
)
def test_platform_that_is_not_served_is_refused(tmp_path, platform, code):
    assert platform in refusal(open_version, describe(request_for(tmp_path), platform), code=code)


def test_version_is_opened_in_a_process(tmp_path):
    WRITERS["pytorch_export"](tmp_path, 1.0)
    request = request_for(tmp_path)
    supervisor = Supervisor(PRELOAD)
    here = open_version(describe(request, "pytorch_export"))
    there = open_in_process(supervisor, label_of(request.id), OPEN_VERSION, describe(request, "pytorch_export", 1))
    assert there.signatures == here.signatures
    assert there.resident_bytes() == here.resident_bytes()
    assert there.platform == here.platform
    staged = there.stage("", {"x": (X.shape, X.dtype)})
    staged["x"][...] = X
    got, expected = there.run("", staged, ()), here.run("", {"x": X}, ())
    assert list(got) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)
    there.close()
    here.close()
    supervisor.close()
