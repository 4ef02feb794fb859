"""The schema of what the dashboard shows, in JSON."""

from __future__ import annotations

from tfs_lite.server.http.router import Tree
from tfs_lite.server.openapi import list_of, object_of


def overview_schemas() -> Tree:
    """The schemas of the overview."""
    text: Tree = {"type": "string"}
    number: Tree = {"type": "number"}
    perhaps: Tree = {"type": ["number", "null"]}
    numbers: Tree = {"type": "object", "additionalProperties": number}
    version = object_of(
        ("version", "state", "since", "wanted", "now"),
        version={"type": "integer"},
        state=text,
        since=perhaps,
        wanted={"type": "boolean"},
        message=text,
        labels=list_of(text),
        memory={"type": "integer"},
        progress={"type": ["object", "null"]},
        replicas=object_of(("ready", "of", "summary"), ready={"type": "integer"}, of={"type": "integer"}, summary=text),
        now=numbers,
    )
    model = object_of(
        ("name", "rank", "verdict", "sentence", "cause", "fix", "answers", "versions", "now", "unanswered", "event"),
        name=text,
        rank={"type": "integer"},
        verdict=text,
        sentence=text,
        cause={"type": ["string", "null"]},
        fix=text,
        answers={"type": ["integer", "null"]},
        versions=list_of(version),
        now=numbers,
        unanswered=numbers,
        event={"type": "integer"},
    )
    server = object_of(
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
        memory=list_of({"type": "object"}),
    )
    overview = object_of(
        ("may", "server", "models"),
        may=list_of(text),
        server=server,
        models=list_of(model),
        series={"type": "object"},
        sparks=list_of({"type": "object"}),
        details={"type": "object"},
    )
    return {"Overview": overview}
