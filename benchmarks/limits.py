"""What the parts cost without a product around them: echo servers, and torch alone.

    python benchmarks/limits.py grpc-echo PORT           bare grpc.aio: answers a message with itself
    python benchmarks/limits.py asgi-echo PORT           uvicorn and an ASGI function: orjson.loads, orjson.dumps
    python benchmarks/limits.py torch VERSION_DIRECTORY ROWS SECONDS SHAPE
                                                         the model in a loop: prints seconds a run, its median

``torch`` runs the exported program as a server does (no gradients, one thread), on an input that stays the same. SHAPE
is that of one row: ``3,64,64``.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
BIGGEST = 16 << 20


async def echo_grpc(port: int) -> None:
    import grpc

    async def same(request: bytes, context: Any) -> bytes:
        return request

    class EveryMethod(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(same)

    options = [("grpc.max_receive_message_length", BIGGEST), ("grpc.max_send_message_length", BIGGEST)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((EveryMethod(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def echo_json(scope: Scope, receive: Receive, send: Send) -> None:
    import orjson

    pieces, more = [], True
    while more:
        event = await receive()
        pieces.append(event.get("body", b""))
        more = event.get("more_body", False)
    body = orjson.dumps(orjson.loads(b"".join(pieces)))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def echo_http(port: int) -> None:
    import uvicorn

    uvicorn.run(echo_json, port=port, lifespan="off", access_log=False, log_level="warning")


def torch_loop(directory: str, rows: int, seconds: float, shape: tuple[int, ...]) -> float:
    """Seconds of one run of an exported program."""
    import torch

    return loop(torch.export.load(f"{directory}/model.pt2").module(check_guards=False), rows, seconds, shape)


def loop(module: Any, rows: int, seconds: float, shape: tuple[int, ...]) -> float:
    """Seconds of one run, the median."""
    import torch

    torch.set_num_threads(1)
    batch, times = torch.randn(rows, *shape), list[float]()
    with torch.inference_mode():
        for _ in range(3):
            module(batch)
        ends = time.perf_counter() + seconds
        while (started := time.perf_counter()) < ends:
            module(batch)
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    match sys.argv[1:]:
        case ["grpc-echo", port]:
            asyncio.run(echo_grpc(int(port)))
        case ["asgi-echo", port]:
            echo_http(int(port))
        case ["torch", directory, rows, seconds, shape]:
            sizes = tuple(map(int, shape.split(",")))
            print(torch_loop(directory, int(rows), float(seconds), sizes))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
