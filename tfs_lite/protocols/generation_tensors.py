"""The tensors of language models: arrays of a request to texts, and texts to arrays of the answer.

    inputs, parameters  ->  texts_of  ->  Generation, Generation, ...  ->  the model
    Piece               ->  piece_outputs  ->  arrays of a part of one text
    Piece, Piece, ...   ->  join_pieces, for each text  ->  whole_outputs  ->  arrays of the whole answer

Every input is optional, but for one of the prompts. A sampling value is sent once, for all texts, or once for each.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tfs_lite.core.generation import MAX_STOPS, Generation, Piece, Prompt, Sampling
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import Array

MAX_TEXTS = 128
"""The most texts of one request."""
DEFAULT_MAX_TOKENS = 16
NO_TOKEN = -1
"""Fills the rows of ``token_ids`` after the end of shorter texts."""

TEXT_INPUT = "text_input"
INPUT_IDS = "input_ids"
TEXT_OUTPUT = "text_output"
TOKEN_IDS = "token_ids"
FINISH_REASON = "finish_reason"
PROMPT_TOKENS = "prompt_tokens"
COMPLETION_TOKENS = "completion_tokens"

_TEXTS = SymbolicDim("texts")
_OF_EACH: Mapping[str, DataType] = {
    "max_tokens": DataType.INT32,
    "min_tokens": DataType.INT32,
    "temperature": DataType.FLOAT,
    "top_p": DataType.FLOAT,
    "min_p": DataType.FLOAT,
    "repetition_penalty": DataType.FLOAT,
    "presence_penalty": DataType.FLOAT,
    "frequency_penalty": DataType.FLOAT,
    "top_k": DataType.INT32,
    "seed": DataType.INT64,
    "ignore_eos": DataType.BOOL,
    "echo": DataType.BOOL,
    "priority": DataType.INT32,
}
"""One value, or one for each text."""
_OF_ALL: Mapping[str, DataType] = {"stop": DataType.STRING, "stop_token_ids": DataType.INT64}
"""Parameters with any number of values for all texts, or [n, number] for each text."""
STREAM = "stream"
"""A parameter that Triton's clients of language models send. It is ignored: the route says the same."""
_VALUES = {**_OF_EACH, **_OF_ALL}
_OF_SAMPLING = frozenset(Sampling.__dataclass_fields__)
_EXPECTED: Mapping[DataType, tuple[type | tuple[type, ...], str]] = {
    DataType.INT32: (int, "an integer"),
    DataType.INT64: (int, "an integer"),
    DataType.FLOAT: ((int, float), "a number"),
    DataType.BOOL: (bool, "true or false"),
    DataType.STRING: (str, "a text"),
}
_NONE: Mapping[str, Any] = MappingProxyType({})


def generation_signature(has_text: bool) -> Signature:
    """The signature of a language model; ``has_text``: it has a tokenizer.

    Inputs: ``text_input`` STRING [n] (with a tokenizer) or ``input_ids`` INT64 [length] or [n, length]; the rest of any
    shape. Outputs, for n texts: ``text_output`` STRING [n] (with a tokenizer), ``token_ids`` INT64 [n, longest], filled
    up with -1, ``finish_reason`` STRING [n], ``prompt_tokens`` and ``completion_tokens`` INT32 [n].
    """
    inputs = [TensorSpec(INPUT_IDS, DataType.INT64)]
    inputs += [TensorSpec(name, dtype) for name, dtype in _VALUES.items() if has_text or name not in ("stop", "echo")]
    outputs = [
        TensorSpec(TOKEN_IDS, DataType.INT64, (_TEXTS, SymbolicDim("tokens"))),
        TensorSpec(FINISH_REASON, DataType.STRING, (_TEXTS,)),
        TensorSpec(PROMPT_TOKENS, DataType.INT32, (_TEXTS,)),
        TensorSpec(COMPLETION_TOKENS, DataType.INT32, (_TEXTS,)),
    ]
    if has_text:
        inputs.insert(0, TensorSpec(TEXT_INPUT, DataType.STRING, (_TEXTS,)))
        outputs.insert(0, TensorSpec(TEXT_OUTPUT, DataType.STRING, (_TEXTS,)))
    return Signature(tuple(inputs), tuple(outputs), optional=frozenset(spec.name for spec in inputs))


def texts_of(inputs: Mapping[str, Tensor], parameters: Mapping[str, Any] = _NONE) -> list[Generation]:
    """The texts of a request, one for each prompt. ``inputs`` fit the signature; ``parameters`` are single values under
    the names of the inputs that are no prompts. ``max_tokens`` is 16 by default; texts that share one ``seed`` have
    ``seed_shift`` 0, 1, 2 and so on.

    INVALID_ARGUMENT, with the name: no prompt or two kinds, more than 128, a number of values that is neither 1 nor
    that of the prompts, a parameter that is unknown, of another type or sent as an input as well. The values are
    checked where they are used."""
    if TEXT_INPUT in parameters and not {TEXT_INPUT, INPUT_IDS} & inputs.keys():
        raise invalid_argument(
            f"{TEXT_INPUT} is an input, no parameter; a model without a tokenizer has {INPUT_IDS} only"
        )
    prompts = _prompts(inputs)
    values: dict[str, list[Any]] = {}
    for name, tensor in inputs.items():
        if name not in (TEXT_INPUT, INPUT_IDS):
            values[name] = _values(name, np.asarray(tensor), len(prompts))
    for name, value in parameters.items():
        if name == STREAM and isinstance(value, bool):
            continue
        if name in values:
            raise invalid_argument(f"{name} is sent both as an input and as a parameter")
        values[name] = [(_parameter(name, value),) if name in _OF_ALL else _parameter(name, value)]
    return [_text(prompt, index, len(prompts), values) for index, prompt in enumerate(prompts)]


