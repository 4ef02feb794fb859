"""The OpenAPI 3.1 description of the HTTP routes that tell what they are about, for readers, generated clients and
fuzzers.

The values of an input depend on the model's signature (see ``/metadata``), so that the description allows any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any, TypeAlias

import orjson

from tfs_lite import __version__
from tfs_lite.core.history import Cause, EventKind
from tfs_lite.core.loader import LoadPhase
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.server.http.router import About, Route
from tfs_lite.serving.what_if.forecast import Fate

Tree: TypeAlias = dict[str, Any]

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


def document(routes: Iterable[Route[Any]]) -> bytes:
    """The whole description, as JSON."""
    paths = {route.path: _path(route, route.about) for route in routes if route.about is not None}
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
            "components": {"schemas": _schemas(), "parameters": _parameters()},
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


def _object(required: tuple[str, ...], **properties: Any) -> Tree:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: Any, **more: Any) -> Tree:
    return {"type": "array", "items": items, **more}


def _listed_model(versions: Tree) -> Tree:
    text: Tree = {"type": "string"}
    count: Tree = {"type": "integer", "minimum": 0}
    replica = _object(
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
    of_version = _object(("version", "summary", "replicas"), version=text, summary=text, replicas=_list(replica))
    seconds: Tree = {"type": "number", "minimum": 0}
    load = _object(
        ("version", "phase", "seconds", "phase_seconds"),
        version=text,
        phase={"enum": [phase.value for phase in LoadPhase]},
        seconds=seconds,
        phase_seconds=seconds,
        read_bytes=count,
        expected_bytes=count,
        seconds_left=seconds,
    )
    process = _object(
        ("version", "instance", "pid", "sandbox"),
        version=text,
        instance=count,
        pid={"type": ["integer", "null"]},
        sandbox=_sandbox(),
    )
    return _object(
        ("name", "model_version_status"),
        name=text,
        model_version_status=versions,
        reason=text,
        load_progress=_list(load),
        replica_status=_list(of_version),
        process_status=_list(process),
    )


def _sandbox() -> Tree:
    """Of a process; null for one in none."""
    things = _list({"enum": ["files", "programs", "network", "signals"]})
    return _object(("holds", "lacks"), holds=things, lacks=things) | {"type": ["object", "null"]}


def _cause() -> Tree:
    """One link of a chain of causes."""
    text: Tree = {"type": "string"}
    since: Tree = {"type": ["string", "null"]}
    return _object(("cause", "text", "since", "fix", "doc"), cause=text, text=text, since=since, fix=text, doc=text)


def _explained() -> Tree:
    """The answers of the routes that explain."""
    text: Tree = {"type": "string"}
    perhaps: Tree = {"type": ["string", "null"]}
    version: Tree = {"type": ["integer", "null"]}
    cause = _cause()
    line = _object(
        ("version", "verdict", "sentence", "since"), version=version, verdict=text, sentence=text, since=perhaps
    )
    answers = _object(("reference", "version", "weight"), reference=text, version=version, weight={"type": "number"})
    process = _object(
        ("version", "instance", "pid", "up", "restarts", "sandbox"),
        version=version,
        instance={"type": "integer", "minimum": 0},
        pid=version,
        up={"type": "boolean"},
        restarts={"type": "integer", "minimum": 0},
        sandbox=_sandbox(),
    )
    explanation = _object(
        (
            *("model", "version", "label", "verdict", "sentence", "because", "waits_for", "next", "answers_now"),
            *("versions", "memory", "processes", "events", "requests"),
        ),
        model=text,
        version=version,
        label=perhaps,
        verdict=text,
        sentence=text,
        because=_list(cause),
        waits_for=_list(text),
        next=_object(("at", "what"), at=perhaps, what=text),
        answers_now=_list(answers),
        versions=_list(line),
        memory=_list({"type": "object"}),
        processes=_list(process),
        events=_list(_event()),
        requests=_list(_failed_request()),
    )
    model = _object(
        ("model", "verdict", "sentence", "version", "cause", "fix"),
        model=text,
        verdict=text,
        sentence=text,
        version=version,
        cause=perhaps,
        fix=text,
    )
    return {"Explanation": explanation, "Verdicts": _object(("models",), models=_list(model))}


def _overview() -> Tree:
    """What the dashboard shows."""
    text: Tree = {"type": "string"}
    number: Tree = {"type": "number"}
    perhaps: Tree = {"type": ["number", "null"]}
    numbers: Tree = {"type": "object", "additionalProperties": number}
    version = _object(
        ("version", "state", "since", "wanted", "now"),
        version={"type": "integer"},
        state=text,
        since=perhaps,
        wanted={"type": "boolean"},
        message=text,
        labels=_list(text),
        memory={"type": "integer"},
        progress={"type": ["object", "null"]},
        replicas=_object(("ready", "of", "summary"), ready={"type": "integer"}, of={"type": "integer"}, summary=text),
        now=numbers,
    )
    model = _object(
        ("name", "rank", "verdict", "sentence", "cause", "fix", "answers", "versions", "now", "unanswered", "event"),
        name=text,
        rank={"type": "integer"},
        verdict=text,
        sentence=text,
        cause={"type": ["string", "null"]},
        fix=text,
        answers={"type": ["integer", "null"]},
        versions=_list(version),
        now=numbers,
        unanswered=numbers,
        event={"type": "integer"},
    )
    server = _object(
        ("product", "version", "started", "time", "ready", "why", "control", "tick", "now", "resident", "memory"),
        product=text,
        version=text,
        started=number,
        time=number,
        ready={"type": "boolean"},
        why=text,
        control=text,
        tick={"type": "integer"},
        now=numbers,
        resident={"type": ["integer", "null"]},
        memory=_list({"type": "object"}),
    )
    overview = _object(
        ("may", "server", "models"),
        may=_list(text),
        server=server,
        models=_list(model),
        series={"type": "object"},
        sparks=_list({"type": "object"}),
        details={"type": "object"},
    )
    return {"Overview": overview}


def _failed_request() -> Tree:
    text: Tree = {"type": "string"}
    seconds: Tree = {"type": "number", "minimum": 0}
    count: Tree = {"type": "integer", "minimum": 0}
    texts = ("time", "request_id", "trace_id", "method", "protocol", "model", "code", "message", "peer")
    failed: dict[str, Tree] = {
        **dict.fromkeys(texts, text),
        "version": {"type": ["integer", "null"]},
        "stage": {"enum": ["route", "decode", "check", "queue", "run", "encode", "send"]},
        "batch": {"enum": ["", "alone", "guilty", "shared"]},
        **dict.fromkeys(("seconds", "queue_seconds", "run_seconds"), seconds),
        **dict.fromkeys(("rows", "batch_rows"), count),
    }
    return _object(tuple(failed), **failed)


def _failed_requests() -> Tree:
    """The answer about a failed request."""
    return _object(
        ("requests", "reaches_back_to", "left_out"),
        requests=_list(_failed_request()),
        reaches_back_to={"type": "string"},
        left_out={"type": "integer", "minimum": 0},
    )


def _what_if() -> Tree:
    """What a config would change: the question and the answer."""
    text: Tree = {"type": "string"}
    count: Tree = {"type": "integer", "minimum": 0}
    perhaps: Tree = {"type": ["integer", "null"]}
    config = _object(("model_config_list",), model_config_list={"type": "object"})
    publish = _object(("model", "directory"), model=text, version=perhaps, directory=text)
    version = _object(
        ("version", "fate", "why", "needs", "fits_now", "after", "requests", "sequences"),
        version=count,
        fate={"enum": [fate.value for fate in Fate]},
        why=text,
        needs={"type": "object", "additionalProperties": count},
        fits_now={"type": ["boolean", "null"]},
        after=_list(_object(("model", "version"), model=text, version=count)),
        requests=count,
        sequences=count,
    )
    model = _object(
        ("name", "change", "fields", "problem", "gap", "remarks", "labels", "versions"),
        name=text,
        change={"enum": ["added", "removed", "changed", "unchanged"]},
        fields=_list(text),
        problem=text,
        gap=text,
        remarks=_list(text),
        labels=_list(_object(("label", "before", "after"), label=text, before=perhaps, after=perhaps)),
        versions=_list(version),
    )
    refusal = _object(("model", "code", "text"), model=text, code=text, text=text)
    answer = _object(("ok", "refused", "models"), ok={"type": "boolean"}, refused=_list(refusal), models=_list(model))
    return {"WhatIf": answer, "WhatIfBody": {"oneOf": [config, _object(("publish",), publish=publish)]}}


def _event() -> Tree:
    text: Tree = {"type": "string"}
    number: Tree = {"type": "integer"}
    status = _object(("code", "message"), code=text, message=text)
    return _object(
        ("seq", "time", "kind", "model", "version", "cause", "by", "status", "details", "text"),
        seq=number,
        time=text,
        kind={"enum": [kind.value for kind in EventKind]},
        model=text,
        version={"type": ["integer", "null"]},
        cause={"enum": [*(cause.value for cause in Cause), None]},
        by=text,
        status={"anyOf": [status, {"type": "null"}]},
        details={"type": "object"},
        text=text,
        count=number,
        last=text,
    )


def _events() -> Tree:
    """The answer of the route of events."""
    number: Tree = {"type": "integer"}
    return _object(
        ("events", "next", "first", "dropped"), events=_list(_event()), next=number, first=number, dropped=number
    )


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
        "ModelList": _object(("models",), models=_list(_listed_model(versions)), config_refused=_cause()),
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
        **_explained(),
        **_overview(),
        **_what_if(),
        "ReadAgain": _object(("read",), read={"type": "string"}),
        "FailedRequests": _failed_requests(),
        "Events": _events(),
    }
