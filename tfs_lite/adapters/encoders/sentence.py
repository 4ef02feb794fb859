"""The files that sentence-transformers writes in addition to those of transformers: how token vectors become an
embedding.

    modules.json                      the steps: Transformer, Pooling, Normalize
    1_Pooling/config.json             how token vectors are pooled
    sentence_bert_config.json         the most tokens of a text, whether it is made lower case
    config_sentence_transformers.json   a prompt that stands before each text, how many numbers are kept

Without them embeddings are the mean of the token vectors, as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tfs_lite.adapters.inspect.archive import damaged
from tfs_lite.adapters.language.hf_files import Json, is_below, read_json, read_optional, refuse_code
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition

MODULES = "modules.json"
LENGTHS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
MAX_BYTES = 1 << 20
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
}
SUPPORTED = frozenset(POOLINGS.values())


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a text becomes an embedding. ``max_length`` None: the files do not say. ``dimensions``: how many numbers of
    an embedding are kept, its first ones; None means all."""

    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompt: str = ""
    dimensions: int | None = None


def read_recipe(files: VersionFiles) -> Recipe:
    """Reads how a version pools its vectors. FAILED_PRECONDITION for steps that are not served, PERMISSION_DENIED for a
    path out of the version, DATA_LOSS for files that are damaged."""
    if MODULES not in files.names:
        return Recipe()
    pooling, normalize, with_prompt = "mean", False, True
    for kind, path in _steps(files.directory):
        if kind == "Pooling":
            pooling, with_prompt = _pooling(files.directory, path)
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise failed_precondition(
                f"{MODULES} has a step {kind:.80}; served are Transformer, Pooling and Normalize. Embed with a network "
                "without it, or publish the model as model.pt2"
            )
        elif path:
            raise failed_precondition(f"{MODULES}: the Transformer is in {path:.80}, expected in the version itself")
    lengths = read_optional(files, LENGTHS)
    _check_vectors(lengths)
    length = lengths.get("max_seq_length")
    asked = read_optional(files, PROMPTS)
    prompt, dimensions = _prompt(asked), asked.get("truncate_dim")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise damaged(f"{PROMPTS}: truncate_dim is {dimensions!r:.80}, expected a number of dimensions")
    if prompt and not with_prompt:
        raise failed_precondition("1_Pooling/config.json leaves the prompt out of the mean, which is not served")
    return Recipe(
        pooling,
        normalize,
        length if type(length) is int and length > 0 else None,
        lengths.get("do_lower_case") is True,
        prompt,
        dimensions,
    )


def _check_vectors(found: Json) -> None:
    """Raises FAILED_PRECONDITION if something else is pooled than what the network's last layer says of each token."""
    modalities = found.get("modality_config")
    text = modalities.get("text") if isinstance(modalities, dict) else None
    output = text.get("method_output_name") if isinstance(text, dict) else None
    task = found.get("transformer_task")
    if task not in (None, "feature-extraction") or output not in (None, "last_hidden_state"):
        raise failed_precondition(
            f"{LENGTHS}: {output!s:.80} of {task!s:.80} is pooled; served is last_hidden_state of feature-extraction"
        )


def _steps(directory: str) -> Iterator[tuple[str, str]]:
    """Yields the kind and the path of each step."""
    with open(os.path.join(directory, MODULES), "rb") as file:
        text = file.read(MAX_BYTES + 1)
    try:
        found: Any = json.loads(text) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(step, dict) for step in found):
        raise damaged(f"{MODULES} is no list of steps")
    for step in found:
        refuse_code(MODULES, step)
        kind, path = step.get("type"), step.get("path", "")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise damaged(f"{MODULES} has a step without a type and a path")
        if path and not is_below(directory, path):
            raise ServingError(StatusCode.PERMISSION_DENIED, f"{MODULES} names {path!r:.100}, which is outside")
        yield kind.rpartition(".")[2], path


def _pooling(directory: str, path: str) -> tuple[str, bool]:
    """The kind of pooling, and whether the tokens of a prompt are part of it."""
    name = f"{path}/config.json" if path else "config.json"
    found = read_json(directory, name)
    chosen = found.get("pooling_mode")
    if chosen is None:
        on = [key for key, value in found.items() if key.startswith("pooling_mode_") and value is True]
        chosen = POOLINGS.get(on[0], on[0]) if len(on) == 1 else ", ".join(on) or "nothing"
    if chosen not in SUPPORTED:
        raise failed_precondition(f"{name}: pooling by {chosen!s:.100}; served are {', '.join(sorted(SUPPORTED))}")
    return chosen, found.get("include_prompt") is not False


def _prompt(found: Json) -> str:
    """The prompt that sentence-transformers puts before each text unless it is told otherwise."""
    name, prompts = found.get("default_prompt_name"), found.get("prompts")
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) else None
    if not isinstance(prompt, str):
        raise damaged(f"{PROMPTS}: there is no prompt {name!r:.80}")
    return prompt
