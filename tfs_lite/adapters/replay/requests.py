"""Recorded requests, run again as a server runs a live request, but without a client.

    logged request or :predict body  ->  Replay (signature found, inputs decoded, checked)  ->  the model  ->  answers

The same code checks them as live requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from tfs_lite.core.generation import GenerationCall
from tfs_lite.core.model import PredictCall, Servable
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.rest.predict import find_rest_signature, read_predict_body, tensors_of
from tfs_lite.protocols.runs import Run, call_inputs, run_of_predict
from tfs_lite.protocols.tensorflow.classify_regress import (
    CLASSIFY,
    REGRESS,
    MultiInferenceTask,
    arrays_of,
    find_inference_signature,
    first_model_spec,
    read_tasks,
)
from tfs_lite.protocols.tensorflow.examples import example_count, tensors_of_input
from tfs_lite.protocols.tensorflow.prediction_log import LoggedMethod, LoggedRequest

Signatures = Mapping[str, Signature]
Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Replay:
    """A request that can be run any number of times: its inputs are checked and complete. ``answer`` makes the answer
    of the method from the outputs of the runs, and raises ServingError if they are not what the method promises."""

    runs: tuple[Run, ...]
    answer: Callable[[Sequence[Outputs]], Outputs]

    def once(self, servable: Servable, seconds: float) -> Outputs:
        """Runs the request and waits at most ``seconds`` for each run (DEADLINE_EXCEEDED). Returns the answer as
        :func:`~tfs_lite.protocols.tensorflow.prediction_log.recorded_answer` does. Raises what a client would get. Must
        not be called on the servable's own thread."""
        return self.answer([_outputs(servable, run, seconds) for run in self.runs])


def replay_of_log(signatures: Signatures, request: LoggedRequest, check_method_names: bool = False) -> Replay:
    """The replay of a logged request, whatever its model and version. Errors as those of a live request."""
    message = request.message
    if request.method is LoggedMethod.PREDICT:
        return Replay((_checked(signatures, run_of_predict(signatures, message, check_method_names)),), _of_predict)
    if request.method is LoggedMethod.MULTI_INFERENCE:
        first_model_spec(message)
        return _infer(signatures, read_tasks(message, signatures, check_method_names), message.input)
    kind = CLASSIFY if request.method is LoggedMethod.CLASSIFY else REGRESS
    key = message.model_spec.signature_name or DEFAULT_SIGNATURE
    signature = find_inference_signature(signatures, key)
    return _infer(
        signatures, [MultiInferenceTask(key, kind, signature, kind.check(signature, check_method_names))], message.input
    )


def replay_of_body(signatures: Signatures, text: str) -> Replay:
    """The replay of the JSON text of a ``:predict`` body. Errors as those of REST."""
    body = read_predict_body(json_text.loads(text.encode()))
    signature = find_rest_signature(signatures, body.signature_name)
    run = Run(body.signature_name or DEFAULT_SIGNATURE, tensors_of(body, signature))
    return Replay((_checked(signatures, run),), _of_predict)


def _infer(signatures: Signatures, tasks: Sequence[MultiInferenceTask], input: Message) -> Replay:
    """Replays Classify, Regress, or several of them on one input."""
    count = example_count(input)

    def answer(answers: Sequence[Outputs]) -> Outputs:
        results = [task.kind.result(outputs, count) for task, outputs in zip(tasks, answers, strict=True)]
        named = zip(tasks, results, strict=True)
        return (
            arrays_of(results[0])
            if len(tasks) == 1
            else {f"{task.key}.{name}": array for task, result in named for name, array in arrays_of(result).items()}
        )

    runs = (Run(task.key, tensors_of_input(input, task.signature), task.outputs) for task in tasks)
    return Replay(tuple(_checked(signatures, run) for run in runs), answer)


def _of_predict(answers: Sequence[Outputs]) -> Outputs:
    """Predict promises nothing about its outputs that the model has not checked itself."""
    return answers[0]


def _checked(signatures: Signatures, run: Run) -> Run:
    return replace(run, inputs=call_inputs(signatures[run.signature], run))


def _outputs(servable: Servable, run: Run, seconds: float) -> Outputs:
    answered = threading.Event()
    answers: list[Mapping[str, Tensor] | Status] = []

    def done(answer: Mapping[str, Tensor] | Status) -> None:
        answers.append(answer)
        answered.set()

    kind = GenerationCall if servable.traits.generates else PredictCall
    call = kind(run.signature, run.inputs, run.outputs, time.monotonic() + seconds, done)
    servable.submit(call)
    if not answered.wait(seconds):
        servable.cancel(call)
        raise ServingError(StatusCode.DEADLINE_EXCEEDED, f"the model did not answer within {seconds:g} s")
    (answer,) = answers
    if isinstance(answer, Status):
        raise ServingError(answer.code, answer.message)
    return cast(Outputs, answer)
