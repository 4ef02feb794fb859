"""The fields of OpenAI's completions and chat completions that are supported, their types, and errors about them.

    body -> tree -> [is every name known] -> [are refused fields empty] -> Completion, Chat

A field of OpenAI's API is of one of three kinds: supported; neutral, which changes no answer and may hold anything; or
refused, which would change the answer and may only be null, false or empty. Any other name is an error, which names the
nearest known one, unless its value is null. Inside ``stream_options`` and messages other names are ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tfs_lite.core.generation import MAX_LOGPROBS
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.json.text import loads

MAX_TEXTS = 128
"""The most prompts times ``n`` of one request."""
MAX_TIMEOUT = 86_400.0
"""Seconds."""

NEUTRAL = frozenset(
    (
        *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention", "request_id"),
        *("safety_identifier", "service_tier", "store", "user"),
    )
)
"""Fields without an effect on the answer: they say who sends the request, and how it is stored, billed or sped up."""
REFUSED = frozenset(
    (
        *("allowed_token_ids", "audio", "bad_words", "best_of", "chat_template", "chat_template_kwargs"),
        *("continue_final_message", "documents", "function_call", "functions", "guided_choice", "guided_grammar"),
        *("guided_json", "guided_regex", "length_penalty", "logits_processors", "modalities", "prompt_logprobs"),
        *("reasoning_effort", "response_format", "structured_outputs", "suffix", "tool_choice", "tools"),
        *("truncate_prompt_tokens", "use_beam_search", "verbosity", "web_search_options"),
    )
)
"""Fields of OpenAI and vLLM that would change the answer."""
REFUSED_IN_MESSAGES = frozenset(
    ("audio", "function_call", "partial", "prefix", "refusal", "tool_call_id", "tool_calls")
)
"""The same inside a message: what was said in another way than by ``content``, or is to be continued."""
NESTED = ("messages", "stream_options")
"""The objects of a request in which unknown names are ignored."""

M = TypeVar("M", bound=BaseModel)


class FieldError(ServingError):
    """INVALID_ARGUMENT about one field of the request."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(StatusCode.INVALID_ARGUMENT, message)
        self.param = param

    def __reduce__(self) -> tuple[type[FieldError], tuple[str, str]]:  # type: ignore[override]
        return type(self), (self.param, self.status.message)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Stops = Annotated[list[str], BeforeValidator(_as_list)]


class StreamOptions(BaseModel):
    """The options of a stream. ``include_obfuscation`` only changes the bytes of a stream, and is ignored."""

    model_config = ConfigDict(strict=True, extra="allow")
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CommonFields(BaseModel):
    """The fields of both requests; None means that the field was not sent. The second half are vLLM's extensions, and
    ``timeout``, in seconds."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: Annotated[str, Field(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=MAX_TEXTS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: int | None = None
    return_token_ids: bool | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT)] | None = None


class Completion(CommonFields):
    """The body of a completion. ``prompt`` may be large, and is checked in ``request``."""

    prompt: Any
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


class Chat(CommonFields):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


def read_fields(kind: type[M], body: bytes) -> M:
    """The fields of a body. INVALID_ARGUMENT, naming the first field that is wrong."""
    tree = loads(body)
    if not isinstance(tree, dict):
        raise invalid_argument(f"the body is {_type_of(tree)}, expected a JSON object")
    known = {*kind.model_fields, *NEUTRAL, *REFUSED}
    for name, value in tree.items():
        if name not in known and value is not None:
            raise FieldError(name, f"Unrecognized request argument supplied: {name:.100}{_nearest(name, known)}")
        if name in REFUSED and not _asks_nothing(name, value, tree):
            raise FieldError(name, f"{name} is not supported: it would change the answer; leave it out")
    try:
        fields = kind.model_validate(tree)
    except ValidationError as error:
        raise _first_of(error) from None
    if isinstance(fields, CommonFields) and fields.stream_options is not None and not fields.stream:
        raise FieldError("stream_options", "stream_options is only of use with stream set to true")
    return fields


def is_nothing(value: object) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _asks_nothing(name: str, value: object, tree: dict[str, Any]) -> bool:
    """Whether a refused field holds a value that changes nothing."""
    if is_nothing(value):
        return True
    match name:
        case "best_of":
            return type(value) is int and value == (tree.get("n") or 1)
        case "response_format":
            return isinstance(value, dict) and value == {"type": "text"}
        case "modalities":
            return isinstance(value, list) and value == ["text"]
        case "tool_choice" | "function_call":
            return isinstance(value, str) and value in ("none", "auto")
        case "length_penalty":
            return type(value) in (int, float) and value == 1
        case _:
            return False


def _first_of(error: ValidationError) -> FieldError:
    first = error.errors(include_url=False)[0]
    path = first["loc"]
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    if first["type"] == "missing":
        return FieldError(shown, f"you must provide {shown}")
    problem = first["msg"].replace("Input should be", "expected").replace("expected expected", "expected")
    return FieldError(shown, f"{shown:.100}: {problem}, got {shorten(first['input'])}")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:100], sorted(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def shorten(value: object) -> str:
    """The value, shortened for a message."""
    text = repr(value) if isinstance(value, str | int | float | bool | None) else _type_of(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _type_of(value: object) -> str:
    """The type of the value in the words of JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case dict():
            return "an object"
        case _:
            return "an array"
