"""A light client for TensorFlow Serving's gRPC API, of this server or any other.

It needs grpc, numpy and the protocols of this package, but neither torch nor the server.

    with Client("localhost:8500") as client:
        answer = client.predict("digits", {"x": images})
        answer.outputs["output_0"], answer.version
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import grpc
import numpy as np

from tfs_lite.core.servable import ModelRef, VersionStatus
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols import messages
from tfs_lite.protocols.bearer import HEADER, bearer
from tfs_lite.protocols.dtypes import Array, to_numpy
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow import serving
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode
from tfs_lite.protocols.trailers import APPLIED, decode_trailer
from tfs_lite.transport.pem import certificate_problem, key_problem
from tfs_lite.transport.remembered import Remembered

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

TimeLeft: TypeAlias = Callable[[], float]
"""Gives the seconds that a call still has; negative when they are over."""

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
_ADMIN = "/tfs_lite.AdminService/"
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"

_HEALTH = "/grpc.health.v1.Health/Check"

_UNREACHABLE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: servers may share a port between processes
)
_NAME_BEHIND_SOCKET = (("grpc.ssl_target_name_override", "localhost"),)
"""A certificate cannot be for a path."""
_LOOK_SECONDS = 0.1
"""Seconds between two looks at whether the first connection is there."""
_OTHER_PROTOCOL = re.compile("Failed parsing HTTP/2|Trying to connect an http1.x server")
"""gRPC's words, in newer and in older releases, for a peer whose first bytes are of another protocol; its state and its
code do not tell."""
_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.1, 2.0
"""The longest first wait between two attempts of a call, and the longest of all; each wait is at most twice the one
before."""
_MAX_CACHED_MODELS = 64


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer to :meth:`Client.predict`."""

    outputs: Mapping[str, Array]
    """numpy arrays by the name of the output."""
    model: str
    version: int
    """The version that computed the answer."""
    signature: str
    """The signature that the request used."""


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The signatures of one version."""

    model: str
    version: int
    signatures: Mapping[str, Signature]
    """The signatures by their names; ``serving_default`` is the one that a request without a name uses."""


class HasProto(Protocol):
    """Settings that can be converted to their message."""

    def to_proto(self) -> Message: ...


class Client:
    """A client of one server, over gRPC. Any thread may call; calls do not wait for one another.

        with tfs_lite.Client("localhost:8500", token="t-secret") as client:
            answer = client.predict("ranker", {"input": [[1.0, 2.0, 3.0, 4.0]]})
            print(answer.version, answer.outputs["output_0"])

    ``address`` is ``host:port`` or ``unix:path``. The first call makes the connection. It waits at most
    ``connect_timeout`` seconds for the server, and no longer than its own ``timeout``, and then raises UNAVAILABLE. It
    raises at once if the address speaks another protocol, and with ``wait_for_server=False`` if the connection is
    refused. Every call takes at most ``timeout`` seconds, this wait included (DEADLINE_EXCEEDED). All failures are
    :class:`ServingError` with the server's code and message.

    ``token`` is sent with every call, for servers with ``--access_file``; space around it, such as the line end of a
    file, is left out. What is no word of printable ASCII then raises INVALID_ARGUMENT. Without TLS anyone on the way
    can read it.
    With ``root_certificates`` (PEM) the connection uses TLS and accepts servers with a certificate from one of these
    authorities. ``client_certificate`` and its private key ``client_key`` (PEM) are for servers that require
    certificates of clients. Certificates and keys that cannot be used raise INVALID_ARGUMENT. With ``unix:`` the
    server's certificate must be for ``localhost``.

    ``retry`` is the number of further attempts for a call that fails with UNAVAILABLE. Between them are random waits of
    at most 0.1 s, 0.2 s, 0.4 s and so on up to 2 s. With a ``tenacity.Retrying`` in its place, the ``stop``, ``wait``
    and ``sleep`` of that one decide. All attempts of a call share its one ``timeout``: no wait begins that would last
    longer. Other codes are raised at once; ``reload``, ``rollback`` and the actions of ``guard`` are never repeated.
    The model may run a repeated request twice: use 0 where that has effects. The first connection is waited for once.
    """

    def __init__(
        self,
        address: str,
        root_certificates: bytes | None = None,
        client_key: bytes | None = None,
        client_certificate: bytes | None = None,
        *,
        token: str = "",
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
        wait_for_server: bool = True,
        retry: int | Retrying = 0,
    ) -> None:
        self._address = address
        self._closed = threading.Event()
        self._retrying = _retrying(retry, self._closed)
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._waits = wait_for_server
        self._connected = False
        if not isinstance(token, str):
            raise invalid_argument(f"token: expected text, got {type(token).__name__}")
        self._credentials = ((HEADER, bearer(token.strip())),) if token else None
        self._secure = _uses_tls(root_certificates, client_key, client_certificate)
        if self._secure:
            credentials = grpc.ssl_channel_credentials(root_certificates, client_key, client_certificate)
            options = (*_CHANNEL_OPTIONS, *(_NAME_BEHIND_SOCKET if address.startswith("unix:") else ()))
            self._channel = grpc.secure_channel(address, credentials, options=options)
        else:
            self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._lock = threading.Lock()
        """Guards _metadata, which caches by model, version or label."""
        self._metadata = Remembered[ModelRef, ModelMetadata](_MAX_CACHED_MODELS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def connect(self) -> None:
        """Waits at most ``connect_timeout`` seconds for the server, however little time the calls have; they raise what
        this raises. A call does it by itself, in its own time."""
        self._connect(self._connect_timeout)

    def close(self) -> None:
        """Closes the connection; calls in progress fail with CANCELLED."""
        self._closed.set()
        self._channel.close()

    def predict(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        outputs: Sequence[str] = (),
        timeout: float | None = None,
    ) -> Prediction:
        """Runs ``model`` once: the given ``version`` or ``label``, or the newest version that is available.

        ``inputs`` are arrays, tensors, lists or numbers by name. Arrays and tensors keep their dtype. Lists and numbers
        get the dtype that the model's signature declares, which is fetched once and cached; if it declares none, floats
        become float32 and integers int64. ``outputs`` names the outputs to return; empty means all. ``timeout`` (s)
        replaces the client's.
        """
        ref = _reference(model, version, label, signature)
        request = messages.PredictRequest(model_spec=serving.model_spec(ref), output_filter=outputs)
        left = self._begin(timeout)
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(self._tensor(ref, name, value, left))
        try:
            response = self._call(_PREDICT, request, messages.PredictResponse, left())
        except ServingError as error:
            if error.code is StatusCode.INVALID_ARGUMENT:
                self._forget(ref)
            raise
        answered = serving.read_model_spec(response)
        self._forget(ref, unless=answered.version)
        arrays = {name: decode(response.outputs[name], name) for name in response.outputs}
        return Prediction(arrays, answered.name, answered.version or 0, answered.signature)

    def metadata(
        self, model: str, *, version: int | None = None, label: str | None = None, timeout: float | None = None
    ) -> ModelMetadata:
        """Returns the signatures of the given version or label, or of the newest version that is available."""
        ref = _reference(model, version, label)
        request = messages.GetModelMetadataRequest(model_spec=serving.model_spec(ref), metadata_field=["signature_def"])
        response = self._call(_METADATA, request, messages.GetModelMetadataResponse, timeout)
        packed = messages.SignatureDefMap()
        if "signature_def" in response.metadata:
            response.metadata["signature_def"].Unpack(packed)
        answered = serving.read_model_spec(response)
        return ModelMetadata(answered.name, answered.version or 0, serving.read_signature_def_map(packed))

    def status(
        self, model: str, *, version: int | None = None, label: str | None = None, timeout: float | None = None
    ) -> list[VersionStatus]:
        """Returns the states of all versions that the server knows, highest first, or of the given version or label."""
        request = messages.GetModelStatusRequest(model_spec=serving.model_spec(_reference(model, version, label)))
        return serving.read_model_status(self._call(_STATUS, request, messages.GetModelStatusResponse, timeout))

    def explain(
        self, model: str = "", *, version: int | None = None, label: str | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Returns why the model, its version or its label is in its state and what to do about it: the answer of
        ``:explain`` over HTTP. Without a model it has one entry for each model, under ``models``. Only servers of this
        package answer."""
        ref = _reference(model, version, label)
        asked = {"model": ref.name, "version": ref.version, "label": ref.label}
        return self._ask("Explain", {name: value for name, value in asked.items() if value not in (None, "")}, timeout)

    def failed_requests(self, id: str = "", *, model: str = "", timeout: float | None = None) -> dict[str, Any]:
        """Returns the failed requests with this request id or trace id: the answer of ``/v1/requests/ID`` over HTTP;
        NOT_FOUND if none was kept. Without an id it returns the last ones, of ``model`` or of all models. Only servers
        of this package answer."""
        asked = {"request": id} if id else {"model": model}
        return self._ask("FailedRequests", asked, timeout)

    def what_if(self, asked: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Returns what a config or a new version would change, and changes nothing. ``asked`` and the answer are those
        of ``/v1/config:explain`` over HTTP. Only servers of this package answer."""
        return self._ask("WhatIf", asked, timeout)

    def guard(
        self, model: str, action: str = "", *, version: int | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Returns how the model stands with the guard: its trial, the versions that must not answer, and which one
        answers. With an ``action`` it is carried out before: ``accept``, ``retry`` or ``undo`` a version, ``rollback``
        to one, or ``undo_rollback``; without a ``version`` the server takes the one that is meant. An action is never
        repeated. The call does not wait for loads. Only servers of this package answer."""
        asked = {"model": model, "action": action, "version": version}
        asked = {name: value for name, value in asked.items() if value not in (None, "")}
        if not action:
            return self._ask("Guard", asked, timeout)
        left = self._begin(timeout)
        request = messages.AdminRequest(json=json.dumps(asked).encode())
        return dict(json.loads(self._attempt(_ADMIN + "Guard", request, messages.AdminResponse, left())[0].json))

    def rollback(
        self, model: str, to: int | None = None, *, undo: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """Goes back to version ``to``, or to the one before that which answers; with ``undo`` takes that back. Returns
        what :meth:`guard` does, at once: until the version has loaded it is ``going_back``, then it ``answers``."""
        if undo and to is not None:
            raise invalid_argument("to: undo takes every rollback of the model back, and names no version")
        return self.guard(model, "undo_rollback" if undo else "rollback", version=to, timeout=timeout)

    def _ask(self, method: str, asked: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        """A question of operators; see ``admin_service.proto``."""
        request = messages.AdminRequest(json=json.dumps(asked).encode())
        return dict(json.loads(self._call(_ADMIN + method, request, messages.AdminResponse, timeout).json))

    def reload(self, config: HasProto | Message, *, timeout: float | None = None) -> str:
        """Replaces the server's whole config, waits until every new model is available, and returns a text that says
        what was applied; servers of other kinds return an empty one.

        ``config`` is a ``ModelServerConfig``: ``tfs_lite.config.model_server.ModelServerConfig``, or the protobuf
        message of that name from any package.
        """
        message: Message = config.to_proto() if hasattr(config, "to_proto") else config
        request = messages.ReloadConfigRequest()
        request.config.MergeFromString(message.SerializeToString())
        left = self._begin(timeout)
        response, trailers = self._attempt(_RELOAD, request, messages.ReloadConfigResponse, left())
        status = serving.read_status(response.status)
        if not status.ok:
            raise ServingError(status.code, status.message)
        return decode_trailer(trailers.get(APPLIED, ""))

    def _begin(self, timeout: float | None) -> TimeLeft:
        """Begins the time of a call, and waits within it for the first connection."""
        seconds = self._timeout if timeout is None else timeout
        left = _time_left(seconds)
        self._connect(seconds)
        return left

    def _call(self, path: str, request: Message, answer: Any, timeout: float | None) -> Message:
        left = self._begin(timeout)
        if self._retrying is None:
            return self._attempt(path, request, answer, left())[0]
        retrying = _within(self._retrying, left)
        return retrying(lambda: self._attempt(path, request, answer, left())[0])

    def _attempt(self, path: str, request: Message, answer: Any, timeout: float) -> tuple[Message, dict[str, str]]:
        """The answer and its trailers. Every call is unary: an answer is here as a whole or not at all."""
        try:
            call = self._channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
            response, ended = self._run(call, request, timeout, self._credentials)
            return response, dict(ended.trailing_metadata() or ())
        except grpc.RpcError as error:
            raise ServingError(StatusCode(error.code().value[0]), error.details() or error.code().name) from error

    def _run(self, call: Any, request: Any, timeout: float, metadata: Any = None) -> Any:
        """The answer and gRPC's call. CANCELLED if the client is closed, for example while a call waited for its next
        attempt."""
        try:
            return call.with_call(request, timeout=timeout, metadata=metadata)
        except ValueError as error:
            if not self._closed.is_set():
                raise
            raise ServingError(StatusCode.CANCELLED, "the client was closed") from error

    def _connect(self, seconds: float) -> None:
        """Waits for the server by health checks; every answer suffices, also that there is no such service."""
        if self._connected:
            return
        bound = min(seconds, self._connect_timeout)
        left = _time_left(bound)
        while (failure := self._reach(left())) is not None:
            reason = str(failure.details() or failure.code().name)
            is_over = failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED or left() <= _LOOK_SECONDS
            if is_over or not self._waits or _OTHER_PROTOCOL.search(reason):
                kind = "with TLS" if self._secure else "without TLS"
                within = f" within {bound:g} s" if is_over else ""
                text = f"no gRPC server answered at {self._address}{within}; is it running, is this its gRPC port, and"
                if _OTHER_PROTOCOL.search(reason):
                    text = f"{self._address} does not speak gRPC; is this its gRPC port (--port, 8500 by default), and"
                raise ServingError(StatusCode.UNAVAILABLE, f"{text} does it speak {kind}? ({reason})") from failure
            self._closed.wait(_LOOK_SECONDS)
        self._connected = True

    def _reach(self, timeout: float) -> Any:
        """None if a server has answered, else gRPC's error, as soon as it is known."""
        try:
            self._run(self._channel.unary_unary(_HEALTH), b"", timeout)
        except grpc.RpcError as error:
            return error if error.code() in _UNREACHABLE else None
        return None

    def _tensor(self, ref: ModelRef, name: str, value: Any, left: TimeLeft) -> Message:
        dtype = DataType.INVALID
        if not hasattr(value, "__array__"):
            dtype = self._declared_dtype(ref, name, left)
        try:
            return encode(np.asarray(value) if hasattr(value, "__array__") else _from_python(value, dtype))
        except (ServingError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise invalid_argument(f"input {name} of model {ref.name} cannot become a tensor: {error}") from error

    def _declared_dtype(self, ref: ModelRef, name: str, left: TimeLeft) -> DataType:
        key = replace(ref, signature="")
        with self._lock:
            known = self._metadata.get(key)
        if known is None:
            known = self.metadata(ref.name, version=ref.version, label=ref.label, timeout=left())
            with self._lock:
                self._metadata.add(key, known)
        signature = known.signatures.get(ref.signature or DEFAULT_SIGNATURE)
        specs = signature.inputs if signature else ()
        return next((spec.dtype for spec in specs if spec.name == name), DataType.INVALID)

    def _forget(self, ref: ModelRef, unless: int | None = None) -> None:
        """Drops the cached metadata of ``ref``, except of version ``unless``, because another version answers now."""
        key = replace(ref, signature="")
        with self._lock:
            known = self._metadata.get(key)
            if known is not None and known.version != unless:
                del self._metadata[key]


def _time_left(timeout: float) -> TimeLeft:
    ends = time.monotonic() + timeout
    return lambda: ends - time.monotonic()


def _retrying(retry: int | Retrying, closed: threading.Event) -> Retrying | None:
    """None: every call has one attempt. A wait ends early when ``closed`` is set, unless the caller's ``Retrying`` has
    a sleep of its own. INVALID_ARGUMENT: neither a number nor a ``Retrying``."""
    if retry == 0:
        return None
    import tenacity

    if isinstance(retry, tenacity.Retrying):
        return retry
    if not isinstance(retry, int) or retry < 0:
        raise invalid_argument(f"retry: expected a number of attempts or a tenacity.Retrying, got {retry!r}")
    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(retry + 1),
        wait=tenacity.wait_random_exponential(_RETRY_SECONDS, _MOST_RETRY_SECONDS),
        sleep=tenacity.sleep_using_event(closed),
    )


def _within(retrying: Retrying, left: TimeLeft) -> Retrying:
    """The same for one call: it repeats what is UNAVAILABLE, begins no wait that would outlast the call, and raises the
    error of the last attempt."""
    from tenacity import retry_if_exception

    def is_over(state: RetryCallState) -> bool:
        return retrying.stop(state) or state.upcoming_sleep >= left()

    return retrying.copy(
        retry=retry_if_exception(_is_unavailable), stop=is_over, reraise=True, retry_error_callback=None
    )


def _is_unavailable(error: BaseException) -> bool:
    return isinstance(error, ServingError) and error.code is StatusCode.UNAVAILABLE


def _reference(model: str, version: int | None, label: str | None, signature: str = "") -> ModelRef:
    if version is not None and label is not None:
        raise invalid_argument(f"model {model}: version {version} and label {label} exclude each other")
    return ModelRef(model, version, label, signature)


def _uses_tls(roots: bytes | None, key: bytes | None, certificate: bytes | None) -> bool:
    """Whether to use TLS. INVALID_ARGUMENT for files with which gRPC would not connect, nor say why."""
    for name, given in (("root_certificates", roots), ("client_key", key), ("client_certificate", certificate)):
        if not isinstance(given, bytes | None):
            raise invalid_argument(f"{name}: expected the bytes of a PEM file, got {type(given).__name__}")
    if (key is None) != (certificate is None):
        raise invalid_argument("client_key and client_certificate belong together; only one of them is given")
    if roots is None and key is not None:
        raise invalid_argument(
            "client_key needs root_certificates: the authorities that the server's certificate is from"
        )
    if roots is None:
        return False
    if wrong := certificate_problem(roots):
        raise invalid_argument(f"root_certificates: {wrong}")
    if key is not None and certificate is not None:
        if wrong := certificate_problem(certificate):
            raise invalid_argument(f"client_certificate: {wrong}")
        if wrong := key_problem(key, certificate):
            raise invalid_argument(f"client_key: {wrong}")
    return True


def _from_python(value: Any, dtype: DataType) -> Array:
    """Lists, numbers and texts as an array of ``dtype``. ValueError if that would lose a fraction."""
    natural = np.array(value)
    if dtype is DataType.STRING or natural.dtype.kind in "OSU":
        return np.array(value, dtype=object)
    if dtype is DataType.INVALID:
        return natural.astype(np.float32) if natural.dtype == np.float64 else natural
    wanted = to_numpy(dtype)
    if natural.size and natural.dtype.kind not in _FITTING.get(wanted.kind, "biufc"):
        raise ValueError(f"{natural.dtype} values came, expected {dtype.text}")
    return np.array(value, dtype=wanted)


_FITTING = {"b": "b", "i": "biu", "u": "biu", "f": "biuf", "V": "biuf"}
"""Kind of dtype wanted -> kinds of values that fit it. ``V`` is what numpy calls bfloat16."""
