"""The tokenizer of a version: texts to tokens and back, and chats by its template.

    open_codec(files)  ->  (codec, its end of text), or None where there is no tokenizer

Files are read by transformers, which knows what a ``tokenizer.json`` leaves out. Requests then go to a tokenizer of the
``tokenizers`` library, which is not changed any more, so any number of threads can use it. Nothing is fetched, and no
code of the version is run. Versions whose files but the weights are the same share what was made of them while any of
them is loaded: a push reads the tokenizer of a large vocabulary no second time, and memory holds it once.

Streams do not use the library's ``DecodeStream``: it fails for good after bytes of a fallback vocabulary that make up
no character, and for each token it decodes all that it holds back, without bound."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

from tfs_lite.adapters.failures import sentence, story
from tfs_lite.adapters.inspect.archive import damaged
from tfs_lite.adapters.language.byte_codec import CLASS, ByteStream, Render, byte_codec, rendered, role_texts, utf8
from tfs_lite.adapters.language.family import load_library
from tfs_lite.adapters.language.hf_files import PICKLES, SAFETENSORS, Json, read_optional, refuse_code, shown
from tfs_lite.adapters.language.template_probe import PROBE, check_end
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.core.generation import ChatPrompt, TextCodec, TextStream
from tfs_lite.core.status import failed_precondition

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
VOCABULARIES = frozenset(
    {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"}
    | {"tekken.json", "tiktoken.model"}
)
TOKENIZER_FILES = VOCABULARIES | {CONFIG, TEMPLATE, "merges.txt", "special_tokens_map.json", "added_tokens.json"}
"""The files that a tokenizer is made of."""
MAX_HELD = 8
"""The most tokens that a stream holds back. A character has four bytes at most, so more are not the beginning of
one."""
MAX_TEMPLATE_BYTES = 1 << 20
MOST_DIGESTED = 64 << 20
"""Bytes of a version's files besides the weights, so that it shares what is made of them."""
INCOMPLETE = "\ufffd"
T = TypeVar("T")
logger = logging.getLogger(__name__)


