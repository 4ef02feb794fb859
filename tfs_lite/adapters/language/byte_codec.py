"""A tokenizer without a vocabulary: the tokens 0 to 255 are the bytes of UTF-8, those from 256 on are special.

It needs no training, and no file but a ``tokenizer_config.json`` in the words of transformers:

    {"tokenizer_class": "ByteTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true,
     "chat_template": "..."}

Special tokens are numbered in the order of :data:`ROLES`, then come those of ``additional_special_tokens``. They are
recognised in a text where they are written out.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence

from tfs_lite.adapters.inspect.archive import damaged
from tfs_lite.core.generation import ChatPrompt
from tfs_lite.core.status import ServingError, invalid_argument

CLASS = "ByteTokenizer"
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
BYTES = 256

Render = Callable[[ChatPrompt], str]
"""A chat template: messages -> the text of the prompt. May raise anything."""


class ByteStream:
    """A :class:`~tfs_lite.core.generation.TextStream` of tokens that stand for bytes: a character is held back until
    its last byte. Bytes that make up no character become U+FFFD, as they do in a whole text."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._bytes_of(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class ByteCodec:
    """A :class:`~tfs_lite.core.generation.TextCodec`. Tokens past the last special one stand for nothing.

    ``specials``: texts of the tokens 256, 257, ... ``before``: tokens that go before every prompt that is no chat.
    """

    def __init__(self, specials: Sequence[str], before: Sequence[int] = (), render: Render | None = None) -> None:
        self._specials = tuple(specials)
        self._number = {text: BYTES + index for index, text in enumerate(self._specials)}
        longest_first = sorted(map(re.escape, self._specials), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(longest_first)})") if longest_first else None
        self._before = list(before)
        self._render = render

    @property
    def has_chat_template(self) -> bool:
        return self._render is not None

    def encode(self, text: str) -> list[int]:
        return [*self._before, *self._tokens(text)]

    def chat(self, prompt: ChatPrompt) -> list[int]:
        return self._tokens(rendered(self._render, prompt))

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        bytes_of = self._visible if skip_special_tokens else self.token_bytes
        return b"".join(map(bytes_of, tokens)).decode("utf-8", "replace")

    def stream(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> ByteStream:
        return ByteStream(self._visible if skip_special_tokens else self.token_bytes)

    def token_bytes(self, token: int) -> bytes:
        if token < BYTES:
            return bytes((token,))
        index = token - BYTES
        return self._specials[index].encode() if index < len(self._specials) else b""

    def _visible(self, token: int) -> bytes:
        return bytes((token,)) if token < BYTES else b""

    def _tokens(self, text: str) -> list[int]:
        found: list[int] = []
        for index, part in enumerate(self._split.split(text) if self._split else [text]):
            if index % 2:
                found.append(self._number[part])
            else:
                found.extend(utf8(part))
        return found


def byte_codec(config: Mapping[str, object], render: Render | None) -> tuple[ByteCodec, int | None]:
    """The tokenizer of such a ``tokenizer_config.json``, and its end of text. DATA_LOSS for an invalid special
    token."""
    roles = role_texts(config)
    more = config.get("additional_special_tokens") or []
    if not isinstance(more, list):
        raise damaged("tokenizer_config.json: additional_special_tokens is no list")
    texts = [*roles.values(), *(_text("additional_special_tokens", each) for each in more)]
    specials = tuple(dict.fromkeys(texts))
    number = {text: BYTES + index for index, text in enumerate(specials)}
    before = [number[roles["bos_token"]]] if "bos_token" in roles and config.get("add_bos_token") else []
    return ByteCodec(specials, before, render), number.get(roles.get("eos_token", ""))


def role_texts(config: Mapping[str, object]) -> dict[str, str]:
    """The special tokens by role, as chat templates name them. DATA_LOSS for an invalid one."""
    return {role: _text(role, config[role]) for role in ROLES if config.get(role) is not None}


def rendered(render: Render | None, prompt: ChatPrompt) -> str:
    """The prompt's text. INVALID_ARGUMENT without a template, or if it refuses the messages, with what it says."""
    if render is None:
        raise invalid_argument("messages: the model has no chat template; use a prompt")
    try:
        return render(prompt)
    except ServingError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        kind = type(error).__name__
    raise invalid_argument(f"messages: the chat template of the model refuses them: {reason or kind:.200}")


def utf8(text: str) -> bytes:
    """The bytes of a text. INVALID_ARGUMENT for half a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise invalid_argument("the prompt is no text: it has half a surrogate pair") from None


def _text(name: str, value: object) -> str:
    found = value.get("content") if isinstance(value, dict) else value
    if not isinstance(found, str) or not found:
        raise damaged(f"tokenizer_config.json: {name} is {value!r:.80}, expected a text")
    return found
