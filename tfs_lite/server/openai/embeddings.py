"""Embeddings of OpenAI's API, by any model whose signatures fit: ``text`` or ``input_ids`` in, ``embeddings`` out.

A request becomes runs of some hundred inputs, which share batches with those of other requests; one version answers all
of them. Texts are cut to the length of the model, as the model says; too many tokens are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfs_lite.core.model import Servable
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.openai.embeddings import EmbeddingsRequest, embeddings_text
from tfs_lite.protocols.openai.fields import FieldError
from tfs_lite.protocols.runs import Run

TEXT, IDS, MASK = "text", "input_ids", "attention_mask"
EMBEDDINGS, COUNT = "embeddings", "token_count"
MAX_ROWS = 256
"""Inputs of one run."""


def embeds(signatures: Mapping[str, Signature]) -> bool:
    """Whether a model with these signatures answers embeddings."""
    return any(_key_of(signatures, name) is not None for name in (TEXT, IDS))


def plan(sent: EmbeddingsRequest, servable: Servable) -> Sequence[Run]:
    """The runs of a request. INVALID_ARGUMENT, with the field, if the model cannot answer it."""
    signatures, traits = servable.signatures, servable.traits
    if traits.generates or not embeds(signatures):
        kind = "a language model" if traits.generates else "no model of embeddings"
        raise FieldError("model", f"The model '{sent.model}' is {kind} and makes no embeddings; ask an encoder")
    key = _key_of(signatures, TEXT if sent.texts else IDS)
    if key is None:
        taken = "tokens, not texts" if sent.texts else "texts, not tokens"
        raise FieldError("input", f"The model '{sent.model}' takes {taken}")
    signature = signatures[key]
    width = _width(signature)
    if sent.dimensions is not None and sent.dimensions != width:
        message = f"dimensions is {sent.dimensions}, and the embeddings of '{sent.model}' have {width or 'their own'}"
        raise FieldError("dimensions", f"{message}; leave it out")
    outputs = tuple(name for name in (EMBEDDINGS, COUNT) if name in signature.output_names)
    rows = min(traits.max_batch_size or MAX_ROWS, MAX_ROWS)
    return [Run(key, inputs, outputs) for inputs in _inputs(sent, signature, rows)]


def answer(sent: EmbeddingsRequest, outputs: Sequence[Mapping[str, Array]]) -> bytes:
    """The body, of the outputs of the runs."""
    rows = np.concatenate([each[EMBEDDINGS] for each in outputs]).astype(np.float32, copy=False)
    counts = [int(each[COUNT].sum()) for each in outputs if COUNT in each]
    return embeddings_text(sent.model, rows, sent.in_base64, sum(counts) or sum(map(len, sent.tokens)))


def _key_of(signatures: Mapping[str, Signature], name: str) -> str | None:
    """The first signature that needs the input ``name`` alone, with a row for each input, and gives embeddings."""
    for key, signature in signatures.items():
        needed = set(signature.input_names) - signature.dispensable
        specs = {spec.name: spec for spec in (*signature.inputs, *signature.outputs)}
        if needed == {name} and EMBEDDINGS in signature.output_names and _fits(specs[name], specs[EMBEDDINGS]):
            return key
    return None


def _fits(taken: TensorSpec, given: TensorSpec) -> bool:
    dtype, rank = (DataType.STRING, 1) if taken.name == TEXT else (DataType.INT64, 2)
    return taken.dtype is dtype and len(taken.shape or ()) == rank and len(given.shape or ()) == 2


def _width(signature: Signature) -> int | None:
    """Numbers of an embedding; None if only an answer shows it."""
    (shape,) = (spec.shape for spec in signature.outputs if spec.name == EMBEDDINGS)
    last = shape[-1] if shape else None
    return last if isinstance(last, int) else None


def _inputs(sent: EmbeddingsRequest, signature: Signature, rows: int) -> Iterator[dict[str, Array]]:
    for start in range(0, len(sent.texts), rows):
        texts = sent.texts[start : start + rows]
        array = np.empty(len(texts), object)
        array[:] = texts
        yield {TEXT: array}
    _check_lengths(sent, signature)
    for start in range(0, len(sent.tokens), rows):
        part = sent.tokens[start : start + rows]
        ids = np.zeros((len(part), max(map(len, part))), np.int64)
        mask = np.zeros_like(ids)
        for index, tokens in enumerate(part):
            ids[index, : len(tokens)] = tokens
            mask[index, : len(tokens)] = 1
        yield {IDS: ids, **({MASK: mask} if MASK in signature.input_names else {})}


def _check_lengths(sent: EmbeddingsRequest, signature: Signature) -> None:
    length: Any = next((spec.shape[1] for spec in signature.inputs if spec.name == IDS and spec.shape), None)
    most = length.maximum if isinstance(length, SymbolicDim) else length
    for index, tokens in enumerate(sent.tokens):
        if most is not None and len(tokens) > most:
            message = f"input[{index}] has {len(tokens)} tokens, and '{sent.model}' takes {most}"
            raise FieldError("input", message)