class MadeOfFiles(Generic[T]):
    """What is made of the files of a version besides its weights. Nobody changes it. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the field below
        self._made = WeakValueDictionary[tuple[Hashable, ...], T]()

    def of(self, files: VersionFiles, make: Callable[[], T], *settings: Hashable) -> T:
        """What ``make()`` returns, or has returned for files with the same names and bytes and the same ``settings``,
        while that is still in use. Errors of ``make``."""
        digest = _digest(files)
        with self._lock:
            found = self._made.get((digest, *settings))
        if found is None or digest is None:
            found = make()
            if digest is not None and digest == _digest(files):  # else they were changed meanwhile
                with self._lock:
                    self._made[(digest, *settings)] = found
        return found


def _digest(files: VersionFiles) -> bytes | None:
    """The SHA-256 of all files of the version but weights, with their paths; None if they are too large, or some are no
    plain files or cannot be read."""
    found, left = hashlib.sha256(), MOST_DIGESTED
    try:
        for folder, folders, names in os.walk(files.directory, onerror=_raise):
            folders.sort()
            if any(os.path.islink(os.path.join(folder, name)) for name in folders):
                return None
            for name in sorted(names):
                if name.endswith((SAFETENSORS, *PICKLES)):
                    continue
                path = os.path.join(folder, name)
                with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
                    status = os.fstat(file.fileno())
                    left -= status.st_size
                    if left < 0 or not stat.S_ISREG(status.st_mode):
                        return None
                    content = hashlib.file_digest(file, "sha256").digest()
                found.update(content + os.fsencode(os.path.relpath(path, files.directory)) + b"\0")
    except OSError:
        return None
    return found.digest()


def _raise(error: OSError) -> None:
    raise error


class Codec:
    """A :class:`~tfs_lite.core.generation.TextCodec` over a tokenizer of the ``tokenizers`` library."""

    def __init__(self, tokenizer: Tokenizer, render: Render | None, end: int | None = None) -> None:
        """``end``: its end of text."""
        self.end = end
        self._tokenizer = tokenizer
        self._render = render
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        kinds = _decoder_kinds(tokenizer)
        self._is_byte_level = kinds == ["ByteLevel"]
        self._has_byte_fallback = "ByteFallback" in kinds
        self._bytes = _byte_alphabet() if self._is_byte_level else {}

    @property
    def has_chat_template(self) -> bool:
        return self._render is not None

    def encode(self, text: str) -> list[int]:
        utf8(text)
        return list(self._tokenizer.encode(text).ids)

    def chat(self, prompt: ChatPrompt) -> list[int]:
        text = rendered(self._render, prompt)
        utf8(text)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens))

    def stream(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> TextStream:
        if self._is_byte_level:
            return ByteStream(self._visible if skip_special_tokens else self.token_bytes)
        return WindowStream(lambda tokens: self.decode(tokens, skip_special_tokens), after)

    def token_bytes(self, token: int) -> bytes:
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self._is_byte_level:
            return self._letters(text)
        if self._has_byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes((int(text[3:5], 16),))
        if token in self._special:
            return text.encode()
        return self._piece(text, token).encode()

    def _visible(self, token: int) -> bytes:
        return b"" if token in self._special else self.token_bytes(token)

    def _letters(self, text: str) -> bytes:
        """The bytes of a token of a byte-level vocabulary, which writes each byte as a letter. Other text stands for
        itself."""
        try:
            return bytes(self._bytes[letter] for letter in text)
        except KeyError:
            return text.encode()

    def _piece(self, text: str, token: int) -> str:
        """The text of a token, with its leading space, which the library drops at the beginning of a text."""
        alone = self.decode([token], False)
        return f" {alone}" if text.startswith("\u2581") and not alone.startswith(" ") else alone


_CODECS = MadeOfFiles[Codec]()


class WindowStream:
    """A :class:`~tfs_lite.core.generation.TextStream` for any tokenizer: the text of the last few tokens, with and
    without the newest ones. The difference is new, unless its end may still change."""

    def __init__(self, decode: Callable[[Sequence[int]], str], after: Sequence[int] = ()) -> None:
        self._decode = decode
        self._told = list(after[-MAX_HELD:])
        self._told_text = decode(self._told) if self._told else ""
        self._held: list[int] = []

    def push(self, token: int) -> str:
        self._held.append(token)
        new = self._new()
        if len(self._held) < MAX_HELD and (not new or new.endswith(INCOMPLETE)):
            return ""
        return self._tell(new)

    def flush(self) -> str:
        return self._tell(self._new()) if self._held else ""

    def _new(self) -> str:
        text = self._decode([*self._told, *self._held])
        return text[len(self._told_text) :] if text.startswith(self._told_text) else self._decode(self._held)

    def _tell(self, new: str) -> str:
        """Returns the new text and moves the window, but not for tokens without text, such as special ones."""
        if new:
            self._told = self._held
            self._told_text = self._decode(self._told)
        self._held = []
        return new


def open_codec(files: VersionFiles) -> tuple[TextCodec, int | None] | None:
    """The codec and its end of text; None if the version has no tokenizer. PERMISSION_DENIED for a tokenizer with code
    of its own, FAILED_PRECONDITION or DATA_LOSS for one that does not work."""
    if not files.names & (VOCABULARIES | {CONFIG}):
        return None
    config = read_optional(files, CONFIG)
    refuse_code(CONFIG, config)
    if config.get("tokenizer_class") == CLASS:
        template = _template_of_bytes(files, config)
        render = None if template is None else _render_of_bytes(template, config)
        _try_template(render, [template] if template else ())
        return byte_codec(config, render)
    codec = _CODECS.of(files, lambda: _codec_of(load_tokenizer(files)))
    return codec, codec.end


def load_tokenizer(files: VersionFiles) -> Any:
    """The version's tokenizer as transformers has it, with a ``backend_tokenizer`` of the ``tokenizers`` library.
    Errors of :func:`open_codec`; also FAILED_PRECONDITION without a vocabulary."""
    if not files.names & VOCABULARIES:
        raise failed_precondition(f"{CONFIG} is there without a vocabulary, such as {shown(VOCABULARIES)}")
    refuse_code(CONFIG, read_optional(files, CONFIG))
    try:
        loaded = load_library().AutoTokenizer.from_pretrained(
            files.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        logger.warning("the tokenizer cannot be loaded", extra={"story": story(error)})
        reason = sentence(error)
    else:
        if hasattr(getattr(loaded, "backend_tokenizer", None), "to_str"):
            return loaded
        reason = f"it is a {type(loaded).__name__} without tokenizer.json; write one with save_pretrained"
    raise failed_precondition(f"the tokenizer cannot be loaded: {reason}")


def _codec_of(loaded: Any) -> Codec:
    """Makes the codec; ``loaded`` is a tokenizer of transformers."""
    backend = loaded.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()

    def render(prompt: ChatPrompt) -> str:
        messages = [dict(message) for message in prompt.messages]
        return str(loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    templates = loaded.chat_template
    found = render if templates else None
    _try_template(found, templates.values() if isinstance(templates, dict) else [str(templates)])
    return Codec(backend, found, loaded.eos_token_id)


def _template_of_bytes(files: VersionFiles, config: Json) -> str | None:
    template = config.get("chat_template")
    if TEMPLATE in files.names:
        template = _read_template(files)
    if not template:
        return None
    if not isinstance(template, str):
        raise damaged(f"{CONFIG}: chat_template is no text")
    return template


def _render_of_bytes(template: str, config: Json) -> Render:
    load_library()
    from transformers.utils.chat_template_utils import render_jinja_template

    words: dict[str, Any] = {**role_texts(config)}

    def render(prompt: ChatPrompt) -> str:
        messages = [dict(message) for message in prompt.messages]
        found = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **words)
        return str(found[0][0])

    return render


def _read_template(files: VersionFiles) -> str:
    with open(f"{files.directory}/{TEMPLATE}", "rb") as file:
        text = file.read(MAX_TEMPLATE_BYTES + 1)
    try:
        if len(text) <= MAX_TEMPLATE_BYTES:
            return text.decode()
    except UnicodeDecodeError:
        pass
    raise damaged(f"{TEMPLATE} is no text of at most {MAX_TEMPLATE_BYTES} bytes")


def _try_template(render: Render | None, templates: Iterable[str]) -> None:
    """Raises FAILED_PRECONDITION for a template that is not well-formed or does not end. Whether it accepts the
    messages does not matter. ``templates``: the sources that ``render`` may use."""
    if render is None:
        return
    from jinja2 import TemplateSyntaxError

    for template in templates:
        check_end(template)
    try:
        render(ChatPrompt((PROBE,)))
    except TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
    except Exception:
        return
    else:
        return
    raise failed_precondition(f"the chat template of the tokenizer is broken, {reason}")


def _decoder_kinds(tokenizer: Tokenizer) -> list[str]:
    """Names of the steps of the decoder."""
    found = json.loads(tokenizer.to_str()).get("decoder") or {}
    steps = found.get("decoders", [found])
    return [str(step.get("type")) for step in steps]


def _byte_alphabet() -> dict[str, int]:
    """Letter -> byte: printable letters of Latin 1 stand for themselves, those from 256 on for the other bytes, in
    order."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}
