"""The doors of the guard: ``/v1/models/M:guard`` over HTTP, and ``tfs_lite.AdminService/Guard``.

    GET                                             how the model stands
    POST {"action": "undo", "version": 8}           what is to happen; the answer says how it stands then

Over gRPC the same fields, and the model: ``{"model": "ranker", "action": "undo"}``; without an action it changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson

from tfs_lite.core.history import Cause, Origin, acting
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import StatusCode, invalid_argument, not_found
from tfs_lite.operations.guard.report import COUNTED, GuardReports
from tfs_lite.operations.guard.trial import Command, Verb
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.json.values import present
from tfs_lite.protocols.messages import AdminRequest, AdminResponse
from tfs_lite.protocols.tensorflow.serving import parse
from tfs_lite.server.http.bodies import Bodies
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.replies import JSON
from tfs_lite.server.http.router import GET, POST, About, OwnPages, Route, Tree
from tfs_lite.server.openapi import list_of, object_of
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.transport.table import CallContext, Method, Scope, unary

if TYPE_CHECKING:
    from tfs_lite.server.http.resources import HttpResources

PATH = "/tfs_lite.AdminService/Guard"
MAX_PENDING = 64
"""The most commands and questions that may be pending; more are refused."""
_FIELDS = ("action", "version")


class GuardDoors:
    """``http`` and ``grpc`` on the event loop -> ``close``. ``command`` carries an order out: the name of the model,
    and the order; it raises ServingError. Commands run one after the other, on a thread of their own."""

    def __init__(self, reports: GuardReports, command: Callable[[str, Command], None]) -> None:
        self._reports = reports
        self._command = command
        self._background = BackgroundRunner("guard", 1, MAX_PENDING)

    def http(self, resources: HttpResources) -> GuardApi:
        return GuardApi(self, resources.bodies)

    def grpc(self) -> Sequence[Method]:
        return [unary(PATH, self._call, scope=Scope.MANAGE, models=_models, reads=_reads)]

    def close(self) -> None:
        self._background.close()

    async def answer(self, name: str, asked: Mapping[str, Any], caller: str) -> bytes:
        """Carries out what is asked, if anything is, and says how the model stands then."""
        command = read_command(asked, caller) if asked else None
        return await self._background.run(lambda: orjson.dumps(self._carry_out(name, command, caller)))

    def _carry_out(self, name: str, command: Command | None, caller: str) -> dict[str, Any]:
        if command is not None:
            with acting(Origin(Cause.OPERATOR, caller)):
                self._command(name, command)
        standing = self._reports.standing(name)
        if standing is None:
            raise not_found(f"no model named {name[:200]!r} is served; tfs-lite status lists those that are")
        return standing.as_json

    async def _call(self, data: bytes, context: CallContext) -> bytes:
        asked = _read(data)
        name = asked.pop("model", "")
        if not isinstance(name, str) or not name:
            raise invalid_argument("json: field model: expected the name of a model")
        answer = await self.answer(name, asked, context.caller)
        encoded: bytes = AdminResponse(json=answer).SerializeToString()
        return encoded


class GuardApi(OwnPages[str]):
    """The routes; the target is the name of the model."""

    names = {"model": "[^/:]+"}  # noqa: RUF012

    def __init__(self, doors: GuardDoors, bodies: Bodies) -> None:
        self._doors = doors
        self._bodies = bodies

    def routes(self) -> Iterator[Route[str]]:
        path, errors = "/v1/models/{model}:guard", ("404", "405", "429")
        about = About("guard", "How its trial stands, and which versions were taken back.", "Rollout", errors)
        yield Route(path, GET, self.show, packs=True, about=about, scope=Scope.READ)
        summary = "Accept, retry or undo a version, go back to an older one, or undo that."
        refused = ("400", "404", "405", "408", "413", "415", "429", "503")
        about = About("guardCommand", summary, "Rollout", refused, "GuardCommand")
        yield Route(path, POST, self.carry_out, about=about, scope=Scope.MANAGE)

    def schemas(self) -> Mapping[str, Tree]:
        return guard_schemas()

    def target(self, names: Mapping[str, str]) -> str:
        return unquote(names["model"])

    def model_of(self, target: str) -> str:
        return target

    async def show(self, request: Request, target: str) -> Response:
        _refuse_query(request)
        return _response(await self._doors.answer(target, {}, request.caller))

    async def carry_out(self, request: Request, target: str) -> Response:
        _refuse_query(request)
        body = await self._bodies.read(request, bytes, StatusCode.INVALID_ARGUMENT)
        asked = _object(body)
        if not asked:
            raise invalid_argument(f"expected a JSON object with an action: {_actions()}")
        return _response(await self._doors.answer(target, asked, request.caller))


def read_command(asked: Mapping[str, Any], who: str) -> Command:
    """INVALID_ARGUMENT for what is no command."""
    for field in asked:
        if field not in _FIELDS:
            raise invalid_argument(f"field {field[:50]!r} is not known; there are: {', '.join(_FIELDS)}")
    action, version = asked.get("action"), asked.get("version")
    verbs = {verb.value: verb for verb in Verb}
    if not isinstance(action, str) or action not in verbs:
        raise invalid_argument(f"field action: expected one of: {_actions()}")
    if version is not None and not (type(version) is int and 0 <= version <= MAX_VERSION):
        raise invalid_argument(f"field version: expected a number from 0 to {MAX_VERSION}")
    if version is not None and verbs[action] is Verb.UNDO_ROLLBACK:
        raise invalid_argument(f"field version: {action} lifts every rollback of the model, and names no version")
    return Command(verbs[action], version, who)


def guard_schemas() -> dict[str, Tree]:
    """The schemas of the routes, by name."""
    text: Tree = {"type": "string"}
    count: Tree = {"type": "integer", "minimum": 0}
    time: Tree = {"type": ["string", "null"]}
    version: Tree = {"type": ["integer", "null"]}
    milliseconds: Tree = {"type": ["number", "null"]}
    ended = object_of(("version", "outcome", "text", "at"), version=count, outcome=text, text=text, at=text)
    fields: dict[str, Tree] = {
        "state": {"enum": ["NONE", "ARMED", "BAKING"]},
        **dict.fromkeys(("version", "over", "answers", "back_to", "going_back"), version),
        **dict.fromkeys(("since", "until"), time),
        **dict.fromkeys(COUNTED, count),
        "votes": object_of(("against", "for", "needed"), **dict.fromkeys(("against", "for", "needed"), count)),
        "run_ms": object_of(("new", "old"), new=milliseconds, old=milliseconds),
        "failures": list_of(object_of(("request_id", "error"), request_id=text, error=text)),
        "rejected": list_of(
            object_of(
                ("version", "why", "at", "by", "rolled_back"),
                version=count,
                why=text,
                at=text,
                by={"enum": ["GUARD", "OPERATOR"]},
                rolled_back={"type": "boolean"},
            )
        ),
        "ended": {"anyOf": [ended, {"type": "null"}]},
        "remembered": {"type": "boolean"},
        "forgets": text,
    }
    command = object_of(("action",), action={"enum": [verb.value for verb in Verb]}, version=version)
    return {"Rollout": object_of(tuple(fields), **fields), "GuardCommand": command}


def _actions() -> str:
    return ", ".join(verb.value for verb in Verb)


def _object(text: bytes) -> dict[str, Any]:
    asked = json_text.loads(text) if text else {}
    if not isinstance(asked, dict):
        raise invalid_argument("expected a JSON object")
    found: dict[str, Any] = present(asked)
    return found


def _read(data: bytes) -> dict[str, Any]:
    return _object(parse(AdminRequest, data).json)


def _models(data: bytes) -> list[str]:
    name = _read(data).get("model", "")
    return [name if isinstance(name, str) else ""]


def _reads(data: bytes) -> bool:
    return "action" not in _read(data)


def _refuse_query(request: Request) -> None:
    if request.head.query:
        raise invalid_argument(f"this page takes no query, got {request.head.query:.50}")


def _response(body: bytes) -> Response:
    return Response(body, media_type=JSON.media_type, headers={"cache-control": "no-store"})
