"""Callers of one server, as a program of its own: they count answers and errors for each model.

    python -m tests.support.guard.callers rest 127.0.0.1:8501 '{"raises": 20, "hangs": 2}' --callers 50 --rate 200

The models come with the deadlines of their requests, in seconds. Every caller goes through all of them again and again.
For each line on standard input one line of JSON goes to standard output: what each model's callers have got so far. The
end of standard input ends the program. ``tensorflow`` is upstream's own client, ``triton`` Triton's, over gRPC.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support.guard.pushes import WEIGHTS

Answer = tuple[int, list[float], int | None]
"""The version, the scores, and the best class, None where the answer lacks it."""
Ask = Callable[[str, list[float], float], Answer]
"""Model, row and deadline in seconds to the answer; raises what the client raises."""
KEPT_ERRORS = 5
UNKNOWN = 0
"""The version of an answer that names none."""


def expected(row: list[float]) -> list[float]:
    """What every version without a fault answers."""
    powers = [math.exp(sum(x * w[k] for x, w in zip(row, WEIGHTS, strict=True))) for k in range(3)]
    return [power / sum(powers) for power in powers]


def of_rest(address: str) -> Ask:
    """Over REST, whose answers do not name their version. The server's own limit of the time comes first: it does not
    hear of the client's."""

    def ask(model: str, row: list[float], deadline: float) -> Answer:
        connection = http.client.HTTPConnection(address, timeout=deadline + 1.0)
        try:
            connection.request("POST", f"/v1/models/{model}:predict", json.dumps({"instances": [row]}))
            reply = connection.getresponse()
            body = json.loads(reply.read())
        finally:
            connection.close()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {body}")
        (found,) = body["predictions"]
        return (UNKNOWN, found["scores"], found["best"]) if isinstance(found, dict) else (UNKNOWN, found, None)

    return ask


def of_grpc(address: str) -> Ask:
    """With the client of this project, over the stock gRPC API."""
    import numpy as np

    from tfs_lite import Client

    client = Client(address)

    def ask(model: str, row: list[float], deadline: float) -> Answer:
        answer = client.predict(model, {"x": np.array([row], np.float32)}, timeout=deadline)
        return _of_arrays(answer.version, answer.outputs["scores"], answer.outputs.get("best"))

    return ask


def of_tensorflow(address: str) -> Ask:
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    tf.make_ndarray(tf.make_tensor_proto([1.0]))  # imports what it needs at its first call
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(address))

    def ask(model: str, row: list[float], deadline: float) -> Answer:
        request = predict_pb2.PredictRequest(model_spec={"name": model})
        request.inputs["x"].CopyFrom(tf.make_tensor_proto([row], dtype=tf.float32))
        answer = stub.Predict(request, timeout=deadline)
        arrays = {name: tf.make_ndarray(answer.outputs[name]) for name in answer.outputs}
        return _of_arrays(answer.model_spec.version.value, arrays["scores"], arrays.get("best"))

    return ask


def of_triton(address: str) -> Ask:
    import numpy as np
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(address)

    def ask(model: str, row: list[float], deadline: float) -> Answer:
        sent = triton.InferInput("x", [1, 4], "FP32")
        sent.set_data_from_numpy(np.array([row], np.float32))
        answer = client.infer(model, [sent], client_timeout=deadline)
        version = int(answer.get_response().model_version)
        return _of_arrays(version, answer.as_numpy("scores"), answer.as_numpy("best"))

    return ask


def _of_arrays(version: int, scores: Any, best: Any) -> Answer:
    return version, scores[0].tolist(), None if best is None else int(best[0])


WAYS = {"rest": of_rest, "grpc": of_grpc, "tensorflow": of_tensorflow, "triton": of_triton}


class Counts:
    """What the callers of one model have got. Any thread may note."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the rest
        self._versions = Counter[int]()
        self._nonfinite = self._wrong = self._errors = 0
        self._first: list[str] = []

    def note(self, answer: Answer, wanted: list[float]) -> None:
        version, scores, best = answer
        finite = all(isinstance(score, float) and math.isfinite(score) for score in scores)
        true = finite and len(scores) == 3 and all(abs(a - b) < 1e-4 for a, b in zip(scores, wanted, strict=True))
        true = true and best is not None and wanted[best] > max(wanted) - 1e-4
        with self._lock:
            self._versions[version] += 1
            self._nonfinite += not finite
            self._wrong += finite and not true

    def note_error(self, error: Exception) -> None:
        with self._lock:
            self._errors += 1
            if len(self._first) < KEPT_ERRORS:
                self._first.append(f"{type(error).__name__}: {error}"[:500])

    def told(self) -> dict[str, Any]:
        with self._lock:
            return {
                "versions": dict(self._versions),
                "nonfinite": self._nonfinite,
                "wrong": self._wrong,
                "errors": self._errors,
                "first_errors": list(self._first),
            }


def call_on(ask: Ask, models: list[tuple[str, float]], counts: dict[str, Counts], seconds: float) -> None:
    """Begins a request every so many seconds, if the one before has ended by then."""
    turn = time.monotonic() + random.uniform(0, seconds)
    while True:
        for model, deadline in models:
            time.sleep(max(0.0, turn - time.monotonic()))
            turn = max(turn + seconds, time.monotonic())
            row = [random.random() for _ in range(4)]
            try:
                answer = ask(model, row, deadline)
            except Exception as error:
                counts[model].note_error(error)
            else:
                counts[model].note(answer, expected(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("address")
    parser.add_argument("models", type=json.loads)
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second of all callers together")
    arguments = parser.parse_args()
    counts = {model: Counts() for model in arguments.models}
    models = list(arguments.models.items())
    ask = WAYS[arguments.way](arguments.address)
    for index in range(arguments.callers):
        turned = models[index % len(models) :] + models[: index % len(models)]
        given = (ask, turned, counts, arguments.callers / arguments.rate)
        threading.Thread(target=call_on, args=given, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps({model: counted.told() for model, counted in counts.items()}), flush=True)


if __name__ == "__main__":
    main()
