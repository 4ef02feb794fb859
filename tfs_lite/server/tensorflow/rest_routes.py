"""TensorFlow Serving's REST API: ``/v1/models/NAME[/versions/N|/labels/L][:VERB | /metadata]``.

A trailing slash, or a query after a verb, is malformed; a query after a name is part of the name. Letters may be of
either case, except in a verb. The list of models, ``/v1/models``, is an addition of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import REST, RequestMetrics
from tfs_lite.server.http.compression import GZIP
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.replies import JSON, MSGPACK, body_formats, error_reply
from tfs_lite.server.http.router import GET, POST, About, Api, Route, model_in_path
from tfs_lite.server.tensorflow.rest_models import ModelPages
from tfs_lite.server.tensorflow.rest_service import RestService
from tfs_lite.transport.table import Scope

_ROOT = "/v1/"
_OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""Paths of clients of OpenAI's API whose base URL ends in ``/v1``."""
_BOTH = (JSON.media_type, MSGPACK.media_type)
_LOOKUP_ERRORS = ("400", "404")
_ERRORS = (*_LOOKUP_ERRORS, "408", "413", "415", "422", "429", "500", "501", "503", "504")


class RestApi(Api[ModelRef]):
    """Requests outside the grammar are counted without a method."""

    names = {"model": "[^/:]+", "version": "[0-9]+", "label": "[^/:]+"}  # noqa: RUF012
    query_in_path = True
    always_preflight = True
    encodings = GZIP

    def __init__(self, service: RestService, models: ModelPages, metrics: RequestMetrics) -> None:
        self._service = service
        self._models = models
        self._metrics = metrics

    def routes(self) -> Iterator[Route[ModelRef]]:
        """Those of a model exist three times: for the latest version, one by number, one by label."""
        service, models, predict = self._service, self._models, Scope.PREDICT
        about = About("listModels", "Every model with the states of its versions.", "ModelList", ("400",))
        yield Route("/v1/models", GET, models.list, True, about, scope=Scope.READ, checks_models=True)
        for version, which in (("", ""), ("/versions/{version}", "OfVersion"), ("/labels/{label}", "OfLabel")):
            model = "/v1/models/{model}" + version
            about = About(f"modelStatus{which}", "The states of its versions.", "ModelStatus", _LOOKUP_ERRORS)
            yield Route(model, GET, models.status, True, about, scope=Scope.READ)
            about = About(f"modelMetadata{which}", "Its signatures.", "ModelMetadata", _LOOKUP_ERRORS)
            yield Route(f"{model}/metadata", GET, models.metadata, True, about, scope=predict)
            about = About(f"predict{which}", "Runs it on tensors.", "PredictAnswer", _ERRORS, "PredictBody", _BOTH)
            yield Route(f"{model}:predict", POST, service.predict, True, about, "Predict", predict)
            about = About(f"classify{which}", "Classifies examples.", "ClassifyAnswer", _ERRORS, "ExamplesBody")
            yield Route(f"{model}:classify", POST, service.classify, True, about, "Classify", predict)
            about = About(f"regress{which}", "A number for each example.", "RegressAnswer", _ERRORS, "ExamplesBody")
            yield Route(f"{model}:regress", POST, service.regress, True, about, "Regress", predict)

    def owns(self, path: str) -> bool:
        return path[: len(_ROOT)].lower() == _ROOT

    def pattern(self, path: str) -> str:
        before, colon, verb = path.partition(":")
        return f"(?i:{super().pattern(before)}){colon}{verb}"

    def target(self, names: Mapping[str, str]) -> ModelRef:
        try:
            return model_in_path(names)
        except ServingError as error:
            raise self._counted(error) from None

    def model_of(self, target: ModelRef) -> str:
        return target.name

    def refusal(self, method: str, path: str, allowed: tuple[str, ...] | None) -> ServingError:
        hint = f"; OpenAI's API is at /openai{path:.200}" if path in _OPENAI_PATHS else ""
        return self._counted(invalid_argument(f"Malformed request: {method} {path}{hint}"))

    def error(self, request: Request, error: ServingError) -> Response:
        return error_reply(error, body_formats(request.headers)[1] if request.head.path.endswith(":predict") else JSON)

    def _counted(self, error: ServingError) -> ServingError:
        self._metrics.observe(RequestRecord("", "", REST), error.code, 0.0)
        return error
