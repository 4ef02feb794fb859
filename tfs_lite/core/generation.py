"""Requests to language models, their answers, and the steps that an engine makes with the model.

    front end -> Generation (a prompt and its sampling) -> engine -> Piece, Piece, ... -> front end
    engine    -> Step (rows of many texts) -> LanguageModel.step -> SampledToken (the next token of each text)

A *text* is one prompt with its output (vLLM: a sequence). A *row* is one token position that goes through the network
in a step. A *slot* holds the keys and values of one text (its cache). Tokens are numbers below the size of the
vocabulary; the model's :class:`TextCodec` turns strings into tokens and back."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeGuard, runtime_checkable

from tfs_lite.core.model import Model, Servable, ServableCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import invalid_argument

MAX_LOGPROBS = 20
"""The most best tokens that can be asked for at one position."""
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1000
"""The most characters of one stop string."""


class Finish(enum.Enum):
    """The reason why a text has ended. The values are OpenAI's; a text that fails ends with a status instead."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The rules by which the next token is chosen from the logits, in this order: bias and penalties, temperature,
    top-k, top-p, min-p, draw. Names and meanings are those of vLLM and transformers.

    With ``temperature`` 0 the best token is chosen, of equals the lowest. ``top_k`` 0 keeps all tokens. ``logprobs`` k
    asks for the log probabilities of the chosen token and of the k best ones, after bias and penalties and before
    temperature; None asks for none. ``seed`` None means a random seed.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    seed: int | None = None
    logprobs: int | None = None

    @property
    def plain(self) -> bool:
        """Whether the token with the best logit is the result, with nothing else to compute."""
        return self.temperature == 0 and not self.changes_logits and self.logprobs is None

    @property
    def changes_logits(self) -> bool:
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1.0)
        return any(penalties) or bool(self.logit_bias)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """OpenAI's messages for the chat template of the model, each with ``role`` and ``content``."""

    messages: tuple[Mapping[str, Any], ...]


Prompt = Sequence[int] | str | ChatPrompt


@dataclass(frozen=True, slots=True)
class Generation:
    """A request for one text.

    ``max_tokens`` None means as many as the context holds. Before ``min_tokens`` neither end of text nor a stop token
    is drawn. ``stop``: strings that end the text, and are left out unless ``include_stop``. ``echo``: the output begins
    with the prompt, as a string. ``score_prompt``: with the log probabilities of the prompt's tokens; it requires
    ``sampling.logprobs``. ``seed_shift`` is added to the seed, for several texts with one seed. A lower ``priority`` is
    more urgent."""

    prompt: Prompt
    max_tokens: int | None = None
    min_tokens: int = 0
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    score_prompt: bool = False
    seed_shift: int = 0
    priority: int = 0


def check_generation(wanted: Generation, vocabulary: int, has_text: bool) -> None:
    """INVALID_ARGUMENT, with the name of the field, for invalid values. Lengths are checked where the prompt's tokens
    are known."""
    _check_sampling(wanted.sampling, vocabulary)
    _within("max_tokens", wanted.max_tokens, 0)
    _within("min_tokens", wanted.min_tokens, 0)
    _within("priority", wanted.priority, -(2**31), 2**31 - 1)
    if wanted.max_tokens is not None and wanted.min_tokens > wanted.max_tokens:
        raise invalid_argument(f"min_tokens is {wanted.min_tokens}, more than max_tokens, {wanted.max_tokens}")
    if wanted.max_tokens == 0 and not wanted.echo:
        raise invalid_argument("max_tokens is 0: nothing would be generated; that is only of use with echo")
    for name, stops in (("stop", wanted.stop), ("stop_token_ids", wanted.stop_token_ids)):
        if len(stops) > MAX_STOPS:
            raise invalid_argument(f"{name} has {len(stops)} entries, at most {MAX_STOPS} are allowed")
    for stop in wanted.stop:
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise invalid_argument(f"stop has a text of {len(stop)} characters, expected 1 to {MAX_STOP_CHARACTERS}")
    if wanted.stop and not has_text:
        raise invalid_argument("stop: the model has no tokenizer, and cannot find texts; use stop_token_ids")
    for token in wanted.stop_token_ids:
        _check_token("stop_token_ids", token, vocabulary)
    if wanted.score_prompt and wanted.sampling.logprobs is None:
        raise invalid_argument("log probabilities of the prompt are wanted without logprobs")


