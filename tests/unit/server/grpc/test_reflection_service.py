"""Reflection: asked directly, and by a stock client over gRPC's own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support.servers.grpc_fixture import GrpcFixture
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.descriptors import POOL
from tfs_lite.server.grpc.reflection_service import MAX_REQUEST, SERVICES, ReflectionService
from tfs_lite.transport.table import CallContext

Request, Response = reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
VERSIONS = ("v1", "v1alpha")
PREDICTION = "tensorflow.serving.PredictionService"


def extended_pool() -> DescriptorPool:
    """Message ``a.Base`` with extensions 100 and 200, in a file of their own."""
    pool = DescriptorPool()
    base = FileDescriptorProto(name="base.proto", package="a")
    base.message_type.add(name="Base").extension_range.add(start=100, end=1000)
    base.message_type.add(name="Plain")
    more = FileDescriptorProto(name="more.proto", package="a", dependency=["base.proto"])
    for number in (200, 100):
        more.extension.add(
            name=f"x{number}",
            extendee=".a.Base",
            number=number,
            type=FieldDescriptorProto.TYPE_INT32,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    for file in (base, more):
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def ask_bytes(service: ReflectionService, *data: bytes) -> list[bytes]:
    """One stream of requests to the handler that both names have."""

    async def requests() -> AsyncIterator[bytes]:
        for one in data:
            yield one

    async def answers() -> list[bytes]:
        return [answer async for answer in service.info(requests(), CallContext(None))]

    return asyncio.run(answers())


def ask(pool: DescriptorPool = POOL, **fields: Any) -> Any:
    (answer,) = ask_bytes(ReflectionService(["a.Service"], pool), Request(**fields).SerializeToString())
    return Response.FromString(answer)


def files(answer: Any) -> list[str]:
    """The names of the files that came."""
    return [FileDescriptorProto.FromString(data).name for data in answer.file_descriptor_response.file_descriptor_proto]


def test_services_are_listed_once_each_and_reflection_with_them() -> None:
    (answer,) = ask_bytes(ReflectionService(["b.B", "a.A", "b.B"]), Request(list_services="").SerializeToString())
    listed = [service.name for service in Response.FromString(answer).list_services_response.service]
    assert listed == ["a.A", "b.B", *SERVICES]


def test_a_file_comes_with_all_that_it_imports() -> None:
    name = "tfs_lite/protocols/protos/prediction_service.proto"
    found = files(ask(file_by_filename=name))
    assert found[0] == name
    assert len(found) == len(set(found))
    pool = DescriptorPool()
    for data in reversed(ask(file_by_filename=name).file_descriptor_response.file_descriptor_proto):
        pool.AddSerializedFile(data)
    assert pool.FindServiceByName(PREDICTION).methods_by_name["Predict"].input_type.fields_by_name["model_spec"]


@pytest.mark.parametrize(
    "symbol",
    [
        "grpc.health.v1.Health",
        "grpc.health.v1.Health.Check",
        "grpc.health.v1.HealthCheckRequest",
        "grpc.health.v1.HealthCheckRequest.service",
        "grpc.health.v1.HealthCheckResponse.ServingStatus",
        "grpc.health.v1.HealthCheckResponse.SERVING",
    ],
)
def test_a_symbol_of_any_sort_leads_to_its_file(symbol: str) -> None:
    assert files(ask(file_containing_symbol=symbol)) == ["tfs_lite/protocols/protos/health.proto"]


@pytest.mark.parametrize("service", SERVICES)
def test_reflection_describes_itself(service: str) -> None:
    (found,) = ask(file_containing_symbol=service).file_descriptor_response.file_descriptor_proto
    package = service.rpartition(".")[0]
    ours, stock = FileDescriptorProto.FromString(found), FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(stock)
    assert ours.package == package
    assert [message.name for message in ours.message_type] == [message.name for message in stock.message_type]
    for message, theirs in zip(ours.message_type, stock.message_type, strict=True):
        assert [(field.name, field.number, field.type, field.label) for field in message.field] == [
            (field.name, field.number, field.type, field.label) for field in theirs.field
        ]
    assert ours.service[0].method[0].client_streaming
    assert ours.service[0].method[0].server_streaming


def test_extensions_are_found_by_their_numbers() -> None:
    pool = extended_pool()
    numbers = ask(pool, all_extension_numbers_of_type="a.Base").all_extension_numbers_response
    assert (numbers.base_type_name, list(numbers.extension_number)) == ("a.Base", [100, 200])
    asked = {"containing_type": "a.Base", "extension_number": 200}
    assert files(ask(pool, file_containing_extension=asked)) == ["more.proto", "base.proto"]
    none = ask(pool, all_extension_numbers_of_type="a.Plain").all_extension_numbers_response
    assert (none.base_type_name, list(none.extension_number)) == ("a.Plain", [])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"file_by_filename": "no.proto"}, "'no.proto'"),
        ({"file_containing_symbol": ""}, "''"),
        ({"file_containing_symbol": "no.such.Thing"}, "'no.such.Thing'"),
        ({"file_containing_symbol": f"{PREDICTION}.Nothing"}, "PredictionService.Nothing"),
        ({"all_extension_numbers_of_type": PREDICTION}, "PredictionService"),
        ({"file_containing_extension": {"containing_type": "no.Type", "extension_number": 1}}, "1 of 'no.Type'"),
        (
            {"file_containing_extension": {"containing_type": "tensorflow.TensorProto", "extension_number": 7}},
            "extension 7 of 'tensorflow.TensorProto'",
        ),
    ],
    ids=["file", "nothing", "symbol", "method", "extended-service", "extended-nothing", "extension"],
)
def test_what_is_not_known_is_answered_with_not_found(fields: dict[str, Any], words: str) -> None:
    answer = ask(**fields)
    assert answer.error_response.error_code == int(StatusCode.NOT_FOUND)
    assert words in answer.error_response.error_message


def test_an_error_does_not_end_the_stream_and_every_answer_has_its_request() -> None:
    asked = [Request(host="h"), Request(host="i", list_services="x"), Request(file_by_filename="no")]
    answers = ask_bytes(ReflectionService([]), *(request.SerializeToString() for request in asked))
    read = [Response.FromString(answer) for answer in answers]
    assert [answer.original_request for answer in read] == asked
    assert [answer.valid_host for answer in read] == ["h", "i", ""]
    assert [answer.error_response.error_code for answer in read] == [
        int(StatusCode.INVALID_ARGUMENT),
        0,
        int(StatusCode.NOT_FOUND),
    ]


@pytest.mark.parametrize("data", [b"\xff", b"\x22\x01\xff", bytes(MAX_REQUEST + 1)], ids=["wire", "text", "large"])
def test_bytes_that_are_no_request_end_the_stream(data: bytes) -> None:
    with pytest.raises(ServingError) as caught:
        ask_bytes(ReflectionService([]), data)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


@pytest.fixture
def channel(each_server: str, loop_thread: Any) -> Iterator[grpc.Channel]:
    methods = ReflectionService(["test.Service"]).methods()
    with GrpcFixture(loop_thread, each_server, methods, max_concurrent_calls=0) as server:
        yield server.channel


@pytest.mark.parametrize("version", VERSIONS)
def test_both_names_are_served_and_take_no_place(channel: grpc.Channel, version: str) -> None:
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=Request.SerializeToString,
        response_deserializer=Response.FromString,
    )
    (answer,) = method(iter([Request(list_services="")]), timeout=20)
    listed = {service.name for service in answer.list_services_response.service}
    assert listed == {"test.Service", *SERVICES}


def test_a_stock_client_finds_methods_and_messages(channel: grpc.Channel) -> None:
    service = DescriptorPool(ProtoReflectionDescriptorDatabase(channel)).FindServiceByName(PREDICTION)
    assert service.FindMethodByName("Predict").input_type.full_name == "tensorflow.serving.PredictRequest"
