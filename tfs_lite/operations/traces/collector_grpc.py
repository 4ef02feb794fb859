"""OTLP over gRPC. It is imported only where it is asked for: gRPC's library starts threads of its own.

Source: OpenTelemetry's specification of OTLP 1.9.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

from tfs_lite.operations.traces.collector_http import tls_context
from tfs_lite.operations.traces.environment import PROTOBUF, OtlpSettings
from tfs_lite.operations.traces.otlp import ALL, Attempt, read_answer
from tfs_lite.protocols.fields import occurrences

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
RETRIED = ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS")
_DETAILS = "grpc-status-details-bin"
_COMPRESSIONS = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}


class GrpcWay:
    """OTLP over gRPC. The channel is made at the first attempt, on its thread."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._metadata = [(key, value) for key, value in settings.headers.items() if not key.endswith("-bin")]
        self._lock = threading.Lock()  # guards the channel
        self._channel: Any = None
        self._closed = False

    def attempt(self, body: bytes, seconds: float) -> Attempt:
        export = self._open().unary_unary(EXPORT)
        compression = _COMPRESSIONS.get(self._settings.compression)
        try:
            answer = export(body, timeout=seconds, metadata=self._metadata, compression=compression)
        except grpc.RpcError as error:
            code, words = error.code(), error.details()
            wait = _retry_delay(error) if code.name == "RESOURCE_EXHAUSTED" else 0.0
            again = code.name in RETRIED or wait > 0
            return Attempt(ALL, f"{self._settings.place}: {code.name}: {words:.500}", again and not self._closed, wait)
        return read_answer(answer, PROTOBUF)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

    def _open(self) -> Any:
        with self._lock:
            if self._closed:
                raise OSError("the exporter is closed")
            if self._channel is None:
                self._channel = self._new_channel()
            return self._channel

    def _new_channel(self) -> Any:
        settings, options = self._settings, [("grpc.primary_user_agent", "tfs_lite")]
        if not settings.secure:
            return grpc.insecure_channel(settings.url, options)
        tls_context(settings)  # says more clearly what is wrong with the files
        files = (settings.authority, settings.key or settings.certificate, settings.certificate)
        root, key, chain = (Path(file).read_bytes() if file else None for file in files)
        return grpc.secure_channel(settings.url, grpc.ssl_channel_credentials(root, key, chain), options)


def _retry_delay(error: Any) -> float:
    """Seconds after which the collector wants another attempt (``RetryInfo`` of the status' details); 0 if it says
    nothing of the kind."""
    for key, value in error.trailing_metadata() or ():
        for detail in occurrences(value, 3) if key == _DETAILS else ():
            found = AnyMessage.FromString(detail)
            if found.type_url.endswith("/google.rpc.RetryInfo"):
                for delay in occurrences(found.value, 1):
                    return Duration.FromString(delay).ToTimedelta().total_seconds()
    return 0.0
