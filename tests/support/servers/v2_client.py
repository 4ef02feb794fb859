"""A client of the V2 protocol over gRPC, for tests: calls methods by their names, and streams by hand."""

from __future__ import annotations

import queue
from typing import Any

import grpc

from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server.v2.grpc_service import SERVICE


class V2Client:
    """Calls the methods of the service by their names."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def call(self, method: str, timeout: float = 20.0, **fields: Any) -> Any:
        request, response = (getattr(v2, f"{method}{end}") for end in ("Request", "Response"))
        send = self._channel.unary_unary(f"{SERVICE}/{method}", request.SerializeToString, response.FromString)
        return send(request(**fields), timeout=timeout)

    def refusal(self, method: str, timeout: float = 20.0, **fields: Any) -> tuple[grpc.StatusCode, str]:
        try:
            answer = self.call(method, timeout, **fields)
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError(f"{method} was not refused but answered with {answer}")

    def stream(self, **metadata: str) -> V2Stream:
        return V2Stream(self._channel, tuple(metadata.items()))


class V2Stream:
    """A ModelStreamInfer. ``send`` requests, ``end`` them, read answers from ``calls``."""

    def __init__(self, channel: grpc.Channel, metadata: Any) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        method = channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            v2.ModelInferRequest.SerializeToString,
            v2.ModelStreamInferResponse.FromString,
        )
        self.calls = method(iter(self._requests.get, None), metadata=metadata, timeout=30)

    def send(self, **fields: Any) -> None:
        self._requests.put(v2.ModelInferRequest(**fields))

    def end(self) -> None:
        self._requests.put(None)

    def next(self) -> Any:
        return next(self.calls)

    def rest(self) -> list[Any]:
        return list(self.calls)
