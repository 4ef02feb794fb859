"""Platform ``transformers``: a language model as ``save_pretrained`` writes it, behind an engine that batches texts.

settings and files are checked -> weights -> a network with slots -> self-check -> TransformersModel

The version needs no trust, because files with code and pickles are refused. transformers is imported when the first
version is opened. A family that gives other answers in a batch than alone is served one text at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from tfs_lite.adapters.cuda.failed_gpu import GPU_WATCH
from tfs_lite.adapters.failures import out_of_memory, sentence
from tfs_lite.adapters.language.architectures import Architectures, architecture
from tfs_lite.adapters.language.budget import budget, dtype_name, length_of, reserve
from tfs_lite.adapters.language.codec import open_codec
from tfs_lite.adapters.language.engine_stream import EngineStream
from tfs_lite.adapters.language.family import network_config
from tfs_lite.adapters.language.hf_files import CONFIG, GENERATION_CONFIG, check_settings, eos_ids, read_optional
from tfs_lite.adapters.language.packed import pack, packed_bytes
from tfs_lite.adapters.language.sampler import sample
from tfs_lite.adapters.language.weights import load_network
from tfs_lite.adapters.opening import OpenedModel, OpenRequest, VersionFiles
from tfs_lite.config.generation import GenerationSettings, generation_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.generation import GenerationLimits, LanguageModel, SampledToken, Step, TextCodec
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor
from tfs_lite.core.status import Reason, ServingError, StatusCode, failed_precondition
from tfs_lite.protocols.generation_tensors import generation_signature

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tfs_lite.adapters.language.attention import ShapeProbe
    from tfs_lite.adapters.language.self_check import SelfCheckResult

NAME = "transformers"
ARTEFACT = "config.json and *.safetensors"
MIB = 1 << 20
_PASSED: Architectures[ShapeProbe] = Architectures()
"""The shapes of those whose networks have passed the whole self-check."""
logger = logging.getLogger(__name__)


class StepNetwork(Protocol):
    """A network with slots."""

    def logits(self, step: Step) -> torch.Tensor:
        """The logits, [wanted, vocabulary], in the order that :func:`~tfs_lite.adapters.language.sampler.sample` takes
        them."""

    def resident_bytes(self) -> int:
        """Weights and cache."""

    def close(self) -> None:
        """Drops what refers to the cache. To be called when the device has finished the last step."""


class TransformersModel(LanguageModel, OpenedModel):
    """A loaded language model. Threads: as :class:`~tfs_lite.core.generation.LanguageModel` says."""

    def __init__(
        self,
        network: StepNetwork,
        codec: TextCodec | None,
        limits: GenerationLimits,
        device: torch.device,
        batches: bool,
        stream: EngineStream,
    ) -> None:
        """``stream`` is the one that the network was made on; the model closes it."""
        self._network = network
        self._stream = stream
        self._codec = codec
        self._limits = limits
        self._device = device
        self._batches = batches
        self._signatures = {DEFAULT_SIGNATURE: generation_signature(codec is not None)}
        self._resident = network.resident_bytes()

    @property
    def platform(self) -> str:
        return NAME

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    @property
    def limits(self) -> GenerationLimits:
        return self._limits

    @property
    def codec(self) -> TextCodec | None:
        return self._codec

    @property
    def shares_compute(self) -> bool:
        return self._device.type == "cpu"

    @property
    def batches(self) -> bool:
        return self._batches

    def step(self, step: Step) -> Sequence[SampledToken]:
        try:
            with torch.inference_mode(), self._stream.current():
                return sample(self._network.logits(step), step)
        except RuntimeError as error:
            GPU_WATCH.saw(error)
            raise

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """UNIMPLEMENTED: an engine steps it."""
        raise ServingError(StatusCode.UNIMPLEMENTED, "a language model does not run single requests")

    def resident_bytes(self) -> int:
        return self._resident

    def close(self) -> None:
        """Drops weights and cache. To be called after the last step."""
        self._stream.synchronize()
        self._network.close()
        del self._network
        self._stream.close()


def open_transformers(request: OpenRequest) -> TransformersModel:
    """Opens a version. INVALID_ARGUMENT for settings; FAILED_PRECONDITION, PERMISSION_DENIED or DATA_LOSS for files
    that are not served, with the name of the field, file or tensor. Any thread, which should end soon afterwards: an
    idle one that has used torch slows the engine down."""
    check_settings(request.settings)
    wanted = generation_settings(request.settings)
    with files_refused():
        return _open_on_a_stream(request, wanted)


def reserved(files: VersionFiles, settings: ModelSettings, on_gpu: bool) -> int:
    """The memory to reserve, as :func:`~tfs_lite.adapters.language.budget.reserve` says."""
    with files_refused():
        return reserve(files, settings, on_gpu)


@contextmanager
def files_refused() -> Iterator[None]:
    """Turns FAILED_PRECONDITION into FILES_REFUSED: a retry is of no use until the files change."""
    try:
        yield
    except ServingError as error:
        if error.code is not StatusCode.FAILED_PRECONDITION:
            raise
        raise ServingError(error.code, str(error), Reason.FILES_REFUSED) from None


def _open_on_a_stream(request: OpenRequest, wanted: GenerationSettings) -> TransformersModel:
    stream = EngineStream(torch.device(request.device))
    try:
        with stream.current():
            return _open(request, wanted, stream)
    except BaseException:
        stream.close()
        raise


def _open(request: OpenRequest, wanted: GenerationSettings, stream: EngineStream) -> TransformersModel:
    device, on_gpu = torch.device(request.device), request.on_gpu
    needs = budget(request.files, request.settings, on_gpu)
    config = network_config(request.files)
    opened = open_codec(request.files)
    codec, end = opened or (None, None)
    dtype: torch.dtype = getattr(torch, dtype_name(wanted, on_gpu))
    graphs = on_gpu and wanted.cuda_graphs
    slots, length = wanted.slots(on_gpu), length_of(wanted, on_gpu, config.get_text_config().to_dict())
    module = load_network(request.files, config, dtype, device, request.meter)
    vocabulary = _vocabulary(module)
    sources = [read_optional(request.files, GENERATION_CONFIG), *_eos_of(module), {"eos_token_id": end}]
    network, why = _packed_network(module, request, slots, length) if wanted.packed_weights else None, ""
    if network is None:
        if packed_bytes(module):
            del module
            module = load_network(request.files, config, dtype, device, request.meter)
        network, why = choose_network(module, device, slots, length, wanted.fallback == "interleaved", graphs)
    limits = GenerationLimits(slots, length, vocabulary, _eos(request, sources, vocabulary))
    logger.info(
        "%s: %s in %s, weights of %d MiB, cache of %d slots of %d tokens, %d MiB; %s",
        request.id,
        type(module).__name__,
        dtype,
        needs.weights // MIB,
        slots,
        length,
        needs.cache // MIB,
        f"one text at a time: {why}" if why else "texts share every step",
    )
    if graphs and not why:
        _capture(network, request)
    return TransformersModel(network, codec, limits, device, not why, stream)


def _packed_network(module: PreTrainedModel, request: OpenRequest, slots: int, length: int) -> StepNetwork | None:
    """The network with packed weights; None if there is nothing to pack, or if the result does not pass its self-check:
    some families read weights outside of their layers."""
    from tfs_lite.adapters.language.self_check import needs_fallback

    if needs_fallback(module, length) is not None or not pack(module):
        return None
    found = _batched_network(module, torch.device(request.device), slots, length)
    if isinstance(found, str):
        logger.info("%s: weights stay as they are: %s", request.id, found)
        return None
    return found


def _capture(network: StepNetwork, request: OpenRequest) -> None:
    """Captures the decode steps of a batched network on a GPU."""
    from tfs_lite.adapters.language.fixed_decode import capture_decode
    from tfs_lite.adapters.language.network import Network

    if isinstance(network, Network):
        capture_decode(network, request.id)


def choose_network(
    module: PreTrainedModel, device: torch.device, slots: int, length: int, may_fall_back: bool, fixed: bool = False
) -> tuple[StepNetwork, str]:
    """The network, which has passed its self-check, and why it takes one text at a time; the reason is empty for a
    batched network. ``fixed``: with room for decode steps of fixed shapes. FAILED_PRECONDITION, with the reason, if it
    may not fall back or fails that way too."""
    from tfs_lite.adapters.language.interleaved import InterleavedNetwork
    from tfs_lite.adapters.language.self_check import needs_fallback, self_check

    why = needs_fallback(module, length)
    if why is None:
        attention = module.config._attn_implementation
        found = _batched_network(module, device, slots, length, fixed)
        if not isinstance(found, str):
            return found, ""
        why = found
        module.set_attn_implementation(attention)
    if not may_fall_back:
        raise failed_precondition(f"texts cannot share steps, and parameters.fallback is refuse: {why}")
    alone = InterleavedNetwork(module, device, slots, length)
    result = self_check(alone, module)
    _require_finite(result, module)
    if result.is_wrong:
        raise failed_precondition(
            f"models of the family {module.config.model_type} cannot be served: in pieces, on a cache, a text gets "
            f"other answers than as a whole ({result}). A network that is to generate may need is_decoder in {CONFIG}"
        )
    return alone, why


def _batched_network(
    module: PreTrainedModel, device: torch.device, slots: int, length: int, fixed: bool = False
) -> StepNetwork | str:
    """The network that takes many texts in one forward, or the reason why there is none."""
    from tfs_lite.adapters.language.network import Network
    from tfs_lite.adapters.language.self_check import self_check

    key = architecture(module, slots, length, packed_bytes(module) > 0)
    known = _PASSED.find(key)
    try:
        network = Network(module, device, slots, length, fixed=fixed, probe=known)
        result = self_check(network, module, brief=known is not None)
        if known is not None and not result.ok:
            result = self_check(network, module)
    except Exception as error:
        if out_of_memory(error):
            raise
        return sentence(error)
    _require_finite(result, module)
    if result.ok:
        _PASSED.add(key, network.probe)
    return network if result.ok else str(result)


def _require_finite(result: SelfCheckResult, module: PreTrainedModel) -> None:
    if not result.is_finite:
        raise failed_precondition(f"what the network computes in {module.dtype} is not finite: try another dtype")


def _vocabulary(module: PreTrainedModel) -> int:
    """The number of logits of a row."""
    head = module.get_output_embeddings()  # type: ignore[no-untyped-call]
    weight = getattr(head, "weight", None)
    return int(module.config.get_text_config().vocab_size if weight is None else weight.shape[0])


def _eos_of(module: PreTrainedModel) -> Iterator[Mapping[str, object]]:
    configs = {id(config): config for config in (module.config, module.config.get_text_config())}
    for config in configs.values():
        yield {"eos_token_id": getattr(config, "eos_token_id", None)}


def _eos(request: OpenRequest, sources: Sequence[Mapping[str, object]], vocabulary: int) -> frozenset[int]:
    """The end-of-text tokens of the first source that has any in the vocabulary."""
    for source in sources:
        ids = eos_ids([source])
        known = frozenset(token for token in ids if 0 <= token < vocabulary)
        if len(known) < len(set(ids)):
            logger.warning(
                "%s: eos_token_id has %s, but the vocabulary ends at %d",
                request.id,
                sorted(set(ids) - known),
                vocabulary - 1,
            )
        if known:
            return known
    return frozenset()
