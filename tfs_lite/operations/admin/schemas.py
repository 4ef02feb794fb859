"""The questions and answers of the admin API's routes, as JSON schemas."""

from __future__ import annotations

from tfs_lite.core.history import Cause, EventKind
from tfs_lite.operations.what_if.forecast import Fate
from tfs_lite.server.http.router import Tree
from tfs_lite.server.openapi import cause_schema, list_of, object_of, sandbox_schema


def schemas() -> dict[str, Tree]:
    """The schemas by name."""
    return {
        **_explained(),
        **_what_if(),
        "ReadAgain": object_of(("read",), read={"type": "string"}),
        "FailedRequests": _failed_requests(),
    }


def _explained() -> Tree:
    """The answers of the routes that explain."""
    text: Tree = {"type": "string"}
    perhaps: Tree = {"type": ["string", "null"]}
    version: Tree = {"type": ["integer", "null"]}
    cause = cause_schema()
    line = object_of(
        ("version", "verdict", "sentence", "since"), version=version, verdict=text, sentence=text, since=perhaps
    )
    answers = object_of(("reference", "version", "weight"), reference=text, version=version, weight={"type": "number"})
    process = object_of(
        ("version", "instance", "pid", "up", "restarts", "drains", "sandbox"),
        version=version,
        instance={"type": "integer", "minimum": 0},
        pid=version,
        up={"type": "boolean"},
        restarts={"type": "integer", "minimum": 0},
        drains={"type": "boolean"},
        sandbox=sandbox_schema(),
    )
    explanation = object_of(
        (
            *("model", "version", "label", "verdict", "sentence", "because", "waits_for", "next", "answers_now"),
            *("versions", "memory", "processes", "events", "requests"),
        ),
        model=text,
        version=version,
        label=perhaps,
        verdict=text,
        sentence=text,
        because=list_of(cause),
        waits_for=list_of(text),
        next=object_of(("at", "what"), at=perhaps, what=text),
        answers_now=list_of(answers),
        versions=list_of(line),
        memory=list_of({"type": "object"}),
        processes=list_of(process),
        events=list_of(_event()),
        requests=list_of(_failed_request()),
    )
    model = object_of(
        ("model", "verdict", "sentence", "version", "cause", "fix"),
        model=text,
        verdict=text,
        sentence=text,
        version=version,
        cause=perhaps,
        fix=text,
    )
    return {"Explanation": explanation, "Verdicts": object_of(("models",), models=list_of(model))}


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
    return object_of(tuple(failed), **failed)


def _failed_requests() -> Tree:
    """The answer about a failed request."""
    return object_of(
        ("requests", "reaches_back_to", "left_out"),
        requests=list_of(_failed_request()),
        reaches_back_to={"type": "string"},
        left_out={"type": "integer", "minimum": 0},
    )


def _what_if() -> Tree:
    """The schema of a forecast: the question and the answer."""
    text: Tree = {"type": "string"}
    count: Tree = {"type": "integer", "minimum": 0}
    perhaps: Tree = {"type": ["integer", "null"]}
    config = object_of(("model_config_list",), model_config_list={"type": "object"})
    publish = object_of(("model", "directory"), model=text, version=perhaps, directory=text)
    version = object_of(
        ("version", "fate", "why", "needs", "fits_now", "after", "requests", "sequences"),
        version=count,
        fate={"enum": [fate.value for fate in Fate]},
        why=text,
        needs={"type": "object", "additionalProperties": count},
        fits_now={"type": ["boolean", "null"]},
        after=list_of(object_of(("model", "version"), model=text, version=count)),
        requests=count,
        sequences=count,
    )
    model = object_of(
        ("name", "change", "fields", "problem", "gap", "remarks", "labels", "versions"),
        name=text,
        change={"enum": ["added", "removed", "changed", "unchanged"]},
        fields=list_of(text),
        problem=text,
        gap=text,
        remarks=list_of(text),
        labels=list_of(object_of(("label", "before", "after"), label=text, before=perhaps, after=perhaps)),
        versions=list_of(version),
    )
    refusal = object_of(("model", "code", "text"), model=text, code=text, text=text)
    answer = object_of(
        ("ok", "refused", "models"), ok={"type": "boolean"}, refused=list_of(refusal), models=list_of(model)
    )
    return {"WhatIf": answer, "WhatIfBody": {"oneOf": [config, object_of(("publish",), publish=publish)]}}


def _event() -> Tree:
    text: Tree = {"type": "string"}
    number: Tree = {"type": "integer"}
    status = object_of(("code", "message"), code=text, message=text)
    return object_of(
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


def events_schema() -> Tree:
    """The answer of the route of events."""
    number: Tree = {"type": "integer"}
    return object_of(
        ("events", "next", "first", "dropped"), events=list_of(_event()), next=number, first=number, dropped=number
    )
