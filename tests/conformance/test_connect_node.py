"""@connectrpc/connect-node with its gRPC transport: node's own HTTP/2, of another house than grpc-js."""

from __future__ import annotations

from functools import partial

import pytest

from tests.conformance.transport_tools import EVERY_KIND, sums_of

pytest_plugins = ("tests.conformance.transport_fixtures",)

SERVING = 1
LARGE_BYTES = 6_000_000


@pytest.fixture
def js(node, triton_server):
    """Runs a scenario of ``node/connect.cjs``."""
    return partial(node.run, "connect.cjs", address=f"http://{triton_server.target}")


def test_predict(js):
    assert js("predict") == sums_of()


def test_errors_have_code_and_words(js):
    found = js("errors", name=EVERY_KIND)
    assert found["unknown"]["code"] == "NotFound"
    for word in ("nö 100% моделей", "模型 🙂", "+%41 <&>;=,"):
        assert word in found["unknown"]["message"]
    assert found["nameless"]["code"] == "InvalidArgument"
    assert found["after"] == sums_of(), "the connection goes on"


def test_metadata_of_every_kind_is_taken_and_reaches_the_method(js):
    expected = {"answer": sums_of(), "seen": {"type": "application/grpc"}, "ended": "NotFound"}
    assert js("metadata") == expected


def test_a_deadline_ends_a_call_that_waits(js, held, queued):
    assert js("deadline") == "DeadlineExceeded"
    queued(0)


def test_a_cancelled_call_leaves_the_queue(js, held, queued):
    assert js("cancel", when=lambda: queued(1)) == {"code": "Canceled", "after": sums_of()}
    queued(0)


def test_watch_tells_the_state_at_once_and_may_be_cancelled(js):
    assert js("watch") == {"status": SERVING, "code": "Canceled", "after": SERVING}


def test_stream_answers_while_the_client_still_speaks(js):
    assert js("stream") == [value for index in range(20) for value in (index, -index)]


@pytest.mark.parametrize("gzip", [False, True], ids=["identity", "gzip"])
def test_large_messages_both_ways(js, gzip):
    assert js("large", gzip=gzip) == [[LARGE_BYTES, True], [8, True]]


def test_parallel_calls_share_a_connection(js):
    assert js("parallel", calls=64) == [sums_of((float(index), 0.0, 1.0, 2.0)) for index in range(64)]


def test_tls(node, tls_server, certificates):
    address = f"https://localhost:{tls_server.grpc_port}"
    assert node.run("connect.cjs", "predict", address=address, root=str(certificates.root_file)) == sums_of()
