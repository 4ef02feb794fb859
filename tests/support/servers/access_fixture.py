"""A server with an access file, and callers that it takes for callers from elsewhere.

    with managed(root, LINES, model_config_file=...) as server:
        assert server.ask("POST", "/v2/logging").status_code == 401
        assert server.ask("POST", "/v2/logging", SECRET).status_code == 200

A proxy's header makes a caller on loopback count as one from elsewhere.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import httpx

from tests.support.servers.in_process import TIMEOUT, ServerFixture, serving
from tfs_lite.server.grpc.factory import make_grpc_server
from tfs_lite.server.http.router import Api, Route, Router
from tfs_lite.transport.table import CallKind, Method

ELSEWHERE = {"x-forwarded-for": "10.0.0.7"}
SECRET, LIMITED, READER = "secret-of-deploy" * 2, "secret-of-team-a" * 2, "secret-of-reader" * 2
UNKNOWN = "secret-of-nobody" * 2


def access_line(name: str, rights: str, secret: str) -> str:
    return f"{name} {rights} sha256:{sha256(secret.encode()).hexdigest()}"


LINES = (
    access_line("deploy", "manage,read,predict", SECRET),
    access_line("team-a", "manage,read,predict,models=a-*", LIMITED),
    access_line("reader", "read", READER),
)


def bearer(token: str) -> dict[str, str]:
    """The header; none for no token."""
    return {"authorization": f"Bearer {token}"} if token else {}


@dataclass
class ManagedServer:
    """``methods`` and ``apis`` are what the server has put on the wire; ``file`` is its access file."""

    file: Path
    methods: list[Method] = field(default_factory=list)
    apis: list[Api[Any]] = field(default_factory=list)
    served: ServerFixture = field(init=False)
    http: httpx.Client = field(init=False)

    @property
    def routes(self) -> list[Route[Any]]:
        return [route for api in self.apis for route in api.routes()]

    def ask(self, method: str, path: str, token: str = "", **rest: Any) -> httpx.Response:
        """From elsewhere. ``rest`` is for the client."""
        headers = {**ELSEWHERE, **bearer(token), **rest.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **rest)

    def call(self, path: str, data: bytes = b"", token: str = "", local: bool = False) -> tuple[grpc.StatusCode, str]:
        """Code and text of a gRPC call, from elsewhere unless it is ``local``."""
        sent = tuple({**({} if local else ELSEWHERE), **bearer(token)}.items())
        unary = next(method for method in self.methods if method.path == path).kind is CallKind.UNARY
        with grpc.insecure_channel(self.served.target) as channel:
            try:
                if unary:
                    channel.unary_unary(path)(data, metadata=sent, timeout=TIMEOUT)
                else:
                    next(channel.stream_stream(path)(iter([data]), metadata=sent, timeout=TIMEOUT), None)
            except grpc.RpcError as error:
                return error.code(), error.details()
        return grpc.StatusCode.OK, ""


@contextlib.contextmanager
def managed(root: Path, lines: Sequence[str] = LINES, **options: Any) -> Iterator[ManagedServer]:
    """``options`` are those of the server; an ``access_file`` of them is used in place of the lines."""
    with tempfile.TemporaryDirectory() as directory:
        server = ManagedServer(Path(directory) / "access")
        server.file.write_text("\n".join(lines))

        def spy_grpc(name: str, methods: Sequence[Method], *args: Any, **rest: Any) -> Any:
            server.methods = list(methods)
            return make_grpc_server(name, methods, *args, **rest)

        def spy_http(apis: Sequence[Api[Any]], *args: Any, **rest: Any) -> Router:
            server.apis = list(apis)
            return Router(apis, *args, **rest)

        with (
            mock.patch("tfs_lite.server.endpoints.make_grpc_server", spy_grpc),
            mock.patch("tfs_lite.server.http_app.Router", spy_http),
            serving(root, **{"access_file": str(server.file), **options}) as server.served,
            httpx.Client(base_url=server.served.url, timeout=TIMEOUT) as server.http,
        ):
            yield server