def _check_sampling(sampling: Sampling, vocabulary: int) -> None:
    _within("temperature", sampling.temperature, 0.0, 100.0)
    _within("top_k", sampling.top_k, 0, 2**31 - 1)
    _within("top_p", sampling.top_p, 0.0, 1.0, above=True)
    _within("min_p", sampling.min_p, 0.0, 1.0)
    _within("repetition_penalty", sampling.repetition_penalty, 0.0, 100.0, above=True)
    _within("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _within("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    _within("seed", sampling.seed, -(2**63), 2**63 - 1)
    _within("logprobs", sampling.logprobs, 0, MAX_LOGPROBS)
    for token, bias in sampling.logit_bias.items():
        _check_token("logit_bias", token, vocabulary)
        _within("logit_bias", bias, -100.0, 100.0)


def _within(name: str, value: float | None, least: float, most: float = math.inf, above: bool = False) -> None:
    """INVALID_ARGUMENT outside of the bounds, and for NaN. With ``above``, ``least`` itself is outside."""
    if value is None or ((value > least if above else value >= least) and value <= most):
        return
    low = f"more than {least}" if above else f"at least {least}"
    high = "" if most == math.inf else f" and at most {most}"
    raise invalid_argument(f"{name} is {value}, expected {low}{high}")


def _check_token(name: str, token: int, vocabulary: int) -> None:
    if not 0 <= token < vocabulary:
        raise invalid_argument(f"{name}: {token} is no token; the vocabulary has 0 to {vocabulary - 1}")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural log probability of a token at its position; None for the first token of a prompt. ``top``: the best
    tokens there, best first."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens of one text. ``cached``: prompt tokens whose keys and values were reused."""

    prompt: int
    output: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The next part of one text. ``tokens`` are the new ones; ``text`` may lag behind them, because a character or a
    stop string may be incomplete. The last piece of a text has ``finish``, ``usage``, and ``stop``, the token or string
    that ended it. With ``echo`` the first piece begins with the prompt, and with ``score_prompt`` its ``logprobs``
    begin with those of the prompt."""

    index: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    stop: int | str | None = None
    usage: Usage | None = None


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Consecutive pieces of one text as one piece. ValueError without any."""
    if not pieces:
        raise ValueError("a text has one piece at least")
    if len(pieces) == 1:
        return pieces[0]
    last = pieces[-1]
    return Piece(
        last.index,
        tuple(token for piece in pieces for token in piece.tokens),
        "".join(piece.text for piece in pieces),
        tuple(each for piece in pieces for each in piece.logprobs),
        last.finish,
        last.stop,
        last.usage,
    )


class TextStream(Protocol):
    """Decodes tokens one by one. One thread."""

    def push(self, token: int) -> str:
        """The text that is complete now; empty while a character is incomplete."""

    def flush(self) -> str:
        """The text that was held back; called at the end."""


class TextCodec(Protocol):
    """A tokenizer. Any thread may call any method."""

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt, with the tokenizer's special tokens. INVALID_ARGUMENT for text that cannot be
        encoded."""

    def chat(self, prompt: ChatPrompt) -> list[int]:
        """The tokens of a chat by the chat template, up to the assistant's answer. INVALID_ARGUMENT without a template,
        or if it refuses the messages."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def stream(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> TextStream:
        """A stream that decodes tokens. ``after``: the tokens before, whose text is not repeated, because a leading
        space may depend on them; the last few are enough."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of the token alone, which may be incomplete characters."""


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """The limits of a loaded language model. ``slots``: texts at once. ``length``: tokens of one text, prompt and
    output together. ``vocabulary``: its size. ``eos``: tokens that end a text."""

    slots: int
    length: int
    vocabulary: int
    eos: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """A request for the next token of a text. ``index``: how many were drawn before; with ``seed`` it determines the
    noise, whatever else is in the step. ``history``: prompt and output so far, of which the first ``prompt_length`` are
    the prompt; it must not change before the end of the step. ``banned``: tokens that may not be drawn."""

    sampling: Sampling
    seed: int
    index: int
    history: Sequence[int]
    prompt_length: int
    banned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of the text in ``slot``: ``tokens`` at the positions from ``start`` on, which is how many the
    slot holds already. ``draw``: asks for the token after the last row. ``targets``: the tokens that follow the rows,
    whose log probabilities are wanted, with the ``top`` best ones; they may be one fewer than the rows."""

    slot: int
    start: int
    tokens: Sequence[int]
    draw: SamplingRequest | None = None
    targets: Sequence[int] = ()
    top: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies the first ``count`` positions of a slot to another slot before the step."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """One forward of the network. Slots in ``rows`` are distinct. Copies come first, in order."""

    rows: Sequence[Rows]
    copies: Sequence[Copy] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The result for one of the ``rows`` of a step. ``token`` is None if none was wanted, or with ``broken``, if the
    logits are not finite. ``logprob`` and ``top`` are set if ``Sampling.logprobs`` asks for them; ``targets`` are the
    scores of ``Rows.targets``."""

    token: int | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    targets: tuple[TokenLogprob, ...] = ()
    broken: bool = False


@runtime_checkable
class LanguageModel(Model, Protocol):
    """A decoder with a cache of ``limits.slots`` slots. Its ``run`` raises UNIMPLEMENTED.

    One thread at a time may call ``step``; any thread may call the other methods, also during a step.
    """

    @property
    def limits(self) -> GenerationLimits: ...

    @property
    def codec(self) -> TextCodec | None:
        """The tokenizer; None if the model takes and gives tokens only."""

    @property
    def shares_compute(self) -> bool:
        """Whether its steps take turns with those of other models of the process. They do on the CPU, where two thread
        pools slow each other down many times over; each model on a GPU has a thread of its own."""

    @property
    def batches(self) -> bool:
        """Whether a step with many texts costs less than as many steps: false for families that cannot be batched."""

    def step(self, step: Step) -> Sequence[SampledToken]:
        """Writes the rows' keys and values into their slots, and returns one :class:`SampledToken` for each of
        ``step.rows``. It may raise anything; the slots then hold what they held, or the rows of this step, and the step
        may be repeated."""


@dataclass(slots=True, eq=False)
class GenerationCall(ServableCall):
    """A request for texts, on its way through a :class:`LanguageServable`.

    ``texts`` say what to generate or, where these are empty, ``inputs`` (tensors of the model's signature) and
    ``parameters`` (what a V2 request says in addition to its inputs). ``on_piece`` is told about each piece of the
    texts, on any thread, before ``on_done``, which then gets no outputs; it never blocks. Without it ``on_done`` gets
    the whole answer as outputs of the signature.
    """

    texts: Sequence[Generation] = ()
    on_piece: Callable[[Piece], None] | None = None
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)


