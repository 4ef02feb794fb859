"""What the V2 targets hold answers against."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from handlers import Reply
from handlers_v2 import handlers_v2
from promises import BLAMES_THE_REQUEST, Violation, check_details, require

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.protocols.v2.generate import ONE_ANSWER
from tfs_lite.protocols.v2.tensors import decode_raw
from tfs_lite.server.grpc.status import INTERNAL

MAX_WORDS = 4096
"""Bytes of an error, beside what it repeats of the request."""
POLL_FAILURE = "failed to poll from model repository"
"""V2 calls a model that cannot be loaded for what it is INTERNAL, whoever is to blame."""
LENGTH = "inference-header-content-length"
REFUSALS = BLAMES_THE_REQUEST | {StatusCode.ALREADY_EXISTS}


def check_refusal(error: ServingError, size: int) -> None:
    """``size``: bytes of the request."""
    words = str(error)
    allowed = error.code in REFUSALS or (error.code is StatusCode.INTERNAL and POLL_FAILURE in words)
    require(allowed, f"{error.code.name}: {words}")
    require(words.strip(), f"{error.code.name} without a word")
    require(len(words) <= MAX_WORDS + 8 * size, "an error is much longer than its request")
    require(handlers_v2().root not in words, f"an error tells where files are: {words}")
    check_details(error)


def check_left() -> None:
    """Nothing of a request stays, and nothing happened that nobody was told of."""
    handlers = handlers_v2()
    require(handlers.fixture.handles == 0, f"{handlers.fixture.handles} handles are not given back")
    require(handlers.http_resources.bodies.numbers.held_bytes == 0, "the room of a body is not given back")
    require(handlers.room.held == 0, "the room of answers is not given back")
    require(not handlers.checks.left(), f"files of a load call are left: {handlers.checks.left()}")
    unseen = handlers.take_unseen()
    require(not unseen, f"unseen: {unseen}")


def check_infer_response(response: Message, expected_id: str) -> None:
    require(response.id == expected_id, f"the answer has the id {response.id!r}")
    require(len(response.raw_output_contents) == len(response.outputs), "outputs without contents")
    for output, data in zip(response.outputs, response.raw_output_contents, strict=True):
        if "shared_memory_region" not in output.parameters:
            decode_raw(output.datatype, tuple(output.shape), data, output.name)


def check_stream_answer(data: bytes) -> None:
    answer = v2.ModelStreamInferResponse.FromString(data)
    words = answer.error_message
    require(INTERNAL.message not in words, f"a stream answers {words!r}")
    if not words:
        check_infer_response(answer.infer_response, answer.infer_response.id)


def check_v2_reply(reply: Reply, size: int) -> None:
    if reply.gone:
        return
    stream = reply.headers.get("content-type", "").startswith("text/event-stream")
    encoding = reply.headers.get("content-encoding")
    body = {"gzip": gzip.decompress, "x-gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[encoding](
        reply.body
    )
    if reply.status >= 400 and not stream:
        require(len(body) <= MAX_WORDS + 8 * size, "an error is much longer than its request")
    if stream:
        for event in _events(body):
            _check_tree(reply, event)
    elif LENGTH in reply.headers:
        _check_binary(body, int(reply.headers[LENGTH]))
    elif body:
        _check_tree(reply, body)


def _check_tree(reply: Reply, text: bytes) -> None:
    tree: Any = json.loads(text)
    failed = isinstance(tree, dict) and list(tree) == ["error"]
    require(failed or reply.status < 400, f"{reply.status} with {text[:200]!r}")
    if failed:
        words = tree["error"]
        require(words.strip(), "an error without a word")
        allowed = reply.status < 500 or reply.status == 501 or POLL_FAILURE in words or words == ONE_ANSWER
        require(allowed, f"{reply.status}: {words[:300]!r}")
        require(words != "internal error", f"{reply.status}: {words!r}")
        require(handlers_v2().root not in words, f"an error tells where files are: {words}")
        return
    for output in tree.get("outputs", []) if isinstance(tree, dict) else []:
        if isinstance(output, dict) and "data" in output:
            _check_json_output(output)


def _check_json_output(output: dict[str, Any]) -> None:
    count = 1
    for size in output["shape"]:
        count *= size
    require(len(output["data"]) == count, f"{len(output['data'])} values for shape {output['shape']}")


def _check_binary(body: bytes, length: int) -> None:
    tree, at = json.loads(body[:length]), length
    for output in tree["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            decode_raw(output["datatype"], tuple(output["shape"]), body[at : at + size], output["name"])
            at += size
    require(at == len(body), "bytes are left behind the outputs")


def _events(body: bytes) -> list[bytes]:
    *events, rest = body.split(b"\n\n")
    if rest or any(not event.startswith(b"data: ") for event in events):
        raise Violation(f"no events: {body[:200]!r}")
    return [event.removeprefix(b"data: ") for event in events]
