"""Fixtures for the stock client: models, a server process, and upstream's own stubs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
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

import grpc
from google.protobuf import text_format

from tests.conformance.servers import PATIENCE, make_models, new_server, running
from tests.support.servers.process import ServerProcess, set_default_flags

pytest_plugins = [f"tests.conformance.{name}_fixtures" for name in ("triton", "language", "transport")]

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
    parser.addoption("--grpc-server", choices=("native", "grpcio"), help="of servers whose flags name none")


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("--grpc-server"):
        set_default_flags(grpc_server=name)


class Stock:
    """Upstream's stubs on one channel, with requests built as users build them. ``spec``: see :func:`select`."""

    def __init__(self, target: str) -> None:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(target, options=unlimited)
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)

    def predict(self, model: str, inputs: dict, *, output_filter=(), timeout: float = PATIENCE, **spec):
        """Sends arrays or TensorProtos."""
        request = predict_pb2.PredictRequest(output_filter=output_filter)
        select(request.model_spec, model, **spec)
        for name, value in inputs.items():
            as_it_is = isinstance(value, tensor_pb2.TensorProto)
            request.inputs[name].CopyFrom(value if as_it_is else tf.make_tensor_proto(value))
        return self.prediction.Predict(request, timeout=timeout)

    def status(self, model: str, **spec):
        request = get_model_status_pb2.GetModelStatusRequest()
        select(request.model_spec, model, **spec)
        return self.models.GetModelStatus(request, timeout=PATIENCE).model_version_status

    def metadata(self, model: str, *, fields=("signature_def",), **spec):
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
        select(request.model_spec, model, **spec)
        return self.prediction.GetModelMetadata(request, timeout=PATIENCE)

    def reload(self, config: str, *, metric_names=()):
        """Sends a ModelServerConfig given as text."""
        request = model_management_pb2.ReloadConfigRequest(metric_names=metric_names)
        text_format.Parse(config, request.config)
        return self.models.HandleReloadConfigRequest(request, timeout=PATIENCE)


def select(spec, model: str, version: int | None = None, **names: str) -> None:
    """Fills a ModelSpec: the names are version_label and signature_name; version 0 is a version."""
    spec.name = model
    if version is not None:
        spec.version.value = version
    for field, value in names.items():
        setattr(spec, field, value)


@pytest.fixture(scope="session")
def model_root(tmp_path_factory) -> Path:
    return make_models("make_models.py", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def serve(model_root: Path) -> Callable[..., ServerProcess]:
    """Makes a server of the models with extra flags; use it as ``with serve("--flag=value") as server``."""
    return partial(new_server, f"--trusted_model_base_paths={model_root}/shout")


@pytest.fixture(scope="session")
def server(model_root: Path, serve, tmp_path_factory) -> Iterator[ServerProcess]:
    config = tmp_path_factory.mktemp("config") / "models.config"
    config.write_text(CONFIG.format(root=model_root))
    yield from running(serve(f"--model_config_file={config}"))


@pytest.fixture(scope="session")
def stock(server: ServerProcess) -> Iterator[Stock]:
    client = Stock(server.target)
    yield client
    client.channel.close()


@pytest.fixture(scope="session")
def connect() -> type[Stock]:
    return Stock


@pytest.fixture(scope="session")
def refused() -> Callable[..., str]:
    """``refused(code, words, call, ...)``: the call fails with the code; details with the words are returned."""

    def check(code: grpc.StatusCode, words: str | tuple[str, ...], call, *given, **how) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            call(*given, **how)
        details = caught.value.details()
        missing = [word for word in ((words,) if isinstance(words, str) else words) if word not in details]
        assert (caught.value.code(), missing) == (code, []), caught.value
        return details

    return check
