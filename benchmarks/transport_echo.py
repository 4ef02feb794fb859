"""Echo servers that show what a gRPC transport costs with nothing behind it.

    python benchmarks/transport_echo.py grpcio|native PORT [asyncio|uvloop]

``/bench.Echo/Same`` (and every other unary path the benchmarks ask) answers a message with itself. ``/bench.Echo/Many``
answers one request, two big-endian numbers of four bytes (count, size), with so many messages of so many bytes, each of
which begins with its number.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

from limits import BIGGEST

UNARY = (
    "/bench.Echo/Same",
    "/tensorflow.serving.PredictionService/Predict",
    "/inference.GRPCInferenceService/ModelInfer",
)
MANY = "/bench.Echo/Many"
NUMBER = struct.Struct(">I")
ASKED = struct.Struct(">II")
LARGEST = 128 << 20


async def same(request: bytes, context: Any) -> bytes:
    return request


async def many(request: bytes, context: Any) -> AsyncIterator[bytes]:
    count, size = ASKED.unpack(request)
    filler = bytes(min(size, BIGGEST) - NUMBER.size)
    for number in range(count):
        yield NUMBER.pack(number) + filler


async def serve_grpcio(port: int) -> None:
    import grpc

    class EveryMethod(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            if details.method == MANY:
                return grpc.unary_stream_rpc_method_handler(many)
            return grpc.unary_unary_rpc_method_handler(same)

    options = [("grpc.max_receive_message_length", LARGEST), ("grpc.max_send_message_length", LARGEST)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((EveryMethod(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def serve_native(port: int) -> None:
    from tfs_lite.core.callbacks import ignore
    from tfs_lite.transport.limits import Limits
    from tfs_lite.transport.server import Hooks, TransportServer
    from tfs_lite.transport.table import server_stream, unary

    def enter(path: str) -> bool:
        return True

    def leave() -> None:
        pass

    def explain(path: str, error: Exception) -> tuple[int, str]:
        print(path, repr(error), file=sys.stderr)
        return 13, "internal error"

    rows = [*(unary(path, same) for path in UNARY), server_stream(MANY, many)]
    server = TransportServer(rows, Limits(max_receive_message=LARGEST), Hooks(enter, leave, explain, ignore))
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    listener.setblocking(False)
    await server.start([listener])
    await asyncio.Event().wait()


SERVERS = {"grpcio": serve_grpcio, "native": serve_native}


def main() -> None:
    match sys.argv[1:]:
        case [kind, port, *loop] if kind in SERVERS and loop in ([], ["asyncio"], ["uvloop"]):
            factory = None
            if loop == ["uvloop"]:
                import uvloop

                factory = uvloop.new_event_loop
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(SERVERS[kind](int(port)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
