"""What the log of a real server says of models that fail, as text and as JSON: each thing once, stacks in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.process import ServerProcess

BAD = """
def read_table(path):
    return open(path).read()


class Helper:
    def __init__(self):
        self.table = read_table("/nowhere/at/all.json")


class Model:
    def __init__(self, context):
        self.helper = Helper()

    def predict(self, inputs):
        return inputs
"""
WRONG = """
def inner(x):
    raise KeyError("weights")


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inner(inputs["x"])}
"""
CONFIG = """
input { name: "x" data_type: TYPE_FP32 dims: [3] }
output { name: "y" data_type: TYPE_FP32 dims: [3] }
"""
FRAMES = (
    "in __init__",
    "in read_table",
    "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at/all.json'",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, source in (("bad", BAD), ("wrong", WRONG)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(source)
        (root / name / "config.pbtxt").write_text(CONFIG)
    return root


def logged(root: Path, *flags: str) -> list[str]:
    """The lines of a server whose model ``bad`` does not load and whose model ``wrong`` fails on a request."""
    trust = f"--trusted_model_base_paths={root}/*"
    with ServerProcess(f"--model_repository={root}", trust, "--max_num_load_retries=0", *flags) as server:
        server.wait_status("/v2/models/wrong/ready", 200)
        body = json.dumps({"inputs": {"x": [1, 2, 3]}}).encode()
        assert server.get("/v1/models/wrong:predict", body=body)[0] == 500
        server.stop()
        return server.log().splitlines()


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_text_tells_each_failure_once_with_the_frames_of_the_models_own_file_as_lines(root: Path, worker: str) -> None:
    lines = logged(root, f"--worker={worker}")
    (at,) = [number for number, line in enumerate(lines) if "model.py line" in line and "FileNotFoundError" in line]
    assert "WARNING loading {name: bad version: 1} failed" in lines[at]
    story = [line for line in lines[at + 1 :] if line.startswith("    ")]
    assert "    Traceback (most recent call last):" in story
    assert all(any(frame in line for line in story) for frame in FRAMES)
    (failed,) = [number for number, line in enumerate(lines) if "failed on a request" in line]
    assert "model wrong version 1 failed: KeyError: 'weights'" in lines[failed]
    assert "\\n" not in lines[failed]
    assert any(line.startswith("    ") and "in inner" in line for line in lines[failed:])


def test_json_is_all_of_it_the_banner_too_and_lines_about_versions_have_model_and_version(root: Path) -> None:
    found: list[dict[str, Any]] = [json.loads(line) for line in logged(root, "--log_format=json")]
    (banner,) = [line for line in found if "rest_api_port" in line]
    assert (banner["level"], banner["source"]) == ("INFO", str(root))
    assert "serves" in banner["msg"]
    assert all({"ts", "level", "msg"} <= line.keys() for line in found)
    about = [line for line in found if "{name: " in line["msg"]]
    assert {(line["model"], line["version"]) for line in about} == {("bad", 1), ("wrong", 1)}
    (failed,) = [line for line in about if "failed (attempt" in line["msg"]]
    assert all(frame in failed["error"]["stack"] for frame in FRAMES)
    assert "\n" in failed["error"]["stack"]
