"""A version that takes texts, or their tokens, and answers in one forward for each group of rows.

    texts -> rows of tokens -> groups -> a forward for each -> answers in the order of the rows

Requests share a batch as those of other models do. On a CPU the rows of a group are joined, if the network answers the
same then; else they are of about the same length, and padded. Rows that are longer than some length may only share a
forward with those of their own: where rotary positions turn with the longest row (longrope), or where a window of the
network is too long to try it at the load.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from tfs_lite.adapters.encoders.groups import CPU_FORWARD, group_apart, group_by_length, group_by_tokens
from tfs_lite.adapters.encoders.heads import ClassHead, embed
from tfs_lite.adapters.encoders.sentence import Recipe
from tfs_lite.adapters.encoders.task import EncoderTask
from tfs_lite.adapters.encoders.tokens import TextReader, TokenRow, rows_of_ids
from tfs_lite.adapters.failures import out_of_memory, sentence
from tfs_lite.adapters.language.architectures import Architectures, architecture
from tfs_lite.adapters.language.lengths import full_attention_length, steady_length, thresholds
from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.memory import take_apart, tensor_bytes
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.core.signature import (
    CLASSIFY_METHOD,
    DEFAULT_SIGNATURE,
    REGRESS_METHOD,
    DataType,
    Signature,
    SymbolicDim,
    TensorSpec,
)
from tfs_lite.core.status import failed_precondition
from tfs_lite.protocols.dtypes import Array

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "transformers"
TOKENS = "tokens"
BATCH = SymbolicDim("batch")
ALONE, LONGEST = SymbolicDim("n0"), SymbolicDim("longest(n0)")
"""The dimensions of answers for tokens: the width follows from the rows, so requests do not share a run."""
TOLERANCES = {torch.float32: 1e-3}
LOW_TOLERANCE = 0.1
CHECKED_LENGTH = 1024
SHORT, LONG = 12, 100
BRIEF = (5, 8)
"""Tokens of the rows of a version whose architecture is known: the first is run alone, and on both sides of the
other."""
LEAST = (1, 2, 3, 4, 6, 8)
"""Tokens of rows that are run at the load."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncoderLimits:
    """``length``: the most tokens of a row; ``tokens``: those of a forward; ``forward``: what a forward costs besides
    them, in tokens. ``pads`` says whether a row's answer is the same with padding behind it. ``types``: of tokens, 1
    where the network does not tell them apart. Rows of more than ``shared`` tokens share a forward with those of the
    same length only. Rows of fewer than ``least`` are padded up to it."""

    length: int
    vocabulary: int
    tokens: int
    forward: int = CPU_FORWARD
    pads: bool = True
    pad: int = 0
    types: int = 1
    shared: int = 1 << 31
    least: int = 1


@dataclass(frozen=True, slots=True)
class Findings:
    """What a check has found: the limits, and why rows are not joined; empty if they are, None if it was not tried."""

    limits: EncoderLimits
    why_not_joined: str | None


_FOUND = Architectures[Findings]()


