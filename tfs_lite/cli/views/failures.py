"""Failed requests as ``explain --request`` and ``explain --failed`` show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfs_lite.cli.output import print_json

_STAGES = {
    "route": "no version answers it",
    "decode": "what was sent cannot be read",
    "check": "its inputs do not fit the model",
    "queue": "it waited for the model",
    "run": "the model ran it",
    "encode": "the answer was being written",
    "send": "the answer was being sent",
}
_COMPANY = {
    "alone": "it ran alone",
    "guilty": "its batch failed and was tried again in halves: this one failed by itself",
    "shared": "it failed together with others of its batch",
}


def print_failed_requests(answer: Any, as_json: bool) -> None:
    """The answer of ``GET /v1/requests/ID``."""
    if as_json:
        print_json(answer)
        return
    for request in answer["requests"]:
        print("\n".join(_lines(request)), flush=True)


def print_last_failed(answer: Any, as_json: bool) -> None:
    """The answer of ``GET /v1/requests``: a line each, the newest first."""
    if as_json:
        print_json(answer)
        return
    lines = [_line(request) for request in answer["requests"]]
    if answer["left_out"]:
        lines.append(f"{answer['left_out']} more were not kept: too many failed in one second")
    print("\n".join(lines) or f"no request has failed since {answer['reaches_back_to']}", flush=True)


def _line(request: Any) -> str:
    what = f"{request['model'] or '?'}{_version(request)} {request['code']} in {request['stage']}"
    return f"{request['time']}  {request['request_id']}  {what}: {request['message']}"


def _version(request: Any) -> str:
    return "" if request["version"] is None else f"@{request['version']}"


def _lines(request: Any) -> Iterator[str]:
    model = f" of {request['model']}{_version(request)}" if request["model"] else ""
    yield f"{request['request_id']}: {request['code']} in {request['stage']}: {request['message']}"
    peer = f" from {request['peer']}" if request["peer"] else ""
    yield f"  {request['method']}{model}, {request['protocol']}{peer}, {request['time']}"
    times = [f"{_milliseconds(request['seconds'])} in all"]
    times += [f"{_milliseconds(request[f'{kind}_seconds'])} {kind}" for kind in ("queue", "run")]
    yield f"  stage {request['stage']}: {_STAGES.get(request['stage'], '')}; {', '.join(times)}"
    if request["batch"]:
        rows = f"{request['rows']} of {request['batch_rows']} rows"
        yield f"  batch: {_COMPANY[request['batch']]} ({rows})"
    if request["trace_id"]:
        yield f"  trace {request['trace_id']}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
