"""The client with TLS, and over UNIX sockets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import trustme

from tests.support.errors import refusal
from tfs_lite.client import Client
from tfs_lite.core.servable import VersionState, VersionStatus
from tfs_lite.core.status import OK, ServingError, StatusCode
from tfs_lite.protocols.tensorflow import serving as serving_messages

AUTHORITY, STRANGER = trustme.CA(), trustme.CA()
ROOT, OTHER_ROOT = AUTHORITY.cert_pem.bytes(), STRANGER.cert_pem.bytes()


def issued(authority: trustme.CA) -> tuple[bytes, bytes]:
    pair = authority.issue_cert("localhost", "127.0.0.1")
    return pair.private_key_pem.bytes(), pair.cert_chain_pems[0].bytes()


PAIR, FOREIGN = issued(AUTHORITY), issued(STRANGER)
SHAKEN = 1.5
"""Seconds within which hands are shaken also on a busy machine; a client that fails takes all of them."""
ONE_ADDRESS = "127.0.0.1:0"
"""Of a name with two addresses gRPC tells one failure, of either."""


@contextmanager
def serving(target: str = "localhost:0", tls: bool = False, verify: bool = False) -> Iterator[str]:
    """The address of a server that knows two versions of a model."""
    server = grpc.server(ThreadPoolExecutor(2))
    answer = serving_messages.model_status(VersionStatus(number, VersionState.AVAILABLE, OK) for number in (4, 3))
    status = grpc.unary_unary_rpc_method_handler(lambda request, context: answer.SerializeToString())
    handlers = grpc.method_handlers_generic_handler("tensorflow.serving.ModelService", {"GetModelStatus": status})
    server.add_generic_rpc_handlers((handlers,))
    if tls:
        port = server.add_secure_port(target, grpc.ssl_server_credentials([PAIR], ROOT if verify else None, verify))
    else:
        port = server.add_insecure_port(target)
    server.start()
    yield target.replace(":0", f":{port}")
    server.stop(None).wait(10)


def versions(client: Client) -> list[int]:
    with client:
        return [status.version for status in client.status("echo")]


def failure(client: Client) -> str:
    with client, pytest.raises(ServingError) as raised:
        client.status("echo")
    assert raised.value.code is StatusCode.UNAVAILABLE
    return str(raised.value)


def test_tls_reaches_a_server_of_a_known_authority_only() -> None:
    with serving(ONE_ADDRESS, tls=True) as address:
        assert versions(Client(address, ROOT)) == [4, 3]
        assert versions(Client(address, OTHER_ROOT + ROOT)) == [4, 3]
        assert "CERTIFICATE_VERIFY_FAILED" in failure(Client(address, OTHER_ROOT, connect_timeout=SHAKEN))
        assert "does it speak without TLS?" in failure(Client(address, connect_timeout=SHAKEN))


def test_tls_to_a_server_without_it_says_so() -> None:
    with serving(ONE_ADDRESS) as address:
        message = failure(Client(address, ROOT, connect_timeout=SHAKEN))
    assert "does it speak with TLS?" in message
    assert "WRONG_VERSION_NUMBER" in message


def test_a_server_that_wants_to_know_its_clients_gets_a_certificate() -> None:
    with serving(tls=True, verify=True) as address:
        assert versions(Client(address, ROOT, *PAIR)) == [4, 3]
        failure(Client(address, ROOT, connect_timeout=0.5))
        failure(Client(address, ROOT, *FOREIGN, connect_timeout=0.5))


def test_a_unix_socket_is_an_address_too(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/grpc.sock"
    with serving(address):
        assert versions(Client(address)) == [4, 3]
    with serving(address, tls=True, verify=True):
        assert versions(Client(address, ROOT, *PAIR)) == [4, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"x",), "root_certificates: holds no certificate in PEM form; the text itself is wanted here"),
        ((b"",), "root_certificates: holds no certificate"),
        ((PAIR[0],), "root_certificates: holds no certificate in PEM form"),
        ((ROOT[:200] + ROOT[250:],), "root_certificates: holds a damaged certificate"),
        ((ROOT, PAIR[0]), "client_key and client_certificate belong together"),
        ((ROOT, None, PAIR[1]), "client_key and client_certificate belong together"),
        ((None, *PAIR), "client_key needs root_certificates"),
        ((ROOT, b"x", PAIR[1]), "client_key: holds no private key in PEM form"),
        ((ROOT, PAIR[0], b"x"), "client_certificate: holds no certificate in PEM form"),
        ((ROOT, FOREIGN[0], PAIR[1]), "client_key: does not belong to the first certificate"),
    ],
)
def test_keys_and_certificates_that_cannot_be_used_are_refused_at_once(
    arguments: tuple[bytes | None, ...], message: str
) -> None:
    assert refusal(Client, "localhost:1", *arguments).startswith(message)
