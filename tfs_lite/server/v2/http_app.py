"""KServe V2 over HTTP: its routes, below ``/v2``.

Names in paths are percent-encoded, and a query is ignored. An unknown path is 404 for every method; a known one is 405
for a method that it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.router import HEAD_TOO, POST, Api, Route
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.fast_path import V2FastPath
from tfs_lite.server.v2.http_infer import V2HttpInfer
from tfs_lite.server.v2.http_paths import Target, read_target
from tfs_lite.server.v2.http_replies import v2_error
from tfs_lite.server.v2.http_routes import V2HttpRoutes
from tfs_lite.server.v2.inference import METHOD, V2Inference
from tfs_lite.transport.table import Scope

_ROOT = "/v2"
_ANY = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MODEL = f"{_ROOT}/models/{{model}}"
_REPOSITORY = f"{_ROOT}/repository"


def _routes() -> Iterator[Route[V2HttpApp, Target]]:
    """Triton's clients accept compressed answers always, but decompress only those of predictions."""
    yield Route(_ROOT, HEAD_TOO, lambda app: app.pages.server_metadata, scope=Scope.PREDICT, checks_models=True)
    yield Route(f"{_ROOT}/health/live", HEAD_TOO, lambda app: app.pages.live, scope=Scope.OPEN)
    yield Route(f"{_ROOT}/health/ready", HEAD_TOO, lambda app: app.pages.ready, scope=Scope.OPEN)
    yield Route(f"{_ROOT}/models/stats", HEAD_TOO, lambda app: app.pages.all_statistics, scope=Scope.READ)
    for model in (_MODEL, f"{_MODEL}/versions/{{version}}"):
        yield Route(
            f"{model}/infer",
            POST,
            lambda app: app.infer.infer,
            packs=True,
            shortcut=lambda app: app.infer.begin_plain,
            refused_as=METHOD,
            scope=Scope.PREDICT,
        )
        yield Route(f"{model}/generate", POST, lambda app: app.infer.generate, packs=True, scope=Scope.PREDICT)
        yield Route(f"{model}/generate_stream", POST, lambda app: app.infer.generate_stream, scope=Scope.PREDICT)
        yield Route(model, HEAD_TOO, lambda app: app.pages.model_metadata, scope=Scope.PREDICT)
        yield Route(f"{model}/ready", HEAD_TOO, lambda app: app.pages.model_ready, scope=Scope.OPEN)
        yield Route(f"{model}/config", HEAD_TOO, lambda app: app.pages.model_config, scope=Scope.PREDICT)
        yield Route(f"{model}/stats", HEAD_TOO, lambda app: app.pages.statistics, scope=Scope.READ)
    for setting in (f"{_ROOT}/trace/setting", f"{_MODEL}/trace/setting"):
        yield Route(setting, HEAD_TOO, lambda app: app.pages.trace, scope=Scope.READ)
        yield Route(setting, POST, lambda app: app.pages.trace, scope=Scope.MANAGE)
    yield Route(f"{_ROOT}/logging", HEAD_TOO, lambda app: app.pages.logging, scope=Scope.READ)
    yield Route(f"{_ROOT}/logging", POST, lambda app: app.pages.logging, scope=Scope.MANAGE)
    yield Route(f"{_REPOSITORY}/index", POST, lambda app: app.pages.index, scope=Scope.READ)
    yield Route(f"{_REPOSITORY}/models/{{model}}/load", POST, lambda app: app.pages.load, scope=Scope.MANAGE)
    yield Route(f"{_REPOSITORY}/models/{{model}}/unload", POST, lambda app: app.pages.unload, scope=Scope.MANAGE)
    for rest in ("index", "models/{model}/load", "models/{model}/unload"):
        yield Route(
            f"{_REPOSITORY}/{{repository}}/{rest}", _ANY, lambda app: app.pages.named_repository, scope=Scope.READ
        )
    system, cuda, region = f"{_ROOT}/systemsharedmemory", f"{_ROOT}/cudasharedmemory", "/region/{region}"
    yield Route(f"{system}{region}/register", POST, lambda app: app.pages.register_system, scope=Scope.MANAGE)
    yield Route(f"{cuda}{region}/register", POST, lambda app: app.pages.register_cuda, scope=Scope.MANAGE)
    for which in ("", region):
        yield Route(f"{system}{which}/status", HEAD_TOO, lambda app: app.pages.system_status, scope=Scope.READ)
        yield Route(f"{system}{which}/unregister", POST, lambda app: app.pages.unregister_system, scope=Scope.MANAGE)
        yield Route(f"{cuda}{which}/status", HEAD_TOO, lambda app: app.pages.cuda_status, scope=Scope.READ)
        yield Route(f"{cuda}{which}/unregister", POST, lambda app: app.pages.unregister_cuda, scope=Scope.MANAGE)


class V2HttpApp(Api[Target]):
    """``infer`` answers predictions, ``pages`` everything else."""

    routes = tuple(_routes())
    names = dict.fromkeys(("model", "version", "region", "repository"), "[^/]+")

    def __init__(self, inference: V2Inference, control: V2Control, http: HttpResources, fast: V2FastPath) -> None:
        self.infer = V2HttpInfer(inference, control, http, fast)
        self.pages = V2HttpRoutes(control, http.bodies)

    def owns(self, path: str) -> bool:
        return path == _ROOT or path.startswith(_ROOT + "/")

    def target(self, names: Mapping[str, str]) -> Target:
        return read_target(names)

    def model_of(self, target: Target) -> str:
        return target.model or ""

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        if allowed is None:
            return HttpError(StatusCode.NOT_FOUND, "Not Found", 404)
        shown = ", ".join(allowed)
        message = f"Method Not Allowed: {path} answers {shown}, not {method}"
        return HttpError(StatusCode.UNIMPLEMENTED, message, 405, {"allow": shown})

    def error(self, request: Request, error: ServingError) -> Response:
        return v2_error(error)
