"""Answers in the shapes of OpenAI's API: completions, chat completions, chunks, log probabilities, errors, models.

Piece, Piece, ... -> join_pieces -> Printer.whole          one body
Piece             -> Printer.chunks, Printer.usage_chunk   bodies of server-sent events

Everything is JSON in UTF-8. Two fields are those of vLLM: ``stop_reason`` is the token or the string that ended a
choice, and ``token_ids`` are its tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tfs_lite.core.generation import Piece, TextCodec, TokenLogprob, Usage
from tfs_lite.protocols.openai.request import OpenAiRequest

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""
PIECE_BYTES, TOKEN_BYTES = 300, 120
"""The bytes, about, that a choice, and a token with its log probability, take as JSON."""
OWNER = "tfs_lite"


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that all chunks of an answer share. ``created`` is in seconds since 1970; ``fingerprint`` is
    ``name:version``."""

    id: str
    created: int
    fingerprint: str


def printed_size(pieces: Iterable[Piece]) -> int:
    """The bytes, about, that the pieces take as JSON."""
    return sum(
        PIECE_BYTES + len(piece.text) + sum(TOKEN_BYTES * (1 + len(entry.top)) for entry in piece.logprobs)
        for piece in pieces
    )


class Printer:
    """Prints the answer to one request. It keeps the position in each choice, so pieces of a choice have to come in
    order, on one thread at a time. ``codec`` None means that the model has no tokenizer."""

    def __init__(self, head: AnswerHead, request: OpenAiRequest, codec: TextCodec | None) -> None:
        self._request = request
        self._spell = _Speller(codec, request.texts[0].skip_special_tokens)
        self._begun: set[int] = set()
        self._offsets: dict[int, _Offset] = {}
        kind = "chat.completion" if request.chat else "text_completion"
        self._whole_head = {"id": head.id, "object": kind, "created": head.created, "model": request.model}
        self._chunk_head = {**self._whole_head, "object": f"{kind}.chunk" if request.chat else kind}
        self._tail: dict[str, Any] = {"system_fingerprint": head.fingerprint}

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        """The whole answer; each piece is a whole text, in order of their indices."""
        choice = self._whole_chat if self._request.chat else self._completion
        usage = usage_tree((piece.usage for piece in pieces), self._request.n)
        return orjson.dumps(
            {**self._whole_head, "choices": [choice(piece) for piece in pieces], "usage": usage, **self._tail}
        )

    def chunks(self, piece: Piece) -> list[bytes]:
        """The chunks for ``piece`` in a stream: one, or in a chat up to three."""
        choices = self._chat_deltas(piece) if self._request.chat else [self._completion(piece)]
        usage = {"usage": None} if self._request.include_usage else {}
        return [orjson.dumps({**self._chunk_head, "choices": [one], **usage, **self._tail}) for one in choices]

    def usage_chunk(self, usages: Iterable[Usage | None]) -> bytes:
        """The last chunk, where ``include_usage`` asks for it. ``usages``: of each text, in order."""
        usage = usage_tree(usages, self._request.n)
        return orjson.dumps({**self._chunk_head, "choices": [], "usage": usage, **self._tail})

    def _completion(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": self._legacy_logprobs(piece) if self._request.top is not None else None,
            **self._ending(piece),
            **self._tokens(piece),
        }

    def _whole_chat(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.index,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": self._chat_logprobs(piece),
            **self._ending(piece),
            **self._tokens(piece),
        }

    def _chat_deltas(self, piece: Piece) -> list[dict[str, Any]]:
        """The deltas of a piece. The role comes before the first text, and the end has a delta of its own."""
        found = []
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            found.append(_delta(piece.index, {"role": "assistant", "content": ""}))
        logprobs, tokens = self._chat_logprobs(piece), self._tokens(piece)
        if piece.text or (piece.tokens and (logprobs or tokens)):
            found.append(_delta(piece.index, {"content": piece.text}, logprobs) | tokens)
        if piece.finish is not None:
            found.append(_delta(piece.index, {}) | self._ending(piece))
        return found

    def _ending(self, piece: Piece) -> dict[str, Any]:
        return {"finish_reason": piece.finish.value if piece.finish else None, "stop_reason": piece.stop}

    def _tokens(self, piece: Piece) -> dict[str, Any]:
        return {"token_ids": list(piece.tokens)} if self._request.token_ids else {}

    def _chat_logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if self._request.top is None:
            return None
        spell = self._spell
        content = [
            {
                **spell.entry(entry.token, entry.logprob),
                "top_logprobs": [spell.entry(token, logprob) for token, logprob in entry.top],
            }
            for entry in piece.logprobs
        ]
        return {"content": content, "refusal": None}

    def _legacy_logprobs(self, piece: Piece) -> dict[str, Any]:
        """Offsets count characters from the beginning of the choice's text, which includes the prompt with ``echo``."""
        spell, entries = self._spell, piece.logprobs
        offset = self._offsets.setdefault(piece.index, _Offset())
        return {
            "tokens": [spell.name(entry.token) for entry in entries],
            "token_logprobs": [_number(entry.logprob) for entry in entries],
            "top_logprobs": [self._best(entry) for entry in entries] if self._request.top else None,
            "text_offset": [offset.step(spell.shown(entry.token)) for entry in entries],
        }

    def _best(self, entry: TokenLogprob) -> dict[str, float | None] | None:
        """The best tokens by name; of tokens with one name the best counts."""
        if entry.logprob is None:
            return None
        found: dict[str, float | None] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            found.setdefault(self._spell.name(token), _number(logprob))
        return found


