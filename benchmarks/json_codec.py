"""What JSON costs: the codec of REST's predictions alone, against orjson alone.

    python benchmarks/json_codec.py [--rounds 7] [--json]

Text of 1, 1,000 and 150,528 floats (one picture), in row and in column form. Decode: bytes -> array of the signature's
dtype; encode: array -> bytes. Ours and orjson alone on the same data (``orjson.loads`` without making an array of it;
``orjson.dumps`` of the array) take turns within each round; figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.rest.predict import predict_tree, read_predict_body, tensors_of

SIZES = (1, 1_000, 150_528)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = codec_figures(arguments.rounds)
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for row in figures:
        print(
            "{floats:>7} floats  {form:<6}  {direction}  {us:>9} us  orjson {orjson_us:>9} us  x{ratio}".format(**row)
        )


if __name__ == "__main__":
    main()
