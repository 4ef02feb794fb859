"""Language models as functions of bytes that raise when a promise is broken, see ``targets``: requests, and the files
of a version."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from handlers import Reply
from handlers_generation import handlers_generation, refusal_of
from promises import check_details, check_error, require

from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.generation import ChatPrompt, TextCodec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import PredictRequest, PredictResponse
from tfs_lite.protocols.tensorflow.tensor_proto import decode

MAX_WORDS = 4096
"""Bytes of an error, beside what it repeats of the request."""
FILE_NAMES = ("config.json", "tokenizer_config.json", "model.safetensors")
BLAMES_THE_FILES = frozenset(
    {StatusCode.DATA_LOSS, StatusCode.FAILED_PRECONDITION, StatusCode.PERMISSION_DENIED, StatusCode.INVALID_ARGUMENT}
)


def openai_completion(data: bytes) -> None:
    """The body of a completion."""
    _openai("/openai/v1/completions", data)


def openai_chat(data: bytes) -> None:
    """The body of a chat completion."""
    _openai("/openai/v1/chat/completions", data)


def generate_body(data: bytes) -> None:
    """The body of ``generate`` and of ``generate_stream``, after a byte for the model: i(ds) or any other. What one
    takes the other takes, but for several texts."""
    model = "ids" if data[:1] == b"i" else "lm"
    replies = [
        handlers_generation().post(f"/v2/models/{model}/{verb}", data[1:]) for verb in ("generate", "generate_stream")
    ]
    for reply in replies:
        trees = _trees(reply, len(data))
        failed = [tree for tree in trees if list(tree) == ["error"]]
        require(bool(failed) == (reply.status >= 400), f"{reply.status} with {failed}")
        require(all(tree["error"].strip() for tree in failed), "an error without a word")
    one, streamed = replies
    several = b"one at a time" in streamed.body
    require(several or one.status == streamed.status, f"whole {one.status}, streamed {streamed.status}")


def generation_tensors(data: bytes) -> None:
    """A PredictRequest for a language model, by Predict and by PredictStreamed."""
    try:
        request = PredictRequest.FromString(data)
    except DecodeError:
        request = PredictRequest()
    whole, refused = refusal_of(lambda: handlers_generation().predict(data))
    _check_left()
    pieces, stopped = refusal_of(lambda: handlers_generation().streamed([data]))
    _check_left()
    for error in (refused, stopped):
        if error is not None:
            check_error(error)
            check_details(error)
            require(len(str(error)) <= MAX_WORDS + 8 * len(data), "an error is much longer than its request")
    if whole is not None:
        for name, tensor in PredictResponse.FromString(whole).outputs.items():
            decode(tensor, name)
    for piece in pieces or ():
        for name, tensor in PredictResponse.FromString(piece).outputs.items():
            decode(tensor, name)
    if request.model_spec.name in ("lm", "ids") and not request.HasField("predict_streamed_options"):
        several = stopped is not None and "one at a time" in str(stopped)
        require(several or (refused is None) == (stopped is None), f"whole {refused}, streamed {stopped}")


def lm_files(data: bytes) -> None:
    """``config.json``, ``tokenizer_config.json`` and ``model.safetensors`` of a version, one behind the other: each is
    its length, three bytes, and so many bytes. Up to where a network would be made."""
    with tempfile.TemporaryDirectory(prefix="tfs-lite-fuzz-") as directory:
        for name, content in zip(FILE_NAMES, files_of(data), strict=False):
            (Path(directory) / name).write_bytes(content)
        (Path(directory) / "left.safetensors").write_bytes(b"")
        files = read_version(directory)
        for read in _readers():
            try:
                read(files)
            except ServingError as error:
                check_error(error, BLAMES_THE_FILES)
                require(directory not in str(error), f"an error tells where files are: {error}")
                require(len(str(error)) <= MAX_WORDS + 8 * len(data), "an error is much longer than its files")
                if read is _budget:
                    break  # nothing else is looked at


def files_of(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data) and len(found) < len(FILE_NAMES):
        end = at + 3 + int.from_bytes(data[at : at + 3], "little")
        found.append(data[at + 3 : end])
        at = end
    return found


def packed(files: list[bytes]) -> bytes:
    return b"".join(len(content).to_bytes(3, "little") + content for content in files)


@functools.cache
def _readers() -> tuple[Callable[[VersionFiles], object], ...]:
    from tfs_lite.adapters.language.family import network_config

    return (_budget, network_config, _codec)


def prepare_files() -> None:
    """Imports what is heavy, so that no input has to pay for it."""
    from tfs_lite.adapters.language.family import load_library

    load_library()
    for path in (Path(__file__).parent / "corpus" / "lm_files").iterdir():
        lm_files(path.read_bytes())


def _budget(files: VersionFiles) -> None:
    from tfs_lite.adapters.language.budget import budget
    from tfs_lite.adapters.language.hf_files import recognises

    if recognises(files):
        found = budget(files, ModelSettings(), False)
        require(found.total >= 0, f"a budget of {found.total}")


def _codec(files: VersionFiles) -> None:
    from tfs_lite.adapters.language.codec import open_codec

    opened = open_codec(files)
    if opened is not None:
        _use(opened[0])


def _use(codec: TextCodec) -> None:
    tokens = codec.encode("hi é")
    require(codec.decode(tokens, False).endswith("hi é"), "a text changes on its way")
    stream = codec.stream(False)
    text = "".join([*(stream.push(token) for token in tokens), stream.flush()])
    require(text == codec.decode(tokens, False), "a stream says something else")
    try:
        codec.chat(ChatPrompt(({"role": "user", "content": "hello"},)))
    except ServingError as error:
        check_error(error, {StatusCode.INVALID_ARGUMENT})


def _openai(path: str, data: bytes) -> None:
    reply = handlers_generation().post(path, data)
    in_time = b"timeout" in data
    for tree in _trees(reply, len(data), in_time):
        failed = list(tree) == ["error"]
        late = failed and in_time and tree["error"]["code"] == "deadline_exceeded"
        require(late or failed == (reply.status >= 400), f"{reply.status} with {tree}")
        if failed:
            error = tree["error"]
            require(list(error) == ["message", "type", "param", "code"], f"an error of another shape: {error}")
            require(error["message"].strip(), "an error without a word")
        else:
            require(tree["model"], "an answer without its model")


def _trees(reply: Reply, size: int, in_time: bool = False) -> list[dict[str, Any]]:
    """What an answer says, in one body or in events; the requirements of all HTTP answers. ``in_time``: the request may
    have asked to be given up soon."""
    _check_left()
    require(reply.status < 500 or (reply.status == 504 and in_time), f"{reply.status}: {reply.body[:300]!r}")
    if reply.status >= 400:
        require(len(reply.body) <= MAX_WORDS + 8 * size, "an error is much longer than its request")
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return [json.loads(reply.body)]
    *events, rest = reply.body.split(b"\n\n")
    require(rest == b"" and all(event.startswith(b"data: ") for event in events), f"no events: {reply.body[:200]!r}")
    said = [event.removeprefix(b"data: ") for event in events]
    return [json.loads(event) for event in said if event != b"[DONE]"]


def _check_left() -> None:
    left = handlers_generation().left()
    require(not left, f"{left}")


TARGETS_GENERATION: dict[str, Callable[[bytes], None]] = {
    "openai_completion": openai_completion,
    "openai_chat": openai_chat,
    "generate_body": generate_body,
    "generation_tensors": generation_tensors,
    "lm_files": lm_files,
}
PREPARE: dict[str, Callable[[], None]] = {"lm_files": prepare_files}
"""What is done once before the first input."""