class LanguageServable(Servable, Protocol):
    """A servable around a language model: its ``traits.generates``."""

    @property
    def codec(self) -> TextCodec | None:
        """The tokenizer; None if the model takes and gives tokens only."""

    @property
    def retry_seconds(self) -> float:
        """Estimated seconds after which a call that was refused may find room."""

    def submit(self, call: GenerationCall) -> None: ...

    def cancel(self, call: GenerationCall) -> None: ...


def is_language_servable(servable: Servable) -> TypeGuard[LanguageServable]:
    return servable.traits.generates


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report of one step. ``kind``: prefill, decode or mixed. ``gaps``: seconds since the token before, of each
    text that got a token which was not its first."""

    id: ServableId
    kind: str
    rows: int
    texts: int
    seconds: float
    gaps: tuple[float, ...] = ()
    preempted: int = 0
    ok: bool = True


@dataclass(frozen=True, slots=True)
class TextReport:
    """The report of a text that has ended. ``outcome``: stop, length, cancelled, deadline, timeout or error. Times are
    in seconds from its submission; None means that it did not get there. ``cached_asked``: prompt tokens that were
    looked up in the cache."""

    id: ServableId
    outcome: str
    usage: Usage
    cached_asked: int = 0
    queue_seconds: float | None = None
    first_seconds: float | None = None
    last_seconds: float | None = None
    seconds: float = 0.0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of an engine: numbers of texts, and tokens of the cache: ``reserved`` for running texts, ``written``,
    and the ``capacity``."""

    running: int
    waiting: int
    reserved: int
    written: int
    capacity: int


OnStep = Callable[[StepReport], None]
OnText = Callable[[TextReport], None]
"""Both are called on the engine's thread; they must be short and must not raise."""
