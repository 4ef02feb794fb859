"""TLS with a real server and real clients: who gets in, and certificates that are replaced while it runs."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.support.errors import refusal
from tests.support.servers.grpc_fixture import GrpcFixture
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.grpc.grpcio_server import GrpcServer
from tfs_lite.server.runtime import tls as tls_module
from tfs_lite.server.runtime.tls import GRPC, TlsFile
from tfs_lite.transport.table import CallContext, unary

AUTHORITY, STRANGER = trustme.CA(), trustme.CA()
ROOT = AUTHORITY.cert_pem.bytes()


def issued(authority: trustme.CA = AUTHORITY, **dates: datetime) -> tuple[bytes, bytes]:
    """The key and the certificate of a server, or of a client."""
    pair = authority.issue_cert("localhost", "127.0.0.1", **dates)  # type: ignore[arg-type]
    return pair.private_key_pem.bytes(), pair.cert_chain_pems[0].bytes()


FIRST, SECOND, FOREIGN = issued(), issued(), issued(STRANGER)


def text_of(pair: tuple[bytes, bytes], ca: bytes | None = None, verify: bool = False) -> str:
    fields: dict[str, object] = {"server_key": pair[0].decode(), "server_cert": pair[1].decode()}
    if ca is not None:
        fields["custom_ca"] = ca.decode()
    if verify:
        fields["client_verify"] = True
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())


def file_of(directory: Path, text: str | None = None) -> TlsFile:
    """A file with the first certificate, or with the text."""
    (directory / "tls.pbtxt").write_text(text_of(FIRST) if text is None else text)
    return TlsFile("tls.pbtxt", directory, later)


async def echo(data: bytes, context: CallContext) -> bytes:
    return data


def later() -> float:
    """So that a file that was just changed counts as one that has not changed for a while."""
    return time.time() + 1


class TlsFixture(GrpcFixture):
    """A server with TLS from a file, and clients of it."""

    def __init__(self, kind: str, path: Path, loop_thread: Any, socket_path: str = "") -> None:
        self.path = path
        self.tls = TlsFile(str(path), wall=later)
        super().__init__(loop_thread, kind, [unary("/test.Service/echo", echo)], path=socket_path, tls=self.tls)

    def replace(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    def secure_channel(
        self, root: bytes = ROOT, pair: tuple[bytes, bytes] | None = None, target: str = "", name: str = "localhost"
    ) -> grpc.Channel:
        key, certificate = pair or (None, None)
        return grpc.secure_channel(
            target or f"localhost:{self.port}",
            grpc.ssl_channel_credentials(root, key, certificate),
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", name)],
        )

    def certificate(self) -> bytes:
        """What a new connection is shown, PEM."""
        context = ssl.create_default_context(cadata=ROOT.decode() + STRANGER.cert_pem.bytes().decode())
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", self.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            der = secure.getpeercert(binary_form=True)
        assert der is not None
        return ssl.DER_cert_to_PEM_cert(der).encode()


Serve = Callable[..., TlsFixture]


@pytest.fixture
def serve(each_server: str, tmp_path: Path, loop_thread: Any) -> Iterator[Serve]:
    with ExitStack() as running:

        def start(text: str, socket_path: str = "") -> TlsFixture:
            path = tmp_path / "tls.pbtxt"
            path.write_text(text)
            return running.enter_context(TlsFixture(each_server, path, loop_thread, socket_path))

        yield start


def call(channel: grpc.Channel) -> bytes:
    answer: bytes = channel.unary_unary("/test.Service/echo")(b"x", timeout=20)
    return answer


def refused(channel: grpc.Channel) -> str:
    with channel, pytest.raises(grpc.RpcError) as caught:
        call(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(caught.value.details())


def test_clients_that_trust_the_authority_get_in_and_others_do_not(serve: Serve) -> None:
    server = serve(text_of(FIRST))
    with server.secure_channel() as channel:
        assert call(channel) == b"x"
    with server.secure_channel(target=f"127.0.0.1:{server.port}", name="127.0.0.1") as channel:
        assert call(channel) == b"x"
    elsewhere = refused(server.secure_channel(name="elsewhere.org"))
    assert re.search("Hostname Verification|not in peer certificate", elsewhere), "the words of newer and older gRPC"
    assert "CERTIFICATE_VERIFY_FAILED" in refused(server.secure_channel(root=STRANGER.cert_pem.bytes()))
    refused(grpc.insecure_channel(f"localhost:{server.port}"))
    assert server.certificate() == FIRST[1]


def test_mutual_tls_lets_in_clients_of_the_authority_that_the_file_names_now(serve: Serve) -> None:
    server = serve(text_of(FIRST, ROOT, verify=True))
    with server.secure_channel(pair=SECOND) as channel:
        assert call(channel) == b"x"
    refused(server.secure_channel())
    refused(server.secure_channel(pair=FOREIGN))
    server.replace(text_of(FIRST, STRANGER.cert_pem.bytes(), verify=True))
    with server.secure_channel(pair=FOREIGN) as channel:
        assert call(channel) == b"x"
    refused(server.secure_channel(pair=SECOND))


def test_the_unix_socket_has_the_same_certificate_and_follows_it_too(serve: Serve, tmp_path: Path) -> None:
    path = str(tmp_path / "grpc.sock")
    server = serve(text_of(FIRST), path)
    for new in (SECOND, FIRST):
        server.replace(text_of(new))
        assert server.certificate() == new[1]
        with server.secure_channel(root=new[1], target=f"unix:{path}") as channel:
            assert call(channel) == b"x"
    refused(grpc.insecure_channel(f"unix:{path}"))


def test_new_connections_see_a_new_certificate_while_old_ones_go_on(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = serve(text_of(FIRST))
    with server.secure_channel() as old:
        assert call(old) == b"x"
        server.replace(text_of(FOREIGN))
        assert server.certificate() == FOREIGN[1]
        assert call(old) == b"x"
    with server.secure_channel(root=STRANGER.cert_pem.bytes()) as new:
        assert call(new) == b"x"
    refused(server.secure_channel())
    assert caplog.text.count("new connections get the new certificate") == 1


def test_a_file_that_was_changed_just_now_is_not_read_yet(tmp_path: Path) -> None:
    path, ahead = tmp_path / "tls.pbtxt", [0.0]
    path.write_text(text_of(FIRST))
    file = TlsFile(str(path), wall=lambda: path.stat().st_ctime + ahead[0])
    path.write_text(text_of(SECOND))
    assert file.newest().config.server_cert.encode() == FIRST[1]
    ahead[0] = 1.0
    assert file.newest().config.server_cert.encode() == SECOND[1]


def test_many_connections_at_once_always_get_a_whole_certificate(serve: Serve) -> None:
    server = serve(text_of(FIRST))
    with ThreadPoolExecutor(8) as pool:
        for new in (SECOND, FIRST) * 3:
            shown = [pool.submit(server.certificate) for _ in range(16)]
            server.replace(text_of(new))
            assert {future.result(20) for future in shown} <= {FIRST[1], SECOND[1]}
            assert server.certificate() == new[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"tls\.pbtxt:1:1: server_key: is required"),
        ("server_key: {", r"tls\.pbtxt:1:13: "),
        (text_of((FIRST[0], SECOND[1])), r"tls\.pbtxt:1:1: server_key: does not belong to the first certificate"),
        (text_of(SECOND)[:-100], r"tls\.pbtxt:2:"),
        (text_of(SECOND, ROOT, verify=True), r"tls\.pbtxt: client_verify changed, which takes a restart"),
    ],
)
def test_a_broken_file_is_logged_once_and_the_certificate_stays(
    serve: Serve, caplog: pytest.LogCaptureFixture, text: str, message: str
) -> None:
    server = serve(text_of(FIRST))
    server.replace(text)
    assert [server.certificate() for _ in range(3)] == [FIRST[1]] * 3
    (record,) = (record for record in caplog.records if record.name == "tfs_lite.server.runtime.tls")
    assert record.levelno == logging.WARNING
    assert re.search(message, record.getMessage())
    assert record.getMessage().endswith("; the certificate in use stays (--ssl_config_file)")
    assert not any(word.encode() in FIRST[0] + SECOND[0] for word in record.getMessage().split() if len(word) > 20)
    server.replace(text_of(SECOND))
    assert server.certificate() == SECOND[1]


def test_a_file_that_was_only_touched_or_goes_away_leaves_the_certificate(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = serve(text_of(FIRST))
    os.utime(server.path, ns=(1, 1))
    assert server.certificate() == FIRST[1]
    assert "certificate" not in caplog.text
    server.path.unlink()
    assert server.certificate() == FIRST[1]
    os.mkfifo(server.path)
    assert server.certificate() == FIRST[1]
    server.path.unlink()
    server.path.mkdir()
    assert server.certificate() == FIRST[1]
    messages = [record.getMessage() for record in caplog.records if record.name == "tfs_lite.server.runtime.tls"]
    assert [message.partition(": ")[2].partition(";")[0] for message in messages] == [
        "there is no such file",
        "is no regular file any more",
        "is no regular file any more",
    ]


def test_a_file_that_a_link_leads_to_is_followed(each_server: str, tmp_path: Path, loop_thread: Any) -> None:
    for name, pair in (("one", FIRST), ("two", SECOND)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tls.pbtxt").write_text(text_of(pair))
    (tmp_path / "now").symlink_to("one")
    with TlsFixture(each_server, tmp_path / "now" / "tls.pbtxt", loop_thread) as server:
        assert server.certificate() == FIRST[1]
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(tmp_path / "now")
        assert server.certificate() == SECOND[1]


def test_a_pipe_is_read_once(each_server: str, tmp_path: Path, loop_thread: Any) -> None:
    reading, writing = os.pipe()
    os.write(writing, text_of(FIRST).encode())
    os.close(writing)
    with TlsFixture(each_server, Path(f"/dev/fd/{reading}"), loop_thread) as server:
        os.close(reading)
        assert [server.certificate(), server.certificate()] == [FIRST[1]] * 2


def test_credentials_live_as_long_as_the_server(serve: Serve) -> None:
    server = serve(text_of(FIRST))
    del server.tls
    gc.collect()
    server.replace(text_of(SECOND))
    assert server.certificate() == SECOND[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tls.pbtxt:1:1: server_key: is required"),
        ("server_kye: ''", 'tls.pbtxt:1:1: unknown field "server_kye"; did you mean'),
        (text_of((FIRST[1], FIRST[1])), "tls.pbtxt:1:1: server_key: holds no private key"),
        (text_of((FIRST[0], b"x")), "tls.pbtxt:2:1: server_cert: holds no certificate"),
        (text_of(FIRST, b"x"), "tls.pbtxt:3:1: custom_ca: holds no certificate"),
        (text_of(FIRST, verify=True), "tls.pbtxt:3:1: client_verify: needs custom_ca"),
    ],
)
def test_a_file_that_cannot_be_used_at_the_start_is_an_error_that_names_it(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refusal(file_of, tmp_path, text).startswith(message)


def test_a_missing_file_is_not_found_at_the_start(tmp_path: Path) -> None:
    message = refusal(TlsFile, "tls.pbtxt", tmp_path, code=StatusCode.NOT_FOUND)
    assert message.startswith("tls.pbtxt: there is no such file")


@pytest.mark.parametrize(
    ("years", "words"),
    [
        ((2020, 2021), "has expired: it was valid until 2021-01-01T00:00:00.000Z"),
        ((2126, 2127), "is valid only from 2126-01-01T00:00:00.000Z"),
    ],
    ids=["expired", "not yet valid"],
)
def test_certificate_that_clients_will_refuse_is_taken_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, years: tuple[int, int], words: str
) -> None:
    first = issued(not_after=datetime(2200, 1, 1))
    file = file_of(tmp_path, text_of(first))
    assert not caplog.records, "nothing is wrong with a good one"
    begins, ends = (datetime(year, 1, 1) for year in years)
    (tmp_path / "new").write_text(text_of(issued(not_before=begins, not_after=ends)))
    (tmp_path / "new").rename(tmp_path / "tls.pbtxt")
    assert [file.newest().revision for _ in range(3)] == [1, 1, 1]
    (record,) = caplog.records
    assert (record.levelno, words in record.getMessage()) == (logging.WARNING, True), record.getMessage()


def test_an_authority_without_client_verify_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file_of(tmp_path)
    assert not caplog.records
    file_of(tmp_path, text_of(FIRST, ROOT))
    assert "tls.pbtxt: custom_ca has no effect without client_verify (--ssl_config_file)" in caplog.text


def test_a_certificate_that_only_grpc_refuses_is_one_clear_line(loop_thread: Any) -> None:
    def broken() -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(b"x", b"y")])

    async def start(port: int | None, path: str) -> None:
        await GrpcServer([], 1000, credentials=broken).start("127.0.0.1", port, path)

    with pytest.raises(ServingError, match=r"port 0 .*\(--port\), or the key or certificate") as raised:
        loop_thread.run(start(0, ""))
    assert raised.value.code is StatusCode.FAILED_PRECONDITION


def test_a_port_in_use_is_still_named_with_tls(serve: Serve, each_server: str, loop_thread: Any) -> None:
    server = serve(text_of(FIRST))
    with pytest.raises(ServingError, match=f"port {server.port} of 127.0.0.1 is already in use"):
        GrpcFixture(loop_thread, each_server, [], port=server.port, tls=server.tls)


# Contexts of our own transport.


def shake(context: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """A handshake in memory; the server's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    asker = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    waiting = [asker, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return server


