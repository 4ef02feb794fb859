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
from tfs_lite.server.v2.http_paths import V2Target, read_target
from tfs_lite.server.v2.http_replies import v2_error
from tfs_lite.server.v2.http_routes import V2HttpRoutes
from tfs_lite.server.v2.inference import METHOD, V2Inference
from tfs_lite.transport.table import Scope

_ROOT = "/v2"
_ANY = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MODEL = f"{_ROOT}/models/{{model}}"
_REPOSITORY = f"{_ROOT}/repository"


class V2HttpApp(Api[V2Target]):
    names = dict.fromkeys(("model", "version", "region", "repository"), "[^/]+")

    def __init__(self, inference: V2Inference, control: V2Control, http: HttpResources, fast: V2FastPath) -> None:
        self._infer = V2HttpInfer(inference, control, http, fast)
        self._pages = V2HttpRoutes(control, http.bodies)

    def routes(self) -> Iterator[Route[V2Target]]:
        """Triton's clients accept compressed answers always, but decompress only those of predictions."""
        pages, infer = self._pages, self._infer
        open_, read, predict, manage = Scope.OPEN, Scope.READ, Scope.PREDICT, Scope.MANAGE
        yield Route(_ROOT, HEAD_TOO, pages.server_metadata, scope=predict, checks_models=True)
        yield Route(f"{_ROOT}/health/live", HEAD_TOO, pages.live, scope=open_)
        yield Route(f"{_ROOT}/health/ready", HEAD_TOO, pages.ready, scope=open_)
        yield Route(f"{_ROOT}/models/stats", HEAD_TOO, pages.all_statistics, scope=read)
        for model in (_MODEL, f"{_MODEL}/versions/{{version}}"):
            yield Route(f"{model}/infer", POST, infer.infer, packs=True, refused_as=METHOD, scope=predict)
            yield Route(f"{model}/generate", POST, infer.generate, packs=True, scope=predict)
            yield Route(f"{model}/generate_stream", POST, infer.generate_stream, scope=predict)
            yield Route(model, HEAD_TOO, pages.model_metadata, scope=predict)
            yield Route(f"{model}/ready", HEAD_TOO, pages.model_ready, scope=open_)
            yield Route(f"{model}/config", HEAD_TOO, pages.model_config, scope=predict)
            yield Route(f"{model}/stats", HEAD_TOO, pages.statistics, scope=read)
        for setting in (f"{_ROOT}/trace/setting", f"{_MODEL}/trace/setting"):
            yield Route(setting, HEAD_TOO, pages.trace, scope=read)
            yield Route(setting, POST, pages.trace, scope=manage)
        yield Route(f"{_ROOT}/logging", HEAD_TOO, pages.logging, scope=read)
        yield Route(f"{_ROOT}/logging", POST, pages.logging, scope=manage)
        yield Route(f"{_REPOSITORY}/index", POST, pages.index, scope=read)
        yield Route(f"{_REPOSITORY}/models/{{model}}/load", POST, pages.load, scope=manage)
        yield Route(f"{_REPOSITORY}/models/{{model}}/unload", POST, pages.unload, scope=manage)
        for rest in ("index", "models/{model}/load", "models/{model}/unload"):
            yield Route(f"{_REPOSITORY}/{{repository}}/{rest}", _ANY, pages.named_repository, scope=read)
        system, cuda, region = f"{_ROOT}/systemsharedmemory", f"{_ROOT}/cudasharedmemory", "/region/{region}"
        yield Route(f"{system}{region}/register", POST, pages.register_system, scope=manage)
        yield Route(f"{cuda}{region}/register", POST, pages.register_cuda, scope=manage)
        for which in ("", region):
            yield Route(f"{system}{which}/status", HEAD_TOO, pages.system_status, scope=read)
            yield Route(f"{system}{which}/unregister", POST, pages.unregister_system, scope=manage)
            yield Route(f"{cuda}{which}/status", HEAD_TOO, pages.cuda_status, scope=read)
            yield Route(f"{cuda}{which}/unregister", POST, pages.unregister_cuda, scope=manage)

    def owns(self, path: str) -> bool:
        return path == _ROOT or path.startswith(_ROOT + "/")

    def target(self, names: Mapping[str, str]) -> V2Target:
        return read_target(names)

    def model_of(self, target: V2Target) -> str:
        return target.model or ""

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        if allowed is None:
            return HttpError(StatusCode.NOT_FOUND, "Not Found", 404)
        shown = ", ".join(allowed)
        message = f"Method Not Allowed: {path} answers {shown}, not {method}"
        return HttpError(StatusCode.UNIMPLEMENTED, message, 405, {"allow": shown})

    def error(self, request: Request, error: ServingError) -> Response:
        return v2_error(error)
