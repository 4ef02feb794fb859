"""The standard services beside ours, with their own stock clients: health and reflection."""

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow_serving.apis import predict_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
SERVICES = ("tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")


@pytest.fixture
def health(stock):
    return health_pb2_grpc.HealthStub(stock.channel)


@pytest.mark.parametrize("name", ["", "PredictionService", "ModelService", *SERVICES, "half_plus"])
def test_health_says_serving(health, name):
    assert health.Check(health_pb2.HealthCheckRequest(service=name), timeout=30).status == SERVING


def test_health_of_a_model_that_failed_is_not_serving(health):
    response = health.Check(health_pb2.HealthCheckRequest(service="corrupt"), timeout=30)
    assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_health_of_the_unknown_is_not_found(health, refused):
    request = health_pb2.HealthCheckRequest(service="nobody")
    refused(grpc.StatusCode.NOT_FOUND, "", health.Check, request, timeout=30)


def test_health_watch_sends_the_first_state_at_once(health):
    stream = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=30)
    assert next(stream).status == SERVING
    stream.cancel()


def test_reflection_lists_and_describes_the_services(stock):
    database = ProtoReflectionDescriptorDatabase(stock.channel)
    listed = set(database.get_services())
    assert {*SERVICES, "grpc.health.v1.Health"} <= listed
    pool = DescriptorPool(database)
    predict = pool.FindServiceByName("tensorflow.serving.PredictionService").FindMethodByName("Predict")
    assert predict.input_type.full_name == "tensorflow.serving.PredictRequest"
    reload = pool.FindServiceByName("tensorflow.serving.ModelService").FindMethodByName("HandleReloadConfigRequest")
    assert reload.output_type.full_name == "tensorflow.serving.ReloadConfigResponse"


def test_compressed_requests_are_served(stock):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "two_inputs"
    for name in ("a", "b"):
        request.inputs[name].CopyFrom(tf.make_tensor_proto(np.array([1.0, 2.0], np.float32)))
    response = stock.prediction.Predict(request, timeout=30, compression=grpc.Compression.Gzip)
    assert list(response.outputs["sum"].float_val) == [2.0, 4.0]


@pytest.mark.parametrize("method", ["PredictionService/Nonsense", "SessionService/SessionRun"])
def test_methods_that_are_not_there_are_unimplemented(stock, refused, method):
    call = stock.channel.unary_unary(f"/tensorflow.serving.{method}")
    refused(grpc.StatusCode.UNIMPLEMENTED, "", call, b"", timeout=30)