class _Speller:
    """The text of single tokens."""

    def __init__(self, codec: TextCodec | None, skip_special: bool) -> None:
        self._codec = codec
        self._skip_special = skip_special

    def text(self, token: int) -> str:
        """The text of a token, with replacement characters for incomplete ones; without a codec its number."""
        return f"token_id:{token}" if self._codec is None else self._codec.token_bytes(token).decode("utf-8", "replace")

    def name(self, token: int) -> str:
        """The name of a token in completions; for incomplete characters it has the bytes."""
        data = b"" if self._codec is None else self._codec.token_bytes(token)
        try:
            return data.decode() if data else self.text(token)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        data = self._codec.token_bytes(token) if self._codec is not None else None
        return {
            "token": self.text(token),
            "logprob": _number(logprob),
            "bytes": list(data) if data is not None else None,
        }

    def shown(self, token: int) -> bytes:
        """The bytes that a token adds to the text; skipped special tokens add none."""
        codec = self._codec
        if codec is None:
            return b""
        if self._skip_special and not codec.decode([token], True) and codec.decode([token], False):
            return b""
        return codec.token_bytes(token)


class _Offset:
    """Counts the characters of a text token by token."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = 0

    def step(self, data: bytes) -> int:
        """The offset of the token with these bytes."""
        begins = self._count
        self._count += len(self._decoder.decode(data))
        return begins


def usage_tree(usages: Iterable[Usage | None], n: int) -> dict[str, Any]:
    """The usage of all texts, in order. A prompt counts once for all of its choices."""
    prompt = output = cached = 0
    for index, usage in enumerate(usages):
        if usage is None:
            continue
        output += usage.output
        if index % n == 0:
            prompt += usage.prompt
            cached += usage.cached
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_text(message: str, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    """The body or event of an error. ``kind`` is OpenAI's ``type``."""
    tree = {"message": _printable(message), "type": kind, "param": param and _printable(param), "code": code}
    return orjson.dumps({"error": tree})


def model_tree(name: str, created: int) -> dict[str, Any]:
    return {"id": _printable(name), "object": "model", "created": created, "owned_by": OWNER}


def model_text(name: str, created: int) -> bytes:
    return orjson.dumps(model_tree(name, created))


def models_text(models: Mapping[str, int]) -> bytes:
    """The list of models; ``models`` has names and when they were created."""
    return orjson.dumps({"object": "list", "data": [model_tree(name, created) for name, created in models.items()]})


def _delta(index: int, delta: Mapping[str, str], logprobs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _number(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST_LOGPROB)


def _printable(text: str) -> str:
    """Makes a text printable: text from requests may hold lone surrogates."""
    return text.encode("utf-8", "replace").decode()
