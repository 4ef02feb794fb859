"""Sends requests to a running server, and records those that it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfs_lite.cli.output import CliError
from tfs_lite.cli.predict import read_inputs
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, find_signature
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.messages import Message, PredictRequest, PredictResponse
from tfs_lite.protocols.rest.predict import PredictBody, read_predict_body, tensors_of
from tfs_lite.protocols.tensorflow.prediction_log import MAX_LOG_BYTES, LoggedMethod, make_log
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import encode

if TYPE_CHECKING:
    from tfs_lite.client import Client

Tensors = Callable[[Signature], Mapping[str, Array]]
"""Makes the inputs of a request from its signature. Raises ServingError."""


@dataclass(frozen=True, slots=True)
class RequestSource:
    """The source of a request. ``read`` returns its signature's key, which may be empty, and its inputs; it is called
    when the request is sent, so that one request is in memory at a time."""

    name: str
    read: Callable[[], tuple[str, Tensors]]


@dataclass(frozen=True, slots=True)
class UnrecordedRequest:
    """A request that was not recorded. ``code`` is a canonical status name."""

    source: str
    code: str
    message: str


def find_sources(files: Sequence[str], inputs: Sequence[str]) -> list[RequestSource]:
    """A request for each file, and one for all ``name=VALUE`` texts together. OSError for a missing file, UsageError
    for an invalid text, CliError for a file that is too large."""
    for name in files:
        size = Path(name).stat().st_size
        if size > MAX_LOG_BYTES:
            raise CliError(f"{name} has {size} bytes, a record at most {MAX_LOG_BYTES}", "INVALID_ARGUMENT")
    found = [RequestSource(name, partial(_read_file, Path(name))) for name in files]
    if inputs:
        values = read_inputs(inputs)
        found.append(RequestSource("--input", lambda: ("", partial(_tensors, values))))
    return found


class LiveRecorder:
    """Sends requests to a model and makes logs of those that were answered; ``refused`` has the others. One thread."""

    def __init__(self, client: Client, model: str, signature: str) -> None:
        """``signature`` is for requests that name none; empty means the default one. Gets the signatures from the
        server, and raises its error."""
        self._client = client
        self._model = model
        self._signature = signature
        self._signatures = client.metadata(model).signatures
        self.refused: list[UnrecordedRequest] = []

    def logs(self, sources: Iterable[RequestSource]) -> Iterator[bytes]:
        """The records of answered requests, each as soon as it is answered."""
        for source in sources:
            try:
                log = self._log(*source.read())
            except ServingError as error:
                self.refused.append(UnrecordedRequest(source.name, error.code.name, str(error)))
            else:
                yield log

    def _log(self, key: str, tensors: Tensors) -> bytes:
        key = key or self._signature or DEFAULT_SIGNATURE
        arrays = tensors(find_signature(self._signatures, key))
        answer = self._client.predict(self._model, arrays, signature=key)
        asked, answered = ModelRef(self._model, signature=key), ModelRef(answer.model, answer.version, signature=key)
        request = PredictRequest(model_spec=model_spec(asked), inputs=_protos(arrays))
        response = PredictResponse(model_spec=model_spec(answered), outputs=_protos(answer.outputs))
        data: bytes = make_log(LoggedMethod.PREDICT, request, response).SerializeToString()
        if len(data) > MAX_LOG_BYTES:
            raise invalid_argument(f"request and answer have {len(data)} bytes, a record at most {MAX_LOG_BYTES}")
        return data


def _read_file(path: Path) -> tuple[str, Tensors]:
    body = read_predict_body(json_text.loads(path.read_bytes()))
    return body.signature_name, partial(tensors_of, body)


def _tensors(values: Mapping[str, Any], signature: Signature) -> Mapping[str, Array]:
    """Arrays unchanged, and JSON values with the element types of their inputs."""
    return {
        name: value if hasattr(value, "__array__") else _tensor(name, value, signature)
        for name, value in values.items()
    }


def _tensor(name: str, value: Any, signature: Signature) -> Array:
    specs = tuple(spec for spec in signature.inputs if spec.name == name)
    if not specs:
        raise invalid_argument(f"there is no input {name}; the signature has {', '.join(signature.input_names)}")
    return tensors_of(PredictBody("", rows=False, value={name: value}), Signature(specs, ()))[name]


def _protos(arrays: Mapping[str, Array]) -> dict[str, Message]:
    return {name: encode(array) for name, array in arrays.items()}
