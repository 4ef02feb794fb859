"""A version answers its recorded requests before anybody else's, and one that cannot is not served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.servers.in_process import serving
from tests.support.servers.logs import predict_log, write_warmup
from tests.support.servers.models import gated_source, write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.cli.main import main
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import StatusCode

FITS = predict_log({"x": np.zeros((2, 3), np.float32)})
DOES_NOT_FIT = predict_log({"x": np.zeros((2, 4), np.float32)})


@pytest.fixture
def put(served, model, tmp_path):
    """Publishes a version of the test's model with a warm-up file, after writing ``artefact(directory)``."""

    def publish_version(version, artefact, *logs):
        source = tmp_path / f"source-{version}"
        source.mkdir(exist_ok=True)
        artefact(source)
        if logs:
            write_warmup(source, *logs)
        return Path(publish(str(source), str(served.base(model)), version).path)

    return publish_version


@pytest.fixture
def tagged(served):
    """An artefact whose answers are those of the version."""

    def write(version):
        return lambda directory: shutil.copy(served.archive(version), directory / "model.pt2")

    return write


@pytest.fixture
def gate(tmp_path):
    (tmp_path / "gate").mkdir()
    return tmp_path / "gate"


@pytest.fixture
def model(request):
    """Trusted, because some versions are code."""
    return f"code_{request.node.name.removeprefix('test_')}"


def test_a_version_is_not_available_before_its_warm_up_is_over(served, model, put, tagged, gate):
    put(1, tagged(1))
    served.probe.wait_available(model, 1)
    source = write_python_version(gate, 2, gated_source(2, gate))
    put(2, lambda directory: shutil.copytree(source, directory, dirs_exist_ok=True), FITS)
    wait_until((gate / "entered-2").exists, "the warm-up request is in the model")
    assert served.probe.states(model) == {2: "LOADING", 1: "AVAILABLE"}
    assert served.probe.ask(model) == 1
    (gate / "open").touch()
    served.probe.wait_available(model, 2)
    assert served.probe.ask(model) == 2


def test_a_failing_warm_up_fails_the_load_and_leaves_the_old_version_serving(served, model, put, tagged):
    put(1, tagged(1), FITS)
    served.probe.wait_available(model, 1)
    failed = put(2, tagged(2), FITS, DOES_NOT_FIT)
    status = served.probe.wait_failed(model, 2).status
    assert status.code is StatusCode.INVALID_ARGUMENT
    assert "assets.extra/tf_serving_warmup_requests: record 2: input x has size 4 in dimension 1" in status.message
    assert str(served.path) not in status.message
    assert served.probe.ask(model) == 1
    shutil.rmtree(failed)
    put(2, tagged(2), FITS)
    served.probe.wait_states(model, {2: "AVAILABLE"})
    assert served.probe.ask(model) == 2


def test_a_warm_up_file_that_is_none_fails_the_load(served, model, put, tagged, tmp_path):
    put(1, tagged(1))
    served.probe.wait_available(model, 1)
    write_warmup(tmp_path / "source-2").write_bytes(b"these are not the records you are looking for")
    put(2, tagged(2))
    status = served.probe.wait_failed(model, 2).status
    assert status.code is StatusCode.DATA_LOSS
    assert "Please verify your warmup data is in TFRecord format" in status.message
    assert served.probe.ask(model) == 1


def test_recorded_requests_are_published_with_the_next_version(served, model, put, tagged, tmp_path, capsys):
    put(1, tagged(1))
    served.probe.wait_available(model, 1)
    (tmp_path / "body.json").write_text('{"instances": [[1, 2, 3]]}')
    (tmp_path / "source-2").mkdir()
    words = [f"--server={served.server.target}", f"--model_name={model}", f"--out={tmp_path / 'source-2'}"]
    assert main(["record", str(tmp_path / "body.json"), *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 1
    put(2, tagged(2))
    served.probe.wait_available(model, 2)
    assert served.probe.ask(model) == 2


COUNTING = """
import pathlib


class Model:
    def __init__(self, context):
        self.log = pathlib.Path(context.directory).parent / "asked"

    def predict(self, inputs):
        with self.log.open("a") as log:
            log.write(f"{len(inputs['x'])} ")
        return {"y": inputs["x"] + 1}
"""


@pytest.mark.parametrize(
    ("options", "logs", "asked"),
    [
        ({}, (FITS, FITS), "2 2 1 1 "),
        ({"num_request_iterations_for_warmup": 2}, (FITS,), "2 2 1 1 1 1 "),
        ({"enable_model_warmup": False}, (FITS, DOES_NOT_FIT), ""),
    ],
)
def test_flags_say_whether_and_how_often_requests_are_run(tmp_path, options, logs, asked):
    base = tmp_path / "m"
    version = write_python_version(base, 1, COUNTING)
    with (version / "config.pbtxt").open("a") as config:
        config.write('warmup { body: \'{"instances": [{"x": [1, 2, 3]}]}\' count: 2 }')
    write_warmup(version, *logs)
    flags = {"model_name": "m", "model_base_path": str(base), "trusted_model_base_paths": [str(base)], **options}
    with serving(tmp_path, **flags) as fixture:
        fixture.wait_states({1: VersionState.AVAILABLE})
        assert ((base / "asked").read_text() if (base / "asked").exists() else "") == asked
