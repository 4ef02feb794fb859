"""Clients for node: @grpc/grpc-js, with messages made by @grpc/proto-loader, and @connectrpc/connect-node.

The second one speaks gRPC with node's own HTTP/2.
"""

from functools import partial

import pytest

from tests.conformance.transport_tools import EVERY_KIND, sums_of

CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, UNIMPLEMENTED = 1, 3, 4, 5, 12
LARGE_BYTES = 6_000_000
COMPRESSED = [("grpc_js", {"algorithm": number}) for number in range(3)] + [
    ("connect", {"gzip": gzip}) for gzip in (False, True)
]


@pytest.fixture(params=["grpc_js", "connect"])
def client(request, node):
    """``client(scenario, target=)`` runs a scenario of the client's script."""
    return partial(node.run, f"{request.param}.cjs")


@pytest.fixture
def js(client, triton_server):
    return partial(client, target=triton_server.target)


def test_predict(js):
    assert js("predict") == sums_of()


def test_errors_have_code_and_words(js):
    found = js("errors", name=EVERY_KIND)
    assert found["unknown"]["code"] == NOT_FOUND
    for word in ("nö 100% моделей", "模型 🙂", "+%41 <&>;=,"):
        assert word in found["unknown"]["details"]
    assert found["nameless"]["code"] == INVALID_ARGUMENT
    assert found["nonsense"]["code"] == UNIMPLEMENTED
    assert found["after"] == sums_of(), "the connection goes on"


def test_metadata_of_every_kind_is_taken_and_reaches_the_method(js):
    """Triton's streams end at the first failure if the client's metadata asks for it."""
    expected = {"answers": [sums_of()] * 2, "type": "application/grpc", "stream": NOT_FOUND}
    assert js("metadata") == expected


def test_deadlines_end_calls_that_wait(js, held, queued):
    assert js("deadline") == [DEADLINE_EXCEEDED] * 2
    queued(0)


def test_a_cancelled_call_leaves_the_queue(js, held, queued):
    assert js("cancel", when=lambda: queued(1)) == {"code": CANCELLED, "after": sums_of()}
    queued(0)


def test_watch_sends_the_state_at_once_and_may_be_cancelled(js):
    assert js("watch") == {"status": "SERVING", "code": CANCELLED, "after": "SERVING"}


def test_stream_answers_while_the_client_still_sends(js):
    expected = [value for index in range(20) for value in (index, -index)] + [100, 101]
    assert js("stream") == {"code": 0, "values": expected}


@pytest.mark.parametrize(("client", "how"), COMPRESSED, indirect=["client"])
def test_large_and_compressed_messages_both_ways(js, how):
    assert js("large", **how) == [[0, "", LARGE_BYTES]] * 2 + [[0, "", 8]]
    assert js("same", **how) is True


def test_parallel_calls_share_a_connection(js):
    expected = [sums_of((float(index), 0.0, 1.0, 2.0)) for index in range(64)]
    assert js("parallel", calls=64) == expected


@pytest.mark.parametrize("client", ["grpc_js"], indirect=True)
def test_keepalive_pings_are_answered(js):
    assert js("keepalive") == {"code": CANCELLED, "after": "SERVING"}


def test_tls(client, tls_server, certificates):
    target = f"localhost:{tls_server.grpc_port}"
    assert client("predict", target=target, root=str(certificates.root_file)) == sums_of()
