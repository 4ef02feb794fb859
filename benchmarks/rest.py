"""What JSON costs: the codec alone against orjson alone, and a small prediction over REST against the same over gRPC.

    python benchmarks/rest.py [--rounds 7] [--seconds 3] [--clients 64] [--json]

- codec: text of 1, 1,000 and 150,528 floats (one picture), in row and in column form. Decode: bytes -> array of the
  signature's dtype; encode: array -> bytes. Ours and orjson alone on the same data (``orjson.loads`` without making an
  array of it; ``orjson.dumps`` of the array) take turns within each round; figures are medians over rounds.
- predictions: one server process, 256 floats a request (1 KB of tensor), closed loop of N callers in this process, REST
  and gRPC in turn. REST callers write ready bytes to a socket, gRPC callers are grpc.aio's and cost several times that,
  so rates say how client and server together fare on shared cores; the server's own CPU time a request is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import orjson
import psutil

from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.messages import PredictRequest
from tfs_lite.protocols.rest.predict import predict_tree, read_predict_body, tensors_of
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.testing.servers.process import ServerProcess

SIZES = (1, 1_000, 150_528)
PREDICT = "/tensorflow.serving.PredictionService/Predict"
WIDTH = 256
LEAST_SECONDS = 0.02
"""Each measurement repeats its work for at least so long."""


def seconds(work: Callable[[], object]) -> float:
    """Of one call."""
    calls, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < LEAST_SECONDS:
        work()
        calls += 1
    return passed / calls


def in_turn(ours: Callable[[], object], alone: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """(seconds of ours, seconds of orjson alone, their ratio): medians over rounds in which both take their turn."""
    pairs = [(seconds(ours), seconds(alone)) for _ in range(rounds)]
    ratio = statistics.median(a / b for a, b in pairs)
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), ratio


def codec_figures(rounds: int) -> list[dict[str, Any]]:
    figures = []
    for size in SIZES:
        signature = Signature(
            (TensorSpec("x", DataType.FLOAT, (SymbolicDim("batch"), size)),),
            (TensorSpec("y", DataType.FLOAT, (SymbolicDim("batch"), size)),),
        )
        array = np.random.default_rng(0).standard_normal((1, size)).astype(np.float32)
        for form, key in (("row", "instances"), ("column", "inputs")):
            body = orjson.dumps({key: array}, option=orjson.OPT_SERIALIZE_NUMPY)

            def decode(body: bytes = body, signature: Signature = signature) -> object:
                return tensors_of(read_predict_body(json_text.loads(body)), signature)

            def encode_answer(array: Any = array, rows: bool = form == "row") -> bytes:
                return json_text.dumps(predict_tree({"y": array}, rows))

            def loads_alone(body: bytes = body) -> object:
                return orjson.loads(body)

            def dumps_alone(array: Any = array) -> bytes:
                return orjson.dumps({"predictions": array}, option=orjson.OPT_SERIALIZE_NUMPY)

            decoded = in_turn(decode, loads_alone, rounds)
            encoded = in_turn(encode_answer, dumps_alone, rounds)
            for direction, (ours, alone, ratio) in (("decode", decoded), ("encode", encoded)):
                figures.append(
                    {
                        "floats": size,
                        "form": form,
                        "direction": direction,
                        "us": round(ours * 1e6, 1),
                        "orjson_us": round(alone * 1e6, 1),
                        "ratio": round(ratio, 2),
                    }
                )
    return figures


Ask = Callable[[], Awaitable[None]]
Figures = tuple[float, float, float, float]


async def closed_loop(callers: Sequence[Ask], duration: float, server: psutil.Process) -> Figures:
    """(requests a second, p50 ms, p99 ms, the server's CPU us a request) of callers that each ask again as soon as they
    are answered."""
    times: list[float] = []
    ends = time.perf_counter() + duration

    async def caller(ask: Ask) -> None:
        while time.perf_counter() < ends:
            started = time.perf_counter()
            await ask()
            times.append(time.perf_counter() - started)

    started, before = time.perf_counter(), sum(server.cpu_times()[:2])
    await asyncio.gather(*map(caller, callers))
    passed, spent = time.perf_counter() - started, sum(server.cpu_times()[:2]) - before
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return len(times) / passed, float(p50), float(p99), spent / len(times) * 1e6


async def http_caller(port: int, path: str, body: bytes) -> Ask:
    """A caller on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def ask() -> None:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(head.decode())
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))

    return ask


async def prediction_figures(server: ServerProcess, clients: int, duration: float, rounds: int) -> dict[str, Any]:
    row = np.random.default_rng(0).standard_normal((1, WIDTH)).astype(np.float32)
    message = PredictRequest(model_spec={"name": "m"})
    message.inputs["input"].CopyFrom(encode(row, as_content=True))
    proto, text = message.SerializeToString(), orjson.dumps({"inputs": row.tolist()})
    path = "/v1/models/m:predict"
    watched = psutil.Process(server.pid)
    async with grpc.aio.insecure_channel(server.target) as channel:
        predict = channel.unary_unary(PREDICT)

        async def over_grpc() -> None:
            await predict(proto, timeout=60)

        over_rest = [await http_caller(server.http_port, path, text) for _ in range(clients)]
        asks: dict[str, Sequence[Ask]] = {"grpc": [over_grpc] * clients, "rest": over_rest}
        for callers in asks.values():
            await closed_loop(callers, 0.5, watched)
        found: dict[str, list[Figures]] = {name: [] for name in asks}
        for _ in range(rounds):
            for name, callers in asks.items():
                found[name].append(await closed_loop(callers, duration, watched))
    figures: dict[str, Any] = {"clients": clients}
    for name, runs in found.items():
        rate, p50, p99, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
        figures[name] = {
            "requests_a_second": round(rate),
            "p50_ms": round(p50, 1),
            "p99_ms": round(p99, 1),
            "server_cpu_us": round(cpu),
        }
    pairs = list(zip(found["grpc"], found["rest"], strict=True))
    figures["rest_to_grpc_rate"] = round(statistics.median(rest[0] / over[0] for over, rest in pairs), 2)
    figures["rest_to_grpc_server_cpu"] = round(statistics.median(rest[3] / over[3] for over, rest in pairs), 2)
    return figures


def with_server(clients: int, duration: float, rounds: int) -> dict[str, Any]:
    import torch

    import tfs_lite

    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory) / "m"
        module = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
        tfs_lite.save(module, base, example_inputs=(torch.zeros(2, WIDTH),), version=1)
        with ServerProcess("--model_name=m", f"--model_base_path={base}") as server:
            server.wait_ready()
            return asyncio.run(prediction_figures(server, clients, duration, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = {
        "codec": codec_figures(arguments.rounds),
        "predictions": with_server(arguments.clients, arguments.seconds, arguments.rounds),
    }
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for row in figures["codec"]:
        print(
            "{floats:>7} floats  {form:<6}  {direction}  {us:>9} us  orjson {orjson_us:>9} us  x{ratio}".format(**row)
        )
    print(json.dumps(figures["predictions"], indent=2))


if __name__ == "__main__":
    main()
