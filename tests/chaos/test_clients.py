"""Clients that die, leave, flood or send rubbish: they harm nobody else, and nothing of them stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.support.servers.models import gated_source
from tests.support.servers.probe import ROW, expect_true
from tests.support.servers.process import wait_until
from tfs_lite.client import Client
from tfs_lite.core.status import ServingError, StatusCode

pytestmark = pytest.mark.wire

CONNECTIONS = 200
SPARE_DESCRIPTORS = 20
"""How many open files the server may have more after all clients are gone: event loops and pools grow a little."""

LONELY_CLIENT = """
import sys
import numpy as np
from tfs_lite import Client
Client(sys.argv[1]).predict(sys.argv[2], {"x": np.ones((1, 3), np.float32)})
"""


def open_files(served) -> int:
    return psutil.Process(served.server.pid).num_fds()


def test_client_killed_inside_a_request_leaves_no_handle_behind(served, tmp_path):
    model = "code_killed_client"
    served.publish_code(model, 1, gated_source(1, tmp_path))
    served.probe.wait_available(model, 1)
    client = subprocess.Popen([sys.executable, "-c", LONELY_CLIENT, served.server.target, model])
    wait_until(lambda: (tmp_path / "entered-1").exists(), "the request is inside the model")
    client.send_signal(signal.SIGKILL)
    client.wait()
    (tmp_path / "open").touch()
    served.publish(model, 2)
    served.probe.wait_states(model, {2: "AVAILABLE", 1: "END"})
    assert served.probe.ask(model) == 2


def test_deadline_inside_the_model_is_told_and_frees_the_caller(served, tmp_path):
    model = "code_deadline"
    served.publish_code(model, 1, gated_source(1, tmp_path))
    served.probe.wait_available(model, 1)
    with pytest.raises(ServingError) as caught:
        served.probe.client.predict(model, {"x": ROW}, timeout=0.5)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    (tmp_path / "open").touch()
    assert served.probe.ask(model) == 1


def test_clients_that_all_give_up_while_queued_leave_the_queue_usable(served, tmp_path):
    model = "code_give_up"
    served.publish_code(model, 1, gated_source(1, tmp_path))
    served.probe.wait_available(model, 1)
    with Client(served.server.target) as hurried, ThreadPoolExecutor(20) as pool:

        def give_up() -> StatusCode | None:
            try:
                hurried.predict(model, {"x": ROW}, timeout=0.3)
            except ServingError as error:
                return error.code
            return None

        codes = {future.result() for future in [pool.submit(give_up) for _ in range(20)]}
    assert codes == {StatusCode.DEADLINE_EXCEEDED}
    (tmp_path / "open").touch()
    assert served.probe.ask(model) == 1


def test_many_clients_that_come_and_go_leave_no_open_files(served):
    def visit(number: int) -> int:
        with Client(served.server.target) as client:
            return expect_true(client.predict("steady", {"x": ROW + number}), ROW + number)

    visit(0)
    served.server.get("/v1/models")
    before = open_files(served)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(visit, range(CONNECTIONS))) == {1}
        statuses = pool.map(lambda _: served.server.get("/v1/models/steady")[0], range(CONNECTIONS))
        assert set(statuses) == {200}
    wait_until(lambda: open_files(served) <= before + SPARE_DESCRIPTORS, f"open files are back near {before}")


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RUBBISH = {
    "nothing": b"",
    "noise": os.urandom(4096),
    "http1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "preface_then_noise": HTTP2_PREFACE + os.urandom(2048),
    "oversized_frame": HTTP2_PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + b"\x00" * 100,
    "headers_without_settings": HTTP2_PREFACE + b"\x00\x00\x04\x01\x05\x00\x00\x00\x01\x82\x84\x86\x41",
    "endless_header": b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 500_000,
    "bad_content_length": b"POST /v1/models/steady:predict HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "unfinished_body": b"POST /v1/models/steady:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n{",
    "tls_hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(200),
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
@pytest.mark.parametrize("port", ["grpc_port", "http_port"])
def test_rubbish_on_a_connection_disturbs_nobody(served, port, rubbish):
    with socket.create_connection(("127.0.0.1", getattr(served.server, port)), timeout=10) as connection:
        try:
            connection.sendall(rubbish)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except OSError:
            pass  # the server may close or reset such a connection at any time
    assert served.probe.ask("steady") == 1
    assert served.server.get("/livez")[0] == 200


def test_connections_that_never_say_anything_disturb_nobody(served):
    before = open_files(served)
    silent = [
        socket.create_connection(("127.0.0.1", port), timeout=10)
        for port in (served.server.grpc_port, served.server.http_port)
        for _ in range(100)
    ]
    try:
        assert served.probe.ask("steady") == 1
        assert served.server.get("/readyz")[0] == 200
    finally:
        for connection in silent:
            connection.close()
    wait_until(lambda: open_files(served) <= before + SPARE_DESCRIPTORS, f"open files are back near {before}")
