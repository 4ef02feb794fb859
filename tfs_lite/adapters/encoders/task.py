"""The task of a version of ``save_pretrained``, told from its ``config.json`` and file names, without transformers.

The names of classes in ``architectures`` end with the task: ``BertForSequenceClassification``. Files of
sentence-transformers say that a network makes embeddings, whatever its class.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Any

from tfs_lite.adapters.encoders.sentence import MODULES
from tfs_lite.adapters.inspect.archive import damaged
from tfs_lite.adapters.language.family import known_config, load_library
from tfs_lite.adapters.language.hf_files import CONFIG, Json, read_json, refuse_adapter, refuse_code, refuse_quantised
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.config.settings import nearest
from tfs_lite.core.status import failed_precondition

MAX_LABELS = 100_000
MAX_LABEL = 1000
"""Characters."""


class EncoderTask(enum.Enum):
    """The kind of answers that an encoder gives."""

    EMBEDDING = "a vector for each text"
    TEXT_CLASSES = "scores of classes for each text"
    TOKEN_CLASSES = "a class for each token of each text"
    IMAGE_CLASSES = "scores of classes for each image"


SUFFIXES: Mapping[str, EncoderTask] = {
    "ForSequenceClassification": EncoderTask.TEXT_CLASSES,
    "ForTokenClassification": EncoderTask.TOKEN_CLASSES,
    "ForImageClassification": EncoderTask.IMAGE_CLASSES,
}
MAPPINGS: Mapping[EncoderTask, str] = {
    EncoderTask.EMBEDDING: "MODEL_MAPPING",
    EncoderTask.TEXT_CLASSES: "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    EncoderTask.TOKEN_CLASSES: "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    EncoderTask.IMAGE_CLASSES: "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
}
"""The names under which transformers has the classes."""


def task_of_version(files: VersionFiles) -> EncoderTask | None:
    """The task of a version; None for a language model, or a ``config.json`` that says something else. Errors of
    :func:`~tfs_lite.adapters.language.hf_files.read_json`; FAILED_PRECONDITION for an adapter next to the weights."""
    refuse_adapter(files)
    return task_of(read_json(files.directory, CONFIG), files.names)


def task_of(config: Json, names: Collection[str]) -> EncoderTask | None:
    """The task by ``config.json`` and the names of the files next to it."""
    declared = config.get("architectures")
    name = declared[0] if isinstance(declared, list) and declared and isinstance(declared[0], str) else ""
    task = next((task for suffix, task in SUFFIXES.items() if name.endswith(suffix)), None)
    if task is not None:
        return task
    if MODULES in names:
        return EncoderTask.EMBEDDING
    is_base = name.endswith(("Model", "Encoder")) and not name.endswith("LMHeadModel")
    is_masked = name.endswith(("ForMaskedLM", "ForPreTraining")) and not config.get("is_decoder")
    return EncoderTask.EMBEDDING if is_base or is_masked else None


def read_encoder(files: VersionFiles, task: EncoderTask) -> tuple[Any, Any]:
    """Reads the config and the class of the network. PERMISSION_DENIED for code, DATA_LOSS for files that are damaged,
    FAILED_PRECONDITION for what transformers does not have."""
    fields = read_json(files.directory, CONFIG)
    refuse_code(CONFIG, fields)
    refuse_quantised(fields)
    config = known_config(fields)
    declared = str((config.architectures or [""])[0])
    if task is EncoderTask.EMBEDDING:
        return config, _embedding_class(config, declared, MODULES in files.names)
    candidates = {each.__name__: each for each in _classes(config, task)}
    if declared not in candidates:
        raise failed_precondition(f"{CONFIG}: architectures is {declared:.100}{nearest(declared, candidates)}")
    labels = read_labels_of(fields, config.num_labels or 2)
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
        config.num_labels = len(labels)  # a field of its own in some families
    return config, candidates[declared]


def _embedding_class(config: Any, declared: str, is_sentence: bool) -> Any:
    """The class that the directory names; the base class where that has a head. Of a network with an encoder and a
    decoder, sentence-transformers takes the encoder where transformers has it alone."""
    library = load_library()
    named: Any = getattr(library, declared, None) if declared.endswith(("Model", "Encoder")) else None
    is_model = isinstance(named, type) and issubclass(named, library.PreTrainedModel)
    if is_model and named.config_class is type(config):
        chosen: Any = named
    else:
        chosen = _classes(config, EncoderTask.EMBEDDING)[0]
    encoder: Any = getattr(library, f"{chosen.__name__.removesuffix('Model')}EncoderModel", None)
    return encoder if is_sentence and encoder is not None else chosen


def _classes(config: Any, task: EncoderTask) -> tuple[Any, ...]:
    """The classes that transformers has for the config. FAILED_PRECONDITION if there is none."""
    known = getattr(load_library(), MAPPINGS[task])
    if type(config) not in known:
        raise failed_precondition(f"{CONFIG}: transformers has no {config.model_type} that gives {task.value}")
    found = known[type(config)]
    return found if isinstance(found, tuple) else (found,)


def read_labels_of(fields: Json, default: int) -> tuple[str, ...]:
    """The names of the classes by ``id2label``; without it ``LABEL_0``, ``LABEL_1``, ... as transformers has them.
    DATA_LOSS for a table with gaps, and for one that is too large."""
    table = fields.get("id2label")
    if table is None:
        count = fields.get("num_labels", default)
        table = {str(index): f"LABEL_{index}" for index in range(count)} if _is_count(count) else None
    if not isinstance(table, dict) or not 0 < len(table) <= MAX_LABELS:
        raise damaged(f"{CONFIG}: id2label is no table of 1 to {MAX_LABELS} labels")
    labels = tuple(table.get(str(index)) for index in range(len(table)))
    if not all(isinstance(label, str) and len(label) <= MAX_LABEL for label in labels):
        raise damaged(f"{CONFIG}: id2label does not name each class from 0 to {len(table) - 1}")
    return tuple(map(str, labels))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value <= MAX_LABELS
