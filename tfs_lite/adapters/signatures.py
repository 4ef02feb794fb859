"""Several signatures for one model, as its config declares them.

A model has one signature of its own. Each :class:`Call` says how another one becomes a call of it: names are
exchanged, only the outputs that are needed are asked for, and scores get their class labels. What the config leaves
open is read in the simplest way: no mapping means the model's own names, and classify and regress take the only output.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from tfs_lite.adapters.contract import OpenedModel, OpenRequest
from tfs_lite.adapters.labels import read_labels
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import format_path, nearest
from tfs_lite.config.signatures import CLASSES, OUTPUTS_OF_METHOD, SCORES, ModelSignature, short_method
from tfs_lite.core.model import Shapes, WorkerStatus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    DataType,
    Signature,
    Tensor,
    TensorSpec,
    find_signature,
    format_shape,
)
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.runs import default_array, parse_default

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """One signature, and how it becomes a call of the model's own.

    ``inputs`` and ``outputs`` map the signature's names to the model's; a name that is not there is the same on both
    sides. With ``labels`` the output ``classes`` is made of them, for the scores that it maps to.
    """

    signature: Signature
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    labels: Array | None = None

    def feed(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs under the model's names."""
        return {self.inputs.get(name, name): value for name, value in inputs.items()}

    def needed(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The outputs to ask the model for."""
        return tuple(dict.fromkeys(self.outputs.get(name, name) for name in wanted))

    def answer(self, results: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
        """The wanted outputs (none: all there are) under the signature's names."""
        if not wanted:
            return dict(results)
        return {name: self._output(name, results[self.outputs.get(name, name)]) for name in wanted}

    def _output(self, name: str, value: Tensor) -> Tensor:
        return value if self.labels is None or name != CLASSES else _labelled(value, self.labels)


class SignedModel(OpenedModel):
    """An :class:`OpenedModel` that has the signatures of its config. It takes the model over, and closes it.

    Names are exchanged where requests come in and answers go out: around ``run``; around ``preprocess`` and
    ``postprocess`` where the model has them, and then ``run`` is the model's own, whatever the signature.
    """

    def __init__(self, model: OpenedModel, servable_id: ServableId, calls: Mapping[str, Call]) -> None:
        self._model = model
        self._id = servable_id
        self._calls = calls
        self._signatures = {key: call.signature for key, call in calls.items()}

    @property
    def platform(self) -> str:
        return self._model.platform

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """As every model; also INTERNAL if the scores have another number of classes than there are labels."""
        call = self._call(signature)
        if self._model.has_item_steps:
            return self._model.run(DEFAULT_SIGNATURE, inputs, outputs)
        wanted = outputs or call.signature.output_names
        return self._answer(call, self._model.run(DEFAULT_SIGNATURE, call.feed(inputs), call.needed(wanted)), wanted)

    def parts(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        """As every model; each answer has all outputs that are wanted."""
        call = self._call(signature)
        wanted = outputs or call.signature.output_names
        for results in self._model.parts(DEFAULT_SIGNATURE, call.feed(inputs), call.needed(wanted)):
            yield self._answer(call, results, wanted)

    @property
    def concurrency(self) -> int:
        return self._model.concurrency

    @property
    def lanes(self) -> int:
        return self._model.lanes

    @property
    def worker(self) -> WorkerStatus:
        return self._model.worker

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        call = self._call(signature)
        if self._model.has_item_steps:
            return self._model.stage(DEFAULT_SIGNATURE, shapes)
        names = {call.inputs.get(name, name): name for name in shapes}
        memory = self._model.stage(DEFAULT_SIGNATURE, {own: shapes[name] for own, name in names.items()})
        return None if memory is None else {names[own]: array for own, array in memory.items()}

    def recover(self, give_up: threading.Event) -> bool:
        return self._model.recover(give_up)

    @property
    def has_item_steps(self) -> bool:
        return self._model.has_item_steps

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return self._model.preprocess(DEFAULT_SIGNATURE, self._call(signature).feed(inputs), deadline)

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        """As every model; also INTERNAL as ``run``."""
        call = self._call(signature)
        results = self._model.postprocess(DEFAULT_SIGNATURE, outputs, deadline)
        return self._answer(call, results, call.signature.output_names)

    def _call(self, signature: str) -> Call:
        find_signature(self._signatures, signature)
        return self._calls[signature or DEFAULT_SIGNATURE]

    def _answer(self, call: Call, results: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
        try:
            return call.answer(results, wanted)
        except ServingError as error:
            place = f"model {self._id.name} version {self._id.version}"
            raise ServingError(error.code, f"{place}: {error.status.message}") from None

    def resident_bytes(self) -> int | None:
        return self._model.resident_bytes()

    def close(self) -> None:
        self._model.close()


def sign(model: OpenedModel, request: OpenRequest) -> OpenedModel:
    """The model with the signatures of its config; the model itself if the config has none.

    INVALID_ARGUMENT, naming the field of the config, if a signature does not fit the model, or its labels are missing
    or not those of the scores. A failure leaves the model open.
    """
    if not request.settings.signatures:
        return model
    own = find_signature(model.signatures, DEFAULT_SIGNATURE)
    return SignedModel(model, request.id, calls_of(own, request.settings, request.files.directory))


def calls_of(own: Signature, settings: ModelSettings, directory: str) -> dict[str, Call]:
    """By key, the signatures of a model whose own one is ``own``. That is ``serving_default``, unless the config lists
    this key itself. Reads files of labels in the version's ``directory``; errors as those of :func:`sign`."""
    calls = {DEFAULT_SIGNATURE: Call(own)}
    for key, wish in settings.signatures.items():
        calls[key] = _call(own, wish, format_path(("signatures", key)), directory)
    return calls


def labels_of(wish: ModelSignature, place: str, directory: str) -> Array | None:
    """The labels that the signature at ``place`` of the config names; None if it names none."""
    if not wish.label_filename:
        return None
    try:
        return read_labels(directory, wish.label_filename)
    except ServingError as error:
        raise ServingError(error.code, f"{place}.label_filename: {error.status.message}") from None


def _call(own: Signature, wish: ModelSignature, place: str, directory: str) -> Call:
    inputs, outputs = _inputs(own, wish, place), _outputs(own, wish, place)
    names = {model: client for client, model in inputs.items()}
    taken = tuple(replace(spec, name=names[spec.name]) for spec in own.inputs)
    given = {client: replace(_spec(own, model), name=client) for client, model in outputs.items()}
    labels = labels_of(wish, place, directory)
    if labels is not None:
        _check_labels(labels, outputs, given, f"{place}.label_filename")
        outputs[CLASSES] = outputs[SCORES]
        given[CLASSES] = TensorSpec(CLASSES, DataType.STRING, given[SCORES].shape)
    signature = Signature(taken, tuple(given.values()), wish.method_name, _defaults(taken, wish, place))
    return Call(signature, inputs, outputs, labels)


def _inputs(own: Signature, wish: ModelSignature, place: str) -> Mapping[str, str]:
    """The client's name of every input -> the model's."""
    known = own.input_names
    for client, model in wish.inputs.items():
        if model not in known:
            raise invalid_argument(f'{place}.inputs.{client}: the model has no input "{model}"{nearest(model, known)}')
    if not wish.inputs:
        return {name: name for name in known}
    for model in known:
        if model not in wish.inputs.values():
            raise invalid_argument(f'{place}.inputs: nothing feeds the input "{model}" of the model')
    return wish.inputs


def _outputs(own: Signature, wish: ModelSignature, place: str) -> dict[str, str]:
    """The client's name of every output -> the model's, in the order of the model's."""
    known = own.output_names
    for client, model in wish.outputs.items():
        if known and model not in known:
            raise invalid_argument(
                f'{place}.outputs.{client}: the model has no output "{model}"{nearest(model, known)}'
            )
    if not wish.outputs:
        return _usual_outputs(known, wish.method_name, place)
    order = {name: position for position, name in enumerate(known)}
    return dict(sorted(wish.outputs.items(), key=lambda pair: (order.get(pair[1], 0), pair[0])))


def _usual_outputs(known: Collection[str], method_name: str, place: str) -> dict[str, str]:
    """What a method without ``outputs`` in the config means: see :class:`ModelSignature`."""
    usual = OUTPUTS_OF_METHOD.get(method_name)
    if usual is None:
        return {name: name for name in known}
    found = {name: name for name in known if name in usual}
    if found:
        return found
    if len(known) == 1:
        (only,) = known
        return {usual[-1]: only}
    has = f"it has {', '.join(known)}" if known else "it does not declare its outputs"
    raise invalid_argument(
        f"{place}.outputs: {short_method(method_name)} needs {' or '.join(usual)}; say which outputs of the model they "
        f"are ({has})"
    )


def _spec(own: Signature, name: str) -> TensorSpec:
    """What is known of the model's output; a model may leave them undeclared."""
    return next((spec for spec in own.outputs if spec.name == name), TensorSpec(name))


def _check_labels(labels: Array, outputs: Mapping[str, str], given: Mapping[str, TensorSpec], place: str) -> None:
    if CLASSES in outputs:
        raise invalid_argument(f'{place}: the model has an output "{CLASSES}" already; keep one of both')
    if SCORES not in outputs:
        raise invalid_argument(f"{place}: there are no {SCORES} to label")
    shape = given[SCORES].shape
    if shape is None:
        return
    if len(shape) != 2:
        raise invalid_argument(f"{place}: {SCORES} have shape {format_shape(shape)}, labels need [batch,classes]")
    if isinstance(shape[1], int) and shape[1] != len(labels):
        raise invalid_argument(f"{place}: the file has {len(labels)} labels, the {SCORES} have {shape[1]} classes")


def _defaults(inputs: Iterable[TensorSpec], wish: ModelSignature, place: str) -> dict[str, Tensor]:
    specs = {spec.name: spec for spec in inputs}
    found: dict[str, Tensor] = {}
    for client, text in wish.defaults.items():
        if client not in specs:
            raise invalid_argument(f"{place}.defaults.{client}: there is no such input{nearest(client, specs)}")
        try:
            found[client] = default_array(parse_default(text), specs[client])
        except ServingError as error:
            raise invalid_argument(f"{place}.defaults.{client}: {error.status.message}") from None
    return found


def _labelled(scores: Tensor, labels: Array) -> Array:
    """The labels for every row of scores."""
    array = cast(Array, scores)
    if array.ndim != 2 or array.shape[1] != len(labels):
        raise ServingError(
            StatusCode.INTERNAL,
            f"the model returned {SCORES} of shape {format_shape(array.shape)}, but there are {len(labels)} labels",
        )
    return np.tile(labels, (array.shape[0], 1))
