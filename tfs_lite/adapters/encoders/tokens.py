"""Texts to rows of tokens, by the tokenizer of a version.

A text with more tokens than the network takes is cut at its end, or as ``truncation_side`` of the tokenizer says; the
tokens that the tokenizer adds at both ends stay. Tokens of a client are not cut: too many of them are refused. A text
without any token gets one token of padding, so that it has an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import Array

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One text. ``mask`` is 0 for tokens that the network leaves out. ``words`` are the positions of tokens that stand
    for a part of the text, and ``offsets`` the first and the last character plus one of each of them; both are empty
    for a row that came as tokens."""

    ids: Sequence[int]
    mask: Sequence[int]
    types: Sequence[int]
    words: Sequence[int] = ()
    offsets: Sequence[tuple[int, int]] = field(default=())


class TextReader:
    """Texts as rows of at most ``length`` tokens of a ``vocabulary``. Any number of threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        pad: int,
        prompt: str = "",
        lower_case: bool = False,
        cut: str = "right",
    ) -> None:
        """``tokenizer`` belongs to the reader from now on. ``length`` is the most tokens of a row; ``cut``: the end at
        which longer texts lose some, left or right."""
        tokenizer.no_padding()
        tokenizer.enable_truncation(length, direction=cut)
        self.length, self.pad = length, pad
        self.vocabulary: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._lower_case = lower_case

    def read(self, texts: Array) -> list[TokenRow]:
        """``texts``: object[n] of ``bytes``. INVALID_ARGUMENT, with its index, for one that is no UTF-8."""
        found = [self._text(text, index) for index, text in enumerate(texts.tolist())]
        if len(found) == 1:
            return [self._row(self._tokenizer.encode(found[0]))]
        return [self._row(encoding) for encoding in self._tokenizer.encode_batch(found)]

    def _text(self, text: bytes, index: int) -> str:
        try:
            found = text.decode()
        except UnicodeDecodeError as error:
            raise invalid_argument(f"text[{index}] is no UTF-8: {error.reason} at byte {error.start}") from None
        found = self._prompt + found
        return found.lower() if self._lower_case else found

    def _row(self, encoding: Any) -> TokenRow:
        ids = encoding.ids
        if not ids:
            return TokenRow([self.pad], [1], [0])
        words = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
        offsets = encoding.offsets
        return TokenRow(ids, encoding.attention_mask, encoding.type_ids, words, [offsets[index] for index in words])


def rows_of_ids(ids: Array, mask: Array | None, types: Array | None, vocabulary: int, kinds: int) -> list[TokenRow]:
    """The rows of a client that has tokenised itself; padding at the end of a row is dropped. INVALID_ARGUMENT for a
    token that is not in the vocabulary, a type that is not among the ``kinds`` of the network, and for other values
    than 0 and 1 in the mask."""
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise invalid_argument(f"input_ids has a token that is not among the {vocabulary} of the model")
    if mask is not None and mask.size and not ((mask == 0) | (mask == 1)).all():
        raise invalid_argument("attention_mask has other values than 0 and 1")
    if types is not None and types.size and not 0 <= int(types.min()) <= int(types.max()) < kinds:
        raise invalid_argument(f"token_type_ids has a type that is not among the {kinds} of the model")
    kept = np.ones_like(ids) if mask is None else mask
    segments = np.zeros_like(ids) if types is None else types
    rows = []
    for index in range(ids.shape[0]):
        ones = np.flatnonzero(kept[index])
        if not len(ones):
            raise invalid_argument(f"attention_mask leaves out every token of row {index}")
        end = int(ones[-1]) + 1
        rows.append(TokenRow(ids[index, :end].tolist(), kept[index, :end].tolist(), segments[index, :end].tolist()))
    return rows
