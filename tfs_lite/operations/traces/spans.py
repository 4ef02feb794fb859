"""The spans of a request, and those of batches, as plain values. Pure.

    Predict ranker                        the server's span, a child of the caller's
      decode | queue | compute | encode   the parts of one call to a model, in order
      step tokenizer                      a step of an ensemble, with queue and compute of its own
    batch ranker@7                        a trace of its own, linked with the compute spans of its calls

Times are in seconds of ``time.monotonic``, and those of a child never leave its parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import getrandbits
from typing import NamedTuple, TypeAlias

from tfs_lite.core.model import BatchTrace, CallTrace, TextTimes
from tfs_lite.core.request_context import TraceContext
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.ended_requests import CallTimes, EndedRequest
from tfs_lite.metrics.requests import GRPC

Attribute: TypeAlias = str | int | float | bool
MAX_LINKS = 128
"""Requests that the span of a batch is linked with."""
MAX_BATCHES = 8
"""Batches that the span of a call is linked with."""
SERVER, INTERNAL = "server", "internal"


class SpanId(NamedTuple):
    trace: int
    span: int


@dataclass(slots=True)
class Span:
    """``error`` is the text of a failure; None for a success. ``events`` have a name and a time. ``state`` is the
    ``tracestate`` of the trace, which goes with every span of it."""

    name: str
    id: SpanId
    parent: SpanId | None
    start: float
    end: float
    kind: str = INTERNAL
    attributes: dict[str, Attribute] = field(default_factory=dict)
    events: Sequence[tuple[str, float]] = ()
    links: Sequence[SpanId] = ()
    error: str | None = None
    state: str = ""


class ChosenRequest(NamedTuple):
    """A request that is traced. ``caller`` is the span that it is a child of; ``sampled_by``: why it was chosen."""

    ended: EndedRequest
    id: SpanId
    caller: TraceContext | None
    sampled_by: str


def new_trace() -> int:
    return getrandbits(128) or 1


def new_span() -> int:
    return getrandbits(64) or 1


class BatchLinks(NamedTuple):
    """The id of the span of a batch, and the spans that it is linked with."""

    id: SpanId
    links: list[SpanId]


def request_spans(chosen: ChosenRequest, batches: dict[BatchTrace, BatchLinks]) -> list[Span]:
    """The server's span and those below it. ``batches`` gets the links of each batch."""
    ended, caller = chosen.ended, chosen.caller
    parent = None if caller is None else SpanId(int(caller.trace_id, 16), int(caller.span_id, 16))
    failed = ended.code is not StatusCode.OK
    root = Span(
        f"{ended.method} {ended.model}",
        chosen.id,
        parent,
        ended.arrived,
        max(ended.started + ended.seconds, ended.arrived),
        SERVER,
        _attributes(chosen),
        error=f"{ended.code.name}: {ended.message}" if failed else None,
        state="" if caller is None else caller.state,
    )
    spans = [root]
    for call in ended.calls:
        spans += _call_spans(root, call, batches)
    spans += _edges(root, ended)
    return spans


def _attributes(chosen: ChosenRequest) -> dict[str, Attribute]:
    ended = chosen.ended
    found: dict[str, Attribute] = {
        "tfs_lite.model": ended.model,
        "tfs_lite.request_id": ended.context.request_id,
        "tfs_lite.rows": ended.rows,
        "tfs_lite.sampled_by": chosen.sampled_by,
        "tfs_lite.code": ended.code.name,
        "tfs_lite.stage": ended.stage,
    }
    if ended.entrypoint == GRPC:
        found |= {"rpc.system": "grpc", "rpc.method": ended.method, "rpc.grpc.status_code": int(ended.code)}
    else:
        found |= {"http.request.method": "POST", "tfs_lite.method": ended.method}
    if ended.version is not None:
        found["tfs_lite.version"] = ended.version
    if ended.shielded_from:
        found["tfs_lite.shielded_from"] = ended.shielded_from
    if ended.context.peer:
        found["network.peer.address"] = ended.context.peer
    if ended.batch_rows:
        found["tfs_lite.batch_rows"] = ended.batch_rows
    if ended.halved:
        found["tfs_lite.halved"] = True
    return found


