"""The OpenAPI 3.1 description of the HTTP routes, for readers, generated clients and fuzzers.

The values of an input depend on the model's signature (see ``/metadata``), so that the description allows any value.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import orjson

from tfs_lite import __version__
from tfs_lite.core.servable import MAX_VERSION

Tree: TypeAlias = dict[str, Any]

JSON = "application/json"
MSGPACK = "application/msgpack"
TEXT = "text/plain"

_MEANINGS = {
    "400": "The request is malformed, or does not fit the model.",
    "404": "No such model or version is being served.",
    "405": "The page answers GET only.",
    "408": "The body did not arrive in time, or the time for a request that goes item by item is over.",
    "413": "The body is too large, packed or unpacked.",
    "415": "The body is encoded in a way that is not understood.",
    "422": "The model's own rules refuse an item of the request.",
    "429": "Too many large requests are waiting; try again.",
    "500": "The model failed.",
    "501": "The model has an input type that JSON has no form for.",
    "503": "The model's queue is full, or the server is being stopped; try again.",
    "504": "The deadline passed before the model had answered.",
}


def document() -> bytes:
    """The whole description, as JSON."""
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "tfs_lite",
                "version": __version__,
                "description": "TensorFlow Serving's REST API for PyTorch models, probes and metrics.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": {**_model_paths(), **_page_paths()},
            "components": {"schemas": _schemas(), "parameters": _parameters()},
        }
    )


def _model_paths() -> Tree:
    """Each model path exists three times: for the latest version, one by number, one by label."""
    paths: Tree = {
        "/v1/models": {
            "get": _operation("listModels", "Every model with the states of its versions.", _ok("ModelList"), "400")
        }
    }
    for suffix, operation_suffix, parameters in (
        ("", "", ("model",)),
        ("/versions/{version}", "OfVersion", ("model", "version")),
        ("/labels/{label}", "OfLabel", ("model", "label")),
    ):
        path = f"/v1/models/{{model}}{suffix}"
        given = [{"$ref": f"#/components/parameters/{name}"} for name in parameters]
        paths[path] = {"parameters": given, "get": _status(operation_suffix)}
        paths[f"{path}/metadata"] = {"parameters": given, "get": _metadata(operation_suffix)}
        for verb, operation in (("predict", _predict), ("classify", _classify), ("regress", _regress)):
            paths[f"{path}:{verb}"] = {"parameters": given, "post": operation(operation_suffix)}
    return paths


def _page_paths() -> Tree:
    text = {TEXT: {"schema": {"type": "string"}}}
    good = {"200": {"description": "Yes.", "content": text}}
    metrics = {"200": {"description": "Prometheus text.", "content": text}}
    loading = {"503": {"description": "Models are being loaded, or the server is being stopped.", "content": text}}
    this = {"200": {"description": "This document.", "content": {JSON: {"schema": {"type": "object"}}}}}
    pages = {
        "/livez": ("livez", "Whether the process is alive.", good, ("405",)),
        "/startupz": ("startupz", "Whether the process has started.", good, ("405",)),
        "/readyz": ("readyz", "Whether traffic is welcome.", {**good, **loading}, ("405",)),
        "/metrics": ("metrics", "Metrics.", metrics, ("405", "429")),
        "/monitoring/prometheus/metrics": ("prometheusMetrics", "Metrics.", metrics, ("400", "405", "429")),
        "/openapi.json": ("openapi", "The description of this API.", this, ("405",)),
    }
    return {path: {"get": _operation(name, told, good, *codes)} for path, (name, told, good, codes) in pages.items()}


def _operation(
    name: str, summary: str, good: Tree, *codes: str, formats: tuple[str, ...] = (JSON,), body: Tree | None = None
) -> Tree:
    refused = {code: {"description": _MEANINGS[code], "content": _content("Error", *formats)} for code in codes}
    operation: Tree = {"operationId": name, "summary": summary, "responses": {**good, **refused}}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _status(which: str) -> Tree:
    return _operation(f"modelStatus{which}", "The states of its versions.", _ok("ModelStatus"), "400", "404")


def _metadata(which: str) -> Tree:
    return _operation(f"modelMetadata{which}", "Its signatures.", _ok("ModelMetadata"), "400", "404")


def _predict(which: str) -> Tree:
    return _prediction(f"predict{which}", "Runs it on tensors.", "Predict", JSON, MSGPACK)


def _classify(which: str) -> Tree:
    return _prediction(f"classify{which}", "Classifies examples.", "Classify", JSON)


def _regress(which: str) -> Tree:
    return _prediction(f"regress{which}", "A number for each example.", "Regress", JSON)


def _prediction(name: str, summary: str, kind: str, *formats: str) -> Tree:
    body = _content("PredictBody" if kind == "Predict" else "ExamplesBody", *formats)
    codes = ("400", "404", "408", "413", "415", "422", "429", "500", "501", "503", "504")
    return _operation(name, summary, _ok(f"{kind}Answer", *formats), *codes, formats=formats, body=body)


def _ok(schema: str, *formats: str) -> Tree:
    return {"200": {"description": "The answer.", "content": _content(schema, *(formats or (JSON,)))}}


def _content(schema: str, *formats: str) -> Tree:
    return {format: {"schema": _ref(schema)} for format in formats}


def _ref(schema: str) -> Tree:
    return {"$ref": f"#/components/schemas/{schema}"}


def _parameters() -> Tree:
    schemas = {
        "model": {"type": "string", "minLength": 1},
        "version": {"type": "integer", "format": "int64", "minimum": 0, "maximum": MAX_VERSION},
        "label": {"type": "string", "minLength": 1},
    }
    return {name: {"name": name, "in": "path", "required": True, "schema": value} for name, value in schemas.items()}


def _object(required: tuple[str, ...], **properties: Any) -> Tree:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: Any, **more: Any) -> Tree:
    return {"type": "array", "items": items, **more}


def _schemas() -> Tree:
    text: Tree = {"type": "string"}
    number: Tree = {"type": "number"}
    states = ["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
    status = _object(("error_code", "error_message"), error_code=text, error_message=text)
    version = _object(
        ("version", "state", "status"), version={**text, "pattern": "^[0-9]+$"}, state={"enum": states}, status=status
    )
    versions = _list(version)
    binary = {**_object(("b64",), b64=text), "additionalProperties": False}
    values: list[Tree] = [{"type": "integer"}, number, {"type": "boolean"}, text, binary]
    feature = {"anyOf": [*values, *map(_list, values)]}
    example: Tree = {"type": "object", "description": "Features by name.", "additionalProperties": feature}
    spec = _object(("name", "signature_name", "version"), name=text, signature_name=text, version=text)
    signatures = _object(("signature_def",), signature_def={"type": "object"})
    return {
        "Error": {**_object(("error",), error=text), "additionalProperties": False},
        "ModelStatus": _object(("model_version_status",), model_version_status=versions),
        "ModelList": _object(
            ("models",),
            models=_list(
                _object(("name", "model_version_status"), name=text, model_version_status=versions, reason=text)
            ),
        ),
        "ModelMetadata": _object(
            ("model_spec", "metadata"), model_spec=spec, metadata=_object(("signature_def",), signature_def=signatures)
        ),
        "PredictBody": {
            "oneOf": [
                _object(("instances",), signature_name=text, instances=_list({}, minItems=1)),
                _object(("inputs",), signature_name=text, inputs={}),
            ]
        },
        "PredictAnswer": {
            "oneOf": [_object(("predictions",), predictions=_list({})), _object(("outputs",), outputs={})]
        },
        "ExamplesBody": _object(
            ("examples",), signature_name=text, context=example, examples=_list(example, minItems=1)
        ),
        "ClassifyAnswer": _object(
            ("results",), results=_list(_list(_list({}, minItems=2, maxItems=2, prefixItems=[text, number])))
        ),
        "RegressAnswer": _object(("results",), results=_list(number)),
    }
