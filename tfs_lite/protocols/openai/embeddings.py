"""OpenAI's embeddings: bodies of requests, and the text of answers.

    body -> read_embeddings -> EmbeddingsRequest -> the model -> embeddings_text

An input is a text, or the tokens of one; a request has up to 2048 of one kind.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field

from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.openai.fields import MAX_TIMEOUT, FieldError, read_fields

MAX_INPUTS = 2048
MAX_TOKENS = 1 << 22
"""The most tokens of all inputs that are sent as tokens."""


class Embeddings(BaseModel):
    """The body of a request for embeddings. ``input`` may be large, and is checked below. ``timeout``, in seconds, is
    ours."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: Annotated[str, Field(min_length=1)]
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT)] | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A checked request for embeddings: ``texts``, or ``tokens`` if these are empty; one of them has at least one item.
    ``dimensions`` None: as many as the model has."""

    model: str
    texts: tuple[bytes, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    in_base64: bool = False
    dimensions: int | None = None
    timeout: float | None = None


def read_embeddings(body: bytes) -> EmbeddingsRequest:
    """Reads a body. INVALID_ARGUMENT, as FieldError where it is about a field. Any thread; takes long for large
    bodies."""
    sent = read_fields(Embeddings, body)
    texts, tokens = _inputs(sent.input)
    in_base64 = sent.encoding_format == "base64"
    return EmbeddingsRequest(sent.model, texts, tokens, in_base64, sent.dimensions, sent.timeout)


def embeddings_text(model: str, rows: Array, in_base64: bool, tokens: int) -> bytes:
    """The answer. ``rows``: float32 [inputs, dimensions]. Numbers in base64 are float32, little-endian."""
    rows = np.ascontiguousarray(rows, np.dtype("<f4"))
    values = [base64.b64encode(row.tobytes()).decode() for row in rows] if in_base64 else list(rows)
    data = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    tree = {"object": "list", "data": data, "model": model, "usage": usage}
    return orjson.dumps(tree, option=orjson.OPT_SERIALIZE_NUMPY)


def _inputs(sent: Any) -> tuple[tuple[bytes, ...], tuple[tuple[int, ...], ...]]:
    if isinstance(sent, np.ndarray):
        _check_count(sent.size)
        sent = sent.tolist()
    if isinstance(sent, str):
        return (_text(sent, "input"),), ()
    if not isinstance(sent, list) or not sent:
        raise _refused("expected a string, an array of strings, of token numbers, or of arrays of those; none empty")
    if all(type(item) is int for item in sent):
        return (), (_tokens(sent, "input"),)
    if len(sent) > MAX_INPUTS:
        raise _refused(f"it has {len(sent)} items, at most {MAX_INPUTS} are taken")
    if all(isinstance(item, str) for item in sent):
        return tuple(_text(text, f"input[{index}]") for index, text in enumerate(sent)), ()
    if all(isinstance(item, list | np.ndarray) for item in sent):
        _check_count(sum(len(item) for item in sent))
        return (), tuple(_tokens(item, f"input[{index}]") for index, item in enumerate(sent))
    raise _refused("its items are neither all strings nor all token numbers nor all arrays of those")


def _text(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FieldError("input", f"{where} has a surrogate without its other half, which is no text") from None


def _tokens(sent: Sequence[Any] | Array, where: str) -> tuple[int, ...]:
    items = sent.tolist() if isinstance(sent, np.ndarray) else sent
    if not items:
        raise FieldError("input", f"{where} has no tokens")
    _check_count(len(items))
    if not all(type(item) is int and 0 <= item < 2**31 for item in items):
        raise FieldError("input", f"{where} has other items than token numbers, which are integers from 0 on")
    return tuple(items)


def _check_count(count: int) -> None:
    if count > MAX_TOKENS:
        raise _refused(f"it has {count} tokens, at most {MAX_TOKENS} are taken")


def _refused(message: str) -> FieldError:
    return FieldError("input", f"input: {message}")
