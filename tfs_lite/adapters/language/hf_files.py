"""The files of a language model's version: what must be there, and what is refused.

    config.json                                    what the network is
    model.safetensors, or model.safetensors.index.json and the files that it names
    generation_config.json, tokenizer.json, ...    optional

That is what ``save_pretrained`` of transformers writes. Nothing here needs transformers or torch, so errors show before
anything heavy is done. Code and pickles of a version are never used, also if its path is trusted. The file also knows
which fields of a model config a language model cannot have, because its engine decides them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tfs_lite.adapters.inspect.archive import damaged
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.replicas import RAY
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument, listed

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
ADAPTER = "adapter_config.json"
INDEX = "model.safetensors.index.json"
SAFETENSORS = ".safetensors"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
OTHER_PLATFORMS = frozenset({"model.py", "model.pt", "model.pt2", "model.onnx"})
MAX_JSON_BYTES = 64 << 20

Json = Mapping[str, Any]


def recognises(files: VersionFiles) -> bool:
    """Whether the version is one of this platform; also with pickled weights or as an adapter alone, so that the error
    names them."""
    if not files.names & {CONFIG, ADAPTER} or files.names & OTHER_PLATFORMS:
        return False
    return any(name.endswith((SAFETENSORS, *PICKLES)) or name == INDEX for name in files.names)


def read_json(directory: str, name: str) -> Json:
    """The object in a file of the version. FAILED_PRECONDITION if it is not there, DATA_LOSS if it is something
    else."""
    try:
        with open(os.path.join(directory, name), "rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        raise failed_precondition(f"{name} is missing") from None
    except OSError as error:
        raise failed_precondition(f"{name} cannot be read: {error.strerror}") from None
    if len(text) > MAX_JSON_BYTES:
        raise damaged(f"{name} is larger than {MAX_JSON_BYTES} bytes")
    try:
        found = json.loads(text, object_hook=_special_number)
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(f"{name} is truncated or no JSON: {error}") from None
    if not isinstance(found, dict):
        raise damaged(f"{name} holds no JSON object")
    return found


def _special_number(found: dict[str, Any]) -> Any:
    """The float for ``{"__float__": "Infinity"}``, as transformers writes what JSON has no number for."""
    return float(found["__float__"]) if found.keys() == {"__float__"} else found


def read_optional(files: VersionFiles, name: str) -> Json:
    """Reads a file as :func:`read_json` does; empty if there is no such file."""
    return read_json(files.directory, name) if name in files.names else {}


def read_config(directory: str) -> Json:
    """Reads ``config.json`` of a decoder without code of its own and with plain weights.

    Errors of :func:`read_json`; PERMISSION_DENIED for code, FAILED_PRECONDITION for what else is not served.
    """
    config = read_json(directory, CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise failed_precondition(f"{CONFIG} has no model_type, which says what network it is")
    refuse_code(CONFIG, config)
    refuse_quantised(config)
    if config.get("is_encoder_decoder"):
        raise failed_precondition(
            f"{CONFIG}: {config['model_type']} is an encoder with a decoder, expected a decoder alone"
        )
    return config


def refuse_code(name: str, found: Json) -> None:
    """Raises PERMISSION_DENIED if the file asks for code that comes with it, at any depth that transformers looks
    at."""
    for part in (found, *(value for value in found.values() if isinstance(value, dict))):
        for key in ("auto_map", "custom_pipelines"):
            if part.get(key):
                raise ServingError(
                    StatusCode.PERMISSION_DENIED,
                    f"{name} has {key}, which names code outside of transformers; such code is never run. If "
                    f"transformers itself has the model, take {key} out",
                )


def refuse_quantised(config: Json) -> None:
    if config.get("quantization_config"):
        raise failed_precondition(f"{CONFIG} has quantization_config: quantised weights are not served")


def refuse_adapter(files: VersionFiles) -> None:
    """Raises FAILED_PRECONDITION if an adapter lies next to the weights: transformers would add it, and answer
    otherwise."""
    if ADAPTER in files.names:
        raise failed_precondition(
            f"{ADAPTER} says that an adapter (LoRA and the like) belongs to the model, and adapters are not applied. "
            "Merge it with peft, PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(merged), "
            f"and publish what that writes; or take {ADAPTER} out to serve the model without it"
        )


def weight_files(files: VersionFiles) -> tuple[str, ...]:
    """The files that hold the weights, relative to the version's directory, each once.

    FAILED_PRECONDITION if there are none, or only pickles, or one that the index names is missing; PERMISSION_DENIED
    if the index leads out of the directory.
    """
    if WEIGHTS in files.names:
        return (WEIGHTS,)
    if INDEX in files.names:
        return _shards(files.directory, read_json(files.directory, INDEX))
    pickles = sorted(name for name in files.names if name.endswith(PICKLES))
    if pickles:
        raise failed_precondition(
            f"the weights are pickles ({shown(pickles)}), which may hold code and are not loaded; write {WEIGHTS} with "
            "model.save_pretrained(directory, safe_serialization=True) of transformers"
        )
    raise failed_precondition(f"there is neither {WEIGHTS} nor {INDEX}")


def shown(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    return listed(sorted(names))


def eos_ids(sources: Iterable[Mapping[str, object]]) -> tuple[int, ...]:
    """The ``eos_token_id``, a number or a list of them, of the first source that has it."""
    for source in sources:
        found = source.get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        if found is not None:
            return tuple(_token(value) for value in ids)
    return ()


def _token(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise failed_precondition(f"eos_token_id is {value!r:.50}, expected a number or a list of numbers")
    return value


def _shards(directory: str, index: Json) -> tuple[str, ...]:
    named = index.get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise damaged(f"{INDEX} has no weight_map of tensors and files")
    shards = tuple(sorted(set(named.values())))
    for name in shards:
        _check_shard(directory, name)
    return shards


def _check_shard(directory: str, name: str) -> None:
    if not name.endswith(SAFETENSORS):
        raise failed_precondition(f"{INDEX} names {name!r:.100}; only {SAFETENSORS} files are loaded")
    if not is_below(directory, name):
        raise ServingError(
            StatusCode.PERMISSION_DENIED, f"{INDEX} names {name!r:.100}, which is outside of the version's directory"
        )
    if not os.path.isfile(os.path.join(directory, name)):
        raise failed_precondition(f"{INDEX} names {name}, which is missing")


def is_below(directory: str, name: str) -> bool:
    """Whether the file lies below the directory; links are followed."""
    if os.path.isabs(name) or ".." in name.split("/") or "\\" in name or "\0" in name:
        return False
    root = os.path.realpath(directory)
    return os.path.commonpath([root, os.path.realpath(os.path.join(root, name))]) == root


REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "input": "a language model has inputs of its own",
        "output": "a language model has outputs of its own",
        "signatures": "a language model has one signature",
        "dynamic_batching": "texts join and leave at every step; see max_num_seqs and max_queue of parameters",
        "sequence_batching": "a request is a whole text, and its state ends with it",
        "model_warmup": "a language model does not run single requests; it is run while it is loaded, see also warmup",
    }
)
"""Field -> why it is refused."""


def check_settings(settings: ModelSettings) -> None:
    """Raises INVALID_ARGUMENT, with the field's name, for settings that a language model cannot have."""
    for name, reason in REFUSED.items():
        if getattr(settings, name):
            raise invalid_argument(f"{name}: {reason}")
    if settings.model_transaction_policy.decoupled:
        raise invalid_argument("model_transaction_policy.decoupled: each request says whether it wants a stream")
    if settings.response_cache is not None and settings.response_cache.enable:
        raise invalid_argument("response_cache.enable: answers of a language model are drawn anew each time")
    count = sum(group.instances for group in settings.instance_group)
    if count > 1:
        raise invalid_argument(
            f"instance_group: {count} instances; a language model is one that runs many texts at once, so raise "
            "max_num_seqs of parameters"
        )
    for index, group in enumerate(settings.instance_group):
        if group.worker == "process":
            raise invalid_argument(f"instance_group[{index}].worker: a language model runs in the server's process")
        if group.worker == RAY:
            raise ServingError(
                StatusCode.UNIMPLEMENTED, f"instance_group[{index}].worker: a language model has no replicas yet"
            )
