"""Language models from a directory, behind their engine: requests at given steps, and their responses.

    saved(family, directory)      # config, weights and tokenizer, as save_pretrained writes them
    generate_alone(directory, wanted)     # what transformers itself generates, one text at a time
    with EngineFixture(directory, max_num_seqs=3) as fixture:
        fixture.serve(requests)   # texts that arrive while others run

Requests are scheduled in steps of the engine: the next one comes so many steps after the one before.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from tests.support.language.tiny_transformers import Greedy
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.encoders.platform import PLATFORM
from tfs_lite.adapters.language.packed import packed_bytes
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.config.generation import generation_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.generation import (
    Generation,
    GenerationCall,
    LanguageModel,
    Piece,
    StepReport,
    TextReport,
    Usage,
    join_pieces,
)
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status
from tfs_lite.schedulers.generation.servable import GenerativeServable
from tfs_lite.serving.opening.servable_factory import engine_settings

VOCABULARY = 320
CONTEXT = 640
ENDS = (257, 262, 271, 280, 299, 311)
"""Tokens that end a text: as many as let a part of the texts meet one."""
WINDOW = 90
PATIENCE = 120.0
T = TypeVar("T")
Library: Any = AutoModelForCausalLM

_NAMED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "initializer_range": 0.1,
    "bos_token_id": 256,
    "eos_token_id": list(ENDS),
}
_OLD: dict[str, Any] = {**_NAMED, "n_layer": 2, "n_head": 4}
_NEW: dict[str, Any] = {**_NAMED, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}
_SMALL: dict[str, Any] = {**_NEW, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}
_UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
_WIDE: dict[str, Any] = {**_NEW, "hidden_size": 256, "intermediate_size": 512, "num_key_value_heads": 2}

FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt2": lambda: GPT2Config(**_OLD, **_UNTIED, n_embd=64, n_positions=CONTEXT),
    "llama": lambda: LlamaConfig(**_SMALL),
    "qwen3": lambda: Qwen3Config(**_SMALL, head_dim=16),
    "mistral": lambda: MistralConfig(**_SMALL, sliding_window=WINDOW),
    "wide_gpt2": lambda: GPT2Config(**_OLD, n_embd=256, n_positions=CONTEXT),
    "wide_llama": lambda: LlamaConfig(**_WIDE),
    "bloom": lambda: BloomConfig(**{**_OLD, "n_layer": 1}, **_UNTIED, hidden_size=64),
    "falcon": lambda: FalconConfig(**{**_NEW, "num_hidden_layers": 1}, **_UNTIED, hidden_size=64),
}
"""The layers of the wide ones are large enough to be packed. Embeddings are untied where the model would else repeat
itself."""


def in_a_thread(work: Callable[[], T]) -> T:
    """Runs ``work`` in a thread that ends: an idle thread that has used torch would slow the engine down."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


def saved(family: str, directory: Path) -> Path:
    def save() -> None:
        torch.manual_seed(5)
        Library.from_config(FAMILIES[family]()).save_pretrained(directory)

    in_a_thread(save)
    tokenizer = {"tokenizer_class": "ByteTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return directory


def generate_alone(directory: Path, asked: Sequence[Generation], room: int) -> list[Greedy]:
    """The plain model's greedy texts, each generated alone. ``room``: tokens of prompt and output together."""
    return in_a_thread(partial(_written, directory, asked, room))


def _written(directory: Path, asked: Sequence[Generation], room: int) -> list[Greedy]:
    module = Library.from_pretrained(directory).eval()
    return [_generated(module, wanted, room) for wanted in asked]


@torch.inference_mode()
def _generated(module: Any, wanted: Generation, room: int) -> Greedy:
    ids = torch.tensor([list(wanted.prompt)])  # type: ignore[arg-type]
    options = {"eos_token_id": None} if wanted.ignore_eos else {}
    most = room - ids.shape[1] if wanted.max_tokens is None else wanted.max_tokens
    found = module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=most,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    best = torch.cat(found.logits).topk(2).values
    return Greedy(found.sequences[0, ids.shape[1] :].tolist(), (best[:, 0] - best[:, 1]).tolist())


@dataclass(slots=True, eq=False)
class Response:
    """The response to one call; complete when ``over`` is set."""

    call: GenerationCall
    on_piece: Callable[[Piece], None] | None = None
    on_over: Callable[[], None] | None = None
    pieces: list[Piece] = field(default_factory=list)
    answer: Any = None
    over: threading.Event = field(default_factory=threading.Event)

    def take_piece(self, piece: Piece) -> None:
        self.pieces.append(piece)
        if self.on_piece is not None:
            self.on_piece(piece)

    def end(self, answer: Any) -> None:
        self.answer = answer
        self.over.set()
        if self.on_over is not None:
            self.on_over()

    @property
    def status(self) -> Status | None:
        return self.answer if isinstance(self.answer, Status) else None

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.tokens]

    @property
    def whole(self) -> Piece:
        """All pieces of a text that has ended well, as one."""
        self.wait()
        return join_pieces(self.pieces)

    @property
    def usage(self) -> Usage:
        found = self.whole.usage
        assert found is not None
        return found

    def wait(self) -> None:
        """Waits until it has ended. AssertionError if it failed."""
        if not self.over.wait(PATIENCE):
            raise TimeoutError("the text has not ended")
        assert self.status is None, self.status


