"""What is asked of a language model, what it answers, and what its engine asks of the network.

    front door -> Generation (a prompt and how to go on with it) -> engine -> Piece, Piece, ... -> front door
    engine     -> Step (rows of many texts) -> LanguageModel.step -> Drawn (the next token of each)

A *text* is one prompt with its output. A *row* is one token position that goes through the network in a step. A *slot*
holds the keys and values (the cache) of one text. Everything is in tokens, which are numbers below the vocabulary's
size; the model's :class:`TextCodec` turns texts into tokens and back.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from tfs_lite.core.model import Model
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import invalid_argument

MAX_LOGPROBS = 20
"""Of the best tokens at one position."""
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1000
"""Of one stop string."""


class Finish(enum.Enum):
    """Why a text has ended well. The values are OpenAI's words; what ends otherwise ends with a status."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen from the logits, in this order: bias and penalties, temperature, top-k, top-p,
    min-p, draw. Names and meanings are those of vLLM and transformers.

    ``temperature`` 0: the best token, the lowest of equals. ``top_k`` 0: all. ``logprobs`` None: not wanted; k: of the
    chosen token, and of the k best, after bias and penalties and before temperature. ``seed`` None: any.
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
        """Whether the best logit is the answer, as it comes out of the network."""
        return self.temperature == 0 and not self.changes_logits and self.logprobs is None

    @property
    def changes_logits(self) -> bool:
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1.0)
        return any(penalties) or bool(self.logit_bias)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, each with ``role`` and ``content``, as OpenAI has them."""

    messages: tuple[Mapping[str, Any], ...]


Prompt = Sequence[int] | str | ChatPrompt


@dataclass(frozen=True, slots=True)
class Generation:
    """One text that is wanted.

    ``max_tokens`` None: as many as the context holds. Before ``min_tokens`` neither an end of text nor a stop token is
    drawn. ``stop``: texts that end it, and are left out unless ``include_stop``. ``echo``: the prompt comes back in
    front, as text. ``score_prompt``: with the log probabilities of its tokens, which takes ``sampling.logprobs``.
    ``seed_shift`` is added to the seed: the number of the text among several with one seed. ``priority``: lower is
    sooner.
    """

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
    """INVALID_ARGUMENT, with the name of the field, for values that no request may have. Lengths are checked where the
    prompt's tokens are known."""
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
    """NaN is never within. ``above``: ``least`` itself is not either."""
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
    """A token at its position: log probabilities are natural. ``top``: the best tokens there, best first. None: of the
    first token of a prompt, which nothing predicts."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one text. ``cached``: of the prompt, those whose keys and values were there already."""

    prompt: int
    output: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """More of one text. ``tokens`` are the new ones; ``text`` may lag behind them, because a character or a stop string
    may be incomplete. The last piece of a text has ``finish`` and ``usage``, and ``stop``: the token or the text that
    ended it. With ``echo`` the first piece begins with the prompt's text, and with ``score_prompt`` its ``logprobs``
    begin with those of the prompt."""

    index: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    stop: int | str | None = None
    usage: Usage | None = None


class TextStream(Protocol):
    """Text of tokens that come one by one. One thread."""

    def push(self, token: int) -> str:
        """The text that is complete now; empty while a character is not."""

    def flush(self) -> str:
        """What was held back: the text ends here."""


class TextCodec(Protocol):
    """A tokenizer. Any thread may call any method."""

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str) -> list[int]:
        """With the special tokens that the tokenizer puts around a prompt. INVALID_ARGUMENT for what it cannot
        encode."""

    def chat(self, prompt: ChatPrompt) -> list[int]:
        """By the chat template, up to where the assistant speaks. INVALID_ARGUMENT without one, or if it refuses the
        messages."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def stream(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> TextStream:
        """``after``: the tokens before, whose text is not told again; a space may depend on them. The last few do."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token alone stands for; they need not be complete characters."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a loaded language model can do. ``slots``: texts at once. ``length``: tokens of one text, prompt and output
    together. ``eos``: tokens that end a text."""

    slots: int
    length: int
    vocabulary: int
    eos: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """The next token of a text is wanted. ``index``: how many were drawn before; with ``seed`` it determines the noise,
    whoever shares the step. ``history``: prompt and output so far, of which ``prompt_length`` are the prompt; it must
    not be changed before the step is over. ``banned``: tokens that may not be drawn."""

    sampling: Sampling
    seed: int
    index: int
    history: Sequence[int]
    prompt_length: int
    banned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of the text in ``slot``: ``tokens`` at the positions from ``start`` on, which is how many the
    slot holds already. ``draw``: the token after the last row is wanted. ``targets``: the tokens that follow the rows,
    whose log probabilities are wanted (with as many best ones as ``top``); there may be one less than rows."""

    slot: int
    start: int
    tokens: Sequence[int]
    draw: SamplingRequest | None = None
    targets: Sequence[int] = ()
    top: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """The first ``count`` positions of a slot, to be had in another one before the step."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """One forward of the network. Places in ``rows`` are distinct. Copies come first, in order."""

    rows: Sequence[Rows]
    copies: Sequence[Copy] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """For one of the rows of a step. ``token`` None: nothing was wanted, or (``broken``) the logits were no numbers.
    ``logprob`` and ``top`` are there where ``Sampling.logprobs`` asks for them; ``targets`` are those of
    ``Rows.targets``."""

    token: int | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    targets: tuple[TokenLogprob, ...] = ()
    broken: bool = False


@runtime_checkable
class LanguageModel(Model, Protocol):
    """A decoder with a cache of ``limits.slots`` slots. ``run`` is not for it: it raises UNIMPLEMENTED.

    Threads: ``step`` by one thread at a time; the rest by any, also beside it.
    """

    @property
    def limits(self) -> Limits: ...

    @property
    def codec(self) -> TextCodec | None:
        """None: it takes and gives tokens only."""

    @property
    def shares_compute(self) -> bool:
        """Whether its steps should take turns with those of other models of the process: on the CPU, where two teams of
        threads slow each other down many times over. Those of a GPU have a thread each."""

    @property
    def batches(self) -> bool:
        """Whether a step with many rows costs less than as many steps: false for the fallback of families that cannot
        be batched."""

    def step(self, step: Step) -> Sequence[SampledToken]:
        """Writes the rows' keys and values into their slots, and returns one :class:`SampledToken` for each of
        ``step.rows``. May raise anything; then slots have whatever they had, or the rows of this step, and it may be
        called again."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step. ``kind``: prefill, decode or mixed. ``gaps``: seconds since the token before, of each text that got
    one that was not its first."""

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
    """One text that has ended. ``outcome``: stop, length, cancelled, deadline, timeout, error. Times are in seconds
    from its submission; None: it did not get there. ``cached_asked``: prompt tokens looked up among those of other
    texts."""

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
    """What an engine is doing now. Tokens: ``reserved`` for texts that run, ``written``, of ``capacity``."""

    running: int
    waiting: int
    reserved: int
    written: int
    capacity: int


OnStep = Callable[[StepReport], None]
OnText = Callable[[TextReport], None]
"""Both are told on the engine's thread; they must be short and must not raise."""


def ignore_report(report: StepReport | TextReport) -> None:
    """For servers without metrics."""
