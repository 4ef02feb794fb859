"""Platform ``transformers``: the fork between encoders, which answer in one forward, and language models.

settings and files are checked -> weights -> tokenizer or image processor -> a model that was run once

The version needs no trust, because files with code and pickles are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tfs_lite.adapters.encoders.groups import CPU_FORWARD, GPU_FORWARD
from tfs_lite.adapters.encoders.images import PROCESSOR, ImageEncoder, open_processor
from tfs_lite.adapters.encoders.model import NAME, EncoderLimits, TextEncoder
from tfs_lite.adapters.encoders.sentence import LENGTHS, MODULES, PROMPTS, Recipe, read_recipe
from tfs_lite.adapters.encoders.settings import EncoderSettings, encoder_settings
from tfs_lite.adapters.encoders.task import EncoderTask, read_encoder, task_of_version
from tfs_lite.adapters.encoders.tokens import TextReader
from tfs_lite.adapters.language.budget import check_network
from tfs_lite.adapters.language.codec import TOKENIZER_FILES, VOCABULARIES, MadeOfFiles, load_tokenizer
from tfs_lite.adapters.language.hf_files import CONFIG, GENERATION_CONFIG, INDEX, read_json, recognises, weight_files
from tfs_lite.adapters.language.transformers_model import ARTEFACT, files_refused, open_transformers, reserved
from tfs_lite.adapters.language.weights import load_network, read_headers
from tfs_lite.adapters.memory import FIXED_BYTES
from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform, VersionFiles
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import failed_precondition, invalid_argument

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_READ = frozenset({CONFIG, INDEX, GENERATION_CONFIG, PROCESSOR, MODULES, LENGTHS, PROMPTS}) | TOKENIZER_FILES
DEFAULT_LENGTH = 512
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
WORKING = 12
"""Numbers of the largest layer's width that a forward has for each token at once."""
_READERS = MadeOfFiles[TextReader]()


def open_version(request: OpenRequest) -> OpenedModel:
    """Opens an encoder or a language model. Any thread. INVALID_ARGUMENT for settings; FAILED_PRECONDITION,
    PERMISSION_DENIED or DATA_LOSS for files that are not served, with the name of the field, file or tensor."""
    with files_refused():
        task = task_of_version(request.files)
    if task is None:
        return open_transformers(request)
    wanted = encoder_settings(request.settings)
    with files_refused():
        check_network(read_json(request.files.directory, CONFIG), read_headers(request.files))
        return _open(request, task, wanted)


def reserve_version(files: VersionFiles, settings: ModelSettings, on_gpu: bool) -> int:
    """An upper bound, in bytes, from the headers of the weights. Errors of :func:`open_version`."""
    with files_refused():
        if task_of_version(files) is None:
            return reserved(files, settings, on_gpu)
        wanted = encoder_settings(settings)
        config, headers = read_json(files.directory, CONFIG), read_headers(files)
        check_network(config, headers)
        weights = BYTES[wanted.dtype_name(on_gpu)] * sum(header.elements for header in headers.values())
        widths = (config.get(name) for name in ("intermediate_size", "hidden_size", "dim", "d_model"))
        widest = max((width for width in widths if type(width) is int), default=1024)
        return weights + weights // 20 + WORKING * 4 * widest * wanted.tokens(on_gpu) + FIXED_BYTES


def inspect_version(files: VersionFiles, task: EncoderTask, settings: ModelSettings) -> None:
    """Raises what opening would raise, as far as that shows without reading a tensor."""
    wanted = encoder_settings(settings)
    check_network(read_json(files.directory, CONFIG), read_headers(files))
    read_encoder(files, task)
    if task is EncoderTask.IMAGE_CLASSES:
        _check_inputs(wanted, ("pixels", "images"))
        open_processor(files)
        return
    _check_inputs(wanted, ("text", "tokens"))
    read_recipe(files)
    _check_tokenizer(files, wanted)