def _edges(root: Span, ended: EndedRequest) -> Iterator[Span]:
    """The spans before and behind the model."""
    begun = [call.arrived for call in ended.calls if call.arrived]
    first = min(begun) if begun else (root.end if ended.stage == "decode" else None)
    if first is not None:
        yield _child(root, "decode", ended.started, first)
    if begun and ended.stage in ("done", "encode"):
        yield _child(root, "encode", max(_end_of(call) for call in ended.calls), root.end)


def _end_of(call: CallTimes) -> float:
    trace = call.trace
    if trace is not None and trace.steps:
        return max(step.ended for step in trace.steps)
    return call.arrived + call.queue_seconds + call.run_seconds


def _call_spans(parent: Span, call: CallTimes, batches: dict[BatchTrace, BatchLinks]) -> Iterator[Span]:
    if not call.arrived:
        return
    trace = call.trace
    if trace is not None and trace.steps:
        for step in trace.steps:
            span = _step(parent, step.id, step.arrived, step.ended)
            if step.code is not StatusCode.OK:
                span.error = step.code.name
            yield span
            times = CallTimes(
                step.arrived, step.queue_seconds, step.run_seconds, step.copy_seconds, 1, 0, False, step.trace
            )
            yield from _call_spans(span, times, batches)
        return
    started = call.arrived + call.queue_seconds
    if call.queue_seconds or not call.run_seconds:
        until = started if call.queue_seconds else parent.end
        yield _child(parent, "queue", call.arrived, until)
    if call.run_seconds:
        yield from _compute(parent, call, trace, started, batches)


def _step(parent: Span, servable_id: ServableId, start: float, end: float) -> Span:
    span = _child(parent, f"step {servable_id.name}", start, end)
    span.attributes = {"tfs_lite.model": servable_id.name, "tfs_lite.version": servable_id.version}
    return span


def _compute(
    parent: Span, call: CallTimes, trace: CallTrace | None, started: float, batches: dict[BatchTrace, BatchLinks]
) -> Iterator[Span]:
    ended = started + call.run_seconds
    span = _child(parent, "compute", started, ended)
    before, behind = call.copy_seconds
    moments = (
        ("COMPUTE_START", started),
        ("COMPUTE_INPUT_END", started + before),
        ("COMPUTE_OUTPUT_START", ended - behind),
        ("COMPUTE_END", ended),
    )
    span.events = [(name, min(max(at, span.start), span.end)) for name, at in moments]
    if trace is not None:
        runs = dict.fromkeys(trace.batches)
        for batch in runs:
            if batch not in batches:
                batches[batch] = BatchLinks(SpanId(new_trace(), new_span()), [])
            batches[batch].links.append(span.id)
        span.links = [batches[batch].id for batch in runs][:MAX_BATCHES]
    yield span
    for text in trace.texts if trace is not None else ():
        yield from _text(span, text)


def _text(parent: Span, text: TextTimes) -> Iterator[Span]:
    """The prompt of a text until its first token, and the tokens behind it."""
    prefill = _child(parent, "prefill", text.started, text.first)
    prefill.attributes = {"tfs_lite.tokens": text.prompt_tokens, "tfs_lite.cached_tokens": text.cached_tokens}
    yield prefill
    decode = _child(parent, "decode", text.first, text.ended)
    decode.attributes = {"tfs_lite.tokens": text.output_tokens}
    yield decode


def _child(parent: Span, name: str, start: float, end: float) -> Span:
    """Within its parent."""
    start = min(max(start, parent.start), parent.end)
    end = min(max(end, start), parent.end)
    return Span(name, SpanId(parent.id.trace, new_span()), parent.id, start, end, state=parent.state)


def batch_span(batch: BatchTrace, found: BatchLinks) -> Span:
    """A trace of its own."""
    report = batch.report
    attributes: dict[str, Attribute] = {
        "tfs_lite.model": report.id.name,
        "tfs_lite.version": report.id.version,
        "tfs_lite.rows": report.rows,
        "tfs_lite.padding": report.padding,
        "tfs_lite.calls": len(report.queue_seconds),
    }
    return Span(
        f"batch {report.id.name}@{report.id.version}",
        found.id,
        None,
        batch.started,
        batch.started + report.run_seconds,
        attributes=attributes,
        links=found.links[:MAX_LINKS],
        error=None if report.ok else "the run has failed",
    )
