"""Logged requests and files of them, for tests of whatever reads or writes warm-up files and request logs.

A log is written as the dict of its message: ``log_file(predict_log({"x": rows}), {"session_run_log": {}})``. Requests
name no model unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfs_lite.protocols.messages import PredictionLog
from tfs_lite.protocols.tensorflow.prediction_log import WARMUP_FILE
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.protocols.tfrecord import frame

Log = Mapping[str, Any]


def predict_log(inputs: Mapping[str, Any], signature: str = "", model: str = "", **rest: Any) -> Log:
    """``inputs``: arrays, or messages as they are. ``rest``: further fields of the request."""
    tensors = {name: encode(value) if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
    return {"predict_log": {"request": {"model_spec": _spec(signature, model), "inputs": tensors, **rest}}}


def examples_log(method: str, rows: Iterable[Mapping[str, list[float]]], signature: str = "", model: str = "") -> Log:
    """``method``: classify or regress. ``rows``: the float features of each example."""
    return {f"{method}_log": {"request": {"model_spec": _spec(signature, model), "input": _input(rows)}}}


def multi_log(tasks: Iterable[tuple[str, str]], rows: Iterable[Mapping[str, list[float]]], model: str = "any") -> Log:
    """``tasks``: pairs of a signature's key and a method's long name."""
    found = [{"model_spec": _spec(key, model), "method_name": method} for key, method in tasks]
    return {"multi_inference_log": {"request": {"tasks": found, "input": _input(rows)}}}


def log_file(*logs: Log) -> bytes:
    """TFRecords of these logs."""
    return b"".join(frame(PredictionLog(**log).SerializeToString()) for log in logs)


def write_warmup(version: Path, *logs: Log) -> Path:
    """Writes the warm-up file of the version in this directory, and returns its path."""
    path = version / WARMUP_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(log_file(*logs))
    return path


def _spec(signature: str, model: str) -> dict[str, str]:
    return {"name": model, "signature_name": signature}


def _input(rows: Iterable[Mapping[str, list[float]]]) -> dict[str, Any]:
    examples = [
        {"features": {"feature": {name: {"float_list": {"value": values}} for name, values in row.items()}}}
        for row in rows
    ]
    return {"example_list": {"examples": examples}}