def _open(request: OpenRequest, task: EncoderTask, wanted: EncoderSettings) -> OpenedModel:
    files, on_gpu = request.files, request.on_gpu
    config, made = read_encoder(files, task)
    if task is EncoderTask.IMAGE_CLASSES:
        _check_inputs(wanted, ("pixels", "images"))
        processor = open_processor(files)
        if processor is None and wanted.inputs == "images":
            raise failed_precondition(
                f"parameters.inputs is images, which need {PROCESSOR} and Pillow: pip install pillow"
            )
        return ImageEncoder(request, _load(request, config, made, wanted), processor, wanted.inputs == "images")
    _check_inputs(wanted, ("text", "tokens"))
    recipe = _with_settings(read_recipe(files), wanted)
    _check_tokenizer(files, wanted)
    module = _load(request, config, made, wanted)
    default_pad, positions = getattr(config, "pad_token_id", None) or 0, _positions(module)

    def read_tokenizer() -> TextReader:
        tokenizer = load_tokenizer(files)
        length = _length(positions, tokenizer, recipe, wanted)
        pad = default_pad if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        cut = tokenizer.truncation_side
        return TextReader(tokenizer.backend_tokenizer, length, pad, recipe.prompt, recipe.lower_case, cut)

    reader = None
    if files.names & VOCABULARIES:
        reader = _READERS.of(files, read_tokenizer, positions, recipe, wanted)
    vocabulary = _vocabulary(module)
    if reader is not None and reader.vocabulary > vocabulary:
        raise failed_precondition(f"the tokenizer has {reader.vocabulary} tokens, and the network {vocabulary}")
    length = _length(positions, None, recipe, wanted) if reader is None else reader.length
    types = _types(module) if "token_type_ids" in inspect.signature(module.forward).parameters else 1
    forward, pad = GPU_FORWARD if on_gpu else CPU_FORWARD, default_pad if reader is None else reader.pad
    limits = EncoderLimits(length, vocabulary, wanted.tokens(on_gpu), forward, True, pad, types, shared=length)
    return TextEncoder(request, task, module, limits, reader, recipe, wanted.inputs == "tokens")


def _load(request: OpenRequest, config: Any, made: Any, wanted: EncoderSettings) -> PreTrainedModel:
    """A pooling layer of the network is left out: embeddings are made of the vectors before it."""
    dtype: torch.dtype = getattr(torch, wanted.dtype_name(request.on_gpu))
    pooler = "add_pooling_layer" in inspect.signature(made.__init__).parameters
    arguments = {"add_pooling_layer": False} if pooler else {}
    return load_network(request.files, config, dtype, torch.device(request.device), request.meter, made, **arguments)


def _length(positions: int | None, tokenizer: Any, recipe: Recipe, wanted: EncoderSettings) -> int:
    """The most tokens of a row. INVALID_ARGUMENT if the config asks for more than the network has ``positions``."""
    own = getattr(tokenizer, "model_max_length", None) or DEFAULT_LENGTH
    bounds = [bound for bound in (positions, recipe.max_length, own) if bound and bound < 2**31]
    if wanted.max_length is None:
        return min(bounds, default=DEFAULT_LENGTH)
    if positions and wanted.max_length > positions:
        raise invalid_argument(
            f"parameters.max_length is {wanted.max_length}, and the network has {positions} positions"
        )
    return wanted.max_length


def _vocabulary(module: PreTrainedModel) -> int:
    """The size of the network's vocabulary. FAILED_PRECONDITION for a network that reads something else than tokens of
    a table."""
    try:
        weight = module.get_input_embeddings().weight
    except (NotImplementedError, AttributeError):
        raise failed_precondition(
            f"{type(module).__name__} has no table of tokens, so it takes no texts here"
        ) from None
    assert isinstance(weight, torch.Tensor)
    return int(weight.shape[0])


def _positions(module: PreTrainedModel) -> int | None:
    """The positions that the network was made for; None if it has no bound. Families that number positions from the
    padding token on lose those before it."""
    for name, part in module.named_modules():
        if name.rpartition(".")[2] in ("position_embeddings", "wpe") and isinstance(part, torch.nn.Embedding):
            return part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
    found = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _types(module: PreTrainedModel) -> int:
    """How many types of tokens the network tells apart."""
    return getattr(module.config, "type_vocab_size", None) or 1


def _with_settings(recipe: Recipe, wanted: EncoderSettings) -> Recipe:
    pooling = recipe.pooling if wanted.pooling is None else wanted.pooling
    normalize = recipe.normalize if wanted.normalize is None else wanted.normalize
    return replace(recipe, pooling=pooling, normalize=normalize)


def _check_inputs(wanted: EncoderSettings, known: tuple[str, ...]) -> None:
    if wanted.inputs is not None and wanted.inputs not in known:
        raise invalid_argument(f"parameters.inputs is {wanted.inputs}, expected {' or '.join(known)}")


def _check_tokenizer(files: VersionFiles, wanted: EncoderSettings) -> None:
    """Raises FAILED_PRECONDITION if there is no tokenizer, unless the config says that clients send tokens."""
    if not files.names & VOCABULARIES and wanted.inputs != "tokens":
        raise failed_precondition(
            "there is no tokenizer.json: save the tokenizer beside the model with tokenizer.save_pretrained(directory) "
            "or set inputs of parameters to tokens"
        )


def _reads(files: VersionFiles, paths: Collection[str]) -> set[str]:
    """The weights, and what says how they are used."""
    steps = [path for path in paths if MODULES in files.names and path.endswith("/config.json")]
    return {*weight_files(files), *steps, *_READ}


PLATFORM = Platform(
    NAME,
    ARTEFACT,
    recognises,
    open_version,
    reserve=reserve_version,
    home="server",
    reads=_reads,
    leaves_threads=lambda request: request.on_gpu,  # those of the driver
)
