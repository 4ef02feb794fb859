"""Fixtures for the stock client: models made in the server's environment, a server process, and upstream's own stubs.

``TFS_LITE_BIN`` names the server to test; without it, the ``.venv`` of this checkout. ``TFS_LITE_PYTHON`` names the
Python that makes the models; without it, the one beside the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_management_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
    )

import grpc  # noqa: E402
from google.protobuf import text_format  # noqa: E402

from tfs_lite.testing.servers.process import ServerProcess, set_default_flags  # noqa: E402

pytest_plugins = ("tests.conformance.triton_fixtures", "tests.conformance.language_fixtures")

SERVER = Path(os.environ.get("TFS_LITE_BIN", REPO / ".venv/bin/tfs-lite"))
TIMEOUT = 60.0
PYTHON = Path(os.environ.get("TFS_LITE_PYTHON", SERVER.with_name("python")))

CONFIG = """
# Upstream's text format, with its usual freedoms.
model_config_list {{
  config {{
    name: 'half_plus', base_path: "{root}/half_plus"
    model_platform: "tensorflow"
    model_version_policy {{ specific {{ versions: [1, 2] }} }}
    version_labels {{ key: "stable" value: 1 }}
    version_labels: {{ key: "canary" value: 2 }}
  }}
  config {{ name: "two_inputs" base_path: "{root}/two_inputs" model_platform: "pytorch_export" }}
  config {{ name: "numbers" base_path: "{root}/numbers" }}
  config {{ name: "shout" base_path: "{root}/shout" }}
  config {{ name: "half_plus_two" base_path: "{root}/half_plus_two" }}
  config {{ name: "digits" base_path: "{root}/digits" }}
  config {{ name: "corrupt" base_path: "{root}/corrupt" }}
  config {{ name: "missing" base_path: "{root}/nothing_here" }}
}}
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--grpc-server", choices=("native", "grpcio"), help="who speaks gRPC in servers that do not say")


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("--grpc-server"):
        set_default_flags(grpc_server=name)


class Stock:
    """Upstream's stubs on one channel, with requests built as users build them."""

    def __init__(self, target: str) -> None:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(target, options=unlimited)
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)

    def predict(self, model: str, inputs: dict, *, output_filter=(), timeout: float = TIMEOUT, **spec):
        """Sends arrays or TensorProtos. ``spec`` may hold version, version_label, signature_name."""
        request = predict_pb2.PredictRequest(output_filter=output_filter)
        select(request.model_spec, model, **spec)
        for name, value in inputs.items():
            proto = value if isinstance(value, tensor_pb2.TensorProto) else tf.make_tensor_proto(value)
            request.inputs[name].CopyFrom(proto)
        return self.prediction.Predict(request, timeout=timeout)

    def status(self, model: str, **spec):
        request = get_model_status_pb2.GetModelStatusRequest()
        select(request.model_spec, model, **spec)
        return self.models.GetModelStatus(request, timeout=TIMEOUT).model_version_status

    def metadata(self, model: str, *, fields=("signature_def",), **spec):
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
        select(request.model_spec, model, **spec)
        return self.prediction.GetModelMetadata(request, timeout=TIMEOUT)

    def reload(self, config: str, *, metric_names=()):
        """Sends a ModelServerConfig given as text."""
        request = model_management_pb2.ReloadConfigRequest(metric_names=metric_names)
        text_format.Parse(config, request.config)
        return self.models.HandleReloadConfigRequest(request, timeout=TIMEOUT)


def select(spec, model: str, version: int | None = None, **names: str) -> None:
    """Fills a ModelSpec; version 0 is a version."""
    spec.name = model
    if version is not None:
        spec.version.value = version
    for field, value in names.items():
        setattr(spec, field, value)


@pytest.fixture(scope="session")
def model_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    subprocess.run([PYTHON, Path(__file__).with_name("make_models.py"), root], check=True, cwd=REPO)
    return root


@pytest.fixture(scope="session")
def serve(model_root: Path):
    """Starts a server on the models with extra flags; use it as ``with serve("--flag=value") as server``."""

    def start(*flags: str) -> ServerProcess:
        common = (f"--trusted_model_base_paths={model_root}/shout", "--max_num_load_retries=0")
        return ServerProcess(*common, *flags, command=[str(SERVER)])

    return start


@pytest.fixture(scope="session")
def server(model_root: Path, serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    config = tmp_path_factory.mktemp("config") / "models.config"
    config.write_text(CONFIG.format(root=model_root))
    with serve(f"--model_config_file={config}") as process:
        yield process
    assert process.exit_code == 0


@pytest.fixture(scope="session")
def stock(server: ServerProcess) -> Iterator[Stock]:
    client = Stock(server.target)
    yield client
    client.channel.close()


@pytest.fixture(scope="session")
def connect() -> type[Stock]:
    return Stock


@pytest.fixture
def refused():
    """``refused(call, code, *words)``: the call fails with the code, and its details hold the words."""

    def check(call, code: grpc.StatusCode, *words: str) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is code, caught.value
        for word in words:
            assert word in caught.value.details()
        return caught.value.details()

    return check
