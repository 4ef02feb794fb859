"""A tokenizer whose tokens are the bytes of UTF-8: for tests of everything between texts and tokens.

    0 to 255: bytes    256: end of text    257: beginning of text, which goes before every prompt

A character of several bytes is several tokens, so streams have to hold some back. Special tokens are not recognised in
a text."""

from __future__ import annotations

from tfs_lite.adapters.language import byte_codec
from tfs_lite.adapters.language.byte_codec import rendered, utf8
from tfs_lite.core.generation import ChatPrompt
from tfs_lite.core.status import invalid_argument

END, BEGIN = 256, 257
VOCABULARY = 258


class ByteCodec(byte_codec.ByteCodec):
    """A :class:`~tfs_lite.core.generation.TextCodec`. Tokens past the vocabulary stand for nothing."""

    def __init__(self, has_chat_template: bool = True) -> None:
        super().__init__(("</s>", "<s>"), render=_render if has_chat_template else None)

    def encode(self, text: str) -> list[int]:
        return [BEGIN, *utf8(text)]

    def chat(self, prompt: ChatPrompt) -> list[int]:
        return self.encode(rendered(self._render, prompt))


def _render(prompt: ChatPrompt) -> str:
    """A line ``role: content`` for each message, and ``assistant:``."""
    for message in prompt.messages:
        if not isinstance(message.get("content"), str):
            raise invalid_argument("messages: content has to be a text")
    lines = [f"{message['role']}: {message['content']}\n" for message in prompt.messages]
    return "".join([*lines, "assistant:"])
