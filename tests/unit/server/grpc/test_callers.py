"""What a handler learns of its caller, and that callers are checked, for every kind of call on both gRPC servers."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.support.servers.grpc_fixture import GrpcFixture, connect
from tfs_lite.server.access.access import Access, Denied
from tfs_lite.server.access.access_file import AccessFile
from tfs_lite.server.access.rules import OPEN, TOKEN, AccessPolicy, DenialReason
from tfs_lite.server.grpc.checked_methods import checked_methods
from tfs_lite.server.runtime.tls import TlsFile
from tfs_lite.transport.peer import Peer
from tfs_lite.transport.table import CallContext, Method, Scope, bidi_stream, client_stream, server_stream, unary

LOOPBACK = Peer("127.0.0.1", loopback=True)
SECRET, LIMITED = "s" * 32, "l" * 32
KINDS = ("one", "many", "fold", "talk")
FORWARDED = ("x-forwarded-for", "10.0.0.1")


def of_models(data: bytes) -> list[str]:
    return [data.decode()]


class Service:
    """A method of each kind; each request is the name of the model that it concerns."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []

    def methods(self, scope: Scope = Scope.OPEN) -> list[Method]:
        return [
            unary("/test.Service/one", self.one, scope=scope, models=of_models),
            server_stream("/test.Service/many", self.many, scope=scope, models=of_models),
            client_stream("/test.Service/fold", self.fold, scope=scope, models=of_models),
            bidi_stream("/test.Service/talk", self.talk, scope=scope, models=of_models),
            unary("/test.Service/all", self.one, scope=scope),
            unary("/test.Service/reads", self.one, scope=scope, reads=lambda data: data == b"read"),
        ]

    async def one(self, data: bytes, context: CallContext) -> bytes:
        self.contexts.append(context)
        return data

    async def many(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        self.contexts.append(context)
        yield data

    async def fold(self, requests: AsyncIterator[bytes], context: CallContext) -> bytes:
        self.contexts.append(context)
        return b",".join([data async for data in requests])

    async def talk(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        self.contexts.append(context)
        async for data in requests:
            yield data


def ask(channel: grpc.Channel, name: str, *sent: bytes, metadata: Any = ()) -> bytes:
    """The answers to a call of any kind, joined with commas."""
    path, first = f"/test.Service/{name}", sent[0] if sent else b"a"
    if name == "many":
        return b",".join(channel.unary_stream(path)(first, metadata=metadata, timeout=20))
    if name == "fold":
        return bytes(channel.stream_unary(path)(iter(sent or (b"a",)), metadata=metadata, timeout=20))
    if name == "talk":
        return b",".join(channel.stream_stream(path)(iter(sent or (b"a",)), metadata=metadata, timeout=20))
    return bytes(channel.unary_unary(path)(first, metadata=metadata, timeout=20))


def code(channel: grpc.Channel, name: str, *sent: bytes, metadata: Any = ()) -> grpc.StatusCode:
    """Of the failure, or OK."""
    try:
        ask(channel, name, *sent, metadata=metadata)
    except grpc.RpcError as error:
        return error.code()  # type: ignore[no-any-return]
    return grpc.StatusCode.OK


def token(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_call_knows_its_peer_and_its_metadata(
    loop_thread: Any, each_server: str, service: Service, kind: str
) -> None:
    with GrpcFixture(loop_thread, each_server, service.methods()) as server:
        metadata = (("x-a", "1"), ("x-a", "2"), ("x-b", "three"), ("x-bin", b"\0"))
        for _ in range(2):
            ask(server.channel, kind, metadata=metadata)
        ask(server.channel, kind)
    first, second, third = service.contexts
    assert first.peer == second.peer == third.peer == LOOPBACK
    for context in (first, second):
        assert {name: value for name, value in context.metadata.items() if name.startswith("x-")} == {
            "x-a": "1,2",
            "x-b": "three",
        }
    assert third.metadata.get("x-a") is None
    assert first.caller == "127.0.0.1"


def test_callers_over_a_unix_socket_are_known_by_their_user(
    loop_thread: Any, each_server: str, service: Service, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    with GrpcFixture(loop_thread, each_server, service.methods(), port=None, path=str(path)) as server:
        path.chmod(0o700)
        ask(server.channel, "one")
    (context,) = service.contexts
    assert context.peer == Peer("unix", same_user=True)


def test_library_does_not_know_the_user_where_others_may_write_to_the_socket(
    loop_thread: Any, service: Service, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    with GrpcFixture(loop_thread, "grpcio", service.methods(), port=None, path=str(path)) as server:
        for mode in (0o720, 0o702, 0o700):
            path.chmod(mode)
            ask(server.channel, "one")
    assert [context.peer.same_user for context in service.contexts] == [False, False, True]


def test_names_of_a_clients_certificate_are_known(
    loop_thread: Any, each_server: str, service: Service, tmp_path: Path
) -> None:
    authority = trustme.CA()
    server_pair, client_pair = authority.issue_cert("localhost"), authority.issue_cert("deploy.example", "10.0.0.1")
    fields = {
        "server_key": server_pair.private_key_pem.bytes().decode(),
        "server_cert": server_pair.cert_chain_pems[0].bytes().decode(),
        "custom_ca": authority.cert_pem.bytes().decode(),
        "client_verify": True,
    }
    (tmp_path / "tls").write_text("\n".join(f"{name}: {json.dumps(value)}" for name, value in fields.items()))
    with GrpcFixture(loop_thread, each_server, service.methods(), tls=TlsFile(str(tmp_path / "tls"))) as server:
        credentials = grpc.ssl_channel_credentials(
            authority.cert_pem.bytes(), client_pair.private_key_pem.bytes(), client_pair.cert_chain_pems[0].bytes()
        )
        with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
            ask(channel, "one")
    (context,) = service.contexts
    assert context.peer.names == {"deploy.example"}
    assert context.peer.loopback


@pytest.fixture
def denied() -> list[Denied]:
    return []


@pytest.fixture
def checked(
    loop_thread: Any, each_server: str, service: Service, tmp_path: Path, denied: list[Denied]
) -> Iterator[Callable[..., grpc.Channel]]:
    """Starts a server whose methods have a scope and are checked."""
    path = tmp_path / "access"
    digests = {name: sha256(secret.encode()).hexdigest() for name, secret in (("deploy", SECRET), ("team", LIMITED))}
    lines = [f"deploy manage,predict sha256:{digests['deploy']}", f"team manage,models=a* sha256:{digests['team']}"]
    path.write_text("\n".join(lines))
    servers: list[GrpcFixture] = []

    def start(scope: Scope = Scope.MANAGE, **policy: Any) -> grpc.Channel:
        file = AccessFile(str(path), lambda: 0.0)
        access = Access(AccessPolicy(**policy, has_file=True), file, clock=lambda: 0.0)
        access.on_denied(denied.append)
        servers.append(GrpcFixture(loop_thread, each_server, checked_methods(service.methods(scope), access)))
        return servers[-1].channel

    yield start
    for server in servers:
        server.__exit__(None, None, None)


UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
NOT_FOUND, OK = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OK


@pytest.mark.parametrize("kind", KINDS)
def test_callers_are_checked_before_the_handler_begins(
    checked: Callable[..., grpc.Channel], service: Service, denied: list[Denied], kind: str
) -> None:
    channel = checked()
    assert code(channel, kind) is OK, "a call from this machine"
    assert service.contexts[-1].caller == "127.0.0.1"
    assert code(channel, kind, metadata=(FORWARDED,)) is UNAUTHENTICATED
    assert code(channel, kind, metadata=(FORWARDED, *token("w" * 32))) is UNAUTHENTICATED
    assert len(service.contexts) == 1, "no handler has begun"
    assert code(channel, kind, metadata=(FORWARDED, *token(SECRET))) is OK
    assert service.contexts[-1].caller == "deploy"
    assert [one.reason for one in denied] == [DenialReason.NO_TOKEN, DenialReason.WRONG_TOKEN]
    assert {one.caller for one in denied} == {"127.0.0.1"}


@pytest.mark.parametrize("kind", ["one", "reads"])
def test_callers_of_large_requests_are_denied_alike(
    checked: Callable[..., grpc.Channel], service: Service, denied: list[Denied], kind: str
) -> None:
    channel, large = checked(read=TOKEN), bytes(30_000)
    assert code(channel, kind, large, metadata=(FORWARDED,)) is UNAUTHENTICATED
    assert [one.reason for one in denied] == [DenialReason.NO_TOKEN]
    assert not service.contexts
    assert code(channel, kind, large, metadata=(FORWARDED, *token(SECRET))) is OK


@pytest.mark.parametrize("kind", KINDS)
def test_token_for_some_models_finds_no_others(checked: Callable[..., grpc.Channel], kind: str) -> None:
    channel, metadata = checked(), (FORWARDED, *token(LIMITED))
    assert ask(channel, kind, b"a1", metadata=metadata) == b"a1"
    assert code(channel, kind, b"b1", metadata=metadata) is NOT_FOUND
    assert code(channel, kind, b"", metadata=metadata) is DENIED
    assert code(channel, "all", b"a1", metadata=metadata) is DENIED, "it concerns all models"


@pytest.mark.parametrize("kind", ["fold", "talk"])
def test_every_request_of_a_stream_is_checked(checked: Callable[..., grpc.Channel], kind: str) -> None:
    channel, metadata = checked(), (FORWARDED, *token(LIMITED))
    assert ask(channel, kind, b"a1", b"a2", metadata=metadata) == b"a1,a2"
    assert code(channel, kind, b"a1", b"b1", metadata=metadata) is NOT_FOUND


def test_requests_that_change_nothing_need_to_read_only(checked: Callable[..., grpc.Channel]) -> None:
    channel = checked()
    assert code(channel, "reads", b"read", metadata=(FORWARDED,)) is OK
    assert code(channel, "reads", b"write", metadata=(FORWARDED,)) is UNAUTHENTICATED
    closed = checked(read=TOKEN)
    assert code(closed, "reads", b"read", metadata=(FORWARDED,)) is UNAUTHENTICATED
    assert code(closed, "reads", b"read", metadata=(FORWARDED, *token(SECRET))) is DENIED, "it may manage, not read"


@pytest.mark.parametrize("scope", [Scope.PREDICT, Scope.READ])
def test_handlers_of_open_scopes_are_those_of_the_table(service: Service, scope: Scope) -> None:
    methods = service.methods(scope)
    assert checked_methods(methods, Access(AccessPolicy())) == methods
    closed = checked_methods(methods, Access(AccessPolicy(predict=TOKEN, read=TOKEN)))
    assert all(one.handler != other.handler for one, other in zip(methods, closed, strict=True))


def test_token_of_a_client_of_openai_is_ignored_where_everybody_may_predict(
    checked: Callable[..., grpc.Channel],
) -> None:
    channel = checked(Scope.PREDICT, predict=OPEN)
    for _ in range(30):
        assert code(channel, "one", metadata=token("sk-1")) is OK


def test_guessing_is_stopped_and_a_right_token_waits_too(checked: Callable[..., grpc.Channel]) -> None:
    channel = checked()
    for _ in range(20):
        assert code(channel, "one", metadata=(FORWARDED, *token("w" * 32))) is UNAUTHENTICATED
    assert code(channel, "one", metadata=(FORWARDED, *token(SECRET))) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert code(channel, "one") is OK, "this machine needs no token"


def test_socket_of_another_user_is_not_trusted(loop_thread: Any, service: Service, tmp_path: Path) -> None:
    """As far as one user can show it: the socket's file could be written to by others."""
    path = tmp_path / "s"
    methods = checked_methods(service.methods(Scope.MANAGE), Access(AccessPolicy()))
    with GrpcFixture(loop_thread, "grpcio", methods, port=None, path=str(path)) as server:
        path.chmod(0o722)
        assert code(server.channel, "one") is DENIED
        path.chmod(0o700)
        with connect(f"unix:{path}") as channel:
            assert code(channel, "one") is OK
    assert os.geteuid() == path.parent.stat().st_uid
