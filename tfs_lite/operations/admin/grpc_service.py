"""``tfs_lite.AdminService``: the bodies of the HTTP routes over gRPC, which has TLS and certificates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from tfs_lite.core.servable import MAX_VERSION, ModelRef
from tfs_lite.core.status import invalid_argument
from tfs_lite.operations.admin.control import AdminControl
from tfs_lite.operations.admin.questions import read_body
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.json.values import present
from tfs_lite.protocols.messages import AdminRequest, AdminResponse
from tfs_lite.protocols.tensorflow.serving import parse
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.transport.table import CallContext, Method, Scope, unary

SERVICE = "/tfs_lite.AdminService"
_FIELDS = ("model", "version", "label")


class AdminService:
    """The admin service over gRPC, on the event loop; ``background`` runs the answers, ``forecasts`` those about what a
    config would change. ``may_see_paths`` tells which clients are shown paths of the server."""

    def __init__(
        self,
        control: AdminControl,
        background: BackgroundRunner,
        forecasts: BackgroundRunner,
        may_see_paths: Callable[[CallContext], bool] = lambda context: False,
    ) -> None:
        self._control = control
        self._background = background
        self._forecasts = forecasts
        self._may_see_paths = may_see_paths

    def methods(self) -> list[Method]:
        return [
            unary(f"{SERVICE}/Explain", self.explain, scope=Scope.READ, models=_models),
            unary(f"{SERVICE}/WhatIf", self.what_if, scope=Scope.MANAGE),
            unary(f"{SERVICE}/FailedRequests", self.failed_requests, scope=Scope.READ),
        ]

    async def explain(self, data: bytes, context: CallContext) -> bytes:
        """Explains the model, version or label that the request names; without a model, one line for each."""
        asked = read_question(data, _FIELDS)
        ref, control = read_ref(asked), self._control
        if not ref.name:
            return await self._answer(lambda: {"models": [line.as_json for line in control.verdicts()]})
        paths = self._may_see_paths(context)
        return await self._answer(lambda: control.explain(ref, paths=paths).as_json)

    async def what_if(self, data: bytes, context: CallContext) -> bytes:
        """Tells the effect of a config, or of a version that is not there yet."""
        asked, control = read_body(parse(AdminRequest, data).json), self._control
        return await self._forecasts.run(lambda: _encode(control.what_if(asked)))

    async def failed_requests(self, data: bytes, context: CallContext) -> bytes:
        """The failed requests with one request id or trace id; else the last ones, of one model or of all."""
        asked, control = read_question(data, ("request", "model")), self._control
        if "request" not in asked:
            name = read_ref(asked).name
            return await self._answer(lambda: control.failed_requests(name))
        id = asked["request"]
        if not isinstance(id, str) or not id:
            raise invalid_argument("json: field request: expected the id of a request, or its trace id")
        return await self._answer(lambda: control.failed_request(id))

    async def _answer(self, answer: Callable[[], Any]) -> bytes:
        """Answers by a function that gives a JSON value and runs on a thread."""
        return await self._background.run(lambda: _encode(answer()))


def _models(data: bytes) -> list[str]:
    """The model that a question to ``Explain`` is about; the empty name stands for all."""
    return [read_ref(read_question(data, _FIELDS)).name]


def _encode(value: Any) -> bytes:
    encoded: bytes = AdminResponse(json=orjson.dumps(value)).SerializeToString()
    return encoded


def read_question(data: bytes, known: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object of a request without its nulls, empty if it has none. INVALID_ARGUMENT for other JSON and for
    unknown fields."""
    text: bytes = parse(AdminRequest, data).json
    asked = json_text.loads(text) if text else {}
    if not isinstance(asked, dict):
        raise invalid_argument("json: expected an object")
    asked = present(asked)
    for name in asked:
        if name not in known:
            raise invalid_argument(f"json: field {name[:50]!r} is not known; there are: {', '.join(known)}")
    return asked


def read_ref(asked: dict[str, Any]) -> ModelRef:
    """The model, and its version or label, that a question names. An empty name: it names none."""
    name, version, label = asked.get("model", ""), asked.get("version"), asked.get("label")
    if not isinstance(name, str):
        raise invalid_argument("json: field model: expected a text")
    if version is not None and not (type(version) is int and 0 <= version <= MAX_VERSION):
        raise invalid_argument(f"json: field version: expected a number from 0 to {MAX_VERSION}")
    if label is not None and not isinstance(label, str):
        raise invalid_argument("json: field label: expected a text")
    if version is not None and label is not None:
        raise invalid_argument("json: fields version and label are both set: choose one")
    if not name and (version is not None or label is not None):
        raise invalid_argument("json: field model is missing")
    return ModelRef(name, version, label)
