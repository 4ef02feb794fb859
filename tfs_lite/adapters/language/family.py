"""The config and the class of a version's network, from its ``config.json`` and the transformers library.

The library is heavy and optional, so it is imported when the first version is opened.
"""

from __future__ import annotations

import copy
import importlib
import json
from typing import TYPE_CHECKING, Any

from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.language.architectures import Architectures
from tfs_lite.adapters.language.hf_files import CONFIG, Json, read_config, shown
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.adapters.python.imports import importing_in_turns
from tfs_lite.core.status import Reason, ServingError, StatusCode, failed_precondition

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MISSING = "language models need the extra generate: pip install 'tfs-lite[generate]'"
HOW_TO_RUN = frozenset(
    {
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "experts_implementation",
        "_experts_implementation",
        "fusion_config",
        "distributed_config",
        "transformers_weights",
        "use_kernels",
    }
)
"""Fields of config.json that choose code or files rather than say what the network is. They are left out."""
OF_CLASSIFIERS = frozenset({"id2label", "label2id", "num_labels", "_num_labels"})
"""Config fields that are left out as well: transformers makes a table of as many labels as there are said to be."""
_CONFIGS: Architectures[PreTrainedConfig] = Architectures()
"""The configs that transformers has made, by their fields. To make one takes 2 ms of Python, to copy it 0.1."""


def load_library() -> Any:
    """Imports transformers, and lets it log errors only. UNIMPLEMENTED without the extra. Any thread, also for
    the first time."""
    try:
        with importing_in_turns():
            transformers = importlib.import_module("transformers")
            library_logging = importlib.import_module("transformers.utils.logging")
    except ModuleNotFoundError:
        raise ServingError(StatusCode.UNIMPLEMENTED, MISSING, Reason.NEEDS_EXTRA) from None
    library_logging.disable_progress_bar()
    library_logging.disable_default_handler()
    library_logging.enable_propagation()
    if library_logging.get_verbosity() != library_logging.ERROR:  # to set it makes every logger forget its level
        library_logging.set_verbosity_error()
    return transformers


def network_config(files: VersionFiles) -> PreTrainedConfig:
    """Reads ``config.json`` as a new config object of transformers. FAILED_PRECONDITION if it is not that of a decoder
    that transformers knows; errors of :func:`~tfs_lite.adapters.language.hf_files.read_config`."""
    config = known_config(read_config(files.directory))
    network_class(config)
    return config


def known_config(fields: Json) -> PreTrainedConfig:
    """The fields of a ``config.json`` as a new config object, without those that choose code or name classes.
    FAILED_PRECONDITION if transformers does not know its kind, or does not take the fields."""
    taken = _without_how_to_run(fields)
    key = json.dumps(taken, sort_keys=True)
    known = _CONFIGS.find(key)
    if known is None:
        known = _made_of(taken)
        _CONFIGS.add(key, known)
    return copy.deepcopy(known)


def _made_of(fields: Json) -> PreTrainedConfig:
    library = load_library()
    kind = fields.get("model_type")
    if not isinstance(kind, str):
        raise failed_precondition(f"{CONFIG} has no model_type, which says what network it is")
    if kind not in library.CONFIG_MAPPING:
        raise failed_precondition(f"{CONFIG}: transformers {library.__version__} does not know model_type {kind!r:.80}")
    try:
        config: PreTrainedConfig = library.CONFIG_MAPPING[kind].from_dict(dict(fields))
    except Exception as error:
        raise failed_precondition(f"{CONFIG} is no config of {kind}: {sentence(error)}") from None
    return config


def network_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class of the network. FAILED_PRECONDITION for encoders and other networks that do not generate."""
    library = load_library()
    kind = config.model_type
    known = library.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known:
        raise failed_precondition(f"{CONFIG}: {kind} is no language model that generates (a decoder)")
    found = known[type(config)]
    candidates = found if isinstance(found, tuple) else (found,)
    declared = config.architectures or [candidate.__name__ for candidate in candidates]
    if not isinstance(declared, list):
        raise failed_precondition(f"{CONFIG}: architectures is {declared!r:.80}, expected a list of names")
    chosen = next((candidate for candidate in candidates if candidate.__name__ in declared), None)
    if chosen is None:
        expected = shown(candidate.__name__ for candidate in candidates)
        raise failed_precondition(f"{CONFIG}: architectures is {shown(map(str, declared))}, expected {expected}")
    if type(config) in library.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        raise failed_precondition(f"{CONFIG}: {kind} without is_decoder is an encoder, which cannot generate")
    return chosen  # type: ignore[no-any-return]


def _without_how_to_run(fields: Json) -> dict[str, Any]:
    return {
        key: _without_how_to_run(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if key not in HOW_TO_RUN | OF_CLASSIFIERS
    }
