"""tfs_lite lives in one process with tensorflow and tensorflow_serving, whichever is imported first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

THEIRS = """
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc, model_service_pb2_grpc
from tensorflow_serving.apis import get_model_metadata_pb2, prediction_log_pb2
"""
OURS = """
import tfs_lite
import tfs_lite.client
import tfs_lite.protocols.messages as ours
from tfs_lite import Client
"""
BOTH_WORK = """
theirs = predict_pb2.PredictRequest()
theirs.model_spec.name = "m"
theirs.model_spec.version.value = 3
theirs.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 2.0]))
same = ours.PredictRequest.FromString(theirs.SerializeToString())
assert same.model_spec.name == "m" and same.model_spec.version.value == 3
back = predict_pb2.PredictRequest.FromString(same.SerializeToString())
assert back == theirs
assert type(same) is not type(theirs)
"""
CLIENT_WORKS = """
import sys
import numpy as np
with Client(sys.argv[1]) as client:
    answer = client.predict("half_plus", {"x": np.array([[2.0, 4.0, 6.0]], np.float32)}, version=1)
    np.testing.assert_array_equal(answer.outputs["y"], [[2.0, 3.0, 4.0]])
    assert answer.version == 1
assert "torch" not in sys.modules
"""


def run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", [(THEIRS, OURS), (OURS, THEIRS)], ids=["theirs_first", "ours_first"])
def test_either_import_order_works_and_messages_agree(order):
    run("".join(order) + BOTH_WORK)


@pytest.mark.parametrize("order", [(THEIRS, OURS), (OURS, THEIRS)], ids=["theirs_first", "ours_first"])
def test_our_client_works_beside_tensorflow(server, order):
    run("".join(order) + CLIENT_WORKS, server.target)