def trusting(**settings: Any) -> ssl.SSLContext:
    client = ssl.create_default_context(cadata=ROOT.decode())
    client.set_alpn_protocols(["h2"])
    for name, value in settings.items():
        setattr(client, name, value)
    return client


def test_a_context_speaks_http2_over_tls_of_today_only(tmp_path: Path) -> None:
    context = file_of(tmp_path).context(GRPC)
    assert shake(context, trusting()).selected_alpn_protocol() == "h2"
    old = shake(context, trusting(maximum_version=ssl.TLSVersion.TLSv1_2))
    cipher = old.cipher()
    assert cipher is not None
    assert cipher[0].startswith("ECDHE-")
    assert old.version() == "TLSv1.2"
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    without_secrecy = trusting(maximum_version=ssl.TLSVersion.TLSv1_2)
    without_secrecy.set_ciphers("AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError):
        shake(context, without_secrecy)


def test_a_certificate_that_only_tls_itself_refuses_is_one_clear_line(
    loop_thread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "CIPHERS", "ALL:@SECLEVEL=5")  # keys as strong as these are too weak then
    code = StatusCode.FAILED_PRECONDITION
    assert refusal(GrpcFixture, loop_thread, "native", [], tls=file_of(tmp_path), code=code) == (
        "tls.pbtxt: TLS refuses the key or the certificate: EE_KEY_TOO_SMALL (--ssl_config_file)"
    )


def test_a_context_is_made_once_for_each_content_of_the_file_and_stays_when_tls_itself_refuses_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(tmp_path)
    first = file.context(GRPC)
    assert file.context(GRPC) is first
    (tmp_path / "tls.pbtxt").write_text(text_of(SECOND))
    with monkeypatch.context() as patch:
        patch.setattr(tls_module, "CIPHERS", "ALL:@SECLEVEL=5")
        assert [file.context(GRPC) for _ in range(3)] == [first] * 3
    assert caplog.text.count("TLS refuses the key or the certificate") == 1
    (tmp_path / "tls.pbtxt").write_text(text_of(issued()))
    second = file.context(GRPC)
    assert second is not first
    assert file.context(GRPC) is second


def test_the_key_is_in_no_file_that_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(tmp_path)
    paths: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def note(self: ssl.SSLContext, certificates: str, key: str, **rest: Any) -> None:
        paths.extend(os.readlink(path) for path in (certificates, key))
        load(self, certificates, key, **rest)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", note)
    file.context(GRPC)
    assert len(paths) == 2
    assert not any(Path(path).exists() for path in paths)
