"""``grpc.reflection``: describes services and their messages to clients without proto files.

Both versions of the service have the same messages and one handler. A request that cannot be answered gets an error
response, and the stream goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool

from tfs_lite.core.status import StatusCode, invalid_argument
from tfs_lite.protocols.descriptors import POOL, message_class
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.serving import parse
from tfs_lite.transport.table import CallContext, Method, Scope, bidi_stream

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
MAX_REQUEST = 16 * 1024
"""Bytes. Each response repeats its request; names are far shorter."""

_Request = message_class("grpc.reflection.v1.ServerReflectionRequest")
_Response = message_class("grpc.reflection.v1.ServerReflectionResponse")


class ReflectionService:
    """``services``: the full names of the server's services; the two of reflection are added. ``pool`` has their
    descriptors. On one thread."""

    def __init__(self, services: Iterable[str], pool: DescriptorPool = POOL) -> None:
        self._services = sorted({*services, *SERVICES})
        self._pool = pool
        self._files: dict[str, list[bytes]] = {}
        """File name -> the serialized descriptors of the file and of all its imports."""

    def methods(self) -> list[Method]:
        return [bidi_stream(f"/{name}/ServerReflectionInfo", self.info, scope=Scope.OPEN) for name in SERVICES]

    async def info(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """One response to each request. INVALID_ARGUMENT ends the stream after malformed or too long bytes."""
        async for data in requests:
            yield self._answer(data)

    def _answer(self, data: bytes) -> bytes:
        if len(data) > MAX_REQUEST:
            raise invalid_argument(f"a reflection request has {MAX_REQUEST} bytes at most, this one has {len(data)}")
        request = parse(_Request, data)
        response = _Response(valid_host=request.host, original_request=request)
        try:
            self._fill(response, request)
        except KeyError:
            _fail(response, StatusCode.NOT_FOUND, f"nothing is known of {_describe_request(request)}")
        encoded: bytes = response.SerializeToString()
        return encoded

    def _fill(self, response: Message, request: Message) -> None:
        """KeyError for unknown names."""
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                self._add_files(response, self._pool.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                self._add_files(response, self._file_of(request.file_containing_symbol))
            case "file_containing_extension":
                wanted = request.file_containing_extension
                extended = self._pool.FindMessageTypeByName(wanted.containing_type)
                extension = self._pool.FindExtensionByNumber(extended, wanted.extension_number)
                self._add_files(response, self._file_of(extension.full_name))
            case "all_extension_numbers_of_type":
                extended = self._pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
                numbers = response.all_extension_numbers_response
                numbers.base_type_name = extended.full_name
                numbers.extension_number.extend(sorted(one.number for one in self._pool.FindAllExtensions(extended)))
            case _:
                _fail(response, StatusCode.INVALID_ARGUMENT, "the request asks for nothing that reflection knows")

    def _file_of(self, symbol: str) -> Any:
        """The file that defines a message, enum, service, extension, or a part of one."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            whole, _, part = symbol.rpartition(".")
            return self._pool.FindServiceByName(whole).methods_by_name[part].containing_service.file

    def _add_files(self, response: Message, file: Any) -> None:
        if file.name not in self._files:
            found: dict[str, Any] = {}
            _collect(file, found)
            self._files[file.name] = [one.serialized_pb for one in found.values()]
        response.file_descriptor_response.file_descriptor_proto.extend(self._files[file.name])


def _collect(file: Any, found: dict[str, Any]) -> None:
    """Adds the file and, transitively, its imports."""
    if file.name not in found:
        found[file.name] = file
        for imported in file.dependencies:
            _collect(imported, found)


def _fail(response: Message, code: StatusCode, text: str) -> None:
    response.error_response.error_code = int(code)
    response.error_response.error_message = text


def _describe_request(request: Message) -> str:
    which = request.WhichOneof("message_request")
    if which == "file_containing_extension":
        wanted = request.file_containing_extension
        return f"extension {wanted.extension_number} of {wanted.containing_type!r}"
    return f"{getattr(request, which)!r}"
