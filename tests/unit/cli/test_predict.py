"""How ``tfs-lite predict`` reads inputs and shows outputs; talking to a server is tested with a real one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tfs_lite.cli.output import CliError, UsageError
from tfs_lite.cli.predict import print_prediction, read_inputs
from tfs_lite.client import Prediction

Captured = pytest.CaptureFixture[str]


def test_values_are_json_or_come_from_files(tmp_path: Path) -> None:
    assert read_inputs(["x=[[1, 2.5]]", 'text="a=b"']) == {"x": [[1, 2.5]], "text": "a=b"}
    np.save(tmp_path / "rows.npy", np.arange(3, dtype=np.int16))
    (tmp_path / "rows.json").write_text("[true]")
    inputs = read_inputs([f"a=@{tmp_path / 'rows.npy'}", f"b=@{tmp_path / 'rows.json'}"])
    assert inputs["a"].dtype == np.int16
    assert inputs["b"] == [True]


@pytest.mark.parametrize("text", ["x", "=1", "x=[1", "x=@rows.txt"])
def test_a_malformed_input_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match=r"name=JSON, name=@file.json or name=@file.npy"):
        read_inputs([text])


def test_an_input_given_twice_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="--input x is given twice"):
        read_inputs(["x=1", "x=2"])


def test_an_array_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(CliError, match=r"is not a \.npy file of numbers"):
        read_inputs([f"x=@{tmp_path / 'objects.npy'}"])


def test_an_answer_is_printed_with_version_types_and_values(capsys: Captured) -> None:
    print_prediction(Prediction({"y": np.array([[1.5, 2.0]], np.float32)}, "m", 7, "serving_default"), as_json=False)
    assert capsys.readouterr().out == "model m version 7\ny: float32 [1, 2]\n  [[1.5 2. ]]\n"


def test_json_output_has_every_element_type(capsys: Captured) -> None:
    import ml_dtypes

    outputs = {
        "text": np.array([b"ab", b"\xff"], dtype=object),
        "small": np.array([1.5], dtype=ml_dtypes.bfloat16),
        "flag": np.array(True),
        "wave": np.array([1 + 2j], np.complex64),
    }
    print_prediction(Prediction(outputs, "m", 1, "s"), as_json=True)
    assert json.loads(capsys.readouterr().out)["outputs"] == {
        "text": ["ab", {"b64": "/w=="}],
        "small": [1.5],
        "flag": True,
        "wave": [[1.0, 2.0]],
    }
