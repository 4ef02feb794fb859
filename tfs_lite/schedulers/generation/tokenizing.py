"""Checks the texts of a call and tokenizes their prompts; long prompts go to a thread of their own.

GenerationCall -> weigh -> light: prepare at once; heavy: [queue] -> prepare on the thread -> Prepared, Prepared, ...
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfs_lite.core.generation import (
    ChatPrompt,
    Generation,
    GenerationCall,
    GenerationLimits,
    Prompt,
    TextCodec,
    check_generation,
)
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, invalid_argument, queue_full
from tfs_lite.core.threads import start
from tfs_lite.protocols.generation_tensors import INPUT_IDS, MAX_TEXTS, TEXT_INPUT, texts_of

LIGHT = 4096
"""Characters that are tokenized at once, on the submitting thread, which takes about a millisecond."""
IDS_FOR_A_CHARACTER = 8
"""Prompt tokens, which are only checked, that weigh as much as a character."""
MAX_WEIGHT = 64 * 2**20
"""Characters that may wait for the thread, unless a single call has more."""
CHARACTERS_OF_A_TOKEN = 64
LEAST_CHARACTERS = 2**20
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A text ready for the engine: the tokens of its prompt, which several texts may share, and the most output
    tokens. Together they fit the context."""

    wanted: Generation
    tokens: list[int]
    limit: int


def weigh(call: GenerationCall) -> int:
    """About how many characters :func:`prepare` would tokenize. A prompt that several texts share counts once."""
    if call.texts:
        return sum(_weight(prompt) for prompt in {id(text.prompt): text.prompt for text in call.texts}.values())
    ids, texts = (np.asarray(call.inputs.get(name, ())) for name in (INPUT_IDS, TEXT_INPUT))
    return ids.size // IDS_FOR_A_CHARACTER + sum(
        len(text) for text in texts.ravel().tolist() if isinstance(text, bytes | str)
    )


def prepare(call: GenerationCall, codec: TextCodec | None, limits: GenerationLimits) -> list[Prepared]:
    """All texts of a call, checked and tokenized. Any thread; :func:`weigh` says how long it takes.

    Texts without a priority of their own get the call's. Raises INVALID_ARGUMENT, with the number of the prompt where
    there are several, and everything that the codec raises."""
    texts = call.texts or texts_of(call.inputs, call.parameters)
    if len(texts) > MAX_TEXTS:
        raise invalid_argument(f"{len(texts)} texts are wanted, at most {MAX_TEXTS} are allowed in a request")
    for wanted in texts:
        check_generation(wanted, limits.vocabulary, codec is not None)
    known: dict[int, list[int]] = {}
    found = []
    for index, wanted in enumerate(texts):
        try:
            if id(wanted.prompt) not in known:
                known[id(wanted.prompt)] = _tokens(wanted.prompt, codec, limits)
            tokens = known[id(wanted.prompt)]
            own = replace(wanted, priority=call.priority) if call.priority and not wanted.priority else wanted
            found.append(Prepared(own, tokens, _room(wanted, len(tokens), codec, limits)))
        except ServingError as error:
            if len(texts) == 1:
                raise
            raise ServingError(error.code, f"prompt {index}: {error}", error.status.reason) from error
    return found


def _tokens(prompt: Prompt, codec: TextCodec | None, limits: GenerationLimits) -> list[int]:
    if isinstance(prompt, str | ChatPrompt):
        tokens = _encode(prompt, codec, limits)
    else:
        _check_length(len(prompt), limits)
        tokens = list(prompt)
    if not tokens:
        raise invalid_argument("the prompt is empty, expected one token at least")
    _check_length(len(tokens), limits)
    if min(tokens) < 0 or max(tokens) >= limits.vocabulary:
        wrong = next(token for token in tokens if not 0 <= token < limits.vocabulary)
        raise invalid_argument(f"the prompt has token {wrong}; the vocabulary has 0 to {limits.vocabulary - 1}")
    return tokens


def _encode(prompt: str | ChatPrompt, codec: TextCodec | None, limits: GenerationLimits) -> list[int]:
    if codec is None:
        raise invalid_argument("the prompt is a text, and the model has no tokenizer; send tokens")
    characters, most = _weight(prompt), max(LEAST_CHARACTERS, CHARACTERS_OF_A_TOKEN * limits.length)
    if characters > most:
        raise _too_long(
            f"the prompt has {characters} characters, more than the {most} that a context of {limits.length} tokens "
            "may hold"
        )
    if isinstance(prompt, str):
        return codec.encode(prompt)
    if not codec.has_chat_template:
        raise invalid_argument("the model has no chat template; send the prompt as a text")
    return codec.chat(prompt)


