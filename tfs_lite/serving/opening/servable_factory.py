"""The factory of servables: by which scheduler and which settings models run on this server.

For a model whose requests may be batched, its own config (``dynamic_batching``) comes first, then ``--enable_batching``
and its parameters; without either, every request runs alone. :class:`ServingSettings` remembers with which config each
version in memory was loaded, because the files may say something else by now.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfs_lite.adapters.labels import read_labels
from tfs_lite.adapters.loader import MakeServable
from tfs_lite.adapters.opening import LoadedFiles, OpenedModel, OpenRequest
from tfs_lite.config.batching import BatchingParameters, combined, parameters_without_file, read_version_parameters
from tfs_lite.config.generation import GenerationSettings, generation_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import DynamicBatching
from tfs_lite.config.server_files import read_batching_parameters
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.generation import LanguageModel
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import Model, OnBatch, OnCall, PredictServable, Servable, Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, SymbolicDim
from tfs_lite.core.status import ServingError, invalid_argument, not_found
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.metrics.generation import GenerationMetrics
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.retries import Retries
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import (
    BatchSettings,
    SendWhen,
    filled_up,
    rows_of_runs,
    settings_of_model,
    settings_of_parameters,
)
from tfs_lite.schedulers.cached import CachedServable
from tfs_lite.schedulers.decoupled import DecoupledServable
from tfs_lite.schedulers.ensemble.servable import EnsembleServable, Resolve, ResolveSequence
from tfs_lite.schedulers.generation.servable import GenerativeServable
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.items import ItemRule, ItemServable
from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.schedulers.sequence.sequence_manager import OnForgotten
from tfs_lite.schedulers.sequence.servable import SequenceServable
from tfs_lite.serving.options import ServerOptions

ITEM_THREADS = 2
"""Threads for the item steps of each version that has them."""


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """The options of batching. ``parameters`` None means that only a model's own config asks for it.

    ``threads``: how many batches of one version may run at once, where the model supports it.
    """

    parameters: BatchingParameters | None
    per_model: bool
    threads: int
    greedy: bool
    max_queued_calls: int

    @classmethod
    def read(cls, options: ServerOptions) -> BatchingOptions:
        """Reads the file that the options name. Raises ServingError."""
        parameters = _parameters(options)
        written = parameters is not None and "num_batch_threads" in parameters.model_fields_set
        return cls(
            parameters,
            options.enable_per_model_batching_parameters,
            parameters.num_batch_threads if written and parameters is not None else 1,
            options.send_batches == "greedy",
            options.max_queued_requests,
        )

    def settings(self, request: OpenRequest, signatures: Collection[Signature], merges: bool = False) -> BatchSettings:
        """The batching settings of one version. ``merges``: its calls are batched also where nothing asks for it.
        INVALID_ARGUMENT if its own file is wrong."""
        said = request.settings
        if merges and said.dynamic_batching is None and self.parameters is None:
            said = said.model_copy(update={"dynamic_batching": DynamicBatching()})
        own = settings_of_model(said, _most_rows(signatures), self.max_queued_calls)
        found = own or self._of_parameters(request, signatures)
        if self.greedy and found.send is SendWhen.EXPECT:
            return replace(found, send=SendWhen.GREEDY)
        return found

    def batch_rows(self, request: OpenRequest) -> tuple[int, ...]:
        """The numbers of rows that batches of a version will mostly have, as far as the config says it."""
        if request.settings.sequence_batching is not None:
            return rows_of_runs(BatchSettings(max_batch_size=request.settings.max_batch_size))
        return rows_of_runs(self.settings(request, ()))

    def _of_parameters(self, request: OpenRequest, signatures: Collection[Signature]) -> BatchSettings:
        parameters = self.parameters
        if parameters is not None and self.per_model:
            parameters = combined(parameters, read_version_parameters(Path(request.files.directory)))
        if parameters is None:
            return BatchSettings(max_queued_calls=self.max_queued_calls)
        bounds = [bound for bound in (request.settings.max_batch_size, _most_rows(signatures)) if bound]
        return settings_of_parameters(parameters, min(bounds, default=0), self.max_queued_calls)


def engine_settings(settings: GenerationSettings, model: LanguageModel) -> EngineSettings:
    """The settings of the engine for a model that is loaded: its own cache slots and length, and defaults for the rest
    that the config leaves open."""
    slots, length = model.limits.slots, model.limits.length
    on_gpu = not model.shares_compute
    return EngineSettings(
        slots=slots,
        length=length,
        rows=settings.rows(on_gpu),
        chunk=settings.chunk(on_gpu),
        max_queue=settings.queue(slots),
        max_queued_tokens=settings.queued_tokens(slots, length),
        queue_timeout=settings.queue_timeout,
        policy=settings.policy,
        prefix_reuse=settings.prefix_reuse,
        slowdown=settings.prefill_slowdown,
    )


def no_other_models(name: str, version: int | None) -> ServableHandle:
    """The lookup of a server without other models."""
    raise not_found(f"Request for unknown model: '{name}' is not found")


@dataclass(frozen=True, slots=True)
class ServableEnvironment:
    """The functions by which servables ask the server and report to it.

    ``on_batch`` is called after the runs of versions that are batched, ``on_run`` after those of others, ``on_call``
    after the steps of ensembles, ``on_forgotten`` when a sequence has ended. ``generation`` counts for language models.
    ``cache`` None means that no responses are cached.
    """

    on_batch: OnBatch = ignore
    on_run: OnBatch = ignore
    on_call: OnCall = ignore
    on_forgotten: OnForgotten | None = None
    generation: GenerationMetrics | None = None
    resolve: Resolve = no_other_models
    resolve_sequence: ResolveSequence | None = None
    cache: ResponseCache | None = None


class ServableFactory:
    """The servable factory of adapters: equal models of one version -> what requests are sent to. Any thread."""

    def __init__(self, options: BatchingOptions, clock: Clock, environment: ServableEnvironment | None = None) -> None:
        self._batching_options = options
        self._clock = clock
        self._environment = environment or ServableEnvironment()

    def __call__(self, models: Sequence[Model], request: OpenRequest) -> Servable:
        """Takes the models over. Raises ServingError, with the models left to the caller."""
        settings, environment = request.settings, self._environment
        made: PredictServable
        if models and isinstance(models[0], LanguageModel):
            return self._generative(models, request)
        if settings.ensemble_scheduling is not None:
            most = self._batching_options.max_queued_calls
            made = EnsembleServable(
                request.id,
                settings,
                environment.resolve,
                environment.on_call,
                resolve_sequence=environment.resolve_sequence,
                max_requests=most,
                labels=_labels(request),
            )
        else:
            made = self._of_models(models, request)
        return self._cached(made, request)

    def _generative(self, models: Sequence[Model], request: OpenRequest) -> GenerativeServable:
        model = models[0]
        assert isinstance(model, LanguageModel)
        if len(models) > 1:
            raise invalid_argument(
                "instance_group: a language model has one instance; max_batch_size says how many texts run"
            )
        metrics, wanted = self._environment.generation, generation_settings(request.settings)
        made = GenerativeServable(
            model,
            request.id,
            engine_settings(wanted, model),
            clock=self._clock,
            on_step=metrics.on_step if metrics else ignore,
            on_text=metrics.on_text if metrics else ignore,
        )
        if metrics is not None:
            metrics.watch(request.id, made)
        return made

    def _of_models(self, models: Sequence[Model], request: OpenRequest) -> PredictServable:
        settings = request.settings
        labels = {**models[0].labels, **_labels(request)}
        once = not settings.retry_lost_batches
        traits = Traits(models[0].platform, settings.max_batch_size, labels, runs_once=once)
        if settings.sequence_batching is not None:
            return self._sequences(models, request, traits)
        if settings.model_transaction_policy.decoupled:
            return self._decoupled(models, request, traits)
        return self._batching(models, request, traits)

    def _sequences(self, models: Sequence[Model], request: OpenRequest, traits: Traits) -> SequenceServable:
        return SequenceServable(
            models,
            request.id,
            request.settings,
            self._clock,
            self._environment.on_batch,
            self._environment.on_forgotten,
            directory=Path(request.files.directory).parent,
            max_queued=self._batching_options.max_queued_calls,
            traits=traits,
        )

    def _decoupled(self, models: Sequence[Model], request: OpenRequest, traits: Traits) -> DecoupledServable:
        if any(model.worker.kind != "thread" for model in models):
            raise invalid_argument(
                "model_transaction_policy.decoupled: such a model runs in a thread of the server; say worker: "
                '"thread" in its instance_group'
            )
        most, on_run = self._batching_options.max_queued_calls, self._environment.on_run
        return DecoupledServable(
            models, request.id, clock=self._clock, max_queued_calls=most, on_batch=on_run, traits=traits
        )

    def _batching(
        self, models: Sequence[Model], request: OpenRequest, traits: Traits
    ) -> BatchingServable | ItemServable:
        items = models[0].has_item_steps
        settings = self._batching_options.settings(request, list(models[0].signatures.values()), models[0].merges_calls)
        settings = filled_up(settings, models[0].captured_rows)
        inner = BatchingServable(
            models,
            request.id,
            settings,
            clock=self._clock,
            on_batch=self._environment.on_batch if settings.merges else self._environment.on_run,
            threads=self._batching_options.threads,
            rule_of=ItemRule.of if items else BatchRule.of,
            traits=traits,
            retries=Retries(request.settings.retry_lost_batches),
        )
        if not items:
            return inner
        name = f"{request.id.name}-{request.id.version}"
        threads = 1 if settings.preserve_ordering else ITEM_THREADS
        most = self._batching_options.max_queued_calls
        try:
            return ItemServable(inner, models, name, threads=threads, max_waiting=most)
        except ServingError:
            inner.release()
            raise

    def _cached(self, made: PredictServable, request: OpenRequest) -> Servable:
        wanted, cache = request.settings.response_cache, self._environment.cache
        if cache is None or wanted is None or not wanted.enable:
            return made
        batching = request.settings.dynamic_batching
        ordered = self._batching_options.max_queued_calls if batching is not None and batching.preserve_ordering else 0
        return CachedServable(made, cache, request.id, ordered=ordered)


def _labels(request: OpenRequest) -> Mapping[str, Sequence[str]]:
    """The labels of the classes, by output. INVALID_ARGUMENT without the file."""
    directory = request.files.directory
    wanted = {output.name: output.label_filename for output in request.settings.output if output.label_filename}
    return {name: [text.decode() for text in read_labels(directory, file)] for name, file in wanted.items()}


def _parameters(options: ServerOptions) -> BatchingParameters | None:
    if not options.enable_batching:
        for name in ("batching_parameters_file", "enable_per_model_batching_parameters"):
            if getattr(options, name):
                raise invalid_argument(f"{name} is set without setting enable_batching to true")
        return None
    if not options.batching_parameters_file:
        return parameters_without_file()
    return read_batching_parameters(options.batching_parameters_file, Path.cwd())


def _most_rows(signatures: Collection[Signature]) -> int | None:
    """The most rows that the batch dimensions of all signatures allow; None means any number."""
    firsts = [spec.shape[0] for signature in signatures for spec in signature.inputs if spec.shape]
    return min((dim.maximum for dim in firsts if isinstance(dim, SymbolicDim) and dim.maximum), default=None)


def worker_states(servable_id: ServableId, servable: Servable, drains: bool = False) -> Iterator[WorkerState]:
    """The worker status of every instance."""
    for number, model in enumerate(servable.models):
        worker = model.worker
        yield WorkerState(
            servable_id,
            number,
            worker.kind,
            worker.up,
            worker.pid,
            worker.restarts,
            "; ".join(filter(None, (worker.reason, servable.traits.runs_alone))),
            worker.node,
            worker.cause,
            worker.failure,
            worker.retry_at,
            worker.sandbox,
            drains,
        )


class ServingSettings:
    """A servable factory that calls another one and remembers the settings of what it made, and from which files. Any
    thread."""

    def __init__(self, make: MakeServable) -> None:
        self._make = make
        self._lock = threading.Lock()  # guards the two below
        self._settings: weakref.WeakKeyDictionary[Servable, ModelSettings] = weakref.WeakKeyDictionary()
        self._files: weakref.WeakKeyDictionary[Servable, LoadedFiles] = weakref.WeakKeyDictionary()

    def __call__(self, models: Sequence[OpenedModel], request: OpenRequest) -> Servable:
        servable = self._make(models, request)
        with self._lock:
            self._settings[servable] = request.settings
            if request.loaded_from is not None:
                self._files[servable] = request.loaded_from
        return servable

    def changed(self, servable: Servable, settings: ModelSettings) -> None:
        """The servable was resized: these are its settings now."""
        with self._lock:
            self._settings[servable] = settings

    def of(self, servable: Servable) -> ModelSettings:
        """Defaults for a servable that was not made here."""
        with self._lock:
            return self._settings.get(servable) or ModelSettings()

    def files_of(self, servable: Servable) -> LoadedFiles | None:
        """None for a servable that was not made here."""
        with self._lock:
            return self._files.get(servable)
