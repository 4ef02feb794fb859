"""Our wire definitions: names, numbers, and their life beside the real packages in one process."""

import subprocess
import sys

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tfs_lite.protocols import messages
from tfs_lite.protocols.build import compile_protos
from tfs_lite.protocols.descriptors import DESCRIPTORS, POOL, message_class

COEXISTENCE = """
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto

def register(name, package, *messages):
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    for message in messages:
        file.message_type.add(name=message)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())

def others():
    import grpc_reflection.v1alpha.reflection
    register("grpc/health/v1/health.proto", "grpc.health.v1", "HealthCheckRequest", "HealthCheckResponse")
    register("tensorflow/core/framework/tensor.proto", "tensorflow", "TensorProto", "SignatureDef")
    register("tensorflow_serving/apis/predict.proto", "tensorflow.serving", "PredictRequest", "ModelConfig")
    register("model_config.proto", "inference", "ModelConfig")

def ours():
    from tfs_lite.protocols import messages
    request = messages.PredictRequest(output_filter=["a"])
    assert messages.PredictRequest.FromString(request.SerializeToString()) == request
"""


@pytest.mark.parametrize("order", ["ours(); others(); ours()", "others(); ours()"])
def test_our_messages_live_beside_other_packages_in_one_process(order: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", COEXISTENCE + order], check=True, timeout=60)


def test_importing_the_protocols_loads_neither_torch_nor_grpc() -> None:
    code = (
        "import sys, tfs_lite.protocols.tensorflow.serving, tfs_lite.protocols.tensorflow.tensor_proto;"
        "import tfs_lite.config.text;"
        "assert not {'torch', 'grpc', 'asyncio', 'httptools'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_descriptors_are_up_to_date_with_the_proto_files() -> None:
    committed = FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    assert committed == FileDescriptorSet.FromString(compile_protos()), "run python -m tfs_lite.protocols.build"


def test_services_have_the_methods_of_the_real_ones() -> None:
    services = {
        "tensorflow.serving.PredictionService": "Classify Regress Predict MultiInference GetModelMetadata",
        "tensorflow.serving.ModelService": "GetModelStatus HandleReloadConfigRequest",
        "grpc.health.v1.Health": "Check Watch",
    }
    for name, methods in services.items():
        assert [method.name for method in POOL.FindServiceByName(name).methods] == methods.split()


NUMBERS = {
    "tensorflow.TensorProto": "dtype=1 tensor_content=4 half_val=13 uint64_val=17 float8_val=18",
    "tensorflow.TensorShapeProto": "dim=2 unknown_rank=3",
    "tensorflow.TensorInfo": "name=1 dtype=2 tensor_shape=3 coo_sparse=4",
    "tensorflow.serving.ModelSpec": "name=1 version=2 signature_name=3 version_label=4",
    "tensorflow.serving.PredictRequest": "model_spec=1 inputs=2 output_filter=3 predict_streamed_options=5 client_id=6 "
    "request_options=7",
    "tensorflow.serving.ModelConfig": "name=1 base_path=2 model_type=3 model_platform=4 logging_config=6 "
    "model_version_policy=7 version_labels=8",
    "tensorflow.serving.FileSystemStoragePathSourceConfig.ServableVersionPolicy": "latest=100 all=101 specific=102",
    "inference.ModelConfig": "name=1 platform=2 max_batch_size=4 input=5 output=6 parameters=14",
}


@pytest.mark.parametrize("message", NUMBERS)
def test_fields_have_the_numbers_of_the_real_messages(message: str) -> None:
    fields = message_class(message).DESCRIPTOR.fields_by_name
    for name, number in (field.split("=") for field in NUMBERS[message].split()):
        assert fields[name].number == int(number), name


def test_a_predict_request_has_the_bytes_that_other_implementations_write() -> None:
    request = messages.PredictRequest()
    request.model_spec.name = "m"
    request.model_spec.version.value = 0
    request.inputs["x"].dtype = 1
    request.inputs["x"].float_val.append(1.0)
    expected = "0a050a016d1200" + "120d0a0178" + "1208" + "0801" + "2a04" + "0000803f"
    assert request.SerializeToString().hex() == expected


def test_fields_that_are_not_declared_survive_a_round_trip() -> None:
    composite = bytes.fromhex("2a00")
    assert messages.TensorInfo.FromString(composite).SerializeToString() == composite


def test_an_unknown_message_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        message_class("tensorflow.serving.Nothing")