def _check_length(count: int, limits: GenerationLimits) -> None:
    if count > limits.length:
        raise _too_long(f"the prompt has {count} tokens, more than the {limits.length} of the model's context")


def _room(wanted: Generation, count: int, codec: TextCodec | None, limits: GenerationLimits) -> int:
    """The most output tokens for which the context has room."""
    if wanted.echo and codec is None and not wanted.score_prompt:
        raise invalid_argument("echo: the model has no tokenizer, and cannot give the prompt back as a text")
    if wanted.max_tokens is not None:
        if count + wanted.max_tokens > limits.length:
            raise _too_long(
                f"the prompt has {count} tokens and max_tokens is {wanted.max_tokens}, together more than the "
                f"{limits.length} of the model's context"
            )
        return wanted.max_tokens
    room = limits.length - count
    if room < max(wanted.min_tokens, 1):
        least = f"the {wanted.min_tokens} of min_tokens" if wanted.min_tokens > 1 else "a single one"
        raise _too_long(
            f"the prompt has {count} tokens, which leaves no room for {least} in the {limits.length} of the model's "
            "context"
        )
    return room


def _too_long(message: str) -> ServingError:
    return ServingError(StatusCode.INVALID_ARGUMENT, message, Reason.CONTEXT_LENGTH)


def _weight(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, ChatPrompt):
        return _characters(prompt.messages)
    return len(prompt) // IDS_FOR_A_CHARACTER


def _characters(messages: Sequence[Mapping[str, Any]]) -> int:
    """The characters of all strings in the messages, at any depth; every other value counts as one."""
    count, open_values = 0, list[Any](messages)
    while open_values:
        value = open_values.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, Mapping):
            open_values.extend(value.values())
        elif isinstance(value, list | tuple):
            open_values.extend(value)
        count += 1
    return count


@dataclass(slots=True, eq=False)
class Work:
    """A call for the tokenizer thread, which calls ``run``; the thread that closes calls ``drop`` instead. Neither may
    raise."""

    weight: int
    run: Callable[[], None]
    drop: Callable[[], None]


class TokenizerThread:
    """One daemon thread and its queue; the thread starts with the first work. Any thread may call the methods."""

    def __init__(self, name: str, most: int, thread_name: str, most_weight: int = MAX_WEIGHT) -> None:
        """At most ``most`` works wait, and several of them have no more than ``most_weight`` together. ``name`` is that
        of the model, for messages."""
        self._name = name
        self._thread_name = f"tfs-tokenize-{thread_name}"
        self._most = most
        self._most_weight = most_weight
        self._changed = threading.Condition()  # guards all below
        self._queue: deque[Work] = deque()
        self._weight = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Works that wait, without the one that runs."""
        with self._changed:
            return len(self._queue)

    def put(self, work: Work) -> Status | None:
        """Queues the work; never blocks. If the queue is full or closed, UNAVAILABLE is returned and the work is not
        taken."""
        with self._changed:
            if self._closed:
                return Status(StatusCode.UNAVAILABLE, f"{self._name} is being unloaded")
            if len(self._queue) >= self._most:
                return self._full(f"{self._most} prompts")
            if self._queue and self._weight + work.weight > self._most_weight:
                return self._full(f"prompts of {self._weight} characters")
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=self._thread_name, daemon=True)
                try:
                    start(thread)
                except ServingError as error:
                    return error.status
                self._thread = thread
            self._queue.append(work)
            self._weight += work.weight
            self._changed.notify()
        return None

    def discard(self, work: Work) -> None:
        """Removes the work from the queue, if it is there."""
        with self._changed:
            if work in self._queue:
                self._queue.remove(work)
                self._weight -= work.weight

    def close(self) -> None:
        """Drops the queue, and returns when the thread has ended. Any other thread may call it."""
        with self._changed:
            self._closed = True
            left, self._queue, self._weight = self._queue, deque(), 0
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        for work in left:
            work.drop()
        if thread is not None:
            thread.join()

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            try:
                work.run()
            except Exception:
                logger.exception("a prompt of %s broke its contract: run must not raise", self._name)
            del work

    def _next(self) -> Work | None:
        with self._changed:
            while not (self._queue or self._closed):
                self._changed.wait()
            if self._closed:
                return None
            work = self._queue.popleft()
            self._weight -= work.weight
            return work

    def _full(self, what: str) -> Status:
        message = f"{self._name} has {what} waiting for its tokenizer, the most allowed; try again later"
        return queue_full(message)