def _response(wanted: Sequence[Generation]) -> Response:
    response: Response
    call = GenerationCall("serving_default", {}, (), None, lambda answer: response.end(answer), texts=tuple(wanted))
    response = Response(call)
    return response


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A text that comes ``after`` so many steps, or at once when no other text runs. ``leaves``: it is cancelled that
    many steps later, unless it has ended."""

    wanted: Generation
    after: int = 0
    leaves: int | None = None


class EngineFixture:
    """One version on the CPU. ``parameters`` are those of its config. A context manager."""

    def __init__(self, directory: Path, **parameters: object) -> None:
        values = {"max_queue": 200, "max_queued_tokens": 100_000, "queue_timeout": 600, **parameters}
        settings = ModelSettings(parameters={name: str(value) for name, value in values.items()})
        request = OpenRequest(ServableId("lm", 1), read_version(str(directory)), "cpu", False, settings)
        assert PLATFORM.open is not None
        model = PLATFORM.open(request)
        assert isinstance(model, LanguageModel)
        self.steps: list[StepReport] = []
        self.texts: list[TextReport] = []
        self._clock = SystemClock()
        self._arrivals: _Arrivals | None = None
        self.servable = GenerativeServable(
            model,
            request.id,
            engine_settings(generation_settings(settings), model),
            clock=self._clock,
            on_step=self._stepped,
            on_text=self.texts.append,
        )

    def __enter__(self) -> EngineFixture:
        return self

    def __exit__(self, *error: object) -> None:
        self.servable.close()
        self._clock.close()

    @property
    def packed_bytes(self) -> int:
        """The bytes of packed layers."""
        model: Any = self.servable.model
        return packed_bytes(model._network._module)

    @property
    def preempted(self) -> int:
        return sum(report.preempted for report in self.steps)

    def ask(
        self,
        wanted: Generation,
        on_piece: Callable[[Piece], None] | None = None,
        on_over: Callable[[], None] | None = None,
    ) -> Response:
        """Submits a text. Any thread. ``on_piece`` and ``on_over`` are called on the engine's."""
        response = _response((wanted,))
        response.on_piece, response.on_over = on_piece, on_over
        self.send(response)
        return response

    def send(self, response: Response) -> None:
        """Submits a call that gets its pieces as they come."""
        response.call.on_piece = response.take_piece
        self.servable.submit(response.call)

    def answer(self, wanted: Sequence[Generation]) -> Mapping[str, Any]:
        """The outputs of one call that asks for the whole answer at once."""
        response = _response(wanted)
        self.servable.submit(response.call)
        response.wait()
        outputs: Mapping[str, Any] = response.answer
        return outputs

    def serve(self, requests: Sequence[ScheduledRequest]) -> list[Response]:
        """Serves all requests, and returns their responses in order when the last one has ended."""
        self._arrivals = arrivals = _Arrivals(self, requests)
        arrivals.begin()
        if not arrivals.over.wait(PATIENCE):
            raise TimeoutError(
                f"{arrivals.present} texts have not ended, {len(requests) - len(arrivals.response)} have not come"
            )
        self._arrivals = None
        return arrivals.response

    def _stepped(self, report: StepReport) -> None:
        self.steps.append(report)
        if self._arrivals is not None:
            self._arrivals.step()


class _Arrivals:
    """Submits the scheduled requests; after ``begin`` everything is done on the engine's thread."""

    def __init__(self, fixture: EngineFixture, requests: Sequence[ScheduledRequest]) -> None:
        self._fixture = fixture
        self._left = list(requests[::-1])
        self._now = 0
        self._next = 0
        self._leaving: list[tuple[int, Response]] = []
        self.present = 0
        self.response: list[Response] = []
        self.over = threading.Event()

    def begin(self) -> None:
        self._enter(self._left.pop())

    def step(self) -> None:
        self._now += 1
        for due, response in self._leaving:
            if due == self._now:
                self._fixture.servable.cancel(response.call)
        while self._left and self._next + self._left[-1].after <= self._now:
            self._enter(self._left.pop())

    def _enter(self, request: ScheduledRequest) -> None:
        self._next = self._now
        self.present += 1
        response = _response((request.wanted,))
        response.on_over = self._ended
        self.response.append(response)
        if request.leaves is not None:
            self._leaving.append((self._now + request.leaves, response))
        self._fixture.send(response)  # last: it may be at its end already when this returns

    def _ended(self) -> None:
        self.present -= 1
        if self.present == 0 and self._left:
            self._enter(self._left.pop())
        elif self.present == 0:
            self.over.set()
