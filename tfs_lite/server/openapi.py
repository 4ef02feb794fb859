"""The OpenAPI 3.1 description of the HTTP routes that tell what they are about, for readers, generated clients and
fuzzers.

The values of an input depend on the model's signature (see ``/metadata``), so that the description allows any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

import orjson

from tfs_lite import __version__
from tfs_lite.core.loader import LoadPhase
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.server.http.router import About, Api, Route, Tree

_TEXT = {"text/plain": {"schema": {"type": "string"}}}

_MEANINGS = {
    "400": "The request is malformed, or does not fit the model.",
    "404": "No such model or version is being served.",
    "405": "The page answers GET only.",
    "408": "The body did not arrive in time, or the time for a request that goes item by item is over.",
    "409": "There is a version of this number already.",
    "413": "The body is too large, packed or unpacked.",
    "415": "The body is encoded in a way that is not understood.",
    "422": "The model's own rules refuse an item of the request.",
    "429": "Too many large requests are waiting; try again.",
    "500": "The model failed.",
    "501": "The model has an input type that JSON has no form for.",
    "503": "The model's queue is full, or the server is being stopped; try again.",
    "504": "The deadline passed before the model had answered.",
}


_YES = {"200": {"description": "Yes.", "content": _TEXT}}
_PAGES: Mapping[str, Tree] = {
    "Yes": _YES,
    "Ready": {
        **_YES,
        "503": {"description": "Models are being loaded, or the server is being stopped.", "content": _TEXT},
    },
    "Metrics": {"200": {"description": "Prometheus text.", "content": _TEXT}},
    "Page": {"200": {"description": "The page.", "content": {"text/html": {"schema": {"type": "string"}}}}},
    "File": {"200": {"description": "The file.", "content": {"*/*": {}}}},
    "Feed": {"200": {"description": "Server-sent events, each a JSON object.", "content": {"text/event-stream": {}}}},
    "Document": {
        "200": {"description": "This document.", "content": {"application/json": {"schema": {"type": "object"}}}}
    },
}
"""Answers that have no schema."""


def document(apis: Sequence[Api[Any]]) -> bytes:
    """The whole description of these APIs, as JSON."""
    routes = [route for api in apis for route in api.routes()]
    paths: dict[str, Tree] = {}
    for route in routes:
        if route.about is not None:
            paths[route.path] = paths.get(route.path, {}) | _path(route, route.about)
    schemas = _schemas() | {name: schema for api in apis for name, schema in api.schemas().items()}
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "tfs_lite",
                "version": __version__,
                "description": "TensorFlow Serving's REST API for PyTorch models, probes and metrics.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": paths,
            "components": {"schemas": schemas, "parameters": _parameters()},
        }
    )


def _path(route: Route[Any], about: About) -> Tree:
    operation = {(route.methods or ("GET",))[0].lower(): _operation(about)}
    names = [name for _, name, _, _ in Formatter().parse(route.path) if name]
    if not names:
        return operation
    return {"parameters": [{"$ref": f"#/components/parameters/{name}"} for name in names], **operation}


def _operation(about: About) -> Tree:
    good = _PAGES.get(about.answer) or {
        "200": {"description": "The answer.", "content": _content(about.answer, about.media_types)}
    }
    errors = _content("Error", about.media_types)
    refused = {code: {"description": _MEANINGS[code], "content": errors} for code in about.errors}
    operation: Tree = {"operationId": about.name, "summary": about.summary, "responses": {**good, **refused}}
    if about.body:
        operation["requestBody"] = {"required": True, "content": _content(about.body, about.media_types)}
    return operation


def _content(schema: str, media_types: Iterable[str]) -> Tree:
    return {media_type: {"schema": _ref(schema)} for media_type in media_types}


def _ref(schema: str) -> Tree:
    return {"$ref": f"#/components/schemas/{schema}"}


def _parameters() -> Tree:
    schemas = {
        "model": {"type": "string", "minLength": 1},
        "version": {"type": "integer", "format": "int64", "minimum": 0, "maximum": MAX_VERSION},
        "label": {"type": "string", "minLength": 1},
        "request": {"type": "string", "minLength": 1},
        "file": {"type": "string", "minLength": 1},
    }
    return {name: {"name": name, "in": "path", "required": True, "schema": value} for name, value in schemas.items()}


def object_of(required: tuple[str, ...], **properties: Any) -> Tree:
    return {"type": "object", "required": list(required), "properties": properties}


def list_of(items: Any, **more: Any) -> Tree:
    return {"type": "array", "items": items, **more}


def _listed_model(versions: Tree) -> Tree:
    text: Tree = {"type": "string"}
    count: Tree = {"type": "integer", "minimum": 0}
    replica = object_of(
        ("name", "state", "since", "node", "pid", "ongoing", "restarts", "reason"),
        name=text,
        state={"enum": ["placing", "opening", "ready", "draining", "lost"]},
        since={"type": "number"},
        node=text,
        pid={"type": ["integer", "null"]},
        ongoing={"type": ["integer", "null"]},
        restarts=count,
        reason=text,
    )
    of_version = object_of(("version", "summary", "replicas"), version=text, summary=text, replicas=list_of(replica))
    seconds: Tree = {"type": "number", "minimum": 0}
    load = object_of(
        ("version", "phase", "seconds", "phase_seconds"),
        version=text,
        phase={"enum": [phase.value for phase in LoadPhase]},
        seconds=seconds,
        phase_seconds=seconds,
        read_bytes=count,
        expected_bytes=count,
        seconds_left=seconds,
    )
    process = object_of(
        ("version", "instance", "pid", "drains", "sandbox"),
        version=text,
        instance=count,
        pid={"type": ["integer", "null"]},
        drains={"type": "boolean"},
        sandbox=sandbox_schema(),
    )
    return object_of(
        ("name", "model_version_status"),
        name=text,
        model_version_status=versions,
        reason=text,
        load_progress=list_of(load),
        replica_status=list_of(of_version),
        process_status=list_of(process),
    )


def sandbox_schema() -> Tree:
    """The schema of a process's sandbox; null for a process in none."""
    things = list_of({"enum": ["files", "programs", "network", "signals"]})
    return object_of(("holds", "lacks"), holds=things, lacks=things) | {"type": ["object", "null"]}