def piece_outputs(piece: Piece, has_text: bool) -> dict[str, Array]:
    """The outputs of the signature for one piece of one text, with n = 1. ``text_output`` and ``token_ids`` hold what
    is new and may be empty; ``finish_reason`` is empty and the counts of tokens are 0 before the last piece."""
    return whole_outputs([piece], has_text)


def whole_outputs(results: Sequence[Piece], has_text: bool) -> dict[str, Array]:
    """The outputs of the signature for whole texts, in order (see :func:`~tfs_lite.core.generation.join_pieces`)."""
    ids = np.full((len(results), max((len(piece.tokens) for piece in results), default=0)), NO_TOKEN, np.int64)
    for row, piece in zip(ids, results, strict=True):
        row[: len(piece.tokens)] = piece.tokens
    outputs = {TEXT_OUTPUT: _strings([piece.text for piece in results])} if has_text else {}
    outputs[TOKEN_IDS] = ids
    outputs[FINISH_REASON] = _strings([piece.finish.value if piece.finish else "" for piece in results])
    usages = [piece.usage for piece in results]
    outputs[PROMPT_TOKENS] = np.array([usage.prompt if usage else 0 for usage in usages], np.int32)
    outputs[COMPLETION_TOKENS] = np.array([usage.output if usage else 0 for usage in usages], np.int32)
    return outputs


def _prompts(inputs: Mapping[str, Tensor]) -> list[Prompt]:
    texts, ids = inputs.get(TEXT_INPUT), inputs.get(INPUT_IDS)
    if (texts is None) == (ids is None):
        came = "neither" if texts is None else "both"
        raise invalid_argument(f"expected either {TEXT_INPUT} or {INPUT_IDS}, and {came} came")
    if texts is not None:
        array = np.asarray(texts)
        _check_count(TEXT_INPUT, array.size)
        return [_decode(TEXT_INPUT, text) for text in array.ravel().tolist()]
    array = np.asarray(ids)
    if array.ndim not in (1, 2):
        raise invalid_argument(f"{INPUT_IDS} has shape {list(array.shape)}, expected [length] or [texts, length]")
    rows = np.atleast_2d(array)
    _check_count(INPUT_IDS, len(rows))
    return list(rows.tolist())


def _check_count(name: str, count: int) -> None:
    if not 0 < count <= MAX_TEXTS:
        raise invalid_argument(f"{name} has {count} prompts, expected 1 to {MAX_TEXTS}")


def _values(name: str, array: Array, texts: int) -> list[Any]:
    """The values of an input that is no prompt."""
    if name not in _VALUES:
        raise _unknown("input", name)
    if name in _OF_ALL:
        rows = array.reshape(texts, -1) if array.ndim > 1 and array.shape[0] == texts else array.reshape(1, -1)
        if rows.shape[1] > MAX_STOPS:
            raise invalid_argument(f"{name} has {rows.shape[1]} entries, at most {MAX_STOPS} are allowed")
        return [tuple(_of_type(name, row)) for row in rows]
    if array.size not in (1, texts):
        wanted = "1" if texts == 1 else f"1, or {texts}, one for each prompt"
        raise invalid_argument(f"{name} has {array.size} values, expected {wanted}")
    return _of_type(name, array)


def _of_type(name: str, array: Array) -> list[Any]:
    found: list[Any] = array.ravel().tolist()
    return [_decode(name, each) for each in found] if _VALUES[name] is DataType.STRING else found


def _parameter(name: str, value: object) -> object:
    if name not in _VALUES:
        raise _unknown("parameter", name)
    types, expected = _EXPECTED[_VALUES[name]]
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        raise invalid_argument(f"parameter {name} is {value!r:.100}, expected {expected}")
    return value


def _text(prompt: Prompt, index: int, texts: int, values: Mapping[str, list[Any]]) -> Generation:
    own = {name: value[index if len(value) > 1 else 0] for name, value in values.items()}
    sampling = Sampling(**{name: own.pop(name) for name in _OF_SAMPLING & own.keys()})
    own.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    shift = index if texts > 1 and len(values.get("seed", ())) == 1 else 0
    return Generation(prompt, sampling=sampling, seed_shift=shift, **own)


def _decode(name: str, text: bytes | str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise invalid_argument(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None


def _unknown(what: str, name: str) -> ServingError:
    close = difflib.get_close_matches(name[:100], _VALUES, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(sorted(_VALUES))}"
    return invalid_argument(f'a language model has no {what} "{name:.100}"; {hint}')


def _strings(texts: Sequence[str]) -> Array:
    found = np.empty(len(texts), object)
    found[:] = [text.encode() for text in texts]
    return found
