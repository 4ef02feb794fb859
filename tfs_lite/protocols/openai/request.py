"""Bodies of OpenAI's completions and chat completions -> texts for a language model.

    read_completion, read_chat: bytes -> OpenAiRequest(model, texts, ...)

Each choice of each prompt is a text: choice ``i`` of prompt ``p`` is text ``p * n + i``, and its seed is ``i`` more
than that of the request. Checks that need the model (its context and its tokens) come later; all other errors are found
here, and name the field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tfs_lite.core.generation import ChatPrompt, Generation, Prompt, Sampling
from tfs_lite.protocols.openai.fields import (
    MAX_TEXTS,
    REFUSED_IN_MESSAGES,
    Chat,
    CommonFields,
    Completion,
    FieldError,
    is_nothing,
    read_fields,
    shorten,
)

DEFAULT_MAX_TOKENS = 16
"""The default of completions; a chat may fill the context."""
MAX_PROMPT_TOKENS = 1 << 22
"""The most tokens of all prompts that are sent as tokens. No context is as long, and in memory they take many times
their size in the body."""
MAX_MESSAGES = 10_000
MAX_IGNORED = 16
"""The most ignored names of a request that are reported."""
_ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True, slots=True)
class OpenAiRequest:
    """A checked request. ``model`` is as it was sent. ``n``: choices of each prompt. ``top``: how many of the best
    tokens are returned for each position; None means no log probabilities. ``timeout`` is in seconds. ``ignored``:
    unknown names inside its objects, as ``messages.id``, each once and at most :data:`MAX_IGNORED`."""

    model: str
    texts: tuple[Generation, ...]
    chat: bool
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    top: int | None = None
    token_ids: bool = False
    timeout: float | None = None
    ignored: tuple[str, ...] = ()


def read_completion(body: bytes) -> OpenAiRequest:
    """Raises INVALID_ARGUMENT, as FieldError where it is about a field. Any thread; takes long for large bodies."""
    sent = read_fields(Completion, body)
    prompts = _prompts(sent.prompt)
    echo = bool(sent.echo)
    max_tokens = _max_tokens(sent)
    rest = _rest(sent, DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens, sent.logprobs)
    rest |= {"echo": echo, "score_prompt": echo and sent.logprobs is not None}
    return _request(sent, prompts, rest, sent.logprobs, chat=False)


def read_chat(body: bytes) -> OpenAiRequest:
    """Reads a chat body as ``read_completion`` reads its own."""
    sent = read_fields(Chat, body)
    if sent.top_logprobs is not None and not sent.logprobs:
        raise FieldError("top_logprobs", "top_logprobs is only of use with logprobs set to true")
    if len(sent.messages) > MAX_MESSAGES:
        raise FieldError("messages", f"messages has {len(sent.messages)} entries, at most {MAX_MESSAGES} are allowed")
    ignored: dict[str, None] = {}
    prompt = ChatPrompt(tuple(_message(message, index, ignored) for index, message in enumerate(sent.messages)))
    top = (sent.top_logprobs or 0) if sent.logprobs else None
    return _request(sent, [prompt], _rest(sent, _max_tokens(sent), top), top, chat=True, ignored=ignored)


def _request(
    sent: CommonFields,
    prompts: Sequence[Prompt],
    rest: Mapping[str, Any],
    top: int | None,
    chat: bool,
    ignored: Iterable[str] = (),
) -> OpenAiRequest:
    n = sent.n or 1
    if len(prompts) * n > MAX_TEXTS:
        what = f"{len(prompts)} prompts with {n} choices each are {len(prompts) * n} texts"
        raise FieldError("n" if n > 1 else "prompt", f"{what}, at most {MAX_TEXTS} are allowed")
    options = sent.stream_options
    if options is not None and options.model_extra:
        ignored = (*ignored, *(f"stream_options.{name:.50}" for name in options.model_extra))
    return OpenAiRequest(
        sent.model,
        tuple(Generation(prompt, seed_shift=choice, **rest) for prompt in prompts for choice in range(n)),
        chat,
        n,
        bool(sent.stream),
        bool(options and options.include_usage),
        top,
        bool(sent.return_token_ids),
        sent.timeout,
        tuple(islice(ignored, MAX_IGNORED)),
    )


def _max_tokens(sent: CommonFields) -> int | None:
    older, newer = sent.max_tokens, sent.max_completion_tokens
    if older is not None and newer is not None and older != newer:
        message = f"max_tokens is {older} and max_completion_tokens is {newer}; they are the same, give one of them"
        raise FieldError("max_completion_tokens", message)
    return older if newer is None else newer


def _rest(sent: CommonFields, max_tokens: int | None, logprobs: int | None) -> dict[str, Any]:
    """All fields of a Generation but those of its prompt."""
    return {
        "max_tokens": max_tokens,
        "min_tokens": sent.min_tokens or 0,
        "sampling": _sampling(sent, logprobs),
        "stop": tuple(sent.stop or ()),
        "stop_token_ids": tuple(sent.stop_token_ids or ()),
        "ignore_eos": bool(sent.ignore_eos),
        "include_stop": bool(sent.include_stop_str_in_output),
        "skip_special_tokens": sent.skip_special_tokens is not False,
        "priority": sent.priority or 0,
    }


def _sampling(sent: CommonFields, logprobs: int | None) -> Sampling:
    said = {
        "temperature": sent.temperature,
        "top_k": 0 if sent.top_k == -1 else sent.top_k,
        "top_p": sent.top_p,
        "min_p": sent.min_p,
        "repetition_penalty": sent.repetition_penalty,
        "presence_penalty": sent.presence_penalty,
        "frequency_penalty": sent.frequency_penalty,
        "seed": sent.seed,
    }
    values: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    return Sampling(logprobs=logprobs, logit_bias=_bias(sent.logit_bias or {}), **values)


def _bias(sent: Mapping[str, float]) -> dict[int, float]:
    found = {}
    for key, value in sent.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise FieldError("logit_bias", f"logit_bias: {key!r:.50} is no token, expected its number")
        found[int(key)] = value
    return found


def _prompts(sent: Any) -> list[Prompt]:
    """The prompts: a text, texts, tokens, or lists of tokens."""
    if isinstance(sent, np.ndarray):
        sent = _plain(sent)
    if isinstance(sent, str):
        return [sent]
    if not isinstance(sent, list) or not sent:
        raise _no_prompt("expected a string, an array of strings, of token numbers, or of arrays of those; none empty")
    if all(type(item) is int for item in sent):
        return [_tokens(sent, "prompt")]
    if all(isinstance(item, str) for item in sent):
        return list(sent)
    if all(isinstance(item, list | np.ndarray) for item in sent):
        _check_count(sum(len(item) for item in sent))
        return [_tokens(item, f"prompt[{index}]") for index, item in enumerate(sent)]
    raise _no_prompt("its items are neither all strings nor all token numbers nor all arrays of those")


def _tokens(sent: Any, where: str) -> tuple[int, ...]:
    items = _plain(sent) if isinstance(sent, np.ndarray) else sent
    if not items:
        raise _no_prompt(f"{where} is empty")
    if not all(type(item) is int for item in items):
        raise _no_prompt(f"{where} has other items than token numbers, which are integers")
    _check_count(len(items))
    return tuple(items)


def _plain(sent: np.ndarray[Any, Any]) -> Any:
    """The list that a large array in the body stands for."""
    _check_count(sent.size)
    return sent.tolist()


def _check_count(count: int) -> None:
    if count > MAX_PROMPT_TOKENS:
        raise _no_prompt(f"it has {count} tokens, at most {MAX_PROMPT_TOKENS} are taken")


def _no_prompt(message: str) -> FieldError:
    return FieldError("prompt", f"prompt: {message}")


def _message(sent: Mapping[str, Any], index: int, ignored: dict[str, None]) -> dict[str, Any]:
    """The message with its content as one text, without empty fields. Adds the names that are not known to
    ``ignored``."""
    where = f"messages[{index}]"
    role = sent.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FieldError(f"{where}.role", f"{where}.role is {shorten(role)}, expected one of {', '.join(_ROLES)}")
    content = _content(sent, role, f"{where}.content", ignored)
    found = {"role": "system" if role == "developer" else role, "content": content}
    for name, value in sent.items():
        if name in found or name == "annotations" or is_nothing(value):
            continue
        if name in REFUSED_IN_MESSAGES:
            raise FieldError(f"{where}.{name}", f"{where}.{name} is not supported")
        if name == "name" and isinstance(value, str):
            found[name] = value
        else:
            ignored[f"messages.{name:.50}"] = None
    return found


def _content(sent: Mapping[str, Any], role: str, where: str, ignored: dict[str, None]) -> str:
    content = sent.get("content")
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list) or not content:
        raise FieldError(where, f"{where}: expected a string or an array of text parts that is not empty")
    return "\n".join(_part(part, f"{where}[{index}]", ignored) for index, part in enumerate(content))


def _part(part: Any, where: str, ignored: dict[str, None]) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = repr(part.get("type"))[:50] if isinstance(part, dict) else "none"
        raise FieldError(
            f"{where}.type", f"{where}: its type is {kind}, and only parts of the type 'text' are supported"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise FieldError(f"{where}.text", f"{where}.text: expected a string")
    for name, value in part.items():
        if name not in ("type", "text") and not is_nothing(value):
            ignored[f"messages.content.{name:.50}"] = None
    return text