def cause_schema() -> Tree:
    """One link of a chain of causes."""
    text: Tree = {"type": "string"}
    since: Tree = {"type": ["string", "null"]}
    return object_of(("cause", "text", "since", "fix", "doc"), cause=text, text=text, since=since, fix=text, doc=text)


def _schemas() -> Tree:
    text: Tree = {"type": "string"}
    number: Tree = {"type": "number"}
    states = ["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
    status = object_of(("error_code", "error_message"), error_code=text, error_message=text)
    version = object_of(
        ("version", "state", "status"), version={**text, "pattern": "^[0-9]+$"}, state={"enum": states}, status=status
    )
    versions = list_of(version)
    binary = {**object_of(("b64",), b64=text), "additionalProperties": False}
    values: list[Tree] = [{"type": "integer"}, number, {"type": "boolean"}, text, binary]
    feature = {"anyOf": [*values, *map(list_of, values)]}
    example: Tree = {"type": "object", "description": "Features by name.", "additionalProperties": feature}
    spec = object_of(("name", "signature_name", "version"), name=text, signature_name=text, version=text)
    signatures = object_of(("signature_def",), signature_def={"type": "object"})
    return {
        "Error": {**object_of(("error",), error=text), "additionalProperties": False},
        "ModelStatus": object_of(("model_version_status",), model_version_status=versions),
        "ModelList": object_of(("models",), models=list_of(_listed_model(versions)), config_refused=cause_schema()),
        "ModelMetadata": object_of(
            ("model_spec", "metadata"),
            model_spec=spec,
            metadata=object_of(("signature_def",), signature_def=signatures),
        ),
        "PredictBody": {
            "oneOf": [
                object_of(("instances",), signature_name=text, instances=list_of({}, minItems=1)),
                object_of(("inputs",), signature_name=text, inputs={}),
            ]
        },
        "PredictAnswer": {
            "oneOf": [object_of(("predictions",), predictions=list_of({})), object_of(("outputs",), outputs={})]
        },
        "ExamplesBody": object_of(
            ("examples",), signature_name=text, context=example, examples=list_of(example, minItems=1)
        ),
        "ClassifyAnswer": object_of(
            ("results",), results=list_of(list_of(list_of({}, minItems=2, maxItems=2, prefixItems=[text, number])))
        ),
        "RegressAnswer": object_of(("results",), results=list_of(number)),
    }
