"""A tokenizer whose tokens are the bytes of UTF-8: for tests of everything between texts and tokens.

    0 to 255: bytes    256: end of text    257: beginning of text, which goes before every prompt

A character of several bytes is several tokens, so streams have something to hold back.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tfs_lite.core.generation import ChatPrompt
from tfs_lite.core.status import invalid_argument

END, BEGIN = 256, 257
VOCABULARY = 258
_SPECIAL = {END: b"</s>", BEGIN: b"<s>"}


class ByteCodec:
    """A :class:`~tfs_lite.core.generation.TextCodec`. Tokens past the vocabulary stand for nothing."""

    def __init__(self, has_chat_template: bool = True) -> None:
        self._has_chat_template = has_chat_template

    @property
    def has_chat_template(self) -> bool:
        return self._has_chat_template

    def encode(self, text: str) -> list[int]:
        """INVALID_ARGUMENT for half a surrogate pair."""
        try:
            return [BEGIN, *text.encode()]
        except UnicodeEncodeError:
            raise invalid_argument("the prompt is no text: it has half a surrogate pair") from None

    def chat(self, prompt: ChatPrompt) -> list[int]:
        """A line ``role: content`` for each message, and ``assistant:``. INVALID_ARGUMENT for contents that are no
        text."""
        if not self._has_chat_template:
            raise invalid_argument("the model has no chat template")
        for message in prompt.messages:
            if not isinstance(message.get("content"), str):
                raise invalid_argument("messages: content has to be a text")
        lines = [f"{message['role']}: {message['content']}\n" for message in prompt.messages]
        return self.encode("".join([*lines, "assistant:"]))

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        data = b"".join(_bytes_of(token, skip_special_tokens) for token in tokens)
        return data.decode("utf-8", "replace")

    def stream(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> ByteStream:
        return ByteStream(skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        return _bytes_of(token, False)


class ByteStream:
    """A :class:`~tfs_lite.core.generation.TextStream`: holds a character back until its last byte."""

    def __init__(self, skip_special_tokens: bool) -> None:
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(_bytes_of(token, self._skip))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


def _bytes_of(token: int, skip_special: bool) -> bytes:
    if token < END:
        return bytes((token,))
    return b"" if skip_special else _SPECIAL.get(token, b"")