class TextEncoder(LoadedModel):
    """Inputs: ``text``, or ``input_ids`` with ``attention_mask`` and ``token_type_ids``."""

    merges_calls = True

    def __init__(
        self,
        request: OpenRequest,
        task: EncoderTask,
        module: PreTrainedModel,
        limits: EncoderLimits,
        reader: TextReader | None,
        recipe: Recipe,
        takes_tokens: bool,
    ) -> None:
        """``reader`` None means that there is no tokenizer. ``takes_tokens``: the default signature does."""
        self._task = task
        self._module = module
        self._limits = limits
        self._reader = reader
        self._recipe = recipe
        self._head = None if task is EncoderTask.EMBEDDING else ClassHead(module.config)
        self._padding_position: int | None = None
        self._joins = False
        self._width = 0
        self._config = module.config.get_text_config().to_dict()
        module.config.use_cache = False
        self._check_sparse()
        self._learn(request)
        signatures = self._make_signatures(takes_tokens or reader is None)
        super().__init__(request.id, NAME, signatures)
        self._resident = tensor_bytes([*module.parameters(), *module.buffers()])

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """The labels of the classes, by output."""
        if self._head is None or self._task is EncoderTask.TOKEN_CLASSES or self._head.is_regression:
            return {}
        return {"scores": self._head.labels, "logits": self._head.labels}

    def compute(self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, object]:
        if "text" in inputs:
            assert self._reader is not None  # else no signature has the input
            rows = self._reader.read(inputs["text"])
        else:
            ids, mask, types = (inputs.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
            assert ids is not None
            rows = rows_of_ids(ids, mask, types, self._limits.vocabulary, self._limits.types)
        found = self._answers(rows)
        if self._task is EncoderTask.EMBEDDING:
            counts = np.array([sum(row.mask) for row in rows], np.int32)
            return {"embeddings": _stacked(found, self._width), "token_count": counts}
        assert self._head is not None
        if self._task is EncoderTask.TEXT_CLASSES:
            return self._head.answer(_stacked(found, len(self._head.labels)))
        if "text" not in inputs:
            return self._head.of_tokens(found, inputs["input_ids"].shape[1])
        width = max((len(row.words) for row in rows), default=0)
        offsets = np.zeros((len(rows), width, 2), np.int64)
        for index, row in enumerate(rows):
            if row.words:
                offsets[index, : len(row.words)] = row.offsets
        words = [logits[list(row.words)] for logits, row in zip(found, rows, strict=True)]
        return {**self._head.of_tokens(words, width), "offsets": offsets}

    def resident_bytes(self) -> int:
        return self._resident

    def close(self) -> None:
        take_apart(self._module)
        del self._module

    def _answers(self, rows: Sequence[TokenRow]) -> list[Array]:
        """The answer for each row, float32: its embedding, its logits, or the logits of its tokens."""
        limits, lengths = self._limits, [len(row.ids) for row in rows]
        found: list[Array] = [np.empty(0)] * len(rows)
        forward = self._joined if self._joins else self._padded
        for group in group_apart(lengths, limits.shared, limits.tokens, self._groups):
            answers = forward([rows[index] for index in group])
            for index, answer in zip(group, answers, strict=True):
                found[index] = answer[: len(rows[index].ids)] if self._task is EncoderTask.TOKEN_CLASSES else answer
        return found

    def _groups(self, lengths: Sequence[int]) -> list[list[int]]:
        limits = self._limits
        if self._joins:
            return group_by_tokens(lengths, limits.tokens)
        return group_by_length(lengths, limits.tokens, limits.forward, limits.pads)

    @torch.inference_mode()
    def _joined(self, rows: Sequence[TokenRow]) -> Sequence[Array]:
        from tfs_lite.adapters.encoders.joining import JoinedRows

        joined = JoinedRows(rows, self._padding_position)
        types = {"token_type_ids": joined.types} if self._limits.types > 1 else {}
        with joined.attending():
            output = self._module(input_ids=joined.ids, position_ids=joined.positions, **types)
        if self._task is EncoderTask.EMBEDDING:
            return joined.per_row(output.last_hidden_state, lambda vectors, mask: embed(vectors, mask, self._recipe))
        return joined.per_row(output.logits, lambda logits, mask: logits.float())

    @torch.inference_mode()
    def _padded(self, rows: Sequence[TokenRow]) -> Sequence[Array]:
        longest = max(self._limits.least, *(len(row.ids) for row in rows))
        shape, device = (len(rows), longest), self._module.device
        ids, mask = np.full(shape, self._limits.pad, np.int64), np.zeros(shape, np.int64)
        types = np.zeros(shape, np.int64) if self._limits.types > 1 else None
        for index, row in enumerate(rows):
            ids[index, : len(row.ids)] = row.ids
            mask[index, : len(row.ids)] = row.mask
            if types is not None:
                types[index, : len(row.ids)] = row.types
        given = {"input_ids": ids, "attention_mask": mask} | ({} if types is None else {"token_type_ids": types})
        tensors = {name: torch.from_numpy(array).to(device) for name, array in given.items()}
        output = self._module(**tensors)
        if self._task is EncoderTask.EMBEDDING:
            answer = embed(output.last_hidden_state, tensors["attention_mask"], self._recipe)
        else:
            answer = output.logits.float()
        return list(answer.cpu().numpy())

    def _check_sparse(self) -> None:
        """Raises FAILED_PRECONDITION for a network whose attention to blocks ends with the first short text."""
        full = full_attention_length(self._module)
        if full is not None and self._limits.length > full:
            raise failed_precondition(
                f"{type(self._module).__name__} attends to blocks in texts of more than {full} tokens until the first "
                f"shorter one, and to everything from then on. Set max_length of parameters to {full}, or "
                "attention_type of config.json to original_full"
            )

    def _learn(self, request: OpenRequest) -> None:
        """Sets the limits, and whether rows are joined: as the check finds it, or as it is known of the architecture.
        Errors of :meth:`_checked`."""
        given, key = self._limits, architecture(self._module, self._task, self._limits)
        found = _FOUND.find(key)
        if found is None or not self._confirms(found):
            self._limits, alone = given, dict[int, Array]()
            self._limits = self._checked(alone)
            found = Findings(self._limits, self._why_not_joined(request, alone))
            _FOUND.add(key, found)
        if not found.limits.pads:
            logger.info(
                "%s: padding changes answers; where rows are padded, only those of one length share a forward",
                request.id,
            )
        if found.limits.shared < found.limits.length:
            logger.info(
                "%s: rows of more than %d tokens share a forward with those of their length",
                request.id,
                found.limits.shared,
            )
        if found.why_not_joined:
            logger.info(
                "%s: rows that share a forward are padded, because joining them fails: %s",
                request.id,
                found.why_not_joined,
            )

    def _confirms(self, found: Findings) -> bool:
        """Whether rows that share a forward are answered as one of them alone, as it is known of the architecture: in
        rows that are joined, padded, or of one length."""
        self._limits = limits = found.limits
        short, long = (self._sample(min(length, limits.shared)) for length in BRIEF)
        try:
            alone = self._padded([short])[0]
            self._width = alone.shape[-1]
            if not np.isfinite(alone).all() or self._wrong_classes():
                return False
            if found.why_not_joined == "":
                self._join([short, long, short], [alone, None, alone])
                return True
            return self._are_alike([alone, None, alone], self._padded([short, long if limits.pads else short, short]))
        except Exception as error:
            if out_of_memory(error):
                raise
            return False

    def _checked(self, alone: dict[int, Array]) -> EncoderLimits:
        """The limits, after rows of many lengths were run ``alone``, whose answers it keeps by length, and with a short
        one: on both sides of each length at which the network may change its ways. Such lengths that are too long to be
        tried end those that rows share. FAILED_PRECONDITION if the network cannot do that, or what it computes is not
        finite or of another shape."""
        limits = self._limits
        steady, changes = steady_length(self._config), thresholds(self._config, limits.length)
        untried = [length for length in changes if length >= CHECKED_LENGTH]
        shared = min([limits.length, *([] if steady is None else [steady]), *untried])
        self._limits = limits = replace(limits, shared=shared, least=self._least_length())
        tried = {2 * SHORT, LONG, *(each + side for each in changes for side in (0, 1) if each not in untried)}
        lengths = sorted({min(length, shared) for length in tried})
        pads, length = True, min(SHORT, shared)
        try:
            short, answer = self._sample(length), self._alone(length, alone)
            for length in lengths:
                other = self._alone(length, alone)
                found = self._padded([short, self._sample(length)])
                pads = pads and self._alike(answer, found[0]) and self._alike(other, found[1])
            length = limits.length
            if length <= CHECKED_LENGTH:
                self._alone(length, alone)
            failure = (
                "" if np.isfinite(answer).all() else f"what the network computes in {self._module.dtype} is not finite"
            )
        except Exception as error:
            failure = f"{type(self._module).__name__} does not run on {length} tokens: {sentence(error)}"
            if getattr(self._module.config, "is_encoder_decoder", False):
                failure += "; a network with a decoder may need inputs for that: save the class of its encoder alone"
        if failure:
            raise failed_precondition(f"{failure}; see max_length and dtype of parameters")
        self._width = answer.shape[-1]
        if wrong := self._wrong_classes():
            raise failed_precondition(wrong)
        return replace(limits, pads=pads)

    def _wrong_classes(self) -> str:
        """Why an answer of this width does not fit the classes of the config; empty if it does."""
        if self._head is None or self._width == len(self._head.labels):
            return ""
        return f"the network has {self._width} classes, and config.json names {len(self._head.labels)}"

    def _alone(self, length: int, known: dict[int, Array]) -> Array:
        """The answer to a row of that length, which joins those that are ``known``."""
        if length not in known:
            known[length] = self._padded([self._sample(length)])[0]
        return known[length]

    def _least_length(self) -> int:
        """The tokens of the shortest row that the network runs on; 1 if it runs on none, which the check tells."""
        for length in LEAST:
            try:
                self._padded([self._sample(min(length, self._limits.length))])
            except Exception as error:
                if out_of_memory(error):
                    raise
            else:
                return length
        return 1

    def _why_not_joined(self, request: OpenRequest, alone: dict[int, Array]) -> str | None:
        """Empty if rows are joined from now on, as those that are joined are answered as those alone; the network
        attends row by row then. None where it is not tried: classes of texts are read from the first row of a
        forward."""
        if request.on_gpu or self._task is EncoderTask.TEXT_CLASSES:
            return None
        wanted = [2 * SHORT, SHORT, SHORT, LONG, *thresholds(self._config, min(self._limits.shared, CHECKED_LENGTH))]
        lengths = [min(length, self._limits.shared) for length in wanted]
        answers = [self._alone(length, alone) for length in lengths]
        try:
            self._join([self._sample(length) for length in lengths], answers)
        except Exception as error:
            return sentence(error)
        return ""

    def _join(self, rows: Sequence[TokenRow], alone: Sequence[Array | None]) -> None:
        """Rows that share a forward are joined from now on. Raises, with the network as it was, if they are not
        answered as they were ``alone`` then; None: as the row was not run alone, its answer has to be finite."""
        from tfs_lite.adapters.encoders.joining import exchanged_attention, padding_position

        self._padding_position = padding_position(self._module)
        with exchanged_attention(self._module):
            if self._limits.least > 1 or not self._are_alike(alone, self._joined(rows)):
                raise ValueError("answers differ")
        self._joins = True

    def _are_alike(self, alone: Sequence[Array | None], others: Sequence[Array]) -> bool:
        """None: only that the other one is finite."""
        pairs = zip(alone, others, strict=True)
        return all(bool(np.isfinite(b).all()) if a is None else self._alike(a, b) for a, b in pairs)

    def _alike(self, alone: Array, other: Array) -> bool:
        if self._task is EncoderTask.TOKEN_CLASSES:
            other = other[: len(alone)]
        scale = max(1.0, float(np.abs(alone).max()))
        return float(np.abs(alone - other).max()) <= scale * TOLERANCES.get(self._module.dtype, LOW_TOLERANCE)

    def _sample(self, length: int) -> TokenRow:
        """The first tokens of a random row that has its end of text where the family looks for one."""
        ids = np.random.default_rng(0).integers(self._limits.vocabulary, size=length)
        end = self._config.get("eos_token_id")
        if type(end) is int and 0 <= end < self._limits.vocabulary:
            ids[ids == end] = (end + 1) % self._limits.vocabulary
            ids[-1] = end
        return _row(ids.tolist())

    def _make_signatures(self, takes_tokens: bool) -> dict[str, Signature]:
        length = SymbolicDim("length", self._limits.length)
        first = ALONE if self._task is EncoderTask.TOKEN_CLASSES else BATCH
        text = (TensorSpec("text", DataType.STRING, (first,)),)
        names = ("input_ids", "attention_mask", *(("token_type_ids",) if self._limits.types > 1 else ()))
        ids = tuple(TensorSpec(name, DataType.INT64, (BATCH, length)) for name in names)
        optional = frozenset(names[1:])
        by_tokens = Signature(ids, self._outputs(BATCH, length, of_text=False), optional=optional)
        if self._reader is None:
            return {DEFAULT_SIGNATURE: by_tokens, TOKENS: by_tokens}
        by_text = Signature(text, self._outputs(first, LONGEST, of_text=True))
        found = {DEFAULT_SIGNATURE: by_tokens if takes_tokens else by_text, "text": by_text, TOKENS: by_tokens}
        if self._head is not None and self._task is EncoderTask.TEXT_CLASSES:
            found |= class_signatures(text, self._head)
        return found

    def _outputs(self, first: SymbolicDim, width: SymbolicDim, of_text: bool) -> tuple[TensorSpec, ...]:
        if self._head is None:
            vectors = TensorSpec("embeddings", DataType.FLOAT, (first, self._width))
            return (vectors, TensorSpec("token_count", DataType.INT32, (first,)))
        if self._task is EncoderTask.TEXT_CLASSES:
            return class_outputs(self._head)
        outputs = (
            TensorSpec("labels", DataType.STRING, (first, width)),
            TensorSpec("scores", DataType.FLOAT, (first, width)),
            TensorSpec("logits", DataType.FLOAT, (first, width, len(self._head.labels))),
        )
        return (*outputs, TensorSpec("offsets", DataType.INT64, (first, width, 2))) if of_text else outputs


def class_outputs(head: ClassHead) -> tuple[TensorSpec, ...]:
    """The outputs of a version that classifies rows."""
    shape = (BATCH, len(head.labels))
    numbers = (TensorSpec("scores", DataType.FLOAT, shape), TensorSpec("logits", DataType.FLOAT, shape))
    return numbers if head.is_regression else (TensorSpec("labels", DataType.STRING, (BATCH,)), *numbers)


def class_signatures(inputs: tuple[TensorSpec, ...], head: ClassHead) -> dict[str, Signature]:
    """The signatures of TensorFlow's Classify and Regress, by key."""
    if not head.is_regression:
        shape = (BATCH, len(head.labels))
        outputs = (TensorSpec("classes", DataType.STRING, shape), TensorSpec("scores", DataType.FLOAT, shape))
        return {"classify": Signature(inputs, outputs, CLASSIFY_METHOD)}
    if len(head.labels) > 1:
        return {}
    return {"regress": Signature(inputs, (TensorSpec("outputs", DataType.FLOAT, (BATCH,)),), REGRESS_METHOD)}


def _row(ids: list[int]) -> TokenRow:
    return TokenRow(ids, [1] * len(ids), [0] * len(ids))


def _stacked(rows: Sequence[Array], width: int) -> Array:
    return np.stack(rows) if rows else np.empty((0, width), np.float32)
